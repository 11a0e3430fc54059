"""From a counterexample of the protocol to a trace that `kvsan replay` runs.

A counterexample is a state and a step. What matters of the state is who else holds the block, whether it is hashed or free, what
is in flight, and how large the pool is: that selects the operations that lead to such a state from an empty pool, and the step
selects the operation that makes it. Several ways are tried, the plainest first; one is taken if it violates on the variant and
is clean on the reference manager, and then it is shrunk.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

from kvsan.fuzz.replay import Replayed, replay
from kvsan.fuzz.shrink import NotRepeated, shrink
from kvsan.harness.configuration import Configuration
from kvsan.harness.operations import (
    Abort,
    Cancel,
    Finish,
    Fork,
    Landed,
    Launch,
    Lookup,
    Operation,
    Outcome,
    Preempt,
    ResetPrefixCache,
    Retire,
    Schedule,
    Submit,
)
from kvsan.harness.registry import resolve
from kvsan.harness.trace import Trace
from kvsan.invariants.proofs.protocol.account import UNIT_NAMES

Way = list[Operation]

SHRINK_S = 2.0
_ENDS: dict[str, type[Abort] | type[Finish] | type[Preempt]] = {"abort": Abort, "finish": Finish, "preempt": Preempt}


class Ways:
    """Operations that lead to a state; ``size`` is the block size."""

    def __init__(self, step: str, scenario: str, values: Mapping[str, int]) -> None:
        self.step, self.scenario, self.values = step, scenario, values
        self.size = max(4 if step == "write" else 2, values.get("block_size", 2))
        self._launches = 0

    # -- pieces

    def compute(self, *names: str, n: int, lookahead: int = 0) -> Way:
        """Requests go on by ``n`` tokens, in one launch that retires."""
        self._launches += 1
        b = f"b{self._launches}"
        return [*(Schedule(r, n, lookahead) for r in names), Launch(b), Retire(b)]

    def start(self, r: str, tokens: int, family: int = 0, lookahead: int = 0) -> Way:
        """A request arrives and its prompt is computed."""
        return [Submit(r, ((family, tokens),)), *self.compute(r, n=tokens, lookahead=lookahead)]

    def fly(self, r: str, n: int) -> Way:
        """A request goes on by ``n`` tokens, in a launch that does not retire yet."""
        self._launches += 1
        return [Schedule(r, n), Launch(f"b{self._launches}")]

    def of_block(self, column: str) -> int:
        """What a column has of the step's block, the first of those that it has a name for; 0 if it has none."""
        known = next((self.values[name] for name in UNIT_NAMES if name in self.values), 0)
        return self.values.get(f"{column}[{known}]", 0)

    # -- ways to a step

    def _start(self) -> Iterator[Way]:
        """Every block that a new pool has is given out."""
        tokens = self.size * self.values["units"]
        yield [Submit("r1", ((0, tokens),)), Schedule("r1", tokens)]

    def all(self) -> Iterator[Way]:
        """Ways to the step, the plainest first."""
        yield from getattr(self, f"_{self.step}")()

    def _allocate(self) -> Iterator[Way]:
        """The front of the queue is hashed or not; the hash is another block's too, or not."""
        again: Way = [Submit("r3", ((0, self.size + 1),)), Lookup("r3"), Schedule("r3", self.size + 1)]
        old: Way = [*self.start("r1", self.size), Finish("r1")]
        other: Way = [Submit("r2", ((1, 8 * self.size),)), Schedule("r2", 8 * self.size)]
        yield [*old, *self.start("r2", self.size, 1)]
        yield [*old, *other, *again]
        yield [*old, *other, Launch("b9"), Retire("b9")]
        yield from self._withdraw()

    def _touch(self) -> Iterator[Way]:
        """A cached block is hit: nobody holds it, or somebody does."""
        hit: Way = [Submit("r2", ((0, self.size + 1),)), Schedule("r2", self.size + 1)]
        gone: Way = [] if self.of_block("references") else [Finish("r1")]
        yield [*self.start("r1", self.size), *gone, *hit]
        yield [*self.start("r1", self.size), *gone, *hit, Submit("r4", ((2, self.size),)), Schedule("r4", self.size)]
        yield [*self.start("r1", self.size + 1), Fork("r1", "c")]

    _take_hits = _hold = _touch

    def _release(self) -> Iterator[Way]:
        """The block is held by others too, or not; its hash may be in the map."""
        shared: Way = [Fork("r1", f"c{number}") for number in range(self.of_block("rest"))]
        yield [*self.start("r1", self.size), *shared, Finish("r1")]
        yield [*self.start("r1", 2 * self.size), *self.start("r2", self.size, 1), *shared, Finish("r1"), Finish("r2")]

    _trim = _release_table = _release

    def _publish(self) -> Iterator[Way]:
        """One content twice: two requests compute it before either is published."""
        names = [f"r{number}" for number in range(1, 2 + max(1, self.values.get("length[1]", 0)))]
        submits: Way = [Submit(r, ((0, self.size),)) for r in names]
        ends: Way = [Finish(r) for r in names]
        yield [*submits, *self.compute(*names, n=self.size)]
        yield [*submits, *self.compute(*names, n=self.size), *ends, *self.start("s", 8 * self.size, 1)]

    def _find(self) -> Iterator[Way]:
        """What one request has computed, or two have, is looked up by another."""
        again: Way = [Submit("t", ((0, self.size + 1),)), Lookup("t")]
        yield [*self.start("r1", self.size), *again]
        for way in self._publish():
            yield [*way, *again]

    def _front(self) -> Iterator[Way]:
        """Of several free blocks some are cached."""
        yield self.start("r1", self.size)
        yield [*self.start("r1", self.size), Finish("r1")]

    def _publish_full(self) -> Iterator[Way]:
        """A request has more scheduled than it has retired: what is in flight is not computed."""
        yield self._two_chunks()
        yield from self._publish()

    def _two_chunks(self) -> Way:
        self._launches = 0
        prompt = Submit("r1", ((0, 3 * self.size),))
        return [prompt, *self.fly("r1", self.size), *self.fly("r1", self.size), Retire("b1")]

    def _withdraw(self) -> Iterator[Way]:
        """A hash that two or three blocks have is taken back from one of them."""
        for way in self._publish():
            yield [*way, ResetPrefixCache()]
            finishes: Way = [*[Finish(one.r) for one in way if isinstance(one, Submit)][1:]]
            yield [*way, *finishes, Submit("t", ((1, 4 * self.size),)), Schedule("t", 4 * self.size)]

    def _fits(self) -> Iterator[Way]:
        """Hits that nobody holds, in a pool that has room for them and hardly for anything else."""
        hit = self.size + 1
        for extra in range(4):
            tokens = hit + extra * self.size
            yield [*self.start("r1", self.size), Finish("r1"), Submit("r2", ((0, tokens),)), Schedule("r2", tokens)]

    def _extend(self) -> Iterator[Way]:
        """A table grows by a block that is like new, or by one that was cached."""
        yield [*self.start("r1", self.size), *self.compute("r1", n=1)]
        yield from self._allocate()

    def _schedule(self) -> Iterator[Way]:
        """A request begins, goes on behind a full block, or is refused while it is in flight and goes on with less."""
        yield [*self.start("r1", self.size + 1), *self.compute("r1", n=self.size)]
        self._launches = 0
        flying: Way = [Submit("r1", ((0, 32 * self.size),)), *self.fly("r1", self.size), Schedule("r1", 31 * self.size)]
        yield [*flying, *self.fly("r1", self.size)]

    def _write(self) -> Iterator[Way]:
        """A block that is full in part is shared, or hashed by one who is gone, and a holder goes on with tokens of its own."""
        sharing: Way = [*self.start("r1", self.size + 1), Fork("r1", "c")]
        yield [*sharing, *self.compute("c", n=1), *self.compute("r1", n=1)]
        apart = (Outcome("c", 0, 1), Outcome("r1", 0, 2))
        both: Way = [Schedule("c", 1), Schedule("r1", 1)]
        yield [*sharing, *both, Launch("b8"), Retire("b8", apart), *both, Launch("b9"), Retire("b9")]
        self._launches = 0
        begun: Way = [*self.start("r1", self.size - 2), *self.fly("r1", 1), *self.fly("r1", 1), Fork("r1", "c")]
        gone: Way = [Retire("b2", (Outcome("r1", 0, 1),)), Retire("b3"), Finish("r1")]
        child: Way = [
            Schedule("c", 1),
            Launch("b4"),
            Retire("b4", (Outcome("c", 0, 2),)),
            Schedule("c", 1),
            Launch("b5"),
        ]
        yield [*begun, *gone, *child, Retire("b5")]

    def _cancel(self) -> Iterator[Way]:
        yield [*self.start("r1", self.size + 1), Fork("r1", "c"), Schedule("c", 1), Cancel()]

    def _launch(self) -> Iterator[Way]:
        yield [*self.start("r1", self.size + 1), Fork("r1", "c"), *self.compute("c", n=1)]

    def _landed(self) -> Iterator[Way]:
        load: Way = [Submit("r1", ((0, self.size + 1),)), Schedule("r1", 1, 0, self.size, True)]
        end: Way = [Abort("r1")] if "gone=True" in self.scenario else []
        yield [*load, *end, Landed("r1")]
        again: Way = [Submit("r2", ((0, self.size + 1),)), Schedule("r2", 1, 0, self.size, True)]
        yield [*load, *again, *end, Landed("r1"), Landed("r2")]

    def _retire(self) -> Iterator[Way]:
        """Drafts are rejected, or a prompt is computed in chunks; perhaps with a later launch in flight."""
        size, drafts = self.size, max(1, min(4, self.values.get("rejected", 1)))
        rejected: Way = [Retire("b2", (Outcome("r1", 0, 1),))]
        yield [*self.start("r1", size), Schedule("r1", 1 + drafts), Launch("b2"), *rejected]
        yield [*self.start("r1", size - 1), Schedule("r1", 1 + drafts), Launch("b2"), *rejected]
        yield [*self.start("r1", 2 * size - 1), Schedule("r1", 1 + drafts), Launch("b2"), *rejected]
        yield self._two_chunks()
        yield from self._publish()

    def _fork(self) -> Iterator[Way]:
        """The parent has blocks behind what it has retired: looked ahead for, or in flight."""
        yield [*self.start("r1", self.size), Fork("r1", "c")]
        yield [*self.start("r1", self.size, lookahead=self.size), Fork("r1", "c")]
        flying: Way = [
            Submit("r1", ((0, 3 * self.size),)),
            *self.compute("r1", n=self.size),
            *self.fly("r1", self.size),
        ]
        yield [*flying, Fork("r1", "c")]
        yield [*flying, Fork("r1", "c"), Schedule("c", 1), Launch("b9")]
        ahead: Way = self.start("r1", self.size, lookahead=self.size)
        yield [*ahead, Fork("r1", "c"), *self.compute("c", n=1), *self.compute("r1", n=1)]

    def _end(self) -> Iterator[Way]:
        """A request ends with launches in flight, with a load on its way, or with a copy that is only scheduled."""
        end: Operation = _ENDS[self.step]("r1")
        if "loading=True" in self.scenario:
            yield [Submit("r1", ((0, self.size + 1),)), Schedule("r1", 1, 0, self.size, True), end, Landed("r1")]
        elif "scheduled=True" in self.scenario:
            yield [*self.start("r0", self.size + 1), Fork("r0", "r1"), Schedule("r1", 1), end]
        else:
            launches = int(self.scenario.partition("launches=")[2][:1] or 0)
            prompt = Submit("r1", ((0, 4 * self.size),))
            begun: Way = self.compute("r1", n=self.size)
            flights: Way = [one for _ in range(launches) for one in self.fly("r1", self.size)]
            retires: Way = [Retire(one.b) for one in flights if isinstance(one, Launch)]
            yield [prompt, *begun, *flights, end, *retires]
            yield [prompt, *begun, Fork("r1", "c"), *flights, end, *retires]
            yield [prompt, *begun, Schedule("r1", self.size), Launch("b8"), Schedule("r1", 1), end]

    _abort = _finish = _preempt = _end


def trace_of(target: str, step: str, scenario: str, values: Mapping[str, int]) -> tuple[Trace, str] | None:
    """A trace that violates on ``target`` and is clean on the reference manager, with what it shows; None if no way does."""
    ways = Ways(step, scenario, values)
    options = {True: (), False: (("deferred_free", False),)}[bool(values.get("deferred_free", 1))]
    smallest = values["units"]
    for operations in ways.all():
        for units in (16, *range(min(2, smallest), smallest + 4)):
            configuration = Configuration(target, units, ways.size, options=options)
            found = _confirmed(Trace(configuration, tuple(operations)))
            if found is not None:
                return found
    return None


def _confirmed(trace: Trace) -> tuple[Trace, str] | None:
    """The trace, shrunk, if it violates on its target only."""
    seen = _replay(trace)
    if seen.violation is None or not _is_clean_on_reference(trace):
        return None
    shrunk = trace
    until = time.monotonic() + SHRINK_S
    try:
        factory = resolve(trace.configuration.target)
        shrunk = shrink(factory, trace, seen.violation, out_of_time=lambda: time.monotonic() > until).trace
    except NotRepeated:
        pass
    again = _replay(shrunk)
    if again.violation is None or not _is_clean_on_reference(shrunk):
        shrunk, again = trace, seen
    assert again.violation is not None
    return shrunk, f"{again.violation} (operation {again.step} of {len(shrunk.operations)})"


def _is_clean_on_reference(trace: Trace) -> bool:
    return _replay(replace(trace, configuration=replace(trace.configuration, target="paged"))).violation is None


def _replay(trace: Trace) -> Replayed:
    return replay(resolve(trace.configuration.target), trace, numbers=False)
