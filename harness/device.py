"""A deterministic simulation of device streams and events.

Fault model: what this device may do to a trace, and what it never does.

- There are as many streams as the target's traits name. Work on one stream executes in the order in which it was enqueued. It
  executes when the trace advances that stream, when a launch is retired, a load has landed or a transfer is complete (then
  everything that it needs executes first), or when the session ends. So a read or write may happen at any moment between its
  launch and its completion.
- Work on two streams is ordered by events alone: work may wait for other work, and what the host has seen complete before
  it enqueues is ordered before. Nothing else orders them, so a trace may let either go first.
- An access is a set of slots read and a set written; a row of a static buffer counts as a slot. Two accesses on different
  streams that touch one slot, one of them writing, and that no event orders, are a violation (``order``) when the second of
  them executes, whichever that is.
- A launch whose rows depend on the unretired outcome of an earlier one waits until that outcome is known.
- A transfer may fail between two of its pieces (``Fail``, or a store that refuses one) or in the middle of one (``Tear``: the
  first half of its bytes is moved). What is left of it then moves nothing, and the manager hears of it at some later time,
  in any order with other transfers, and where its trait allows it more than once. Launches do not fail.
- A static buffer of captured graphs is filled when its ``Fill`` executes, with what the runner's staging memory holds then.
- No work is executed twice, and none moves other bytes than it was told to: stores may lose and damage what they hold
  (``Spoil``, ``Restart``), streams do not. A load from a store that has restarted asks it again.

Each piece of work carries a vector clock: how far into every stream the past of this work is known to reach.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kvsan.harness.expectation import Life, Row
from kvsan.harness.graphs import Graph
from kvsan.harness.pull import PullWork
from kvsan.harness.target import COMPUTE_STREAM, COPY_STREAM, Copy, Effect, Fill, IntArray, Zero
from kvsan.harness.tiers import Put
from kvsan.harness.transfer import Transfer
from kvsan.harness.verdict import Violation

STREAMS = (COMPUTE_STREAM, COPY_STREAM)
COMPUTE, COPY = 0, 1
"""Numbers of the two streams that every device has; others follow in the order of the traits."""


@dataclass(slots=True)
class LaunchWork:
    """A batch on the device; through a graph, if there is one."""

    b: str
    rows: list[Row]
    graph: Graph | None = None


@dataclass(slots=True)
class LoadWork:
    """A connector writes positions ``[start, stop)`` of a request, in every group."""

    life: Life
    tables: list[IntArray]
    start: int
    stop: int


Payload = LaunchWork | LoadWork | PullWork | Effect

Clock = tuple[int, ...]
"""How far into every stream."""


@dataclass(slots=True)
class Work:
    """One enqueued item; ``clock[s]`` is the last item of stream s that is ordered before it (or is itself).

    ``transfer`` is what it is a piece of. ``ends`` are the slots that it reads and writes, when somebody has asked.
    """

    stream: int
    payload: Payload
    step: int
    clock: tuple[int, ...]
    transfer: Transfer | None = None
    ends: tuple[IntArray, IntArray] | None = None

    @property
    def sequence(self) -> int:
        """Position in its own stream, from 1."""
        return self.clock[self.stream]


class Executor(Protocol):
    """What gives work its meaning."""

    def ready(self, work: Work) -> bool:
        """Whether everything that the work binds at execution is known."""

    def execute(self, work: Work) -> None:
        """Move the bytes."""

    def tear(self, work: Work) -> None:
        """Move the first half of the bytes."""

    def accesses(self, work: Work) -> tuple[IntArray, IntArray]:
        """Slots read and slots written, after execution; rows of static buffers are numbered behind all slots."""


class RealStreams(Protocol):
    """Streams of hardware, to which work is issued in the order of the simulation (``kvsan.gpu_kernels.cuda_streams``)."""

    def work(self, stream: int, clock: Clock) -> AbstractContextManager[None]:
        """Launch what is launched inside on a stream, behind everything that the clock names."""

    def synchronize(self, clock: Clock) -> None:
        """Let the host wait for the last work of each stream that the clock names."""


class Device:
    """The streams, what each has executed, and what the host has seen of them."""

    def __init__(self, executor: Executor, streams: tuple[str, ...] = STREAMS) -> None:
        self._executor = executor
        self.streams = streams
        self._others = [
            tuple(other for other in range(len(streams)) if other != stream) for stream in range(len(streams))
        ]
        self._queues: list[deque[Work]] = [deque() for _ in streams]
        self._last: list[tuple[int, ...]] = [(0,) * len(streams) for _ in streams]
        self._executed = [0] * len(streams)
        self._host: tuple[int, ...] = (0,) * len(streams)
        self._recent: list[Work] = []
        self._real: RealStreams | None = None
        self._marks = np.zeros(0, bool)
        self.name_slot: Callable[[int], str] = "slot {}".format

    def enqueue(
        self,
        stream: int,
        payload: Payload,
        step: int,
        after: Sequence[tuple[int, ...]] = (),
        transfer: Transfer | None = None,
    ) -> Work:
        """Put work on a stream, behind the events ``after`` and behind what the host has seen complete."""
        clock = [max(known, seen) for known, seen in zip(self._last[stream], self._host, strict=True)]
        for event in after:
            clock = [max(known, seen) for known, seen in zip(clock, event, strict=True)]
        clock[stream] = self._last[stream][stream] + 1
        work = Work(stream, payload, step, tuple(clock), transfer)
        self._last[stream] = work.clock
        self._queues[stream].append(work)
        return work

    def advance(self, stream: int) -> bool:
        """Execute the next item of a stream; False if there is none or it still waits."""
        queue = self._queues[stream]
        if not queue:
            return False
        if not self._can_run(queue[0]):
            return False
        self._run(queue.popleft(), self._executor.execute)
        return True

    def _can_run(self, work: Work) -> bool:
        clock, executed = work.clock, self._executed
        for other in self._others[work.stream]:
            if executed[other] < clock[other]:
                return False
        return self._executor.ready(work)

    def _run(self, work: Work, move: Callable[[Work], None]) -> None:
        """Move the bytes of the first item of a stream, unless the transfer that it belongs to has failed."""
        transfer = work.transfer
        self._executed[work.stream] += 1
        if transfer is not None:
            transfer.left -= 1
            if transfer.failure:
                return
        if self._real is None:
            move(work)
        else:
            with self._real.work(work.stream, work.clock):
                move(work)
        self._check_order(work)

    def issue_to(self, real: RealStreams) -> None:
        """From now on let real streams carry the work out; what is judged stays the same."""
        self._real = real

    def tear(self, transfer: Transfer) -> bool:
        """Move half of a transfer's next piece, if it stands first in its stream and can run; the caller fails the rest."""
        for queue in self._queues:
            if queue and queue[0].transfer is transfer and self._can_run(queue[0]):
                self._run(queue.popleft(), self._executor.tear)
                return True
        return False

    def pending(self, stream: int) -> int:
        """Items of a stream that have not been executed."""
        return len(self._queues[stream])

    def complete(self, work: Work) -> bool:
        """Execute everything that ``work`` needs and the work itself; the host has then seen it complete.

        False if it cannot complete yet: it waits, in the end, for an outcome that the host must deliver first.
        """
        clock = work.clock
        while any(done < upto for done, upto in zip(self._executed, clock, strict=True)):
            behind = [stream for stream, upto in enumerate(clock) if self._executed[stream] < upto]
            if not any([self.advance(stream) for stream in behind]):
                return False
        if self._real is not None:
            self._real.synchronize(clock)
        self._host = tuple(max(seen, done) for seen, done in zip(self._host, clock, strict=True))
        self._forget()
        return True

    def drain(self) -> None:
        """Execute whatever can be."""
        while any(self.advance(stream) for stream in range(len(self.streams))):
            pass

    def event(self, stream: int) -> tuple[int, ...]:
        """Record an event behind everything that a stream has been given so far."""
        return self._last[stream]

    def _check_order(self, work: Work) -> None:
        stream, clock = work.stream, work.clock
        for earlier in self._recent:
            if earlier.stream != stream and clock[earlier.stream] < earlier.sequence:
                self._conflict(earlier, work)
        self._recent.append(work)

    def _accesses(self, work: Work) -> tuple[IntArray, IntArray]:
        if work.ends is None:
            work.ends = self._executor.accesses(work)
        return work.ends

    def _conflict(self, earlier: Work, later: Work) -> None:
        reads, writes = self._accesses(earlier)
        reads_too, writes_too = self._accesses(later)
        for ours, theirs, what in ((writes, writes_too, "write-write"), (writes, reads_too, "write-read"),
                                   (reads, writes_too, "read-write")):  # fmt: skip
            common = self._common(ours, theirs)
            if len(common):
                raise Violation(
                    "order",
                    what,
                    f"{self._place(int(common[0]), earlier, later)}: {self.describe(earlier)} and "
                    f"{self.describe(later)} are not ordered by any event",
                )

    def _place(self, cell: int, *works: Work) -> str:
        """Name what two accesses meet in; a fill writes rows of its buffer and nothing else."""
        for work in works:
            if isinstance(work.payload, Fill):
                row = work.payload.row + cell - int(self._accesses(work)[1][0])
                return f"row {row} of buffer {work.payload.buffer!r}"
        return self.name_slot(cell)

    def _common(self, ours: IntArray, theirs: IntArray) -> IntArray:
        """Slots that are in both, by marking: sorting them would cost more than a launch."""
        if not len(ours) or not len(theirs):
            return ours[:0]
        highest = max(int(ours.max()), int(theirs.max()))
        if highest >= len(self._marks):
            self._marks = np.zeros(2 * highest + 1, bool)
        self._marks[ours] = True
        common = theirs[self._marks[theirs]]
        self._marks[ours] = False
        return common

    def _forget(self) -> None:
        """Drop accesses that all work to come is ordered behind."""
        kept = []
        for work in self._recent:
            known = min((other.clock[work.stream] for queue in self._queues for other in queue), default=work.sequence)
            if min(known, self._host[work.stream]) < work.sequence:
                kept.append(work)
        self._recent = kept

    def describe(self, work: Work) -> str:
        """One phrase about a piece of work."""
        payload = work.payload
        if isinstance(payload, LaunchWork):
            what = f"launch {payload.b}" + (f" through graph {payload.graph.g}" if payload.graph else "")
        elif isinstance(payload, LoadWork):
            what = f"the external load of {payload.life.name}@{payload.start}..{payload.stop - 1}"
        elif isinstance(payload, Copy):
            what = f"the copy of unit {payload.source} to unit {payload.destination}"
        elif isinstance(payload, Zero):
            what = f"the zeroing of unit {payload.unit}"
        elif isinstance(payload, Fill):
            last = payload.row + len(payload.values) - 1
            what = f"the filling of rows {payload.row} to {last} of buffer {payload.buffer!r}"
        elif isinstance(payload, PullWork):
            what = str(payload)
        else:
            way = "to" if isinstance(payload, Put) else "from"
            what = f"the way of units {', '.join(map(str, payload.units))} {way} {payload.store}"
        part = "" if work.transfer is None else f"transfer {work.transfer.t}: "
        return f"{part}{what} ({self.streams[work.stream]} stream, operation {work.step})"
