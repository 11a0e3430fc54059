"""Bugs of transfers as they end: complete, failed, told twice, or when their request is gone."""

from __future__ import annotations

from collections.abc import Sequence

from kvsan.models_under_test.mutants.base import Mutant
from kvsan.models_under_test.paged.request import PagedRequest
from kvsan.models_under_test.paged.tiering import Move, Tiering
from kvsan.models_under_test.paged.tiers import StoreMakers
from kvsan.models_under_test.tiers.remote import InProcessRemote, RemoteStore

FORGETFUL: StoreMakers = dict.fromkeys(("disk", "remote"), lambda: RemoteStore(InProcessRemote(lose_every=1)))
"""Caches that lose something with every request, as they may: so loads fail without a fault that somebody injects."""

# -- the request left meanwhile


class _FreesWhileLoading(Tiering):
    def park(self, request: PagedRequest) -> None:
        self.moves[request.load].parked = []
        self.manager.release(request.table)


class ParkedLoadFreed(Mutant):
    """An abort or a preemption frees the blocks that the load is still writing.

    Reports: vLLM 32255.
    """

    name = "parked_load_freed"
    killed_by = ("transfer_pins", "deferred_free", "free_iff_unreferenced")
    profile = "async"
    tiering_type = _FreesWhileLoading


class _ForgetsParked(Tiering):
    def park(self, request: PagedRequest) -> None:
        self.moves[request.load].parked = []


class ParkedLoadLost(Mutant):
    """The blocks of a request that was aborted while it loaded are never freed.

    Reports: vLLM 46283.
    """

    name = "parked_load_lost"
    killed_by = ("ref_counts", "conservation", "free_iff_unreferenced", "quiescence")
    profile = "async"
    tiering_type = _ForgetsParked


class _LeavesEarly(Tiering):
    def _loaded(self, move: Move, success: bool) -> None:
        if move.parked is None:
            super()._loaded(move, success)
        else:
            self.manager.release(move.parked)


class AbortedLoadKeepsPins(Mutant):
    """The end of a load frees the blocks of its request, which is gone, and nobody unpins what it read.

    Reports: LMCache 1756, vLLM 46283.
    """

    name = "aborted_load_keeps_pins"
    killed_by = ("tier_index", "transfer_leaks", "tier_reset")
    profile = "async"
    tiering_type = _LeavesEarly


class _PublishesForTheGone(Tiering):
    def _loaded(self, move: Move, success: bool) -> None:
        request, parked = move.request, move.parked
        if parked is not None and success and not request.table:
            request.table, request.retired, request.published = parked, len(parked) * self.manager.block_size, 0
            self.manager.publish(request)
            request.forget_blocks()
        super()._loaded(move, success)


class PreemptedLoadIsPublished(Mutant):
    """Blocks of a load are published although its request was preempted meanwhile: its table is not theirs any more.

    Reports: SGLang 28374 (what an aborted request leaves is put into the cache as live) in kind.
    """

    name = "preempted_load_is_published"
    killed_by = ("hash_content",)
    profile = "async"
    tiering_type = _PublishesForTheGone


class _ResumesByName(Tiering):
    def _loaded(self, move: Move, success: bool) -> None:
        request = self.manager.requests.get(move.request.name)
        if request is not None:
            move.request, move.parked = request, None
        super()._loaded(move, success)


class CompletionByName(Mutant):
    """The end of a load goes to whoever has the request's name now: somebody else, or the same after a preemption.

    Reports: vLLM 25067, 46240 (a completion for an aborted request).
    """

    name = "completion_by_name"
    killed_by = (
        "unlanded",
        "ref_counts",
        "conservation",
        "append_only",
        "hash_content",
        "free_iff_unreferenced",
        "target.crash",
    )
    profile = "async"
    tiering_type = _ResumesByName


class _AsksForTheRequest(Tiering):
    def _loaded(self, move: Move, success: bool) -> None:
        move.request = self.manager.requests[move.request.name]
        super()._loaded(move, success)


class CompletionOfTheAbortedCrashes(Mutant):
    """A load ends after its request: the request is looked up, and there is none.

    Reports: vLLM 46240, 43226.
    """

    name = "completion_of_the_aborted_crashes"
    killed_by = ("target.crash",)
    profile = "async"
    tiering_type = _AsksForTheRequest


# -- told twice


class _TakesTwice(Tiering):
    def _take(self, t: str) -> Move | None:
        return self.moves.pop(t)


class UnknownCompletionCrashes(Mutant):
    """A notice that comes again is of a transfer that is not known any more, and that is an error.

    Reports: vLLM 46240, 43226.
    """

    name = "unknown_completion_crashes"
    killed_by = ("target.crash",)
    profile = "async"
    tiering_type = _TakesTwice


class _ReleasesTwice(Tiering):
    ended: dict[str, Move] | None = None

    def complete(self, t: str, success: bool) -> None:
        """End it, or end it again."""
        ended = self.ended = self.ended or {}
        if t in ended:
            self._release(ended[t])
        elif t in self.moves:
            ended[t] = self.moves[t]
        super().complete(t, success)


class CompletionCountedTwice(Mutant):
    """A notice that comes twice gives the blocks of its offload back twice.

    Reports: vLLM 25067, ascend 14283, UCM 1053.
    """

    name = "completion_counted_twice"
    killed_by = ("ref_counts", "free_iff_unreferenced", "target.crash")
    profile = "async"
    tiering_type = _ReleasesTwice


# -- what is given back


class _ReleasesTheTableOfNow(Tiering):
    def _release(self, move: Move) -> None:
        size = self.chunk_blocks
        blocks = [chunk.block + place for chunk in move.chunks for place in range(size)]
        self.manager.release([move.request.table[block] for block in blocks if block < len(move.request.table)])


class ReleasesTheTableOfNow(Mutant):
    """An offload gives back the blocks that its request has when it ends, not those that it read.

    Reports: vLLM 52360 (preempted with stores in flight) in kind.
    """

    name = "releases_the_table_of_now"
    killed_by = ("ref_counts", "free_iff_unreferenced", "conservation", "target.crash")
    profile = "async"
    tiering_type = _ReleasesTheTableOfNow


class _ReleasesOnSuccess(Tiering):
    def _offloaded(self, move: Move, success: bool) -> None:
        if not success:
            move.held.clear()
        super()._offloaded(move, success)


class FailedOffloadKeepsBlocks(Mutant):
    """An offload that fails gives its blocks never back.

    Reports: vLLM 46283, SGLang 16067 in kind.
    """

    name = "failed_offload_keeps_blocks"
    killed_by = ("ref_counts", "conservation", "free_iff_unreferenced", "quiescence")
    profile = "async"
    tiering_type = _ReleasesOnSuccess


class _NeverEnds(Tiering):
    def _stored(self, move: Move, success: bool) -> None:
        if success:
            super()._stored(move, success)
        else:
            self.host.complete_load(move.keys())


class FailedStoreNeverEnds(Mutant):
    """What a store would not take waits for ever to be written: not served, not tried again, not evicted.

    Reports: vLLM 46283 (a remote that never reports).
    """

    name = "failed_store_never_ends"
    killed_by = ("transfer_leaks", "tier_reset")
    profile = "async"
    tiering_type = _NeverEnds


# -- what is believed


class _BelievesStores(Tiering):
    def _stored(self, move: Move, success: bool) -> None:
        super()._stored(move, True)


class FailedStoreKept(Mutant):
    """What a store has failed to take is in its index all the same.

    Reports: vLLM 53498 in kind (two places that should agree, and do not).
    """

    name = "failed_store_kept"
    killed_by = ("tier_index",)
    profile = "async"
    tiering_type = _BelievesStores


class _BelievesOffloads(Tiering):
    def _offloaded(self, move: Move, success: bool) -> None:
        super()._offloaded(move, True)


class FailedOffloadKept(Mutant):
    """A chunk that never reached the host is served: whatever was in its units before.

    Reports: TensorRT-LLM 15018 (stale KV reused) in kind.
    """

    name = "failed_offload_kept"
    killed_by = ("tier_index", "tier_content")
    profile = "async"
    tiering_type = _BelievesOffloads


class _FillsTheHost(Tiering):
    def _fill_host(self, keys: Sequence[str], success: bool) -> None:
        super()._fill_host(keys, True)


class FailedLoadFillsHost(Mutant):
    """A load from a store fails on its way, and the host keeps the chunk that never came.

    Reports: vLLM 49250 in kind.
    """

    name = "failed_load_fills_host"
    killed_by = ("tier_index", "tier_content")
    profile = "async"
    tiering_type = _FillsTheHost
    store_makers = FORGETFUL


class _BelievesLoads(Tiering):
    def _resume(self, move: Move, success: bool) -> None:
        super()._resume(move, True)


class FailedLoadKept(Mutant):
    """A load that failed is taken for one that did not: half of it is computed, published and read.

    Reports: vLLM 49250.
    """

    name = "failed_load_kept"
    killed_by = ("failed_load", "hash_content")
    profile = "async"
    tiering_type = _BelievesLoads


class _OffersAgain(Tiering):
    def _drop(self, tier: str, keys: Sequence[str]) -> None:
        pass


class RefusedChunkOfferedAgain(Mutant):
    """A store has lost a chunk and says so; its index offers it to the next request, and the next, for ever.

    Reports: vLLM 25067, 49250 in kind.
    """

    name = "refused_chunk_offered_again"
    killed_by = ("failed_load",)
    profile = "async"
    tiering_type = _OffersAgain
    store_makers = FORGETFUL
