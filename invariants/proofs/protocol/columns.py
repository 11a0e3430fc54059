"""Stand-ins for the pool's columns: what the pool's own code reads and writes, over unknown contents.

A column is an unknown function and the writes on top of it. Every index is noted: Python would read ``column[-1]`` from the
other end, so that a step is right only if each of its indices is within the column (`Access`).

The hash map has, for each key, a number of units and the units in order; as in the pool, one unit stands for itself and
several are a list; ``without_lists`` leaves the latter to
other proofs. What the pool asks with ``is None``, ``isinstance`` or ``len`` is decided there and then, once for each
possible answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import z3

from kvsan.invariants.proofs.term import Number, Term, decide, lift

Function = Callable[..., z3.ExprRef]
MANY = 1 << 30
"""Length that stands for all lengths above two: nothing but comparisons with smaller ones makes sense of it."""


class Infeasible(Exception):
    """What was assumed does not hold on this path: it is none."""


def assume(condition: z3.BoolRef) -> None:
    """Go on only where the condition holds."""
    if not decide(condition):
        raise Infeasible


class Access(NamedTuple):
    """An index that was used, and what must hold of it."""

    column: str
    within: z3.BoolRef


class Write(NamedTuple):
    """One write to a column, with what was there before."""

    index: z3.ArithRef
    value: z3.ExprRef
    before: z3.ExprRef


class Column:
    """A column of integers, ``size`` long."""

    def __init__(self, name: str, base: Function, size: z3.ArithRef, accesses: list[Access]) -> None:
        self.name = name
        self.writes: list[Write] = []
        self._base = base
        self._size = size
        self._accesses = accesses

    def __getitem__(self, index: Number) -> Term:
        return Term(self.at(self._place(index)))

    def __setitem__(self, index: Number, value: Number) -> None:
        self.write(self._place(index), lift(value))

    def at(self, index: z3.ArithRef) -> z3.ArithRef:
        """What is there now."""
        return over(self._base(index), self.writes, index)

    def write(self, index: z3.ArithRef, value: z3.ExprRef) -> None:
        """Write, and note what was there."""
        self.writes.append(Write(index, value, self.at(index)))

    def _place(self, index: Number) -> z3.ArithRef:
        place = lift(index)
        self._accesses.append(Access(self.name, z3.And(place >= 0, place < self._size)))
        return place


class KeyColumn(Column):
    """A column of keys, some of which are None."""

    def __init__(self, name: str, keyed: Function, key: Function, size: z3.ArithRef, accesses: list[Access]) -> None:
        super().__init__(name, keyed, size, accesses)
        self._key = key
        self._key_writes: list[Write] = []

    def __getitem__(self, index: Number) -> Term | None:  # type: ignore[override]
        place = self._place(index)
        return Term(self.key_at(place)) if decide(self.at(place)) else None

    def __setitem__(self, index: Number, value: Number | None) -> None:
        place = self._place(index)
        if value is not None:
            self._key_writes.append(Write(place, lift(value), self.key_at(place)))
        self.write(place, z3.BoolVal(value is not None))

    def key_at(self, index: z3.ArithRef) -> z3.ArithRef:
        """Key that is there now, where one is."""
        return over(self._key(index), self._key_writes, index)


class UnitOfKey(Term):
    """A unit as the hash map has it: ``isinstance`` takes it for the int that it stands for."""

    __slots__ = ()

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int


class HashMap:
    """From keys to units: `length` of them under a key, `entry` by position; `listed` where they are in a list."""

    def __init__(self, length: Function, listed: Function, entry: Function, place: Function) -> None:
        self._lengths, self._listed = length, listed
        self.writes: list[Write] = []
        self._listed_writes: list[Write] = []
        self._entry = entry
        self._place = place
        self._removals = 0
        self.without_lists = False

    def length(self, key: z3.ArithRef) -> z3.ArithRef:
        """Units under a key."""
        return over(self._lengths(key), self.writes, key)

    def listed(self, key: z3.ArithRef) -> z3.BoolRef:
        """Whether they are in a list."""
        return over(self._listed(key), self._listed_writes, key)

    def entry(self, key: z3.ArithRef, position: z3.ArithRef) -> z3.ArithRef:
        """Unit at a position of a key's units."""
        return self._entry(key, position)

    def get(self, key: Number, default: None = None) -> UnitOfKey | Units | None:
        """What the pool would get: nothing, a unit, or a list."""
        name = lift(key)
        if not decide(self.length(name) >= 1):
            return default
        if self.without_lists:
            assume(self.length(name) == 1)
        return Units(self, name) if decide(self.listed(name)) else UnitOfKey(self.entry(name, z3.IntVal(0)))

    def __contains__(self, key: Number) -> bool:
        return self.get(key) is not None

    def __getitem__(self, key: Number) -> UnitOfKey | Units:
        found = self.get(key)
        if found is None:
            raise KeyError(key)
        return found

    def __setitem__(self, key: Number, value: Number | list[Number]) -> None:
        units = [value] if isinstance(value, int | Term) else value
        for position, unit in enumerate(units):
            self.put(lift(key), z3.IntVal(position), lift(unit))
        self.resize(lift(key), z3.IntVal(len(units)), isinstance(value, list))

    def __delitem__(self, key: Number) -> None:
        if self.get(key) is None:
            raise KeyError(key)
        self.resize(lift(key), z3.IntVal(0), False)

    def pop(self, key: Number, default: None = None) -> UnitOfKey | Units | None:
        """Take a key out."""
        found = self.get(key, default)
        if found is not None:
            self.resize(lift(key), z3.IntVal(0), False)
        return found

    def put(self, key: z3.ArithRef, position: z3.ArithRef, unit: z3.ArithRef) -> None:
        """Put a unit at a position."""
        before = self._entry
        self._entry = lambda k, i: z3.If(z3.And(k == key, i == position), unit, before(k, i))

    def resize(self, key: z3.ArithRef, length: z3.ArithRef, listed: bool) -> None:
        """Say how many units there are."""
        self.writes.append(Write(key, length, self.length(key)))
        self._listed_writes.append(Write(key, z3.BoolVal(listed), self.listed(key)))

    def remove(self, key: z3.ArithRef, unit: z3.ArithRef) -> None:
        """Take a unit out of a list; ValueError unless it is where the state before the step has it, or one before that.

        Python takes the first that is equal. Here any that is equal may be taken, of which the first is one.
        """
        known = self._place(unit)
        if not decide(z3.Or(self._is_at(key, known, unit), self._is_at(key, known - 1, unit))):
            raise ValueError("list.remove(x): x not in list")
        self._removals += 1
        position = z3.Int(f"removed{self._removals}")
        assume(self._is_at(key, position, unit))
        before, length = self._entry, self.length(key)
        self._entry = lambda k, i: z3.If(z3.And(k == key, i >= position), before(k, i + 1), before(k, i))
        self.resize(key, length - 1, True)

    def _is_at(self, key: z3.ArithRef, position: z3.ArithRef, unit: z3.ArithRef) -> z3.BoolRef:
        return z3.And(position >= 0, position < self.length(key), self.entry(key, position) == unit)


class Units:
    """The list of units under one key."""

    def __init__(self, owner: HashMap, key: z3.ArithRef) -> None:
        self._map, self._key = owner, key

    def __len__(self) -> int:
        for number in range(3):
            if decide(self._map.length(self._key) == number):
                return number
        return MANY

    def __getitem__(self, position: Number) -> UnitOfKey:
        place = lift(position)
        place = z3.If(place < 0, self._map.length(self._key) + place, place)
        if not decide(z3.And(place >= 0, place < self._map.length(self._key))):
            raise IndexError("list index out of range")
        return UnitOfKey(self._map.entry(self._key, z3.simplify(place)))

    def __iter__(self) -> Iterator[UnitOfKey]:
        raise TypeError("the units of a key are unknown in number: they cannot be gone through")

    def append(self, unit: Number) -> None:
        """Put a unit behind the others."""
        length = self._map.length(self._key)
        self._map.put(self._key, length, lift(unit))
        self._map.resize(self._key, length + 1, True)

    def remove(self, unit: Number) -> None:
        """Take a unit out."""
        self._map.remove(self._key, lift(unit))

    def pop(self, position: Number = -1) -> UnitOfKey:
        """Take the unit at a position out."""
        unit = self[position]
        self.remove(unit)
        return unit


def over(base: z3.ExprRef, writes: list[Write], index: z3.ArithRef) -> z3.ExprRef:
    """What is at an index after some writes."""
    value = base
    for write in writes:
        value = write.value if write.index.eq(index) else z3.If(write.index == index, write.value, value)
    return value
