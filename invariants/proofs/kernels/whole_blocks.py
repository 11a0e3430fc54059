"""Whether blocks have as many lanes as a specification goes through.

Formulas say where each lane of a block is, and hold of a block with fewer lanes just as well: half a tile of K would be
read at the right addresses. Two ways in which a formula tells how many lanes there are to be:

- ``at.loop + at.lane[0]``, a position: the loop has as many positions a trip as its step, so that dimension has as many lanes;
- ``at.lane[1] < 128``, an end of one dimension of lanes and nothing else: no lane before it is missing.

`specification.Complete` says it of everything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import z3

from kvsan.invariants.proofs.kernels.execution import Scope
from kvsan.invariants.proofs.kernels.ir import Rejected
from kvsan.invariants.proofs.kernels.symbols import Lanes, parts_of

_BEYOND = 1 << 40
"""A lane that no block has: a condition that holds of it is no end of anything."""


def check_positions(
    what: str, lanes: Lanes, shape: tuple[int, ...], scope: Scope, step: int, formulas: Iterable[z3.ExprRef]
) -> None:
    """Rejected if a dimension that goes on where the innermost loop of ``scope`` is has not ``step`` lanes."""
    variable = scope.loops[-1]
    for formula in (part for one in formulas for part in _conjuncts(one)):
        for lane, size in zip(lanes, shape, strict=True):
            if size != step and _mentions(formula, variable) and _mentions(formula, lane):
                moved = z3.substitute(formula, (variable, variable - 1), (lane, lane + 1))
                if z3.simplify(moved, som=True).eq(z3.simplify(formula, som=True)):
                    raise Rejected(f"{what}: {size} lanes for positions of a loop by {step}")


def check_lanes(what: str, lanes: Lanes, shape: tuple[int, ...], where: z3.BoolRef) -> None:
    """Rejected if a condition on lanes of one dimension alone ends somewhere, but not before the block does."""
    for lane, size in zip(lanes, shape, strict=True):
        alone = [one for one in _conjuncts(where) if _unknowns(one) and all(part.eq(lane) for part in _unknowns(one))]
        limit = z3.And(*alone)
        if not _is_false(limit, lane, size) and _is_false(limit, lane, _BEYOND):
            raise Rejected(f"{what}: {size} lanes, and the specification has more: {z3.simplify(limit)}")


def _is_false(condition: z3.BoolRef, lane: z3.ArithRef, number: int) -> bool:
    """Whether the condition on a lane does not hold of one number."""
    return bool(z3.is_false(z3.simplify(z3.substitute(condition, (lane, z3.IntVal(number))))))


def _conjuncts(formula: z3.ExprRef) -> Iterator[z3.ExprRef]:
    if z3.is_and(formula):
        for part in formula.children():
            yield from _conjuncts(part)
    else:
        yield formula


def _mentions(formula: z3.ExprRef, unknown: z3.ArithRef) -> bool:
    return any(part.eq(unknown) for part in parts_of(formula))


def _unknowns(formula: z3.ExprRef) -> list[z3.ExprRef]:
    """Everything in a formula that is neither a number nor a known operation."""
    return [part for part in parts_of(formula) if part.decl().kind() == z3.Z3_OP_UNINTERPRETED]
