"""A kernel run once, on unknowns, for all programs: every access, loop and guard that it has, and what it demands.

A **loop** is run for one unknown trip: its variable is somewhere between its bounds, and what it carries is either data or
moves by the same step each trip, which is checked. A **guard** is a select between two blocks of data by a condition that
is not data, such as the mask of scores. Whatever else the kernel does to integers is in the expressions of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import z3

from kvsan.invariants.proofs.kernels import semantics
from kvsan.invariants.proofs.kernels.ir import INTEGER, POINTER, Block, Function, Operation, Rejected, Type, Value
from kvsan.invariants.proofs.kernels.symbols import (
    UNDEFINED,
    Entry,
    Lanes,
    Pointer,
    Symbolic,
    constant,
    data,
    pointwise,
    varies,
)

LOAD, STORE = "load", "store"


class Surroundings(Protocol):
    """What a kernel is run in: its arguments, its programs, and what its index tensors hold."""

    @property
    def programs(self) -> tuple[z3.ArithRef, z3.ArithRef, z3.ArithRef]:
        """Ids of the program."""
        ...

    @property
    def grid(self) -> tuple[z3.ArithRef, z3.ArithRef, z3.ArithRef]:
        """How many programs there are, by dimension."""
        ...

    def scalar(self, name: str) -> z3.ArithRef:
        """An integer argument."""
        ...

    def content(self, access: Access) -> z3.ArithRef | None:
        """What a load from an index tensor gives where it is active; None for a tensor of data."""
        ...


@dataclass(frozen=True, slots=True)
class Scope:
    """Where something happens: what is known there of loop variables, and the conditions of ``if`` around it.

    ``loops``: variables of the loops around it, outermost first.
    """

    known: tuple[z3.BoolRef, ...] = ()
    conditions: tuple[z3.BoolRef, ...] = ()
    loops: tuple[z3.ArithRef, ...] = ()


@dataclass(frozen=True, slots=True)
class Access:
    """A load or store, ``number`` of its kind and tensor, from 0: any lane of it, any trip, any program.

    ``offset`` in elements; ``active`` is the mask alone, which the scope's conditions come on top of.
    """

    kind: str
    tensor: str
    number: int
    shape: tuple[int, ...]
    lanes: Lanes
    offset: z3.ArithRef
    active: z3.BoolRef
    scope: Scope
    line: int


@dataclass(frozen=True, slots=True)
class Guard:
    """A select between data: ``condition`` in any lane, where what the kernel computes is taken and not a constant.

    Of two constants, and of two that are none, where the first one is taken.
    """

    shape: tuple[int, ...]
    lanes: Lanes
    condition: z3.BoolRef
    scope: Scope
    line: int


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop over ``range(start, stop, step)``."""

    start: z3.ArithRef
    stop: z3.ArithRef
    step: z3.ArithRef
    variable: z3.ArithRef
    scope: Scope
    line: int


@dataclass(frozen=True, slots=True)
class Demand:
    """What must hold in any lane for the integers to be exact, and whatever the kernel asserts."""

    what: str
    lanes: Lanes
    shape: tuple[int, ...]
    holds: z3.BoolRef
    scope: Scope
    line: int


@dataclass(frozen=True, slots=True)
class Run:
    """All that a kernel does; ``definitions`` say what unknowns in it stand for."""

    accesses: tuple[Access, ...]
    guards: tuple[Guard, ...]
    loops: tuple[Loop, ...]
    demands: tuple[Demand, ...]
    definitions: tuple[z3.BoolRef, ...]


def execute(function: Function, arguments: Mapping[str, str], surroundings: Surroundings, suffix: str = "") -> Run:
    """Run a kernel; ``arguments``: names of its arguments in order, with their types as in a `Build`'s signature.

    ``suffix`` goes behind the names of unknowns, so that two runs can be told apart. Rejected on what is not supported.
    """
    return _Execution(function, list(arguments), surroundings, suffix).run()


class _Execution:
    def __init__(self, function: Function, names: list[str], surroundings: Surroundings, suffix: str) -> None:
        if len(names) != len(function.body.arguments):
            raise Rejected(f"{len(function.body.arguments)} arguments in the IR: expected {len(names)}")
        self._function = function
        self._surroundings = surroundings
        self._suffix = suffix
        self._unknowns = 0
        self._scope = Scope()
        self._values: dict[int, Symbolic] = {}
        self._constants = set[int]()
        self._accesses: list[Access] = []
        self._guards: list[Guard] = []
        self._loops: list[Loop] = []
        self._demands: list[Demand] = []
        self._definitions: list[z3.BoolRef] = []
        for value, name in zip(function.body.arguments, names, strict=True):
            self._values[value.name] = constant(value.type, self._argument(value.type, name))

    def run(self) -> Run:
        self._block(self._function.body)
        loops, demands = tuple(self._loops), tuple(self._demands)
        return Run(tuple(self._accesses), tuple(self._guards), loops, demands, tuple(self._definitions))

    def _argument(self, type: Type, name: str) -> Entry:
        if type.kind == POINTER:
            return Pointer(name, z3.IntVal(0))
        return self._surroundings.scalar(name) if type.kind == INTEGER and type.width > 1 else None

    # -- blocks and operations

    def _block(self, block: Block) -> list[Symbolic]:
        """Run operations in order; returns what the last one yields."""
        for operation in block.operations:
            operands = [self._values[one.name] for one in operation.operands]
            if operation.name in ("scf.yield", "scf.condition", "tt.return"):
                return operands
            handler = getattr(self, f"_on_{operation.name.replace('.', '_')}", None)
            results = handler(operation, operands) if handler else self._pure(operation, operands)
            for value, result in zip(operation.results, results, strict=True):
                self._values[value.name] = result
            if self._is_constant(operation):
                self._constants |= {value.name for value in operation.results}
        return []

    def _is_constant(self, operation: Operation) -> bool:
        if operation.name == "arith.constant" or not operation.operands or operation.regions:
            return operation.name == "arith.constant"
        return all(one.name in self._constants for one in operation.operands)

    def _pure(self, operation: Operation, operands: list[Symbolic]) -> list[Symbolic]:
        results, demands = semantics.apply(operation, operands)
        for demand in demands:
            lanes = self._lanes(demand.shape)
            holds = demand.holds(lanes)
            if holds is not None:
                self._demand(demand.what, holds, operation, lanes, demand.shape)
        if operation.name == "arith.select" and not operation.results[0].type.is_integer:
            self._guard(operation, operands)
        return results

    def _guard(self, operation: Operation, operands: list[Symbolic]) -> None:
        shape = operands[0].type.shape
        lanes = self._lanes(shape)
        condition = operands[0](lanes)
        if z3.is_bool(condition) and operation.results[0].type.kind != POINTER:
            first, second = (one.name in self._constants for one in operation.operands[1:])
            condition = z3.Not(condition) if first and not second else condition
            self._guards.append(Guard(shape, lanes, condition, self._scope, operation.line))

    def _demand(
        self, what: str, holds: z3.BoolRef, operation: Operation, lanes: Lanes = (), shape: tuple[int, ...] = ()
    ) -> None:
        self._demands.append(Demand(what, lanes, shape, holds, self._scope, operation.line))

    def _unknown(self, name: str) -> z3.ArithRef:
        self._unknowns += 1
        return z3.Int(f"{name}.{self._unknowns}{self._suffix}")

    def _lanes(self, shape: tuple[int, ...]) -> Lanes:
        """One unknown a dimension. Any two blocks of the same shape have the same ones: they are never related."""
        return tuple(z3.Int(f"lane{axis}{self._suffix}") for axis in range(len(shape)))

    @contextmanager
    def _inside(
        self, known: tuple[z3.BoolRef, ...] = (), condition: z3.BoolRef | None = None, loop: z3.ArithRef | None = None
    ) -> Iterator[None]:
        outer = self._scope
        conditions = outer.conditions if condition is None else (*outer.conditions, condition)
        loops = outer.loops if loop is None else (*outer.loops, loop)
        self._scope = Scope((*outer.known, *known), conditions, loops)
        try:
            yield
        finally:
            self._scope = outer

    # -- programs and memory

    def _on_tt_get_program_id(self, operation: Operation, _: list[Symbolic]) -> list[Symbolic]:
        return [constant(operation.results[0].type, self._surroundings.programs[operation.attributes["axis"]])]

    def _on_tt_get_num_programs(self, operation: Operation, _: list[Symbolic]) -> list[Symbolic]:
        return [constant(operation.results[0].type, self._surroundings.grid[operation.attributes["axis"]])]

    def _on_tt_load(self, operation: Operation, operands: list[Symbolic]) -> list[Symbolic]:
        present = operation.attributes.get("operandSegmentSizes", [1] * len(operands))
        mask = operands[1] if present[1:2] == [1] else None
        other = operands[-1] if present[2:3] == [1] else None
        access = self._access(LOAD, operation, operands[0], mask)
        type = operation.results[0].type
        return [self._loaded(access, type, mask, other) if type.is_integer else data(type)]

    def _loaded(self, access: Access, type: Type, mask: Symbolic | None, other: Symbolic | None) -> Symbolic:
        content = self._surroundings.content(access)
        if content is None:
            return data(type)
        around = (*self._surroundings.programs, *access.scope.loops)
        sorts = [z3.IntSort()] * (len(around) + len(access.lanes))
        undefined = z3.Function(f"{UNDEFINED}{access.line}{self._suffix}", *sorts, z3.IntSort())

        def lane(lanes: Lanes) -> Entry:
            pairs = [(old, new) for old, new in zip(access.lanes, lanes, strict=True) if not old.eq(new)]
            there = z3.substitute(content, pairs) if pairs else content
            if mask is None:
                return there
            otherwise = undefined(*around, *lanes) if other is None else other(lanes)
            return None if otherwise is None else z3.If(mask.condition(lanes, "a mask"), there, otherwise)

        return Symbolic(type, lane)

    def _on_tt_store(self, operation: Operation, operands: list[Symbolic]) -> list[Symbolic]:
        self._access(STORE, operation, operands[0], operands[2] if len(operands) > 2 else None)
        return []

    def _access(self, kind: str, operation: Operation, pointers: Symbolic, mask: Symbolic | None) -> Access:
        shape = pointers.type.shape
        lanes = self._lanes(shape)
        place = f"line {operation.line}: the address of a {kind}"
        pointer = pointers.pointer(lanes, place)
        active = (
            z3.BoolVal(True) if mask is None else mask.condition(lanes, f"line {operation.line}: the mask of a {kind}")
        )
        number = sum(one.kind == kind and one.tensor == pointer.tensor for one in self._accesses)
        access = Access(kind, pointer.tensor, number, shape, lanes, pointer.offset, active, self._scope, operation.line)
        self._accesses.append(access)
        return access

    def _on_tt_assert(self, operation: Operation, operands: list[Symbolic]) -> list[Symbolic]:
        lanes = self._lanes(operands[0].type.shape)
        condition = operands[0].condition(lanes, f"line {operation.line}: an assertion")
        what = f"assertion: {operation.attributes.get('message', '')}"
        self._demand(what, condition, operation, lanes, operands[0].type.shape)
        return []

    @staticmethod
    def _on_tt_print(*_: object) -> list[Symbolic]:
        return []

    # -- control flow

    def _on_scf_if(self, operation: Operation, operands: list[Symbolic]) -> list[Symbolic]:
        condition = operands[0].condition((), f"line {operation.line}: the condition of an if")
        with self._inside(condition=condition):
            then = self._block(operation.regions[0])
        with self._inside(condition=z3.Not(condition)):
            otherwise = self._block(operation.regions[1])
        return [
            semantics.merged(value.type, condition, one, other)
            for value, one, other in zip(operation.results, then, otherwise, strict=True)
        ]

    def _on_scf_for(self, operation: Operation, operands: list[Symbolic]) -> list[Symbolic]:
        place = f"line {operation.line}: a bound of a loop"
        start, stop, step = (one.number((), place) for one in operands[:3])
        body = operation.regions[0]
        variable, trip = self._unknown("iteration"), self._unknown("trip")
        width = body.arguments[0].type.width
        self._demand("a loop's step that is not positive", step > 0, operation)
        self._loops.append(Loop(start, stop, step, variable, self._scope, operation.line))
        known = (variable >= start, variable < stop, trip >= 0, variable == start + trip * step)
        with self._inside(known, loop=variable):
            self._demand(
                f"overflow of int{width}: a loop's variable", semantics.fits(variable + step, width), operation
            )
            self._values[body.arguments[0].name] = constant(body.arguments[0].type, variable)
            carried = [
                self._carry(value, first, trip) for value, first in zip(body.arguments[1:], operands[3:], strict=True)
            ]
            yielded = self._block(body)
            steps = [
                self._step(one, next, operation, (variable, trip)) for one, next in zip(carried, yielded, strict=True)
            ]
        trips = z3.If(stop > start, (stop - start + step - 1) / step, z3.IntVal(0))
        return [
            self._moved(value.type, first, step, trips)
            for value, first, step in zip(operation.results, operands[3:], steps, strict=True)
        ]

    def _on_scf_while(self, operation: Operation, operands: list[Symbolic]) -> list[Symbolic]:
        before, after = operation.regions
        trip = self._unknown("trip")
        carried = [self._carry(value, first, trip) for value, first in zip(before.arguments, operands, strict=True)]
        with self._inside((trip >= 0,), loop=trip):
            condition, *passed = self._block(before)
        holds = condition.condition((), f"line {operation.line}: the condition of a loop")
        with self._inside((trip >= 0, holds), loop=trip):
            for value, symbol in zip(after.arguments, passed, strict=True):
                self._values[value.name] = symbol
            yielded = self._block(after)
            for one, next in zip(carried, yielded, strict=True):
                self._step(one, next, operation, (trip,))
        return [data(value.type) for value in operation.results]

    def _carry(self, value: Value, first: Symbolic, trip: z3.ArithRef) -> _Carried:
        """Guess that what a loop carries moves by an unknown step each trip; `_step` finds out by how much."""
        step = self._unknown("step")
        carried = _Carried(value.type, first, step, self._moved(value.type, first, step, trip))
        self._values[value.name] = carried.value
        return carried

    def _moved(self, type: Type, first: Symbolic, step: z3.ArithRef | None, trips: z3.ArithRef) -> Symbolic:
        if step is None or (type.is_integer and type.width == 1):
            return data(type)

        def entry(start: Entry) -> Entry:
            if isinstance(start, Pointer):
                return Pointer(start.tensor, start.offset + trips * step)
            return None if start is None else start + trips * step

        return pointwise(type, entry, first)

    def _step(
        self, carried: _Carried, next: Symbolic, operation: Operation, of_trip: tuple[z3.ArithRef, ...]
    ) -> z3.ArithRef | None:
        """By how much a carried value moves each trip; None for data. Rejected if that differs from trip to trip."""
        lanes = self._lanes(carried.type.shape)
        before, after = carried.value(lanes), next(lanes)
        if before is None:
            return None
        if isinstance(before, Pointer) and isinstance(after, Pointer) and before.tensor == after.tensor:
            before, after = before.offset, after.offset
        if not (isinstance(before, z3.ArithRef) and isinstance(after, z3.ArithRef)):
            raise Rejected(f"line {operation.line}: a loop carries an integer or address that becomes something else")
        moved = z3.simplify(after - before, som=True)
        if varies(moved, (*of_trip, *lanes, carried.step)):
            raise Rejected(
                f"line {operation.line}: a loop carries an integer or address whose step is not always the same"
            )
        self._definitions.append(carried.step == moved)
        return moved


@dataclass(frozen=True, slots=True)
class _Carried:
    type: Type
    first: Symbolic
    step: z3.ArithRef
    value: Symbolic
