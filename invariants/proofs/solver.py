"""The only place that asks z3: is there a case in which the hypotheses hold and the goal does not?

An answer that is neither yes nor no within the limit is *unknown*, and whoever asks treats it as a failure.

Kernels that differ in floats alone have the same obligations, to the letter. z3 keeps equal expressions once, so that an
obligation which was shown before in this process, with the same limits, is known by its numbers and not asked again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import z3

from kvsan.invariants.proofs.obligation import PROVED, REFUTED, UNKNOWN, Answer, Obligation

_SMALLER_MS = 500
"""How long a smaller value of a counterexample is looked for; what is not found by then stays as large as it is."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long one obligation may take, and which seed z3 searches with; ``smallest``: make counterexamples small."""

    timeout_ms: int = 10_000
    seed: int = 0
    smallest: bool = True


_SHARES = (0.15, 0.25, 0.6)
"""Parts of the limit that one attempt after the other has."""
_NEXT_SEED = 1000

_Key = tuple[Limits, int, tuple[int, ...]]

_shown: dict[_Key, tuple[z3.ExprRef, ...]] = {}
_satisfied: dict[_Key, tuple[z3.ExprRef, ...]] = {}
"""What was shown, and found satisfiable: with the expressions, because a number names one only as long as that lives."""


def solve(obligation: Obligation, limits: Limits = Limits()) -> Answer:
    """Show an obligation, or find values that break it, as small as can be."""
    started = time.monotonic()
    key = _key(limits, obligation.goal, obligation.hypotheses)
    if key in _shown:
        return Answer(PROVED, time.monotonic() - started)
    solver, said = _asked(limits, (*obligation.hypotheses, z3.Not(obligation.goal)))
    if said == z3.unsat:
        _shown[key] = (obligation.goal, *obligation.hypotheses)
        return Answer(PROVED, time.monotonic() - started)
    if said != z3.sat:
        return Answer(UNKNOWN, time.monotonic() - started, reason=solver.reason_unknown())
    wanted = list(obligation.watch.values())[: obligation.small] if limits.smallest else []
    model = _smallest(solver, wanted)
    values = {name: value_of(model, watched) for name, watched in obligation.watch.items()}
    return Answer(REFUTED, time.monotonic() - started, values)


def satisfiable(conditions: Iterable[z3.BoolRef], limits: Limits = Limits()) -> bool:
    """Whether there is a case in which all conditions hold; False too where the solver cannot say."""
    kept = tuple(conditions)
    key = _key(limits, None, kept)
    if key not in _satisfied:
        if _asked(limits, kept)[1] != z3.sat:
            return False
        _satisfied[key] = kept
    return True


def _asked(limits: Limits, conditions: tuple[z3.BoolRef, ...]) -> tuple[z3.Solver, z3.CheckSatResult]:
    """Ask, and where there is no answer within a part of the limit ask again from another seed.

    What takes one seed for ever takes another a moment, and which is which depends on what was asked before.
    """
    for attempt, share in enumerate(_SHARES):
        solver = z3.Solver()
        solver.set("timeout", max(1, round(share * limits.timeout_ms)))
        solver.set("random_seed", limits.seed + attempt * _NEXT_SEED)
        solver.add(*conditions)
        said = solver.check()
        if said != z3.unknown:
            break
    return solver, said


def _key(limits: Limits, goal: z3.ExprRef | None, hypotheses: Iterable[z3.ExprRef]) -> _Key:
    return limits, goal.get_id() if goal is not None else -1, tuple(sorted({one.get_id() for one in hypotheses}))


def value_of(model: z3.ModelRef, expression: z3.ExprRef) -> int:
    """Value of an integer or a condition in a model."""
    value = model.eval(expression, model_completion=True)
    if z3.is_bool(value):
        return int(z3.is_true(value))
    number: int = z3.simplify(value).as_long()
    return number


def _smallest(solver: z3.Solver, watched: Iterable[z3.ExprRef]) -> z3.ModelRef:
    """A model in which watched integers are as small as can be, the first ones first; any, where that is not known."""
    model = solver.model()
    solver.set("timeout", _SMALLER_MS)
    for expression in watched:
        if z3.is_bool(expression):
            continue
        low, high = 0, value_of(model, expression)
        while low < high:
            middle = (low + high) // 2
            solver.push()
            solver.add(expression >= 0, expression <= middle)
            found = solver.check()
            if found == z3.sat:
                model = solver.model()
                high = min(middle, value_of(model, expression))
            else:
                low = middle + 1
            solver.pop()
        if value_of(model, expression) >= 0:
            solver.add(expression == value_of(model, expression))
    return model
