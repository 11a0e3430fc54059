"""Bugs of transfers as they begin: what is held, what a copy waits for, which pages move where."""

from __future__ import annotations

from collections.abc import Sequence

from kvsan.harness.target import Chunk, Copy, Effects, Loading, Offloading
from kvsan.harness.tiers import HOST_TIER, Put
from kvsan.models_under_test.mutants.base import Mutant
from kvsan.models_under_test.paged.request import PagedRequest
from kvsan.models_under_test.paged.tiering import Move, Tiering

# -- what is held while it is on its way


class _HoldsNothing(Tiering):
    def _hold(self, units: list[int]) -> None:
        units.clear()


class OffloadUnpinned(Mutant):
    """An offload takes no reference to the blocks that it reads: they are somebody else's before it has read them.

    Reports: vLLM 52360, 29870 (preempted with stores in flight).
    """

    name = "offload_unpinned"
    killed_by = ("transfer_pins", "ref_counts", "free_iff_unreferenced")
    profile = "async"
    tiering_type = _HoldsNothing


class _UnpinsAtOnce(Tiering):
    def _to_store(self, t: str, request: PagedRequest, keys: list[str], tier: str) -> Offloading | None:
        granted = super()._to_store(t, request, keys, tier)
        if granted is not None:
            self.host.complete_load(self.moves[t].keys())
        return granted

    def _stored(self, move: Move, success: bool) -> None:
        self._pin(self.host, [chunk.key for chunk in move.chunks if self.host.lookup(chunk.key)])
        super()._stored(move, success)


class PutSourceUnpinned(Mutant):
    """The host's buffers are given free as soon as their way to a store has begun.

    Reports: vLLM 31341 (host buffer reused under an asynchronous copy).
    """

    name = "put_source_unpinned"
    killed_by = ("transfer_pins", "tier_index")
    profile = "async"
    tiering_type = _UnpinsAtOnce


class _EvictsItsHits(Tiering):
    def _take_blocks(self, request: PagedRequest, hits: list[int], fresh: int) -> None:
        new = [self.manager.pool.allocate() for _ in range(fresh)]
        self.manager.take_hits(request, hits)
        request.table.extend(new)


class LoadAllocatesBeforeHits(Mutant):
    """A load gets its new blocks before it takes the hits, which nobody holds: one of them may be given out as new.

    Reports: vLLM 33775, 43884, 44409.
    """

    name = "load_allocates_before_hits"
    killed_by = ("ownership", "ref_counts", "transfer_ends")
    profile = "async"
    tiering_type = _EvictsItsHits


class _PinsFirst(Tiering):
    def load(self, t: str, request: PagedRequest, hits: list[int]) -> Loading | None:
        keys = [key for key, tier in self._find(request, len(hits) // self.chunk_blocks) if tier == HOST_TIER]
        self._pin(self.host, keys)
        granted = super().load(t, request, hits)
        if granted is not None:
            self.host.complete_load(keys)
        return granted


class LoadRefusedKeepsPins(Mutant):
    """What a load would read is pinned before there is room for it, and stays pinned when there is none.

    Reports: vLLM 11562 (hits touched, then the allocation is refused) in kind.
    """

    name = "load_refused_keeps_pins"
    killed_by = ("tier_index", "transfer_leaks")
    profile = "async"
    tiering_type = _PinsFirst


class _TouchesFirst(Tiering):
    def load(self, t: str, request: PagedRequest, hits: list[int]) -> Loading | None:
        self._hold(hits)
        granted = super().load(t, request, hits)
        if granted is not None:
            self.manager.release(hits)
        return granted


class LoadRefusedKeepsHits(Mutant):
    """A load holds the device's hits before it knows that it has anything to bring, and keeps them when it has not.

    Reports: vLLM 11562 (real), SGLang 16067.
    """

    name = "load_refused_keeps_hits"
    killed_by = ("refusal_atomic", "ref_counts", "conservation")
    profile = "async"
    tiering_type = _TouchesFirst


# -- who comes first


class _StoresLaunched(Tiering):
    def _storable_chunks(self, request: PagedRequest) -> int:
        tokens = min(request.scheduled, len(request.tokens)) if request.launches else request.retired
        return tokens // self.manager.block_size // self.chunk_blocks

    def _copy_down(self, unit: int, host_unit: int) -> Copy:
        return super()._copy_down(unit, host_unit)._replace(after=())


class OffloadBeforeCompute(Mutant):
    """What was launched is stored at once, and the copy does not wait for the launch.

    Reports: vLLM 45704 (store to host not ordered after compute).
    """

    name = "offload_before_compute"
    killed_by = ("tier_content", "order", "transfer_ends")
    profile = "async"
    tiering_type = _StoresLaunched


class _CopiesAtOnce(Tiering):
    def _copy_up(self, host_unit: int, unit: int, tier: str) -> Copy:
        return super()._copy_up(host_unit, unit, HOST_TIER)


class CopyBeforeArrival(Mutant):
    """The copy to the device does not wait for what the store is asked for: two streams, and no event between them.

    Reports: vLLM 45704, 31341 in kind.
    """

    name = "copy_before_arrival"
    killed_by = ("tier_content", "order")
    profile = "async"
    tiering_type = _CopiesAtOnce


class _WaitsForNobody(Tiering):
    def _copy_up(self, host_unit: int, unit: int, tier: str) -> Copy:
        return super()._copy_up(host_unit, unit, tier)._replace(after=() if tier == HOST_TIER else (tier,))


class LoadNotAfterCompute(Mutant):
    """A load writes blocks that were freed under a launch in flight, and does not wait for it (``deferred_free`` off).

    Reports: vLLM 50696, SGLang 35769.
    """

    name = "load_not_after_compute"
    killed_by = ("order", "provenance", "foreign_write")
    profile = "async"
    tiering_type = _WaitsForNobody


# -- which pages


class _StoresScheduled(Tiering):
    def _storable_chunks(self, request: PagedRequest) -> int:
        return min(request.scheduled, len(request.tokens)) // self.manager.block_size // self.chunk_blocks


class OffloadOfUnretired(Mutant):
    """Blocks are stored that are only scheduled: nothing has been computed in them, and it may be cancelled.

    Reports: vLLM 42359 in kind.
    """

    name = "offload_of_unretired"
    killed_by = ("transfer_ends", "tier_content")
    profile = "async"
    tiering_type = _StoresScheduled


class _LeavesTheLast(Tiering):
    def _storable_chunks(self, request: PagedRequest) -> int:
        return max(0, super()._storable_chunks(request) - 1)


class LastChunkNeverStored(Mutant):
    """The last full chunk of a request is left out.

    Reports: vLLM 48596, 47046.
    """

    name = "last_chunk_never_stored"
    killed_by = ("offload_complete",)
    profile = "async"
    tiering_type = _LeavesTheLast


class _WritesHits(Tiering):
    def _copies_up(self, request: PagedRequest, chunks: Sequence[Chunk], hit_blocks: int) -> Effects:
        return super()._copies_up(request, chunks, 0)


class LoadOverHits(Mutant):
    """A load that begins in the middle of a chunk brings all of it, over blocks that others read.

    Reports: SGLang 35769 in kind.
    """

    name = "load_over_hits"
    killed_by = ("transfer_ends", "unlanded")
    profile = "async"
    tiering_type = _WritesHits


class _SkipsThePartialChunk(Tiering):
    def _copies_up(self, request: PagedRequest, chunks: Sequence[Chunk], hit_blocks: int) -> Effects:
        whole = [chunk for chunk in chunks if chunk.block >= hit_blocks]
        return super()._copies_up(request, whole, hit_blocks)


class LoadSkipsThePartialChunk(Mutant):
    """The device's hit ends inside a chunk, and the load begins with the next one: the blocks between are nobody's.

    Reports: vLLM 43559, 48375 (one block is never computed between two boundaries).
    """

    name = "load_skips_the_partial_chunk"
    killed_by = ("transfer_ends",)
    profile = "async"
    tiering_type = _SkipsThePartialChunk


class _LoadsOneLate(Tiering):
    def _copies_up(self, request: PagedRequest, chunks: Sequence[Chunk], hit_blocks: int) -> Effects:
        effects = list(super()._copies_up(request, chunks, hit_blocks))
        copies = [position for position, effect in enumerate(effects) if isinstance(effect, Copy)]
        into = [effects[position] for position in [*copies[1:], *copies[:1]]]
        for position, other in zip(copies, into, strict=True):
            effects[position] = effects[position]._replace(destination=other.destination)  # type: ignore[union-attr, call-arg]
        return effects


class LoadOneBlockLate(Mutant):
    """Each page goes to the block behind its own, the last one to the first.

    Reports: vLLM 53142 (an index computed with another group's block size) in kind, SGLang 33450.
    """

    name = "load_one_block_late"
    killed_by = ("transfer_ends",)
    profile = "async"
    tiering_type = _LoadsOneLate


class _CopiesTooLittle(Tiering):
    def _copy_down(self, unit: int, host_unit: int) -> Copy:
        return super()._copy_down(unit, host_unit)._replace(stop=self.manager.block_size - 1)


class CopiesOneSlotShort(Mutant):
    """The last slot of a page is not copied: one off, in the number of bytes.

    Reports: FlashInfer 320, vLLM 50427 in kind.
    """

    name = "copies_one_slot_short"
    killed_by = ("tier_content",)
    profile = "async"
    tiering_type = _CopiesTooLittle


class _TurnsPages(Tiering):
    def _put(self, chunk: Chunk) -> Put:
        return super()._put(chunk)._replace(units=chunk.units[::-1])


class PagesTurnedInStore(Mutant):
    """The pages of a chunk are written in another order than they are read in.

    Reports: vLLM 37703, 46204 (two sides that disagree about the layout).
    """

    name = "pages_turned_in_store"
    killed_by = ("tier_content",)
    profile = "async"
    tiering_type = _TurnsPages
