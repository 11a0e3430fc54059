"""Where the induction begins: a new pool.

What a new pool of any size is like is written down as a formula, and the clauses are proved of it. That the real constructor
makes just that is looked at, for every size up to a limit.
"""

from __future__ import annotations

from typing import Any

import z3

from kvsan.invariants.proofs.obligation import Obligation
from kvsan.invariants.proofs.protocol.clauses import CLAUSES
from kvsan.invariants.proofs.protocol.state import NOT_QUEUED, NULL_UNIT, UNITS, View

LARGEST = 64
"""Largest pool whose constructor is looked at."""


def following(unit: Any, units: Any, choose: Any) -> Any:
    """Link of a new pool: each block to the next, the last to the sentinel, the sentinel to the first."""
    return choose(unit == units, 1, choose(unit == NULL_UNIT, NOT_QUEUED, unit + 1))


def preceding(unit: Any, units: Any, choose: Any) -> Any:
    """Link back."""
    return choose(unit == NULL_UNIT, NOT_QUEUED, choose(unit == 1, units, unit - 1))


def obligations() -> tuple[Obligation, ...]:
    """The clauses hold of a new pool of any size of two blocks or more."""
    u, k, i, j, n = z3.Ints("u k i j n")
    zero, never = z3.IntVal(0), z3.BoolVal(False)
    queued = z3.Function("queued among", z3.IntSort(), z3.IntSort())
    view = View(
        UNITS,
        lambda _: zero,
        lambda unit: following(unit, UNITS, z3.If),
        lambda unit: preceding(unit, UNITS, z3.If),
        lambda _: never,
        lambda _: zero,
        lambda _: zero,
        lambda _: never,
        lambda _k, _i: zero,
        lambda _: [zero],
        lambda unit: unit,
        UNITS - 1,
        queued(UNITS),
        (),
        lambda _: zero,
        lambda _: never,
    )
    arguments: dict[str, tuple[z3.ArithRef, ...]] = {"pool": (), "block": (u,), "key": (k, i, j)}
    given = (UNITS >= 2, u >= 0, u <= UNITS, queued(UNITS) == UNITS - 1)
    counted = z3.If(z3.And(n > NULL_UNIT, following(n, UNITS, z3.If) != NOT_QUEUED), 1, 0)
    unfolded = (n >= 1, n < UNITS, queued(n) == n - 1, queued(n + 1) == queued(n) + counted)
    return (
        Obligation("all blocks but the null block are queued, of one", (queued(1) == 0,), queued(1) == 1 - 1),
        Obligation("all blocks but the null block are queued, of one more", unfolded, queued(n + 1) == n),
        *(Obligation(clause.statement, given, clause.holds(view, *arguments[clause.about])) for clause in CLAUSES),
    )


def differences(pool_type: type[Any]) -> list[str]:
    """In what the real constructor's pools differ from the formula."""
    found = []
    for units in range(2, LARGEST + 1):
        pool = pool_type(units)
        links = [following(unit, units, _choose) for unit in range(units + 1)]
        backward = [preceding(unit, units, _choose) for unit in range(units + 1)]
        expected: Any = (units - 1, [0] * units, [None] * units, {}, links, backward)
        made = (pool.num_free, [*pool.references], [*pool.keys], pool.by_key, [*pool._next], [*pool._previous])
        if made != expected:
            found.append(f"a new pool of {units} blocks")
    return found


def _choose(condition: bool, then: int, otherwise: int) -> int:
    return then if condition else otherwise
