"""Every invariant, in the order in which a session asks them: the cheapest and most telling first."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import NamedTuple

from kvsan.harness.invariant import Invariant
from kvsan.invariants.append_only import AppendOnly
from kvsan.invariants.conservation import Conservation
from kvsan.invariants.deferred_free import DeferredFree
from kvsan.invariants.exchange_content import ExchangeContent
from kvsan.invariants.exchange_leaks import ExchangeLeaks
from kvsan.invariants.exchange_pins import ExchangePins
from kvsan.invariants.exchange_unlanded import ExchangeUnlanded
from kvsan.invariants.failed_load import FailedLoad
from kvsan.invariants.free_iff_unreferenced import FreeIffUnreferenced
from kvsan.invariants.free_order import FreeOrder
from kvsan.invariants.free_queue import FreeQueue
from kvsan.invariants.graph_metadata import GraphMetadata
from kvsan.invariants.hash_content import HashContent
from kvsan.invariants.hash_map import HashMap
from kvsan.invariants.hit_bounds import HitBounds
from kvsan.invariants.hit_content import HitContent
from kvsan.invariants.load_progress import LoadProgress
from kvsan.invariants.lost_hits import LostHits
from kvsan.invariants.lost_tier_hits import LostTierHits
from kvsan.invariants.offload_complete import OffloadComplete
from kvsan.invariants.ownership import Ownership
from kvsan.invariants.quiescence import Quiescence
from kvsan.invariants.ref_counts import RefCounts
from kvsan.invariants.refusal_atomic import RefusalAtomic
from kvsan.invariants.table_covers import TableCovers
from kvsan.invariants.tenants import Tenants
from kvsan.invariants.testimony import Testimony
from kvsan.invariants.tier_content import TierContent
from kvsan.invariants.tier_index import TierIndexTruth
from kvsan.invariants.tier_key import TierKey
from kvsan.invariants.tier_reset import TierReset
from kvsan.invariants.transfer_ends import TransferEnds
from kvsan.invariants.transfer_leaks import TransferLeaks
from kvsan.invariants.transfer_pins import TransferPins
from kvsan.invariants.unlanded import Unlanded
from kvsan.invariants.watermark import Watermark

INVARIANTS: tuple[type[Invariant], ...] = (
    Testimony,
    Ownership,
    HitBounds,
    HitContent,
    Tenants,
    LostHits,
    RefusalAtomic,
    Watermark,
    ExchangePins,
    ExchangeUnlanded,
    ExchangeContent,
    DeferredFree,
    AppendOnly,
    TableCovers,
    GraphMetadata,
    TierKey,
    TransferPins,
    TransferEnds,
    Unlanded,
    TierContent,
    TierIndexTruth,
    TierReset,
    OffloadComplete,
    FailedLoad,
    LoadProgress,
    LostTierHits,
    HashMap,
    HashContent,
    RefCounts,
    FreeIffUnreferenced,
    Conservation,
    FreeQueue,
    FreeOrder,
    TransferLeaks,
    ExchangeLeaks,
    Quiescence,
)


class Oracle(NamedTuple):
    """A judgement that is not one of the invariants' classes."""

    id: str
    statement: str
    where: str
    causes: tuple[str, ...]
    unseen: str


ORACLES = (
    Oracle(
        "provenance",
        "Every token that attention reads is the one the request expects there.",
        "kvsan.harness.shadow",
        ("foreign", "unwritten", "null unit", "null write", "length", "outside the pool"),
        "slot mappings and positions that an engine computes itself, unless the harness drives that code.",
    ),
    Oracle(
        "foreign_write",
        "What is written is what every holder of the unit relies on there.",
        "kvsan.harness.shadow",
        ("shared", "published", "padding", "outside the unit", "outside the pool"),
        "damage where nobody has computed anything yet; ``provenance`` does if it is read.",
    ),
    Oracle(
        "order",
        "Two conflicting accesses are ordered by a stream or an event.",
        "kvsan.harness.device",
        ("write-write", "write-read", "read-write"),
        "order that an engine makes by other means than streams, events and what its host has seen complete.",
    ),
    Oracle(
        "tier_integrity",
        "A store gives out what it was given last under a key, or nothing.",
        "kvsan.harness.store_executor",
        ("other bytes", "never given"),
        "what the store's medium holds and nobody asks for.",
    ),
    Oracle(
        "numbers",
        "Every attention output equals a float64 reference within a derived bound.",
        "kvsan.harness.numbers",
        ("key-bytes", "value-bytes", "needle", "zero", "random", "replicas"),
        "a kernel that fails for other queries or values only, or within the bound of the random query.",
    ),
    Oracle(
        "kernel",
        "A kernel stays inside its tensors, no two programs write one address, no int32 overflows, and launches are given "
        "what proofs of the kernel assume.",
        "kvsan.harness.numbers, kvsan.gpu_kernels.interface",
        ("out-of-bounds", "race", "overflow", "precondition"),
        "kernels that nothing instruments: what is not run by the interpreter with its checks.",
    ),
    Oracle(
        "target.crash",
        "The target, or a user's kernel, does not raise, exit or die.",
        "kvsan.harness.blame, kvsan.harness.numbers, kvsan.fuzz.deaths",
        ("the exception's name, ``kernel`` before it if a kernel raised it", "the signal or exit code of its process"),
        "errors that the target catches itself.",
    ),
    Oracle(
        "target.hang",
        "The target returns from every call.",
        "kvsan.fuzz.deaths",
        ("silence",),
        "calls that are slow and come back.",
    ),
)
"""The oracles of section 3 of the design that need no class of their own."""


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
