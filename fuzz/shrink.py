"""The shrinker: from the trace that found a violation to one from which nothing can be taken away.

Symbolic ids make every sub-list of a trace a trace, so removal needs no repair. The passes, repeated until none helps:
whole requests, chunks of operations (ddmin), runs of ``Schedule`` merged into one, arguments, the configuration. A candidate
is kept if it violates the same invariant for the same cause. The result is 1-minimal: without any one of its operations
the violation is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from kvsan.fuzz.journal import Journal
from kvsan.fuzz.replay import Replayed, TargetFactory, open_session, run
from kvsan.fuzz.simplify import simpler_configurations, simpler_operations
from kvsan.harness.configuration import Configuration
from kvsan.harness.operations import Operation, Schedule
from kvsan.harness.trace import Trace
from kvsan.harness.verdict import Finding, HarnessError, UsageError, Violation

Operations = tuple[Operation, ...]
_NEVER = 1 << 60

Judge = Callable[[Configuration, Operations, int, bool], Replayed]
"""Replays a candidate with a sweep interval, to the session's end or not; UsageError if its target cannot be made."""


class NotRepeated(HarnessError):
    """A trace that violated does not do so when it is replayed."""


@dataclass(slots=True)
class ShrinkStatistics:
    """What shrinking cost."""

    replays: int = 0
    operations: int = 0


class Shrinker:
    """Shrinks one violation of one target.

    ``out_of_time`` says when to stop early (the best trace so far is kept, and may not be minimal).
    """

    def __init__(
        self,
        judge: Judge,
        trace: Trace,
        violation: Violation,
        out_of_time: Callable[[], bool] = lambda: False,
    ) -> None:
        self._judge = judge
        self._kind = violation.kind
        self._out_of_time = out_of_time
        self.statistics = ShrinkStatistics()
        self.configuration = trace.configuration
        self.operations: Operations = tuple(trace.operations)
        self._sweep_every, self._close = _NEVER, False
        self._find_cheapest_judge()

    def _find_cheapest_judge(self) -> None:
        """Sweeps at every step and the end of the session cost most of a replay: use them only if they are needed."""
        for self._sweep_every, self._close in ((_NEVER, False), (1, False), (1, True)):
            if self._cut(self.configuration, self.operations) is not None:
                return
        raise NotRepeated(f"violation {self._kind} does not happen again when its trace is replayed")

    # -- judging a candidate

    def _violates(self, configuration: Configuration, operations: Operations) -> int | None:
        """Index of the first bad step if the candidate violates in the same way."""
        self.statistics.replays += 1
        self.statistics.operations += len(operations)
        try:
            replayed = self._judge(configuration, operations, self._sweep_every, self._close)
        except UsageError:
            return None
        if replayed.violation is None or replayed.violation.kind != self._kind:
            return None
        return replayed.step

    def _cut(self, configuration: Configuration, operations: Operations) -> int | None:
        """Accept a candidate, up to its first bad step."""
        step = self._violates(configuration, operations)
        if step is not None:
            self.configuration = configuration
            self.operations = operations[: step + 1]
        return step

    def _accept(self, operations: Sequence[Operation]) -> bool:
        return self._cut(self.configuration, tuple(operations)) is not None

    # -- passes

    def shrink(self) -> Finding:
        """Shrink to the end and tell the finding."""
        before = None
        while before != (self.configuration, self.operations) and not self._out_of_time():
            before = self.configuration, self.operations
            self._drop_requests()
            self._drop_chunks()
            self._merge_schedules()
            self._simplify_operations()
            self._simplify_configuration()
        return self.finding()

    def _drop_requests(self) -> None:
        """Take a request away with all its operations."""
        for r in sorted({r for operation in self.operations if (r := getattr(operation, "r", None))}):
            kept = [o for o in self.operations if r not in (getattr(o, "r", None), getattr(o, "child", None))]
            if len(kept) < len(self.operations):
                self._accept(kept)

    def _drop_chunks(self) -> None:
        """Try ever smaller chunks, from the end, until no single operation can go."""
        size = max(1, len(self.operations) // 2)
        while True:
            removed = False
            start = len(self.operations) - size
            while start > -size and not self._out_of_time():
                low = max(0, start)
                if self._accept(self.operations[:low] + self.operations[start + size :]):
                    removed = True
                    start = min(start, len(self.operations)) - size
                else:
                    start -= size
            if size == 1 and not removed:
                return
            if not removed:
                size = max(1, size // 2)

    def _merge_schedules(self) -> None:
        """ddmin alone never turns four chunks of one request into one."""
        start = 0
        while start < len(self.operations):
            merged = next(self._merged(start), None)
            if merged is None or not self._accept(merged):
                start += 1

    def _merged(self, start: int) -> Iterator[list[Operation]]:
        first = self.operations[start]
        if not isinstance(first, Schedule):
            return
        for later in range(start + 1, len(self.operations)):
            second = self.operations[later]
            if isinstance(second, Schedule) and second.r == first.r:
                both = replace(first, n=first.n + second.n, lookahead=max(first.lookahead, second.lookahead))
                yield [
                    *self.operations[:start],
                    both,
                    *self.operations[start + 1 : later],
                    *self.operations[later + 1 :],
                ]
                return

    def _simplify_operations(self) -> None:
        index = 0
        while index < len(self.operations) and not self._out_of_time():
            for simpler in simpler_operations(self.operations[index]):
                if self._accept((*self.operations[:index], simpler, *self.operations[index + 1 :])):
                    break
            else:
                index += 1

    def _simplify_configuration(self) -> None:
        progress = True
        while progress and not self._out_of_time():
            progress = any(
                self._cut(simpler, self.operations) is not None
                for simpler in simpler_configurations(self.configuration)
            )

    # -- the finding

    def finding(self, replays: int = 3) -> Finding:
        """Replay the shrunk trace with every judge at every step and tell what it shows, and how often it does."""
        told = self._tell(replays, 1, True)
        if told is None:  # with more sweeps another invariant speaks first: judge as it was found
            told = self._tell(replays, self._sweep_every, self._close)
        if told is None:
            raise HarnessError(f"violation {self._kind} was seen while shrinking and is not seen any more")
        return told

    def _tell(self, replays: int, sweep_every: int, close: bool) -> Finding | None:
        same, told, first_bad = 0, None, len(self.operations)
        for _ in range(replays):
            replayed = self._judge(self.configuration, self.operations, sweep_every, close)
            if replayed.violation is not None and replayed.violation.kind == self._kind:
                same += 1
                told, first_bad = replayed.violation, replayed.step
        if told is None:
            return None
        trace = Trace(self.configuration, self.operations)
        return Finding(*self._kind, told.message, first_bad, trace, told.lineage, (same, replays))


def judge_of(
    factory: TargetFactory, *, numbers: bool, beyond_contract: bool = False, journal: Journal | None = None
) -> Judge:
    """Judge candidates in this process; ``numbers`` says whether the third oracle is needed to see the violation."""

    def judge(configuration: Configuration, operations: Operations, sweep_every: int, close: bool) -> Replayed:
        if journal is not None:
            journal.beat()
        session = open_session(
            factory, configuration, numbers=numbers, sweep_every=sweep_every, beyond_contract=beyond_contract
        )
        return run(session, operations, close=close)

    return judge


def shrink(
    factory: TargetFactory,
    trace: Trace,
    violation: Violation,
    *,
    numbers: bool = False,
    beyond_contract: bool = False,
    out_of_time: Callable[[], bool] = lambda: False,
) -> Finding:
    """Shrink a trace that violates; NotRepeated if it does not do so again."""
    judge = judge_of(factory, numbers=numbers, beyond_contract=beyond_contract)
    return Shrinker(judge, trace, violation, out_of_time).shrink()
