"""Bugs of publishing: a hash is there too early, too long, or not at all; hits that are none, or are not given."""

from __future__ import annotations

from dataclasses import replace

from kvsan.gpu_kernels.addressing import full_blocks
from kvsan.harness.target import Admission, Result
from kvsan.models_under_test.mutants.base import Mutant
from kvsan.models_under_test.paged.batch import Row
from kvsan.models_under_test.paged.pool import BlockPool
from kvsan.models_under_test.paged.request import PagedRequest


class _MapKeepsEvicted(BlockPool):
    __slots__ = ()

    def allocate(self) -> int:
        unit = self._next[self.num_units]
        self.keys[unit] = None
        return super().allocate()


class HashKeptOnReuse(Mutant):
    """A block is given out again and the hash map still names it.

    Reports: vLLM 44237, 4764 (block reused, hash or evictor entry kept).
    """

    name = "hash_kept_on_reuse"
    killed_by = ("hash_map", "hit_content")
    pool_type = _MapKeepsEvicted


class _BlockKeepsHash(BlockPool):
    __slots__ = ()

    def allocate(self) -> int:
        unit = self._next[self.num_units]
        key, self.keys[unit] = self.keys[unit], None
        super().allocate()
        self.keys[unit] = key
        return unit


class StaleHashOnRecycledBlock(Mutant):
    """A block is given out again with its old hash on it, and in the map; map and block agree, the content does not.

    Reports: kvcached 362 (stale hash on a recycled block).
    """

    name = "stale_hash_on_recycled_block"
    killed_by = ("hash_content",)
    pool_type = _BlockKeepsHash


class _NotInTheMap(BlockPool):
    __slots__ = ()

    def publish(self, unit: int, key: int) -> None:
        if key in self.by_key:
            self.keys[unit] = key
            self.touched.append(unit)
        else:
            super().publish(unit, key)

    def withdraw(self, unit: int) -> None:
        if unit in self.published(self.keys[unit] or 0):
            super().withdraw(unit)
        else:
            self.keys[unit] = None
            self.touched.append(unit)


class HashNotInTheMap(Mutant):
    """The second block of one hash gets the hash and is never put into the map: it is lost when the first is evicted.

    Reports: vLLM 53498, kvcached 401.
    """

    name = "hash_not_in_the_map"
    killed_by = ("hash_map", "lost_hits")
    pool_type = _NotInTheMap


class PublishesEarly(Mutant):
    """Blocks are published by the scheduled count, which is ahead of what has been computed.

    Reports: vLLM 42359 (published at schedule time, hit and read before the KV is written).
    """

    name = "publishes_early"
    killed_by = ("hash_content",)

    def _publishable(self, request: PagedRequest) -> int:
        return min(request.scheduled, len(request.tokens))


class PublishedThenCancelled(Mutant):
    """Publishes at allocation, legally; when the batch is cancelled nothing withdraws what nobody will write.

    Reports: TGI 2489 (blocks never prefilled stay in the prefix cache), SGLang 28374.
    """

    name = "published_then_cancelled"
    killed_by = ("hash_content", "provenance")

    def __init__(self, num_units: int, block_size: int, **options: int) -> None:
        super().__init__(num_units, block_size, **options)  # type: ignore[arg-type]
        self.traits = replace(self.traits, publish="allocation")

    def schedule(self, name: str, n: int, lookahead: int, external: int, delayed: bool) -> Admission | None:
        """Get blocks, and publish those that will be full."""
        admission = super().schedule(name, n, lookahead, external, delayed)
        if admission is not None and not delayed:
            self.publish(self.requests[name])
        return admission

    def _publishable(self, request: PagedRequest) -> int:
        return min(request.scheduled, len(request.tokens))


class RejectedDraftsCounted(Mutant):
    """Rejected drafts count as computed, and go into the cache with the rest.

    Reports: vLLM 47282 (an optimistic count while drafts are rejected), SGLang 28374.
    """

    name = "rejected_drafts_counted"
    killed_by = ("hash_content",)

    def _computed(self, request: PagedRequest, result: Result) -> int:
        return result.computed + result.rejected

    def _publishable(self, request: PagedRequest) -> int:
        return min(request.retired, len(request.table) * self.block_size)


class HitsLost(Mutant):
    """The last block of every hit is dropped once more than it must be.

    Reports: vLLM 33270 (real), 32802, 48435.
    """

    name = "hits_lost"
    killed_by = ("lost_hits",)

    def reusable_blocks(self, request: PagedRequest) -> int:
        """One block less than there is."""
        return max(0, super().reusable_blocks(request) - 1)


class FullHitRecomputesNothing(Mutant):
    """A prompt that is cached to its last token hits all of it: no query is left, and nothing to sample from.

    Reports: SGLang 22819 (prefix length equal to the block size).
    """

    name = "full_hit_recomputes_nothing"
    killed_by = ("hit_bounds",)

    def reusable_blocks(self, request: PagedRequest) -> int:
        """Every full block, the last token's too."""
        return full_blocks(len(request.tokens), self.block_size)


class HitsNotCheckedAgain(Mutant):
    """What a look-up found is used as it is, although the blocks may have been given to others since.

    Reports: vLLM 39702 (a hit counted but not pinned, evicted before use).
    """

    name = "hits_not_checked_again"
    killed_by = ("hit_content",)

    def _pending_hits(self, request: PagedRequest) -> list[int]:
        return request.hits


class GhostOfThePreempted(PublishedThenCancelled):
    """Publishes at allocation and withdraws on cancel, but not when a scheduled request is preempted or aborted.

    Reports: vLLM 42359 (a ghost block: published, hit, never written).
    """

    name = "ghost_of_the_preempted"
    killed_by = ("hash_content", "provenance")

    def _undo(self, row: Row) -> None:
        request = row.request
        for unit in request.table[full_blocks(row.start, self.block_size) :]:
            if self.pool.keys[unit] is not None and unit not in request.hits:
                self.pool.withdraw(unit)
        request.published = min(request.published, full_blocks(row.start, self.block_size))
        super()._undo(row)


class AbortedIsPublished(Mutant):
    """What an aborted request had scheduled goes into the cache, computed or not.

    Reports: SGLang 28374, 30845 (an aborted request's KV is put into the cache as live).
    """

    name = "aborted_is_published"
    killed_by = ("hash_content",)

    def abort(self, name: str) -> None:
        """Publish what there is, then free it."""
        request = self.requests[name]
        request.retired = min(request.scheduled, len(request.tokens))
        self.publish(request)
        super().abort(name)
