"""A deterministic simulation of device streams and events.

Fault model: what this device may do to a trace, and what it never does.

- Work on one stream executes in the order in which it was enqueued. It executes when the trace advances that stream, when a
  launch is retired or a load has landed (then everything that it needs executes first), or when the session ends.
- Work on two streams is ordered by events alone: work may wait for other work, and what the host has seen complete before
  it enqueues is ordered before. Nothing else orders them, so a trace may let either go first.
- An access is a set of slots read and a set written. Two accesses on different streams that touch one slot, one of them
  writing, and that no event orders, are a violation (``order``) when the second of them executes, whichever that is.
- A launch whose rows depend on the unretired outcome of an earlier one waits until that outcome is known.
- No work is lost, torn or executed twice in this form of the device.

Each piece of work carries a vector clock: how far into every stream the past of this work is known to reach.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kvsan.harness.expectation import Life, Row
from kvsan.harness.target import Copy, IntArray, Zero
from kvsan.harness.verdict import Violation

STREAMS = ("compute", "copy")
COMPUTE, COPY = 0, 1


@dataclass(slots=True)
class LaunchWork:
    """A batch on the device."""

    b: str
    rows: list[Row]


@dataclass(slots=True)
class LoadWork:
    """A connector writes positions ``[start, stop)`` of a request, in every group."""

    life: Life
    tables: list[IntArray]
    start: int
    stop: int


Payload = LaunchWork | LoadWork | Copy | Zero


@dataclass(slots=True)
class Work:
    """One enqueued item; ``clock[s]`` is the last item of stream s that is ordered before it (or is itself)."""

    stream: int
    payload: Payload
    step: int
    clock: tuple[int, ...]

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

    def accesses(self, work: Work) -> tuple[IntArray, IntArray]:
        """Slots read and slots written, after execution."""


class Device:
    """The streams, what each has executed, and what the host has seen of them."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._queues: list[deque[Work]] = [deque() for _ in STREAMS]
        self._last: list[tuple[int, ...]] = [(0,) * len(STREAMS) for _ in STREAMS]
        self._executed = [0] * len(STREAMS)
        self._host: tuple[int, ...] = (0,) * len(STREAMS)
        self._recent: list[Work] = []
        self._marks = np.zeros(0, bool)

    def enqueue(self, stream: int, payload: Payload, step: int, after: Sequence[tuple[int, ...]] = ()) -> Work:
        """Put work on a stream, behind the events ``after`` and behind what the host has seen complete."""
        clock = [max(known, seen) for known, seen in zip(self._last[stream], self._host, strict=True)]
        for event in after:
            clock = [max(known, seen) for known, seen in zip(clock, event, strict=True)]
        clock[stream] = self._last[stream][stream] + 1
        work = Work(stream, payload, step, tuple(clock))
        self._last[stream] = work.clock
        self._queues[stream].append(work)
        return work

    def advance(self, stream: int) -> bool:
        """Execute the next item of a stream; False if there is none or it still waits."""
        queue = self._queues[stream]
        if not queue:
            return False
        work = queue[0]
        clock = work.clock
        for other in range(len(STREAMS)):
            if other != stream and self._executed[other] < clock[other]:
                return False
        if not self._executor.ready(work):
            return False
        queue.popleft()
        self._executor.execute(work)
        self._executed[stream] += 1
        self._check_order(work)
        return True

    def complete(self, work: Work) -> bool:
        """Execute everything that ``work`` needs and the work itself; the host has then seen it complete.

        False if it cannot complete yet: it waits, in the end, for an outcome that the host must deliver first.
        """
        clock = work.clock
        while any(done < upto for done, upto in zip(self._executed, clock, strict=True)):
            behind = [stream for stream, upto in enumerate(clock) if self._executed[stream] < upto]
            if not any([self.advance(stream) for stream in behind]):
                return False
        self._host = tuple(max(seen, done) for seen, done in zip(self._host, clock, strict=True))
        self._forget()
        return True

    def drain(self) -> None:
        """Execute whatever can be."""
        while any(self.advance(stream) for stream in range(len(STREAMS))):
            pass

    def event(self, stream: int) -> tuple[int, ...]:
        """Record an event behind everything that a stream has been given so far."""
        return self._last[stream]

    def _check_order(self, work: Work) -> None:
        if (
            not (self._queues[COPY] or self._recent or work.stream == COPY)
            and self._last[COPY][COPY] <= work.clock[COPY]
        ):
            self._recent.append(work)
            return
        for earlier in self._recent:
            if earlier.stream != work.stream and work.clock[earlier.stream] < earlier.sequence:
                self._conflict(earlier, work)
        self._recent.append(work)

    def _conflict(self, earlier: Work, later: Work) -> None:
        reads, writes = self._executor.accesses(earlier)
        reads_too, writes_too = self._executor.accesses(later)
        for ours, theirs, what in ((writes, writes_too, "write-write"), (writes, reads_too, "write-read"),
                                   (reads, writes_too, "read-write")):  # fmt: skip
            common = self._common(ours, theirs)
            if len(common):
                raise Violation(
                    "order",
                    what,
                    f"slot {int(common[0])}: {describe(earlier)} and {describe(later)} are not ordered by any event",
                )

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


def describe(work: Work) -> str:
    """One phrase about a piece of work."""
    payload = work.payload
    if isinstance(payload, LaunchWork):
        what = f"launch {payload.b}"
    elif isinstance(payload, LoadWork):
        what = f"the external load of {payload.life.name}@{payload.start}..{payload.stop - 1}"
    elif isinstance(payload, Copy):
        what = f"the copy of unit {payload.source} to unit {payload.destination}"
    else:
        what = f"the zeroing of unit {payload.unit}"
    return f"{what} ({STREAMS[work.stream]} stream, operation {work.step})"
