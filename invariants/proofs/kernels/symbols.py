"""Values of a kernel that is run on unknowns: a function from lanes to what is in them.

Nothing is computed for all lanes. A block of 16 x 128 addresses is one function of two unknowns, which stand for any lane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import z3

from kvsan.invariants.proofs.kernels.ir import Rejected, Type

Lanes: TypeAlias = "tuple[z3.ArithRef, ...]"


UNDEFINED = "undefined."
"""Begins the names of what a masked load gives where it is not active and no other value is given: anything, each time."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """An address: ``offset`` elements into the tensor that the argument ``tensor`` points to."""

    tensor: str
    offset: z3.ArithRef


Entry: TypeAlias = "z3.ExprRef | Pointer | None"
"""What is in a lane: an integer, a bool, an address; None where it is *data*, of which nothing is known (floats, codes)."""


class Symbolic:
    """A scalar or block of a type; called with one index a dimension it gives what is in that lane."""

    __slots__ = ("_known", "_lane", "type")

    def __init__(self, type: Type, lane: Callable[[Lanes], Entry]) -> None:
        self.type = type
        self._lane = lane
        self._known: dict[tuple[int, ...], tuple[Lanes, Entry]] = {}

    def __call__(self, lanes: Lanes = ()) -> Entry:
        """What is in a lane."""
        key = tuple(lane.get_id() for lane in lanes)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = (lanes, self._lane(lanes))  # ids are good while the lanes live
        return found[1]

    def number(self, lanes: Lanes, use: str) -> z3.ArithRef:
        """The integer in a lane; Rejected, with what it is used for, where it is data."""
        entry = self(lanes)
        if not z3.is_int(entry):
            raise Rejected(f"{use} depends on data that the kernel loads: expected a declared index tensor")
        return entry

    def condition(self, lanes: Lanes, use: str) -> z3.BoolRef:
        """The bool in a lane; Rejected likewise."""
        entry = self(lanes)
        if not z3.is_bool(entry):
            raise Rejected(f"{use} depends on data that the kernel loads")
        return entry

    def pointer(self, lanes: Lanes, use: str) -> Pointer:
        """The address in a lane; Rejected likewise."""
        entry = self(lanes)
        if not isinstance(entry, Pointer):
            raise Rejected(f"{use} is no address of an argument")
        return entry


def data(type: Type) -> Symbolic:
    """A value of which nothing is known."""
    return Symbolic(type, lambda _: None)


def constant(type: Type, entry: Entry) -> Symbolic:
    """The same in every lane."""
    return Symbolic(type, lambda _: entry)


def pointwise(type: Type, function: Callable[..., Entry], *operands: Symbolic) -> Symbolic:
    """A function of the operands' entries in the same lane; data as soon as one of them is."""

    def lane(lanes: Lanes) -> Entry:
        entries = [operand(lanes) for operand in operands]
        return None if any(entry is None for entry in entries) else function(*entries)

    return Symbolic(type, lane)


def parts_of(expression: z3.ExprRef) -> Iterator[z3.ExprRef]:
    """An expression and all that it is made of, each once."""
    todo, seen = [expression], set[int]()
    while todo:
        current = todo.pop()
        if current.get_id() not in seen:
            seen.add(current.get_id())
            todo += current.children()
            yield current


def varies(step: z3.ExprRef, unknowns: tuple[z3.ArithRef, ...]) -> bool:
    """Whether what a loop adds each trip mentions what may be another number in another trip."""
    changing = {one.get_id() for one in unknowns}
    return any(part.get_id() in changing or part.decl().name().startswith(UNDEFINED) for part in parts_of(step))


def unknowns(expression: z3.ExprRef) -> set[str]:
    """Names of the integers that an expression mentions."""
    constants = [part.decl() for part in parts_of(expression) if z3.is_const(part)]
    return {one.name() for one in constants if one.kind() == z3.Z3_OP_UNINTERPRETED}


def premises(statement: z3.BoolRef) -> tuple[list[z3.BoolRef], z3.BoolRef]:
    """What an implication, as `term.implies` writes it, starts from, and what follows; that it ever holds can be asked then."""
    found = []
    while z3.is_or(statement) and statement.num_args() > 1 and z3.is_not(statement.arg(0)):
        found.append(statement.arg(0).arg(0))
        statement = z3.Or(*statement.children()[1:]) if statement.num_args() > 2 else statement.arg(1)
    return found, statement
