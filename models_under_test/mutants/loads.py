"""Bugs of what a load may bring: what is found in the tiers, whether there is room, and when it counts."""

from __future__ import annotations

from kvsan.harness.target import Loading
from kvsan.models_under_test.mutants.base import Mutant
from kvsan.models_under_test.paged.request import PagedRequest
from kvsan.models_under_test.paged.tiering import Tiering


class _BringsEverything(Tiering):
    def _find(self, request: PagedRequest, first: int) -> list[tuple[str, str]]:
        found = super()._find(request, first)
        chunks = len(request.tokens) // self.manager.block_size // self.chunk_blocks
        for key in self._chunk_keys(request, chunks)[first + len(found) :]:
            tier = next((tier for tier, index in self.indexes.items() if index.lookup(key)), None)
            if tier is None:
                break
            found.append((key, tier))
        return found


class LoadLeavesNothing(Mutant):
    """A load brings the whole prompt: no token is left to compute, and there is no output to sample from.

    Reports: SGLang 22819 (a prefix as long as the block) in kind.
    """

    name = "load_leaves_nothing"
    killed_by = ("transfer_ends",)
    profile = "async"
    tiering_type = _BringsEverything


class _FindsNoFirstChunk(Tiering):
    def _find(self, request: PagedRequest, first: int) -> list[tuple[str, str]]:
        return super()._find(request, first) if first else []


class FirstChunkNeverFound(Mutant):
    """A look-up in the tiers that begins with the first chunk finds nothing.

    Reports: vLLM 48435, 57610 (never a hit).
    """

    name = "first_chunk_never_found"
    killed_by = ("lost_tier_hits",)
    profile = "async"
    tiering_type = _FindsNoFirstChunk


class _AdmitsAll(Tiering):
    def _can_progress(self, needs: list[int], free: int) -> bool:
        return True


class LoadsStarve(Mutant):
    """Loads are admitted while there are blocks for their hits, whatever they still need to get to the end.

    Reports: vLLM 45388.
    """

    name = "loads_starve"
    killed_by = ("load_progress",)
    profile = "async"
    tiering_type = _AdmitsAll


class _OthersComeFirst(Tiering):
    def leaves_progress(self, request: PagedRequest, taken: int, blocks: int, stop: int) -> bool:
        return True


class LastBlockToAnother(Mutant):
    """A load looks ahead, and then somebody else is given the block that it counted on.

    Reports: vLLM 45388, 39734 in kind.
    """

    name = "last_block_to_another"
    killed_by = ("load_progress",)
    profile = "async"
    tiering_type = _OthersComeFirst


class _Overcommits(Tiering):
    def _admits(self, request: PagedRequest, hits: list[int], fresh: int) -> bool:
        return fresh <= self.manager.pool.num_free and self._can_progress(self._needs(request), fresh)


class LoadCountsHitsAsFree(Mutant):
    """Hits that nobody holds are counted as blocks that new ones can be had from.

    Reports: SGLang 35270 (evictable pages counted twice).
    """

    name = "load_counts_hits_as_free"
    killed_by = ("target.crash", "load_progress")
    profile = "async"
    tiering_type = _Overcommits


class _PublishesAtOnce(Tiering):
    def load(self, t: str, request: PagedRequest, hits: list[int]) -> Loading | None:
        granted = super().load(t, request, hits)
        if granted is not None:
            request.retired = request.scheduled
            self.manager.publish(request)
        return granted


class PublishedBeforeLanded(Mutant):
    """What a load will bring can be hit before it is there.

    Reports: vLLM 42359 (ghost blocks), 49250.
    """

    name = "published_before_landed"
    killed_by = ("unlanded", "hash_content")
    profile = "async"
    tiering_type = _PublishesAtOnce
