"""What a tier's index offers its manager: which chunks it has, which must stay, which go to make room.

The calls are those of vLLM's ``OffloadingManager``: a store or a load is prepared, the bytes move, and it is completed.
Between the two nothing may be evicted that the transfer reads or writes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from kvsan.harness.tiers import TierEntry


class Prepared(NamedTuple):
    """A store was granted: the keys that are not there yet, and for each its host units (none in a store's index)."""

    keys: tuple[str, ...]
    units: tuple[tuple[int, ...], ...]
    evicted: tuple[str, ...]


class TierIndex(Protocol):
    """Index of one tier. Keys are as in ``kvsan.harness.tiers.Store``; every chunk takes one place of ``capacity``."""

    def lookup(self, key: str) -> bool:
        """Whether a chunk can be served now: it is there and completely written."""

    def touch(self, keys: Sequence[str]) -> None:
        """Note that chunks were used, the most recently used last; unknown keys are passed over."""

    def prepare_load(self, keys: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Pin chunks that ``lookup`` promised and return the host units of each; KeyError if one cannot be served."""

    def complete_load(self, keys: Sequence[str]) -> None:
        """Give the pins of a ``prepare_load`` back, whether the load succeeded or not."""

    def prepare_store(self, keys: Sequence[str], protected: Collection[str] = ()) -> Prepared | None:
        """Make room for chunks and take note that they are being written; None and no change if there is no room.

        Keys that are there already, written or being written, are passed over, and do not make room for the others.
        Pinned chunks, chunks being written and ``protected`` ones are never evicted; what is evicted is gone at once.
        """

    def complete_store(self, keys: Sequence[str], success: bool) -> None:
        """Chunks are written and can be served, or they failed and are gone."""

    def drop(self, key: str) -> None:
        """Forget a chunk that turned out not to be served by its store; nobody may have it pinned."""

    def reset(self) -> bool:
        """Forget every chunk; False and no change while one is pinned or being written."""

    def entry(self, key: str) -> TierEntry | None:
        """What it knows of one chunk, in any state; None if it does not know it."""

    def entries(self) -> Collection[TierEntry]:
        """Every chunk that it knows."""

    def free_places(self) -> int:
        """Chunks that fit without an eviction."""
