"""Proofs about address arithmetic, on the functions themselves that managers and kernels' host side call."""

from __future__ import annotations

import time
from functools import lru_cache

from kvsan.invariants.proofs.addressing import (
    heads,
    layouts,
    limits,
    local_slots,
    pages,
    ranks,
    slots,
    tokens,
    vectors,
    windows,
)
from kvsan.invariants.proofs.addressing.functions import REAL, Functions, source_of
from kvsan.invariants.proofs.addressing.theorem import NotReplayed, Statement, Theorem, theorem
from kvsan.invariants.proofs.obligation import PROVED, REFUTED, UNKNOWN, Claim, Outcome
from kvsan.invariants.proofs.paths import Unbounded
from kvsan.invariants.proofs.solver import Limits, satisfiable, solve

__all__ = ["REAL", "STATEMENTS", "Functions", "NotReplayed", "Statement", "Theorem", "claims", "prove", "theorem"]

PART = "addressing"

STATEMENTS: dict[str, Statement] = {
    one.name: one
    for theme in (slots, windows, vectors, pages, heads, tokens, local_slots, ranks, layouts, limits)
    for one in theme.STATEMENTS
}


@lru_cache(maxsize=1)
def _claims() -> dict[str, Claim]:
    return {name: _claim(name, one) for name, one in STATEMENTS.items()}


def _claim(name: str, statement: Statement) -> Claim:
    about = {each for one in theorems_of(name) for each in one.about}
    return Claim(PART, name, statement.says, statement.assumptions, source_of(about))


def claims() -> list[Claim]:
    """All claims about addresses."""
    return list(_claims().values())


def theorems_of(name: str) -> list[Theorem]:
    """Theorems of a claim, each after the lemmas that it uses."""
    found: list[Theorem] = []
    for one in STATEMENTS[name].theorems:
        found += [each for each in one.closure() if each not in found]
    return found


def prove(name: str, limits: Limits = Limits(), functions: Functions = REAL) -> Outcome:  # noqa: B008
    """Prove a claim, of the real functions or of others; KeyError if there is none of that name.

    NotReplayed if z3's counterexample is none: then the proof system is wrong, and nothing is said of the functions.
    """
    claim, statement = _claims()[name], STATEMENTS[name]
    started = time.monotonic()
    shown = 0
    for one in theorems_of(name):
        if not satisfiable(one.hypotheses(), limits):
            reason = f"vacuous: {one.name}: no case in which its hypotheses hold was found"
            return Outcome(claim, UNKNOWN, shown, time.monotonic() - started, reason=reason)
        try:
            for obligation in one.obligations(functions):
                answer = solve(obligation, limits)
                if answer.status == REFUTED:
                    found = one.replayed(functions, answer.values, obligation.what)
                    return Outcome(claim, REFUTED, shown, time.monotonic() - started, found)
                if answer.status != PROVED:
                    reason = f"{one.name}: {answer.reason}"
                    return Outcome(claim, UNKNOWN, shown, time.monotonic() - started, reason=reason)
                shown += 1
        except Unbounded as error:
            return Outcome(claim, UNKNOWN, shown, time.monotonic() - started, reason=f"{one.name}: {error}")
    found_limits = statement.limits() if statement.limits else {}
    return Outcome(claim, PROVED, shown, time.monotonic() - started, limits=found_limits)
