"""Managers whose tiers work otherwise than the reference's, each legal by its traits: none of them may be accused of anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import ClassVar

from kvsan.harness.configuration import Configuration
from kvsan.harness.target import COMPUTE_STREAM, COPY_STREAM, Chunk, Copy, Effect, Effects, Loading, Offloading
from kvsan.harness.tiers import HOST_TIER, Get, Put
from kvsan.models_under_test.paged import PagedManager, manager_arguments
from kvsan.models_under_test.paged.request import PagedRequest
from kvsan.models_under_test.paged.tiering import Move, Tiering
from kvsan.models_under_test.paged.tiers import Tiers, index_maker
from kvsan.models_under_test.tiers.index import ChunkIndex


class OneChunkAtATime(Tiering):
    """Loads the next chunk only, however many there are."""

    def _find(self, request: PagedRequest, first: int) -> list[tuple[str, str]]:
        return super()._find(request, first)[:1]


class CopiesOnTheComputeStream(Tiering):
    """Copies go to the compute stream, whose order is all that they need."""

    def _copy_down(self, unit: int, host_unit: int) -> Copy:
        return super()._copy_down(unit, host_unit)._replace(stream=COMPUTE_STREAM, after=())

    def _copy_up(self, host_unit: int, unit: int, tier: str) -> Copy:
        after = () if tier == HOST_TIER else (tier,)
        return super()._copy_up(host_unit, unit, tier)._replace(stream=COMPUTE_STREAM, after=after)


class OneCopyStream(Tiering):
    """One copy engine for both ways."""

    def _copy_down(self, unit: int, host_unit: int) -> Copy:
        return super()._copy_down(unit, host_unit)._replace(stream=COPY_STREAM)

    def _copy_up(self, host_unit: int, unit: int, tier: str) -> Copy:
        return super()._copy_up(host_unit, unit, tier)._replace(stream=COPY_STREAM)


class WaitsForEverything(Tiering):
    """Every piece waits for all that any stream has been given."""

    def _copy_down(self, unit: int, host_unit: int) -> Copy:
        return super()._copy_down(unit, host_unit)._replace(after=self.manager.traits.streams)

    def _copy_up(self, host_unit: int, unit: int, tier: str) -> Copy:
        return super()._copy_up(host_unit, unit, tier)._replace(after=self.manager.traits.streams)

    def _put(self, chunk: Chunk) -> Put:
        return super()._put(chunk)._replace(after=self.manager.traits.streams)


class LastBlockFirst(Tiering):
    """Moves a request's blocks from its end on."""

    def offload(self, t: str, request: PagedRequest, tier: str) -> Offloading | None:
        granted = super().offload(t, request, tier)
        if granted is None:
            return None
        self.moves[t].held.reverse()
        return granted._replace(effects=tuple(reversed(granted.effects)))


class GetsFirst(Tiering):
    """Asks the stores for everything before it copies anything."""

    def _copies_up(self, request: PagedRequest, chunks: Sequence[Chunk], hit_blocks: int) -> Effects:
        effects = super()._copies_up(request, chunks, hit_blocks)
        return sorted(effects, key=lambda effect: not isinstance(effect, Get))


class LoadsTwice(Tiering):
    """Copies every block up twice, on one stream."""

    def _copies_up(self, request: PagedRequest, chunks: Sequence[Chunk], hit_blocks: int) -> Effects:
        effects: list[Effect] = []
        for effect in super()._copies_up(request, chunks, hit_blocks):
            effects += [effect, effect] if isinstance(effect, Copy) else [effect]
        return effects


class StagesOnly(Tiering):
    """What came up from a store does not stay in the host."""

    def _loaded(self, move: Move, success: bool) -> None:
        keys = [chunk.key for chunk in move.chunks if chunk.tier != HOST_TIER]
        super()._loaded(move, success)
        for key in keys:
            entry = self.host.entry(key)
            if success and entry is not None and not entry.pins:
                self.host.drop(key)


class KeepsBlocksOfAFailedLoad(Tiering):
    """A request whose load failed computes into the blocks that it has got already."""

    def _take_back(self, request: PagedRequest, hit_blocks: int) -> None:
        if not hit_blocks:
            super()._take_back(request, hit_blocks)
            return
        request.scheduled, request.goal = hit_blocks * self.manager.block_size, 0


class IgnoresTheDevice(Tiering):
    """Loads the whole prefix from the tiers although the device has the beginning; not at all where the tiers lack it."""

    def __init__(self, manager: PagedManager, tiers: Tiers) -> None:
        super().__init__(manager, tiers)
        manager.traits = replace(manager.traits, loads_hits=False)

    def load(self, t: str, request: PagedRequest, hits: list[int]) -> Loading | None:
        return super().load(t, request, [])


class AllButOneToken(Tiering):
    """Brings the whole prompt and counts one token less, which is computed again over what was loaded."""

    def _find(self, request: PagedRequest, first: int) -> list[tuple[str, str]]:
        chunks = len(request.tokens) // self.manager.block_size // self.chunk_blocks
        found: list[tuple[str, str]] = []
        for key in self._chunk_keys(request, chunks)[first:]:
            tier = next((tier for tier, index in self.indexes.items() if index.lookup(key)), None)
            if tier is None:
                break
            found.append((key, tier))
        return found

    def load(self, t: str, request: PagedRequest, hits: list[int]) -> Loading | None:
        granted = super().load(t, request, hits)
        if granted is not None and granted.hit + granted.tokens >= len(request.tokens):
            request.scheduled = len(request.tokens) - 1
            if request.scheduled == granted.hit:
                return granted
            granted = granted._replace(tokens=request.scheduled - granted.hit)
        return granted


class ReleasesFirstToLast(Tiering):
    """Gives the blocks of an offload back in the order in which it read them."""

    def _release(self, move: Move) -> None:
        for unit in move.held:
            self.manager.pool.release(unit)


class DropsWhateverFailed(Tiering):
    """After a failed load nothing that it wanted from a store is trusted, nor kept."""

    def _drop(self, tier: str, keys: Sequence[str]) -> None:
        super()._drop(tier, keys)
        for key in keys:
            entry = self.host.entry(key)
            if entry is not None and entry.ready and not entry.pins:
                self.host.drop(key)


class NeverResets(Tiering):
    """Refuses to empty its tiers, so the prefix cache is never reset."""

    def reset(self) -> bool:
        return False


class OnlyWholePrefixes(Tiering):
    """Offloads nothing of a request of which something is there already on its way."""

    def offload(self, t: str, request: PagedRequest, tier: str) -> Offloading | None:
        keys = self._chunk_keys(request, self._storable_chunks(request))
        writing = any((entry := self.indexes[tier].entry(key)) is not None and not entry.ready for key in keys)
        return None if writing else super().offload(t, request, tier)


class AnyoneMayGo(ChunkIndex):
    """Evicts at random."""

    def __init__(self, capacity: int, policy: object, first_unit: int = 0, chunk_blocks: int = 0) -> None:
        super().__init__(capacity, policy, first_unit, chunk_blocks)  # type: ignore[arg-type]
        self._random = Random(capacity)

    def touch(self, keys: Sequence[str]) -> None:
        super().touch(self._random.sample(list(keys), len(keys)))


class NotWhileLoading(PagedManager):
    """A request that waits for a load is not preempted, and no notice comes twice."""

    tiering_type: ClassVar[type[Tiering]] = Tiering

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self.traits = replace(self.traits, preempts_loading=False, late_notices=False)


TIERINGS = {kind.__name__: kind for kind in (
    OneChunkAtATime, CopiesOnTheComputeStream, OneCopyStream, WaitsForEverything, LastBlockFirst, GetsFirst,
    LoadsTwice, StagesOnly, KeepsBlocksOfAFailedLoad, IgnoresTheDevice, DropsWhateverFailed, NeverResets,
    OnlyWholePrefixes, AllButOneToken, ReleasesFirstToLast,
)}  # fmt: skip
NAMES = (*TIERINGS, AnyoneMayGo.__name__, NotWhileLoading.__name__)


def make_variant(name: str, configuration: Configuration) -> PagedManager:
    """Make a variant with the tiers that a configuration asks for."""
    if name == AnyoneMayGo.__name__:
        policy = str(configuration.option("policy", "lru"))
        return PagedManager(**manager_arguments(configuration, index_maker(policy, AnyoneMayGo)))
    if name == NotWhileLoading.__name__:
        return NotWhileLoading(**manager_arguments(configuration))
    kind = type(name, (PagedManager,), {"tiering_type": TIERINGS[name], "__module__": __name__})
    made: PagedManager = kind(**manager_arguments(configuration))
    return made
