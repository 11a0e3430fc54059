"""The shrinker: from the trace that found a violation to one from which nothing can be taken away.

Symbolic ids make every sub-list of a trace a trace, so removal needs no repair, and whatever a replay skipped is gone with
the operation that it depended on. The passes, repeated until none helps:

- drop whole requests, then chunks of operations (ddmin);
- change the whole trace at once (plain prompts, no loads, smaller blocks with everything scaled to them);
- merge the chunks of one request, simplify arguments, then the configuration;
- drop a request together with the part of the pool that it filled;
- where the trace is long, look for a short one in a small world (``fuzz/small_world.py``), again if it stays long.

A candidate is kept if it violates the same invariant for the same cause, or shows the same damage in plainer circumstances
(``PLAINER``). The result is 1-minimal: without any one of its
operations the violation is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from random import Random

from kvsan.fuzz.journal import Journal
from kvsan.fuzz.other_ways import cache_resets, tier_resets, with_other_prompts, without_stores
from kvsan.fuzz.replay import Replayed, open_session, run
from kvsan.fuzz.simplify import (
    ids_of,
    late_submits,
    merged_schedules,
    renamed,
    shorter_ways,
    simpler_configurations,
    simpler_operations,
    simpler_traces,
    whole_prefills,
)
from kvsan.fuzz.small_pair import SmallPair
from kvsan.fuzz.small_world import SmallWorld
from kvsan.harness.configuration import HOST, Configuration
from kvsan.harness.operations import EXCHANGES, Advance, Launch, Offload, Operation, Replay, Retire, Submit
from kvsan.harness.registry import TargetFactory
from kvsan.harness.trace import Trace
from kvsan.harness.verdict import NUMBERS, Finding, HarnessError, UsageError, Violation

Operations = tuple[Operation, ...]
_NEVER = 1 << 60
_SHORT = 6
_LONG = 40
_SMALL_WORLDS = 400
_STILL_LONG = 10
_ATTEMPTS = 5

PLAINER = {
    ("foreign_write", "published"): ("foreign_write", "shared"),
    ("provenance", "foreign"): ("provenance", "unwritten"),
    ("exchange_content", "foreign"): ("exchange_content", "unwritten"),
    ("hit_content", "tokens"): ("hit_content", "not published"),
    ("hash_content", "one key, two contents: tokens"): ("hash_content", "not computed"),
    ("hash_content", "one key, two contents: position"): ("hash_content", "not computed"),
    ("append_only", "trimmed"): ("conservation", "too few"),
}
"""Who relied on a slot, what is in it by now, or whose blocks were given back in place of the right ones, which are lost, is
circumstance: the plainer kind of violation takes fewer steps."""

BEGAN = {"tier_content": "tier_index", "transfer_pins": "tier_index", "tier_reset": "tier_index"}
"""What one invariant sees in passing, another may see at its beginning, where it looks at every step."""

LEFT = {"tier_reset": "transfer_leaks"}
"""What an operation stumbles over was left behind before, and is seen if the session ends there."""

Judge = Callable[[Configuration, Operations, int, bool], Replayed]
"""Replays a candidate with a sweep interval, to the session's end or not; UsageError if its target cannot be made."""


def weight(operations: Operations) -> tuple[int, int]:
    """Length of a trace: first what somebody decided, then with launches, retirements and the device's progress."""
    decisions = sum(not isinstance(operation, Launch | Replay | Retire | Advance) for operation in operations)
    return decisions, len(operations)


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
        self._failed: set[tuple[Configuration, Operations]] = set()
        self._sweep_every, self._close = _NEVER, False
        self._find_cheapest_judge()
        self._see_what_was_left()

    def _find_cheapest_judge(self) -> None:
        """Sweeps at every step and the end of the session cost most of a replay: use them only if they are needed."""
        for self._sweep_every, self._close in ((_NEVER, False), (1, False), (1, True), (_NEVER, True)):
            self._failed.clear()
            if self._cut(self.configuration, self.operations):
                if not self._sees_it_begin(BEGAN.get(self._kind[0])):
                    return
                break
        else:
            if not self._sees_it_begin(self._kind[0]):
                raise NotRepeated(f"violation {self._kind} does not happen again when its trace is replayed")
        self._failed.clear()
        self._cut(self.configuration, self.operations)

    def _see_what_was_left(self) -> None:
        """If the state was wrong before the last operation, that is what is shrunk."""
        before = self.operations[:-1]
        if self._kind[0] in LEFT and before:
            violation = self._judge(self.configuration, before, _NEVER, True).violation
            if violation is not None and violation.invariant == LEFT[self._kind[0]]:
                self._kind, self.operations = violation.kind, before
                self._sweep_every, self._close = _NEVER, True
                self._failed.clear()

    def _sees_it_begin(self, invariant: str | None) -> bool:
        """Whether sweeps at every step find an invariant violated; then that is what is shrunk.

        Sweeps far apart see what has become of a wrong state, and sometimes others see it first.
        """
        if invariant is None:
            return False
        violation = self._judge(self.configuration, self.operations, 1, False).violation
        if violation is None or violation.invariant != invariant:
            return False
        self._kind, self._sweep_every, self._close = violation.kind, 1, False
        return True

    # -- judging a candidate

    def _violates(self, configuration: Configuration, operations: Operations) -> Replayed | None:
        """Replay a candidate; None unless it violates in the same way."""
        self.statistics.replays += 1
        self.statistics.operations += len(operations)
        try:
            replayed = self._judge(configuration, operations, self._sweep_every, self._close)
        except UsageError:
            return None
        if replayed.violation is None or replayed.violation.kind not in (self._kind, PLAINER.get(self._kind)):
            return None
        self._kind = replayed.violation.kind
        return replayed

    def _cut(self, configuration: Configuration, operations: Operations) -> bool:
        """Accept a candidate, without what it does not execute.

        Queries of the numbers oracle follow from the step, so what they see may go when the steps before it do.
        """
        if (configuration, operations) in self._failed or not self._fits(configuration):
            return False
        replayed = self._violates(configuration, operations)
        if replayed is None:
            self._failed.add((configuration, operations))
            return False
        until = operations[: replayed.step + 1]
        executed = tuple(operations[position] for position in replayed.ran) or until
        if self._kind[0] == NUMBERS and executed != until and self._violates(configuration, executed) is None:
            executed = until
        self.configuration, self.operations = configuration, executed
        return True

    def _fits(self, configuration: Configuration) -> bool:
        """Whether kernels can be expected to take a block size: many take powers of two only."""
        size, before = configuration.block_size, self.configuration.block_size
        return configuration.kernels == HOST or before & (before - 1) > 0 or size & (size - 1) == 0

    def _accept(self, operations: Sequence[Operation]) -> bool:
        return len(operations) > 0 and self._cut(self.configuration, tuple(operations))

    # -- passes

    def shrink(self) -> Finding:
        """Shrink to the end and tell the finding."""
        if len(self.operations) > _LONG:
            worlds = len(self.operations) if any(isinstance(one, Offload) for one in self.operations) else _SMALL_WORLDS
            self._look_in_small_worlds(min(worlds, len(self.operations) // 2), len(self.operations))
        self._to_fix_point()
        if weight(self.operations)[0] > _SHORT:
            self._look_in_small_worlds(_SMALL_WORLDS, _SHORT)
            self._to_fix_point()
        for attempt in range(1, _ATTEMPTS):
            if weight(self.operations)[0] <= _STILL_LONG or self._out_of_time():
                break
            self._look_in_small_worlds(_SMALL_WORLDS * attempt, _STILL_LONG, attempt)
            self._to_fix_point()
        self._accept(late_submits(self.operations))
        self._accept(renamed(self.operations))
        return self.finding()

    def _to_fix_point(self) -> None:
        before = None
        while before != (self.configuration, self.operations) and not self._out_of_time():
            before = self.configuration, self.operations
            self._drop_requests()
            self._drop_chunks()
            self._change_everything()
            self._exchange()
            self._merge_schedules()
            self._simplify_operations()
            self._simplify_configuration()
            self._drop_with_pool()

    def _requests(self) -> list[str]:
        return list(dict.fromkeys(r for operation in self.operations for r in ids_of(operation)))

    def _without(self, requests: Sequence[str]) -> list[Operation]:
        gone = set(requests)
        return [operation for operation in self.operations if gone.isdisjoint(ids_of(operation))]

    def _drop_requests(self) -> None:
        """Take requests away with all their operations, half of them at first."""
        size = max(1, len(self._requests()) // 2)
        while size:
            start = 0
            while start < len(requests := self._requests()) and not self._out_of_time():
                if not self._accept(self._without(requests[start : start + size])):
                    start += size
            size //= 2

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
            size = max(1, size // 2)

    def _change_everything(self) -> None:
        """Start again after each change: what was drawn from the trace before it would take it back."""
        progress = True
        while progress and not self._out_of_time():
            now = self.configuration, self.operations
            progress = any(self._cut(*simpler) for simpler in simpler_traces(*now) if simpler != now)

    def _exchange(self) -> None:
        """Exchange some operations for fewer that lead to the same state."""
        progress = True
        while progress and not self._out_of_time():
            before = weight(self.operations)
            candidates = [*shorter_ways(self.operations)]
            if before[0] > _SHORT and len(self.operations) <= _LONG:
                candidates += [*cache_resets(self.operations), *with_other_prompts(self.operations)]
            progress = any(self._accept(shorter) and weight(self.operations) < before for shorter in candidates)
            if not progress and before[0] > _SHORT and len(self.operations) <= _LONG:
                now = self.configuration, self.operations
                progress = any(
                    weight(shorter) < before and self._cut(configuration, shorter)
                    for configuration, shorter in (*without_stores(*now), *tier_resets(*now))
                )

    def _merge_schedules(self) -> None:
        """ddmin alone never turns four chunks of one request into one."""
        start = 0
        while start < len(self.operations):
            if not any(self._accept(merged) for merged in merged_schedules(self.operations, start)):
                start += 1

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
                self._cut(simpler, self.operations) for simpler in simpler_configurations(self.configuration)
            )

    def _drop_with_pool(self) -> None:
        """A request that only fills the pool can go when the pool shrinks by as much; so can a part of its prompt."""
        for r in self._requests():
            rest = self._without([r])
            if rest and not self._accept(whole_prefills(rest)):
                self._with_smaller_pool(rest)
        for operation in self.operations:
            if isinstance(operation, Submit) and operation.prompt[-1][-1] > 1 and not self._out_of_time():
                last = operation.prompt[-1]
                shorter = replace(operation, prompt=(*operation.prompt[:-1], (*last[:-1], last[-1] // 2)))
                self._with_smaller_pool([shorter if one is operation else one for one in self.operations])

    def _with_smaller_pool(self, operations: list[Operation]) -> None:
        if operations and len(self.operations) > 2:
            for num_units in range(self.configuration.num_units - 1, 1, -1):
                if self._out_of_time() or self._cut(
                    replace(self.configuration, num_units=num_units), tuple(operations)
                ):
                    return

    def _look_in_small_worlds(self, worlds: int, short: int, seed: int = 0) -> None:
        """Draw short traces and keep the shortest that violates in the same way, until one has ``short`` decisions."""
        best = self.configuration, self.operations
        small = SmallWorld if EXCHANGES.isdisjoint(map(type, self.operations)) else SmallPair
        drawn = small(*best, Random(seed)).traces()
        for configuration, operations in islice(drawn, worlds):
            if self._out_of_time():
                break
            if self._cut(configuration, operations):
                self._drop_chunks()
                if weight(self.operations) < weight(best[1]):
                    best = self.configuration, self.operations
                    if weight(best[1])[0] <= short:
                        break
        self.configuration, self.operations = best

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
