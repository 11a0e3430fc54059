"""What holds between any two steps, of every block and of every key.

A clause is a condition about one block ``u``, or one key ``k`` and two positions ``i``, ``j`` among its units; it is meant for
all of them. In a proof it is assumed for the blocks and keys that a step has to do with, and shown for one that can be any.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import z3

from kvsan.invariants.proofs.protocol.state import NOT_QUEUED, NULL_UNIT, View


@dataclass(frozen=True, slots=True)
class Clause:
    """``about`` tells what it is a statement of; ``holds`` takes a view and a block, or a key and two positions.

    ``reads`` are columns, one of which a step must have written if the clause is to be shown anew; none: it reads more than that.
    """

    name: str
    statement: str
    about: Literal["block", "key", "pool"]
    holds: Callable[..., z3.BoolRef]
    reads: tuple[str, ...] = ()


def _references(view: View, u: z3.ArithRef) -> z3.BoolRef:
    return z3.Implies(view.is_unit(u), z3.And(view.references(u) == view.holders(u), view.rest(u) >= 0))


def _null(view: View, u: z3.ArithRef) -> z3.BoolRef:
    nobody = z3.And(view.references(u) == 0, view.holders(u) == 0, view.following(u) == NOT_QUEUED)
    return z3.Implies(u == NULL_UNIT, z3.And(nobody, z3.Not(view.keyed(u)), view.rest(u) >= 0))


def _entries(view: View) -> z3.BoolRef:
    return z3.And(*(view.is_unit(holding.unit) for holding in view.holdings))


def _free(view: View, u: z3.ArithRef) -> z3.BoolRef:
    return z3.Implies(view.is_unit(u), view.is_queued(u) == (view.references(u) == 0))


def _ring(view: View, u: z3.ArithRef) -> z3.BoolRef:
    after, before = view.following(u), view.preceding(u)
    linked = z3.And(view.in_ring(after), view.preceding(after) == u, view.in_ring(before), view.following(before) == u)
    inner = z3.And(u != view.units, after != view.units)
    return z3.Implies(view.in_ring(u), z3.And(linked, z3.Implies(inner, view.stamp(u) < view.stamp(after))))


def _num_free(view: View) -> z3.BoolRef:
    return view.num_free == view.queued


def _hash_of_unit(view: View, u: z3.ArithRef) -> z3.BoolRef:
    k = view.key(u)
    found = (z3.And(i >= 0, i < view.length(k), view.entry(k, i) == u) for i in view.places(u))
    return z3.Implies(z3.And(view.is_unit(u), view.keyed(u)), z3.Or(*found))


def _hash_of_key(view: View, k: z3.ArithRef, i: z3.ArithRef, j: z3.ArithRef | None = None) -> z3.BoolRef:
    """Without ``j`` as it is assumed: a unit that stands at one position only has it as its place."""
    unit, size = view.entry(k, i), view.length(k)
    if j is None:
        return _entry_of(view, k, i, view.places(unit)[0] == i)
    return _entry_of(view, k, i, z3.Implies(z3.And(j >= 0, j < size, i != j), view.entry(k, j) != unit))


def _entry_of(view: View, k: z3.ArithRef, i: z3.ArithRef, distinct: z3.BoolRef) -> z3.BoolRef:
    unit, size = view.entry(k, i), view.length(k)
    sound = z3.And(view.is_unit(unit), view.keyed(unit), view.key(unit) == k)
    shape = z3.And(size >= 0, view.listed(k) == (size >= 2))
    return z3.And(shape, z3.Implies(z3.And(i >= 0, i < size), z3.And(sound, distinct)))


def _tail(view: View, u: z3.ArithRef) -> z3.BoolRef:
    alone = z3.And(view.is_unit(u), view.holders(u) == 1, z3.Not(view.keyed(u)))
    named = z3.Implies(view.rest_tail(u), view.rest(u) >= 1)
    return z3.And(named, z3.Implies(view.tail(u), alone))


LINKS, HASHES = ("_next", "_previous"), ("keys", "by_key")

REFERENCES = Clause(
    "references",
    "a block's count is the number of entries that name it: in tables, parked tables, copies",
    "block",
    _references,
)
NULL = Clause("null", "the null block is neither held, nor free, nor hashed", "block", _null)
ENTRIES = Clause("entries", "what a table names is a block that can be held", "pool", _entries)
FREE = Clause("free", "a block is in the free queue if and only if nobody holds it", "block", _free)
RING = Clause("ring", "the free queue is one ring through the sentinel, the longest free first", "block", _ring, LINKS)
NUM_FREE = Clause("num_free", "the length of the free queue as counted is its length", "pool", _num_free)
HASH_OF_UNIT = Clause("hash", "a block with a hash is in the map under it", "block", _hash_of_unit, HASHES)
HASH_OF_KEY = Clause(
    "map",
    "the map names, under a key, the blocks that have it as their hash, each once",
    "key",
    _hash_of_key,
    HASHES,
)
TAIL = Clause(
    "tail",
    "a block that a request is to write, behind what it has retired or as a copy, is its own alone, without a hash",
    "block",
    _tail,
)

CLAUSES = (ENTRIES, REFERENCES, NULL, FREE, RING, NUM_FREE, HASH_OF_UNIT, HASH_OF_KEY, TAIL)
