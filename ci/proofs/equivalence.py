"""Whether a mutant is none: it accesses what the kernel accesses, where, when and in which loops.

Two runs on the same unknowns are compared, access by access, without the specification's formulas: only what it assumes of
arguments and contents is used. What a mutant's masked lanes would have read, and other things that nobody sees, may differ.
"""

from __future__ import annotations

from collections.abc import Iterator

import z3

from kvsan.invariants.proofs.kernels.execution import Access, Guard, Loop, Run, execute
from kvsan.invariants.proofs.kernels.ir import Rejected
from kvsan.invariants.proofs.kernels.parsing import parse
from kvsan.invariants.proofs.kernels.prover import Subject
from kvsan.invariants.proofs.kernels.unknown_launch import UnknownLaunch
from kvsan.invariants.proofs.obligation import PROVED, Obligation
from kvsan.invariants.proofs.solver import Limits, solve


def difference(subject: Subject, text: str, limits: Limits) -> str:
    """What tells a mutant from its kernel, "" if nothing does: that is proved, and anything else is a difference."""
    try:
        launch = UnknownLaunch(subject.signature, subject.constexprs, subject.specify, subject.exact)
        runs = [execute(parse(one), subject.signature, launch) for one in (subject.lowered.text, text)]
        for obligation in _Comparison(launch, *runs).obligations():
            answer = solve(obligation, limits)
            if answer.status != PROVED:
                return f"{obligation.what}: {answer.status}"
    except Rejected as error:
        return str(error)
    return ""


class _Comparison:
    def __init__(self, launch: UnknownLaunch, first: Run, second: Run) -> None:
        self._launch = launch
        self._runs = first, second
        self._base = [*launch.assumptions, *launch.in_grid(launch.programs), *first.definitions, *second.definitions]

    def obligations(self) -> Iterator[Obligation]:
        """That accesses, guards and loops are the same, one by one; Rejected if they are not as many or others."""
        first, second = self._runs
        for name in ("accesses", "guards", "loops"):
            if len(getattr(first, name)) != len(getattr(second, name)):
                raise Rejected(f"other {name}: {len(getattr(second, name))}, not {len(getattr(first, name))}")
        for accesses in zip(first.accesses, second.accesses, strict=True):
            yield from self._accesses(*accesses)
        for guards in zip(first.guards, second.guards, strict=True):
            yield from self._guards(*guards)
        for loops in zip(first.loops, second.loops, strict=True):
            yield from self._loops(*loops)

    def _accesses(self, first: Access, second: Access) -> Iterator[Obligation]:
        if (first.kind, first.tensor, first.shape) != (second.kind, second.tensor, second.shape):
            raise Rejected(f"{second.kind} {second.tensor} in the place of {first.kind} {first.tensor}")
        name = f"{first.kind} {first.tensor}"
        one, other = (z3.And(*side.scope.conditions, side.active) for side in (first, second))
        yield self._equal(f"{name}: where it happens", first, second, [], one == other)
        yield self._equal(f"{name}: the address", first, second, [one], first.offset == second.offset)

    def _guards(self, first: Guard, second: Guard) -> Iterator[Obligation]:
        if first.shape != second.shape:
            raise Rejected("a guard of another shape")
        inside = [z3.And(*first.scope.conditions)]
        yield self._equal("a guard", first, second, inside, first.condition == second.condition)

    def _loops(self, first: Loop, second: Loop) -> Iterator[Obligation]:
        same = z3.And(first.start == second.start, first.stop == second.stop, first.step == second.step)
        known = [*first.scope.known, *first.scope.conditions]
        yield self._obligation("a loop", known, same)

    def _equal(
        self, what: str, first: Access | Guard, second: Access | Guard, known: list[z3.BoolRef], goal: z3.BoolRef
    ) -> Obligation:
        lanes = [z3.And(lane >= 0, lane < size) for lane, size in zip(first.lanes, first.shape, strict=True)]
        return self._obligation(what, [*first.scope.known, *second.scope.known, *lanes, *known], goal)

    def _obligation(self, what: str, known: list[z3.BoolRef], goal: z3.BoolRef) -> Obligation:
        hypotheses = [*self._base, *known]
        promised, _ = self._launch.promises([*hypotheses, goal])
        return Obligation(what, (*hypotheses, *promised), goal)
