"""Every invariant, in the order in which a session asks them: the cheapest and most telling first."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from kvsan.harness.invariant import Invariant
from kvsan.invariants.append_only import AppendOnly
from kvsan.invariants.conservation import Conservation
from kvsan.invariants.deferred_free import DeferredFree
from kvsan.invariants.free_iff_unreferenced import FreeIffUnreferenced
from kvsan.invariants.free_order import FreeOrder
from kvsan.invariants.free_queue import FreeQueue
from kvsan.invariants.hash_content import HashContent
from kvsan.invariants.hash_map import HashMap
from kvsan.invariants.hit_bounds import HitBounds
from kvsan.invariants.hit_content import HitContent
from kvsan.invariants.lost_hits import LostHits
from kvsan.invariants.ownership import Ownership
from kvsan.invariants.quiescence import Quiescence
from kvsan.invariants.ref_counts import RefCounts
from kvsan.invariants.refusal_atomic import RefusalAtomic
from kvsan.invariants.table_covers import TableCovers
from kvsan.invariants.tenants import Tenants
from kvsan.invariants.testimony import Testimony

INVARIANTS: tuple[type[Invariant], ...] = (
    Testimony,
    Ownership,
    HitBounds,
    HitContent,
    Tenants,
    LostHits,
    RefusalAtomic,
    DeferredFree,
    AppendOnly,
    TableCovers,
    HashMap,
    HashContent,
    RefCounts,
    FreeIffUnreferenced,
    Conservation,
    FreeQueue,
    FreeOrder,
    Quiescence,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """An invariant as documentation shows it: id, first line, and the whole docstring of its module."""

    id: str
    title: str
    text: str


def catalogue() -> list[Entry]:
    """Describe every invariant from its module's docstring."""
    entries = []
    for invariant in INVARIANTS:
        text = importlib.import_module(invariant.__module__).__doc__ or ""
        title, _, rest = text.partition("\n")
        entries.append(Entry(invariant.id, title.strip(), rest.strip()))
    return entries
