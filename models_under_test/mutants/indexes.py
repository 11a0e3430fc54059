"""Bugs of the index of a tier: what may be served, what may go, whose place it is."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kvsan.models_under_test.mutants.base import Mutant
from kvsan.models_under_test.tiers.index import Chunk, ChunkIndex

# -- pins


class _PinsNothing(ChunkIndex):
    def _pin(self, chunk: Chunk) -> None:
        pass

    def complete_load(self, keys: Sequence[str]) -> None:
        """There is nothing to give back."""


class HostHitUnpinned(Mutant):
    """What a transfer reads in a tier is not pinned there: it is evicted while it is read.

    Reports: vLLM 39702 (a host hit counted but not pinned, evicted before use).
    """

    name = "host_hit_unpinned"
    killed_by = ("transfer_pins", "tier_index")
    profile = "async"
    index_type = _PinsNothing


class _NeverUnpins(ChunkIndex):
    def _unpin(self, chunk: Chunk) -> None:
        pass


class PinNeverReturned(Mutant):
    """Every load pins and none unpins: in the end nothing can be evicted.

    Reports: LMCache 1756.
    """

    name = "pin_never_returned"
    killed_by = ("tier_index", "transfer_leaks")
    profile = "async"
    index_type = _NeverUnpins


class _PinsOnce(ChunkIndex):
    def _pin(self, chunk: Chunk) -> None:
        chunk.pins = 1

    def complete_load(self, keys: Sequence[str]) -> None:
        """Take the mark away, if it is there."""
        for key in keys:
            if key in self._chunks:
                self._chunks[key].pins = 0


class TwoLoadsOnePin(Mutant):
    """A pin is a mark and not a count: the first of two loads that ends unpins for both.

    Reports: LMCache 1130, SGLang 27038, mini-SGLang 52 in kind.
    """

    name = "two_loads_one_pin"
    killed_by = ("tier_index", "transfer_pins")
    profile = "async"
    index_type = _PinsOnce


# -- what may go


class _EvictsUnwritten(ChunkIndex):
    def _evictable(self, key: str, stay: Collection[str]) -> bool:
        return self._chunks[key].pins == 0 and key not in stay


class EvictsWhatIsWritten(Mutant):
    """A chunk that is being written may be evicted: two transfers write one buffer.

    Reports: vLLM 31341.
    """

    name = "evicts_what_is_written"
    killed_by = ("transfer_pins",)
    profile = "async"
    index_type = _EvictsUnwritten


class _EvictsPinned(ChunkIndex):
    def _evictable(self, key: str, stay: Collection[str]) -> bool:
        return self._chunks[key].ready and key not in stay


class EvictsPinnedChunk(Mutant):
    """A chunk that is being read may be evicted.

    Reports: SGLang 27038, mini-SGLang 52 (a locked node is evicted).
    """

    name = "evicts_pinned_chunk"
    killed_by = ("transfer_pins",)
    profile = "async"
    index_type = _EvictsPinned


class _EvictsProtected(ChunkIndex):
    def _evictable(self, key: str, stay: Collection[str]) -> bool:
        return super()._evictable(key, ())


class EvictsItsOwnPrefix(Mutant):
    """To make room for the end of a prefix its beginning is evicted: the rest can never be hit.

    Reports: vLLM 48435, 57610 in kind.
    """

    name = "evicts_its_own_prefix"
    killed_by = ("offload_complete", "target.crash")
    profile = "async"
    index_type = _EvictsProtected


class _FindsNoRoom(ChunkIndex):
    def _shortage(self, wanted: int) -> int:
        return wanted


class EvictsThoughThereIsRoom(Mutant):
    """Free places are not counted: where there is nothing to evict there is no room.

    Reports: vLLM 55461 (eviction answers "none" although there is room).
    """

    name = "evicts_though_there_is_room"
    killed_by = ("offload_complete",)
    profile = "async"
    index_type = _FindsNoRoom


# -- what may be served


class _ServesEarly(ChunkIndex):
    def _may_serve(self, chunk: Chunk) -> bool:
        return True


class ServedBeforeStored(Mutant):
    """A chunk can be hit as soon as somebody has begun to write it.

    Reports: vLLM 42359, 29387, 41838 (hit before it is written).
    """

    name = "served_before_stored"
    killed_by = ("unlanded", "transfer_pins", "tier_content")
    profile = "async"
    index_type = _ServesEarly


class _NeverReady(ChunkIndex):
    def _publish(self, chunk: Chunk) -> None:
        pass


class StoredChunkNeverReady(Mutant):
    """What was written is never marked as written: it is not served, and cannot be evicted either.

    Reports: vLLM 53498 (the hash is set, and never put into the map).
    """

    name = "stored_chunk_never_ready"
    killed_by = ("transfer_leaks", "lost_tier_hits")
    profile = "async"
    index_type = _NeverReady


# -- places


class _GivesTwice(ChunkIndex):
    def _take_place(self) -> int:
        return self._free[-1]


class PlaceGivenTwice(Mutant):
    """A place is given out and stays free.

    Reports: TensorRT-LLM 12834 in kind, kvcached 401.
    """

    name = "place_given_twice"
    killed_by = ("tier_index", "transfer_pins")
    profile = "async"
    index_type = _GivesTwice


class _FreesTwice(ChunkIndex):
    def _fail(self, key: str) -> None:
        self._give_place(self._chunks[key].place)
        super()._fail(key)


class FailedStoreFreesTwice(Mutant):
    """A store that fails gives its place back twice.

    Reports: ascend 14283, UCM 1053.
    """

    name = "failed_store_frees_twice"
    killed_by = ("tier_index", "transfer_pins")
    profile = "async"
    index_type = _FreesTwice


class _LosesPlaces(ChunkIndex):
    def _evict(self, key: str) -> None:
        del self._chunks[key]

    def _take_place(self) -> int:
        return self._free.pop() if self._free else 0


class EvictedPlaceLost(Mutant):
    """The place of what was evicted is not given back; where none is left, the first is given out again.

    Reports: SGLang 17061 (a free through a stale mapping) in kind.
    """

    name = "evicted_place_lost"
    killed_by = ("tier_index", "transfer_pins")
    profile = "async"
    index_type = _LosesPlaces


class _KeepsEvicted(ChunkIndex):
    def _evict(self, key: str) -> None:
        self._give_place(self._chunks[key].place)


class EvictedChunkServed(Mutant):
    """The place of an evicted chunk is given to another, and its entry stays.

    Reports: vLLM 44237, 4764 (block reused, hash or evictor entry kept), kvcached 362.
    """

    name = "evicted_chunk_served"
    killed_by = ("tier_index", "transfer_pins", "tier_content", "target.crash")
    profile = "async"
    index_type = _KeepsEvicted
