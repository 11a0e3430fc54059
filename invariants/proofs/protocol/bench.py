"""The bench on which a step is run: a pool and a manager in a state that is unknown, or in one that is given.

A *scenario* is a function of a bench. It asks for blocks and numbers by name, puts together the requests, launches and rows
that the step has to do with, calls `Bench.begin`, calls a method of the manager, and says what must have come of it besides
the clauses. The same scenario runs on unknown values for the proof and on a counterexample's for its replay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import z3

from kvsan.invariants.proofs.paths import Unbounded
from kvsan.invariants.proofs.protocol.columns import Infeasible
from kvsan.invariants.proofs.protocol.flights import requests_hold
from kvsan.invariants.proofs.protocol.state import NULL_UNIT, UNITS, Holding, holdings_of, rest, unknown_pool
from kvsan.invariants.proofs.term import Condition, Number, Term, Truth, both, condition_of, decide, lift, negation

MOST_BLOCKS = 4
"""Blocks that a loop over blocks is unrolled for, at most; scenarios have tables that are shorter."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What is proved: the types of a pool and of what a manager is made of."""

    pool: type[Any]
    manager: type[Any]
    request: type[Any]
    row: type[Any]
    in_flight: type[Any]


@dataclass(frozen=True, slots=True)
class Expected:
    """What must have come of a step besides the clauses."""

    name: str
    statement: str
    condition: z3.BoolRef


class Count(Term):
    """A number of tokens or blocks; where Python needs it as the bound of a loop, every small value is tried."""

    __slots__ = ()

    def __index__(self) -> int:  # type: ignore[override]
        for number in range(MOST_BLOCKS + 1):
            if decide(self.expression == number):
                return number
        raise Unbounded(f"{self.expression} is larger than {MOST_BLOCKS}")

    __int__ = __index__  # type: ignore[assignment]

    def __add__(self, other: Number) -> Count:
        return Count(super().__add__(other).expression)

    __radd__ = __add__

    def __sub__(self, other: Number) -> Count:
        return Count(super().__sub__(other).expression)

    def __floordiv__(self, other: Number) -> Count:
        return Count(super().__floordiv__(other).expression)

    def __rfloordiv__(self, other: Number) -> Count:
        return Count(super().__rfloordiv__(other).expression)


class Table(list[Any]):
    """A table of a few entries, which a block number that is unknown can be the index of."""

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(self._known(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(self._known(index), value)

    def _known(self, index: Any) -> Any:
        if not isinstance(index, Term):
            return index
        for number in range(len(self)):
            if decide(index.expression == number):
                return number
        raise IndexError("list index out of range")


class Keys:
    """Keys of a request's blocks: any, by block number."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def upto(self, request: object, blocks: int) -> list[Number]:
        """Keys of the first blocks."""
        return [self._bench.key(f"key_of_block_{block}") for block in range(blocks)]


@dataclass
class Bench:
    """A pool, a manager, and what a scenario says about them.

    ``hand`` are blocks that are held by a loop which has not put them into a table yet, or has taken them out already.
    ``leaves_first`` is the first block to leave the queue where two do. ``is_part`` says that the step is a part of one: what
    holds of requests between two steps need not hold before it and after it.
    """

    parts: Parts
    values: Mapping[str, int] | None = None
    pool: Any = None
    hand: list[Number] = field(default_factory=list)
    numbers: dict[str, z3.ExprRef] = field(default_factory=dict)
    unit_names: list[str] = field(default_factory=list)
    key_names: list[str] = field(default_factory=list)
    requirements: list[z3.BoolRef] = field(default_factory=list)
    expected: list[Expected] = field(default_factory=list)
    uses: list[tuple[str, Any]] = field(default_factory=list)
    loading: set[str] = field(default_factory=set)
    computed: list[tuple[Any, Condition]] = field(default_factory=list)
    at_start: tuple[Holding, ...] = ()
    error: Exception | None = None
    is_part: bool = False
    leaves_first: z3.ArithRef | None = None
    began: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.accesses: list[Any] = []
        if self.pool is None:
            self.pool, self.accesses = unknown_pool(self.parts.pool)
        self.manager = self.parts.manager(4, 4)
        self.manager.pool = self.pool
        self.manager.keys = Keys(self)
        self.manager.block_size = self.number("block_size", 1)

    # -- what is unknown

    def number(self, name: str, low: int | None = 0, high: int | None = None) -> Any:
        """A number of the scenario, at least ``low``."""
        number = self._named(name, z3.Int(name))
        if low is not None:
            self.require(number >= low)
        if high is not None:
            self.require(number <= high)
        return number

    def key(self, name: str) -> Any:
        """A key of the prefix cache."""
        if name not in self.key_names:
            self.key_names.append(name)
        return self.number(name, 1)

    def unit(self, name: str) -> Any:
        """A block that can be held."""
        self.unit_names.append(name)
        number = self.number(name, NULL_UNIT + 1)
        units = Term(UNITS) if self.values is None else self.values["units"]
        self.require(number < units)
        return number

    def flag(self, name: str) -> Any:
        """Something that is so or is not."""
        known = self._named(name, z3.Bool(name))
        return known if isinstance(known, Term) else bool(known)

    def _named(self, name: str, variable: z3.ExprRef) -> Any:
        self.numbers[name] = variable
        if self.values is not None:
            return self.values.get(name, 0)
        return Truth(variable) if z3.is_bool(variable) else Count(variable)

    def require(self, condition: Condition) -> None:
        """Say what the state before the step is known to be like."""
        if self.values is None:
            self.requirements.append(condition_of(condition))
        elif not condition:
            raise Infeasible

    # -- the state

    def request(self, name: str, table: Sequence[Any], **fields: Any) -> Any:
        """Let the manager have a request."""
        request = self.parts.request(name, tokens=[0] * 8, table=Table(table), **fields)
        self.manager.requests[name] = request
        return request

    def launch(self, b: str, *requests: Any) -> Any:
        """Let a launch be in flight, with some requests in it."""
        launch = self.manager.launches[b] = self.parts.in_flight(list(requests))
        for request in requests:
            request.launches.append(b)
        return launch

    def row(self, request: Any, start: Any, table_length: int, copied: tuple[int, Any] | None = None) -> Any:
        """Let a request be in the scheduled batch."""
        row = self.manager.batch[request.name] = self.parts.row(request, start, table_length, copied)
        return row

    def begin(self) -> None:
        """Say that the state before the step is complete, and that its requests and rows are as they must be."""
        if not self.is_part:
            for condition in requests_hold(self.manager):
                self.require(Truth(condition) if self.values is None else z3.is_true(z3.simplify(condition)))
        self.at_start = self.holdings()
        self.began()

    def holdings(self) -> tuple[Holding, ...]:
        """Entries that hold a block now, of those that are known."""
        held = (Holding(lift(unit), z3.BoolVal(False)) for unit in self.hand)
        return (*holdings_of(self.manager), *held)

    def use(self, work: str, *units: Any) -> None:
        """Say that a launch, or the load of a request, is in flight and uses some blocks."""
        self.uses += [(work, unit) for unit in units]

    def compute(self, table: Sequence[Any], tokens: Any) -> None:
        """Say how many tokens of a request are computed: what may be published of its table."""
        size = self.manager.block_size
        self.computed += [(unit, (block + 1) * size <= tokens) for block, unit in enumerate(table)]

    def is_alone(self, unit: Any) -> Condition:
        """Whether one entry alone names a block now, and nobody finds it by a hash."""
        held = z3.Sum(self.rest(unit), *(z3.If(one.unit == lift(unit), 1, 0) for one in self.holdings()))
        return both(Truth(held == 1), negation(self.is_keyed(unit)))

    def rest(self, unit: Any) -> z3.ArithRef:
        """Entries that name a block in tables that are not known."""
        return rest(lift(unit)) if self.values is None else z3.IntVal(self.values.get(f"rest[{unit}]", 0))

    def expect(self, name: str, statement: str, condition: Condition) -> None:
        """Say what must have come of the step."""
        self.expected.append(Expected(name, statement, condition_of(condition)))

    def any_blocks(self) -> list[Any]:
        """A block that can be any, or all of a real pool's."""
        return [Term(z3.Int("any block"))] if self.values is None else [*range(self.values["units"])]

    def has_key(self, unit: Any, key: Any) -> Condition:
        """Whether a unit is a block that can be held, and has a key as its hash now."""
        place = lift(unit)
        if self.values is None:
            hashed = z3.And(self.pool.keys.at(place), self.pool.keys.key_at(place) == lift(key))
            return Truth(z3.And(place > NULL_UNIT, place < UNITS, hashed))
        return bool(NULL_UNIT < unit < self.values["units"] and self.pool.keys[unit] == key)

    def is_keyed(self, unit: Any) -> Condition:
        """Whether a block has a hash now."""
        if self.values is None:
            return Truth(self.pool.keys.at(lift(unit)))
        return self.pool.keys[unit] is not None
