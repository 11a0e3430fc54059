"""Which tiers a reference manager has, and how it makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvsan.harness.configuration import Configuration
from kvsan.harness.target import COMPUTE_STREAM, COPY_STREAM
from kvsan.harness.tiers import HOST_TIER, Store
from kvsan.harness.verdict import UsageError
from kvsan.models_under_test.tiers.disk import DiskStore
from kvsan.models_under_test.tiers.index import ChunkIndex
from kvsan.models_under_test.tiers.interface import TierIndex
from kvsan.models_under_test.tiers.policy import Arc, EvictionPolicy, Lru
from kvsan.models_under_test.tiers.remote import InProcessRemote, RemoteStore
from kvsan.models_under_test.tiers.scratch import scratch_folder

OFFLOAD_STREAM, LOAD_STREAM = "offload", "load"
"""Streams of copies to the host and from it; each store has one of its own, by its name."""

IndexMaker = Callable[[int, int, int], TierIndex]
"""Makes an index from its capacity in chunks, its first host unit, and the host units of a chunk (0 in a store)."""

StoreMakers = Mapping[str, Callable[[], Store]]

RESETS = ("device", "host", "stores")
"""How far down a reset of the prefix cache reaches: engines differ, and so do their defaults."""

POLICIES: Mapping[str, Callable[[int], EvictionPolicy]] = {"lru": lambda _capacity: Lru(), "arc": Arc}
"""Makers of an eviction policy for a capacity in chunks, by the name that an option gives them."""


def index_maker(policy: str, index_type: type[ChunkIndex] = ChunkIndex) -> IndexMaker:
    """Choose a policy; UsageError if there is none of that name."""
    if policy not in POLICIES:
        raise UsageError(f"option policy: {policy!r}; expected one of {', '.join(POLICIES)}")
    return lambda capacity, first_unit, chunk_blocks: index_type(
        capacity, POLICIES[policy](capacity), first_unit, chunk_blocks
    )


def store_makers(configuration: Configuration, others: StoreMakers) -> dict[str, Callable[[], Store]]:
    """Make what makes stores, by name: a folder of files, and a cache server in this process; ``others`` come first."""
    loses = configuration.option("remote_loses", 0)
    assert isinstance(loses, int)
    return {
        "disk": lambda: DiskStore(scratch_folder()),
        "remote": lambda: RemoteStore(InProcessRemote(lose_every=loses)),
        **others,
    }


@dataclass(frozen=True, slots=True)
class Tiers:
    """Tiers below a pool of ``num_units``: ``host_units`` buffers, and stores of ``store_chunks`` chunks each by name.

    ``reset_reaches`` is one of ``RESETS``; what a reset does not reach goes on serving.
    """

    num_units: int
    host_units: int
    chunk_blocks: int
    make_index: IndexMaker
    store_makers: StoreMakers
    store_chunks: int
    reset_reaches: str

    def traits(self) -> dict[str, Any]:
        """Traits of a manager that has them."""
        return {
            "streams": (COMPUTE_STREAM, COPY_STREAM, OFFLOAD_STREAM, LOAD_STREAM, *self.store_makers),
            "tiers": (HOST_TIER, *self.store_makers),
            "host_units": self.host_units,
            "chunk_blocks": self.chunk_blocks,
            "late_notices": True,
            "preempts_loading": True,
            "offloads_all": True,
            "resets_tiers": self.reset_reaches == RESETS[-1],
            "loads_hits": True,
            "loads_progress": True,
        }

    def emptied(self) -> tuple[str, ...]:
        """Tiers that a reset of the prefix cache empties."""
        return (HOST_TIER, *self.store_makers)[: {"device": 0, "host": 1}.get(self.reset_reaches)]

    def indexes(self) -> dict[str, TierIndex]:
        """Make an index for each tier."""
        host = self.make_index(self.host_units // self.chunk_blocks, self.num_units, self.chunk_blocks)
        return {HOST_TIER: host} | {name: self.make_index(self.store_chunks, 0, 0) for name in self.store_makers}

    def stores(self) -> dict[str, Store]:
        """Make the stores."""
        return {name: make() for name, make in self.store_makers.items()}
