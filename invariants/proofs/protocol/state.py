"""A state of pool and tables, as the clauses see it: before a step, after it, or read off real objects.

What is unknown before a step is a handful of functions of a block (or of a key), one of them for each column. Tables are
known only as far as the step has to do with them; of all others it is known how many of their entries name a block
(`rest`), and whether one of those entries is its request's to write (`tail`): it lies behind what the request has retired, or
is where a copy is going to.

Who holds a block is read off the tables, before and after, each time anew: entries of requests' tables, of tables that are
parked with a launch or a load, and sources of copies that are scheduled. Nothing counts along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import z3

from kvsan.gpu_kernels.addressing import blocks_for
from kvsan.invariants.proofs.protocol.columns import Access, Column, HashMap, KeyColumn, Write
from kvsan.invariants.proofs.term import Term, lift

NULL_UNIT = 0
NOT_QUEUED = -1

_INT, _BOOL = z3.IntSort(), z3.BoolSort()
UNITS = z3.Int("units")
NUM_FREE = z3.Int("num_free")
references = z3.Function("references", _INT, _INT)
following = z3.Function("next", _INT, _INT)
preceding = z3.Function("previous", _INT, _INT)
keyed = z3.Function("keyed", _INT, _BOOL)
key = z3.Function("key", _INT, _INT)
length = z3.Function("length", _INT, _INT)
listed = z3.Function("listed", _INT, _BOOL)
entry = z3.Function("entry", _INT, _INT, _INT)
place = z3.Function("place", _INT, _INT)
stamp = z3.Function("stamp", _INT, _INT)
rest = z3.Function("rest", _INT, _INT)
tail = z3.Function("tail", _INT, _BOOL)
QUEUED = z3.Int("queued")
LATEST = z3.Int("latest")

SECOND = z3.Int("second")

OF_UNITS = (references, following, preceding, keyed, key, place, stamp, rest, tail)
OF_KEYS = (length, listed)


class Holding(NamedTuple):
    """One entry of a table that is known: the unit, and whether it is its request's to write."""

    unit: z3.ArithRef
    is_tail: z3.BoolRef


@dataclass(frozen=True)
class View:
    """Functions of one state. ``places`` are where a unit may stand among the units of its key: one of them is right."""

    units: z3.ArithRef
    references: Callable[[z3.ArithRef], z3.ArithRef]
    following: Callable[[z3.ArithRef], z3.ArithRef]
    preceding: Callable[[z3.ArithRef], z3.ArithRef]
    keyed: Callable[[z3.ArithRef], z3.BoolRef]
    key: Callable[[z3.ArithRef], z3.ArithRef]
    length: Callable[[z3.ArithRef], z3.ArithRef]
    listed: Callable[[z3.ArithRef], z3.BoolRef]
    entry: Callable[[z3.ArithRef, z3.ArithRef], z3.ArithRef]
    places: Callable[[z3.ArithRef], list[z3.ArithRef]]
    stamp: Callable[[z3.ArithRef], z3.ArithRef]
    num_free: z3.ArithRef
    queued: z3.ArithRef
    holdings: tuple[Holding, ...]
    rest: Callable[[z3.ArithRef], z3.ArithRef]
    rest_tail: Callable[[z3.ArithRef], z3.BoolRef]

    def holders(self, unit: z3.ArithRef) -> z3.ArithRef:
        """Entries that name a unit."""
        return z3.Sum(self.rest(unit), *(_one_if(holding.unit == unit) for holding in self.holdings))

    def tail(self, unit: z3.ArithRef) -> z3.BoolRef:
        """Whether an entry that names a unit is its request's to write."""
        known = (z3.And(holding.is_tail, holding.unit == unit) for holding in self.holdings)
        return z3.Or(self.rest_tail(unit), *known)

    def is_unit(self, unit: z3.ArithRef) -> z3.BoolRef:
        """Whether it is a block that can be held."""
        return z3.And(unit > NULL_UNIT, unit < self.units)

    def is_queued(self, unit: z3.ArithRef) -> z3.BoolRef:
        """Whether a block has links in the free queue."""
        return z3.And(self.is_unit(unit), self.following(unit) != NOT_QUEUED)

    def in_ring(self, index: z3.ArithRef) -> z3.BoolRef:
        """Whether it is the sentinel or a queued block."""
        return z3.Or(index == self.units, self.is_queued(index))


def before(holdings: Iterable[Holding]) -> View:
    """Any state in which some entries of tables are known."""
    return View(
        UNITS, references, following, preceding, keyed, key, length, listed, entry,
        lambda unit: [place(unit)], stamp, NUM_FREE, QUEUED, tuple(holdings), rest, tail,
    )  # fmt: skip


def after(pool: Any, holdings: Iterable[Holding]) -> View:
    """State that a step has left in a pool of stand-ins."""
    by_key: HashMap = pool.by_key
    keys: KeyColumn = pool.keys

    def places(unit: z3.ArithRef) -> list[z3.ArithRef]:
        known = place(unit)
        behind = by_key.length(keys.key_at(unit))
        return [known, known - 1, behind - 1, behind - 2, z3.IntVal(0)]

    joined = sum(write.index.eq(UNITS) for write in pool._previous.writes)

    def stamped(unit: z3.ArithRef, depth: int = joined) -> z3.ArithRef:
        """A block that was queued keeps its stamp; one that joins gets one more than the block before it has."""
        if not depth:
            return stamp(unit)
        last = pool._previous.at(unit)
        new = z3.If(last == UNITS, z3.IntVal(0), stamped(last, depth - 1) + 1)
        return z3.If(following(unit) != NOT_QUEUED, stamp(unit), new)

    return View(
        UNITS, pool.references.at, pool._next.at, pool._previous.at, keys.at, keys.key_at,
        by_key.length, by_key.listed, by_key.entry, places, stamped, lift(pool.num_free),
        queued_after(pool._next.writes), tuple(holdings), rest, tail,
    )  # fmt: skip


def queued_after(writes: Iterable[Write]) -> z3.ArithRef:
    """Number of queued blocks after writes to their links: each changes it by one at most (`counts`)."""
    total: z3.ArithRef = QUEUED
    for write in writes:
        counted = z3.And(write.index > NULL_UNIT, write.index < UNITS)
        change = _one_if(write.value != NOT_QUEUED) - _one_if(write.before != NOT_QUEUED)
        total = total + z3.If(counted, change, z3.IntVal(0))
    return total


def unknown_pool(pool_type: type[Any]) -> tuple[Any, list[Access]]:
    """Make a pool in any state, whose methods are those of ``pool_type``; and the list of indices that they will use."""
    accesses: list[Access] = []
    pool = object.__new__(pool_type)
    pool.num_units = Term(UNITS)
    pool.num_free = Term(NUM_FREE)
    pool.references = Column("references", references, UNITS, accesses)
    pool._next = Column("next", following, UNITS + 1, accesses)
    pool._previous = Column("previous", preceding, UNITS + 1, accesses)
    pool.keys = KeyColumn("keys", keyed, key, UNITS, accesses)
    pool.by_key = HashMap(length, listed, entry, place)
    pool.touched = []
    return pool, accesses


def holdings_of(manager: Any) -> Iterator[Holding]:
    """Every entry that holds a block in a manager's tables; a mutant may hold the same twice, and it counts twice."""
    never = z3.BoolVal(False)
    copies = {name: row.copied[0] for name, row in manager.batch.items() if row.copied is not None}
    for name, request in manager.requests.items():
        retired = lift(blocks_for(request.retired, manager.block_size))
        for block, unit in enumerate(request.table):
            yield Holding(lift(unit), z3.Or(retired <= block, lift(copies.get(name, NOT_QUEUED)) == block))
    for launch in manager.launches.values():
        for table in launch.parked:
            yield from (Holding(lift(unit), never) for unit in table)
    for table in manager.loads.values():
        yield from (Holding(lift(unit), never) for unit in table)
    for row in manager.batch.values():
        if row.copied is not None:
            yield Holding(lift(row.copied[1]), never)


def _one_if(condition: z3.BoolRef) -> z3.ArithRef:
    return z3.If(condition, z3.IntVal(1), z3.IntVal(0))
