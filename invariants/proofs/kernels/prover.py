"""One kernel in one configuration, from its IR to a verdict."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kvsan.invariants.proofs.kernels.cases import Case, case_of
from kvsan.invariants.proofs.kernels.checking import obligations, theorems
from kvsan.invariants.proofs.kernels.data_flow import check_data
from kvsan.invariants.proofs.kernels.execution import execute
from kvsan.invariants.proofs.kernels.ir import Function, Rejected
from kvsan.invariants.proofs.kernels.likely_cases import likelier
from kvsan.invariants.proofs.kernels.lowering import Lowered
from kvsan.invariants.proofs.kernels.parsing import parse
from kvsan.invariants.proofs.kernels.specification import Specify
from kvsan.invariants.proofs.kernels.unknown_launch import UnknownLaunch
from kvsan.invariants.proofs.obligation import PROVED, REFUTED, REJECTED, UNKNOWN, Answer, Obligation, Status
from kvsan.invariants.proofs.solver import Limits, satisfiable, solve


@dataclass(frozen=True, slots=True)
class Subject:
    """What is proved: ``lowered`` IR, types of the arguments in it in order, constexprs, and the specification.

    ``exact``: accesses come once and in order; without, as in TTGIR, one may be made again. ``theorems``: whether what
    follows from the specification alone is shown too.
    """

    lowered: Lowered
    signature: Mapping[str, str]
    constexprs: Mapping[str, Any]
    specify: Specify
    exact: bool = True
    theorems: bool = True


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of it: the first obligation that fails with its answer, ``case`` where there is one."""

    status: Status
    shown: int
    seconds: float
    failed: Obligation | None = None
    case: Case | None = None
    place: str = ""
    reason: str = ""

    def story(self) -> tuple[str, ...]:
        """What happens, in a few lines."""
        if self.failed is None:
            return (self.reason,) if self.reason else ()
        where = f" ({self.place})" if self.place else ""
        lines = [
            f"{self.failed.what}{where}, line {self.failed.line} of the IR" if self.failed.line else self.failed.what
        ]
        if self.case is not None:
            lines += _told(self.case)
        return tuple(lines)


def prove(subject: Subject, limits: Limits = Limits()) -> Verdict:  # noqa: B008
    """Show every obligation of a kernel; stops at the first that is refuted.

    One that is not decided, or whose hypotheses never hold, is a failure too, unless a later one is refuted: that says more.
    """
    started = time.monotonic()
    try:
        function = parse(subject.lowered.text)
        todo = list(_obligations(subject, function))
    except Rejected as error:
        return Verdict(REJECTED, 0, time.monotonic() - started, reason=str(error))
    undecided: Verdict | None = None
    for number, obligation in enumerate(todo):
        answer = solve(obligation, limits)
        if answer.status == REFUTED:
            return _failed(subject, obligation, answer, number, time.monotonic() - started, limits)
        if answer.status == UNKNOWN:
            undecided = undecided or _failed(subject, obligation, answer, number, time.monotonic() - started, limits)
    if undecided is None and (vacuous := _vacuous(todo, limits)):
        reason = f"vacuous: no case is known in which the hypotheses of this hold: {vacuous.what}"
        undecided = Verdict(UNKNOWN, len(todo) - 1, time.monotonic() - started, vacuous, reason=reason)
    return undecided or Verdict(PROVED, len(todo), time.monotonic() - started)


def _vacuous(todo: Iterable[Obligation], limits: Limits) -> Obligation | None:
    """The first obligation whose hypotheses never hold, or may not."""
    checked: set[tuple[int, ...]] = set()
    for obligation in todo:
        key = tuple(one.get_id() for one in obligation.hypotheses)
        if key not in checked and not satisfiable(obligation.hypotheses, limits):
            return obligation
        checked.add(key)
    return None


def _obligations(subject: Subject, function: Function) -> Iterable[Obligation]:
    launch = UnknownLaunch(subject.signature, subject.constexprs, subject.specify, subject.exact)
    run = execute(function, subject.signature, launch)
    if not run.accesses:
        raise Rejected("the kernel accesses no memory")
    check_data(function, run, launch)
    yield from obligations(launch, run)
    if subject.theorems:
        yield from theorems(launch, run)


def _failed(
    subject: Subject, obligation: Obligation, answer: Answer, shown: int, seconds: float, limits: Limits
) -> Verdict:
    place = subject.lowered.places.get(obligation.line, "")
    if answer.status != REFUTED:
        reason = f"{obligation.what}: not decided within the limit ({answer.reason})"
        return Verdict(UNKNOWN, shown, seconds, obligation, None, place, reason)
    launch = UnknownLaunch(subject.signature, subject.constexprs, subject.specify, subject.exact)
    likely = likelier(launch, obligation, answer, limits) if limits.smallest else answer
    return Verdict(REFUTED, shown, seconds, obligation, case_of(likely.values), place)


def _told(case: Case) -> list[str]:
    """Where it happens, and what differs."""
    where = [f"program {case.several('program')}"]
    for name in ("lane", "loop"):
        if found := case.several(name):
            where.append(f"{name} {found if name == 'lane' or len(found) > 1 else found[0]}")
    lines = [", ".join(where)]
    if other := case.several("other_program"):
        lines.append(f"and program {other}, lane {case.several('other_lane')}")
    for name, value in case.numbers.items():
        expected = case.numbers.get(
            f"expected_{name}", case.numbers.get("expected_to_happen") if name == "happens" else None
        )
        if expected is not None and expected != value:
            lines.append(f"{name} {value}, expected {expected}")
    contents = {name: value for name, value in case.values().items() if "[" in name}
    if contents:
        lines.append(", ".join(f"{name} = {value}" for name, value in contents.items()))
    return lines
