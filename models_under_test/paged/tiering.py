"""Tiers below the pool: what goes down, what comes up, and what is held while it is on its way.

::

    Offload(t, r)            device blocks --copies--> host chunk         blocks held, chunk not served until complete
    Offload(t, r, "disk")    host chunk    --put-----> file               chunk pinned, file not served until complete
    Load(t, r)               host chunk    --copies--> device blocks      chunk pinned, blocks not published until complete
                             file --get--> host chunk --copies--> ...     file pinned, and the chunk as above

A chunk is ``chunk_blocks`` full blocks, aligned to their number; its key is that of its last block, which stands for the whole
prefix. A load begins at the first block that the device does not have, also in the middle of a chunk. What fails is taken
back whole: a chunk that did not arrive is not in the index, a request whose load failed goes on from what the device had.

Every decision is a small method, so that a seeded bug is a small override (``models_under_test/mutants``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvsan.gpu_kernels.addressing import full_blocks
from kvsan.harness.target import COMPUTE_STREAM, Chunk, Copy, Effect, Effects, Loading, Offloading
from kvsan.harness.tiers import HOST_TIER, Get, Put, TierEntry
from kvsan.models_under_test.paged.request import PagedRequest
from kvsan.models_under_test.paged.tiers import LOAD_STREAM, OFFLOAD_STREAM, Tiers
from kvsan.models_under_test.tiers.interface import TierIndex

if TYPE_CHECKING:
    from kvsan.models_under_test.paged.manager import PagedManager


@dataclass(slots=True)
class Move:
    """A transfer in flight: ``held`` are device blocks that it reads, ``parked`` those of a request that left meanwhile."""

    request: PagedRequest
    tier: str
    chunks: Sequence[Chunk]
    held: list[int] = field(default_factory=list)
    hit_blocks: int = 0
    parked: list[int] | None = None

    def keys(self, tier: str | None = None) -> list[str]:
        """Keys of its chunks, or of those of one tier."""
        return [chunk.key for chunk in self.chunks if tier in (None, chunk.tier)]


class Tiering:
    """The tiers of one manager: an index for each, and a store for each but the host."""

    def __init__(self, manager: PagedManager, tiers: Tiers) -> None:
        self.manager = manager
        self.chunk_blocks = tiers.chunk_blocks
        self.indexes = tiers.indexes()
        self.stores = tiers.stores()
        self.host = self.indexes[HOST_TIER]
        self.emptied = tiers.emptied()
        self.moves: dict[str, Move] = {}

    # -- down

    def offload(self, t: str, request: PagedRequest, tier: str) -> Offloading | None:
        """Keep the request's full chunks in a tier too, as far as they are not there."""
        keys = self._chunk_keys(request, self._storable_chunks(request))
        return self._to_host(t, request, keys) if tier == HOST_TIER else self._to_store(t, request, keys, tier)

    def _storable_chunks(self, request: PagedRequest) -> int:
        """Only what has retired is known to be computed, and to stay."""
        return full_blocks(request.retired, self.manager.block_size) // self.chunk_blocks

    def _chunk_keys(self, request: PagedRequest, chunks: int) -> list[str]:
        size = self.chunk_blocks
        blocks = self.manager.keys.upto(request, chunks * size)
        return [self.manager.keys.digest(blocks[chunk * size + size - 1]) for chunk in range(chunks)]

    def _to_host(self, t: str, request: PagedRequest, keys: list[str]) -> Offloading | None:
        prepared = self.host.prepare_store(keys)
        if prepared is None or not prepared.keys:
            self.host.touch(keys)
            return None
        chunks = [
            Chunk(key, keys.index(key) * self.chunk_blocks, units, HOST_TIER)
            for key, units in zip(prepared.keys, prepared.units, strict=True)
        ]
        move = self.moves[t] = Move(request, HOST_TIER, chunks)
        effects: list[Effect] = []
        for chunk in chunks:
            for place, host_unit in enumerate(chunk.units):
                unit = request.table[chunk.block + place]
                move.held.append(unit)
                effects.append(self._copy_down(unit, host_unit))
        self._hold(move.held)
        return Offloading(chunks, effects)

    def _copy_down(self, unit: int, host_unit: int) -> Copy:
        """The copy waits for whatever computes the block."""
        return Copy(unit, host_unit, 0, self.manager.block_size, OFFLOAD_STREAM, (COMPUTE_STREAM,))

    def _hold(self, units: list[int]) -> None:
        for unit in units:
            self.manager.pool.touch(unit)

    def _to_store(self, t: str, request: PagedRequest, keys: list[str], tier: str) -> Offloading | None:
        index = self.indexes[tier]
        prepared = index.prepare_store([key for key in keys if self.host.lookup(key)], keys)
        if prepared is None or not prepared.keys:
            return None
        self._forget(tier, prepared.evicted)
        units = self._pin(self.host, prepared.keys)
        chunks = [
            Chunk(key, keys.index(key) * self.chunk_blocks, pages, tier)
            for key, pages in zip(prepared.keys, units, strict=True)
        ]
        self.moves[t] = Move(request, tier, chunks)
        return Offloading(chunks, [self._put(chunk) for chunk in chunks])

    def _put(self, chunk: Chunk) -> Put:
        return Put(chunk.tier, chunk.key, chunk.units, chunk.tier)

    def _pin(self, index: TierIndex, keys: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        return index.prepare_load(keys)

    # -- up

    def load(self, t: str, request: PagedRequest, hits: list[int]) -> Loading | None:
        """Bring up what the tiers have behind the blocks that the device has, or refuse and change nothing."""
        manager, size = self.manager, self.chunk_blocks
        first = len(hits) // size
        found = self._find(request, first)
        while found and not self._admits(request, hits, (first + len(found)) * size - len(hits)):
            found.pop()
        chunks = self._pin_chunks(found, first)
        if not chunks:
            return None
        fresh = (first + len(chunks)) * size - len(hits)
        self._take_blocks(request, hits, fresh)
        start, stop = len(hits) * manager.block_size, (first + len(chunks)) * size * manager.block_size
        request.scheduled, request.load, request.goal = stop, t, len(request.tokens)
        request.loading = True
        manager.changed.append(request.name)
        self.moves[t] = Move(request, "", chunks, hit_blocks=len(hits))
        return Loading(start, stop - start, chunks, self._copies_up(request, chunks, len(hits)))

    def _take_blocks(self, request: PagedRequest, hits: list[int], fresh: int) -> None:
        """Hits first: nobody holds them yet, and the pool would give them out as new."""
        self.manager.take_hits(request, hits)
        self.manager.extend(request, fresh)

    def _find(self, request: PagedRequest, first: int) -> list[tuple[str, str]]:
        """Key and tier of each chunk from ``first`` on; the last token is always computed, so its chunk is not wanted."""
        chunks = self.manager.reusable_blocks(request) // self.chunk_blocks
        found: list[tuple[str, str]] = []
        for key in self._chunk_keys(request, chunks)[first:]:
            tier = next((tier for tier, index in self.indexes.items() if index.lookup(key)), None)
            if tier is None:
                break
            found.append((key, tier))
        return found

    def _admits(self, request: PagedRequest, hits: list[int], fresh: int) -> bool:
        """Whether the blocks can be had, and some request that waits for a load can still be computed to its end."""
        manager = self.manager
        need = max(0, manager.blocks_needed(len(request.tokens)) - len(hits) - fresh)
        left = manager.pool.num_free - manager.taken(hits, fresh)
        return manager.fits(request, hits, fresh) and self._can_progress([need, *self._needs(request)], left)

    def leaves_progress(self, request: PagedRequest, taken: int, blocks: int, stop: int) -> bool:
        """Whether giving out ``taken`` blocks leaves loads as able to get on as they were.

        ``request`` will then have ``blocks`` blocks and ``stop`` tokens scheduled.
        """
        others, free = self._needs(request), self.manager.pool.num_free
        goal = self.manager.blocks_needed(request.goal)
        before = [goal - len(request.table), *others] if request.scheduled < request.goal else others
        after = [max(0, goal - blocks), *others] if stop < request.goal else others
        return self._can_progress(after, free - taken) or not self._can_progress(before, free)

    def _needs(self, besides: PagedRequest) -> list[int]:
        """Blocks that each request that came by a load still wants to the end of its prompt."""
        return [
            self.manager.blocks_needed(other.goal) - len(other.table)
            for other in self.manager.requests.values()
            if other is not besides and other.scheduled < other.goal
        ]

    def _can_progress(self, needs: list[int], free: int) -> bool:
        return not needs or min(needs) <= free

    def _pin_chunks(self, found: list[tuple[str, str]], first: int) -> list[Chunk]:
        """Hold what is in the host, and make room there for what comes from a store; stop where there is none."""
        keys = [key for key, _ in found]
        chunks: list[Chunk] = []
        for number, (key, tier) in enumerate(found):
            if tier == HOST_TIER:
                (units,) = self._pin(self.host, [key])
            else:
                prepared = self.host.prepare_store([key], keys)
                if prepared is None or not prepared.keys:
                    break
                (units,) = prepared.units
                self._pin(self.indexes[tier], [key])
            chunks.append(Chunk(key, (first + number) * self.chunk_blocks, units, tier))
        return chunks

    def _copies_up(self, request: PagedRequest, chunks: Sequence[Chunk], hit_blocks: int) -> Effects:
        effects: list[Effect] = []
        for chunk in chunks:
            if chunk.tier != HOST_TIER:
                effects.append(Get(chunk.tier, chunk.key, chunk.units, chunk.tier))
            for place, host_unit in enumerate(chunk.units):
                if chunk.block + place >= hit_blocks:
                    effects.append(self._copy_up(host_unit, request.table[chunk.block + place], chunk.tier))
        return effects

    def _copy_up(self, host_unit: int, unit: int, tier: str) -> Copy:
        """The copy waits for its chunk to arrive, and for the block's last user where nothing else has waited for it."""
        after = () if tier == HOST_TIER else (tier,)
        if not self.manager.deferred_free:
            after = (*after, COMPUTE_STREAM)
        return Copy(host_unit, unit, 0, self.manager.block_size, LOAD_STREAM, after)

    # -- done

    def complete(self, t: str, success: bool) -> None:
        """A transfer has ended; a notice that comes twice, or of a transfer that is unknown, means nothing."""
        move = self._take(t)
        if move is None:
            return
        if not move.tier:
            self._loaded(move, success)
        elif move.tier == HOST_TIER:
            self._offloaded(move, success)
        else:
            self._stored(move, success)

    def _take(self, t: str) -> Move | None:
        return self.moves.pop(t, None)

    def _offloaded(self, move: Move, success: bool) -> None:
        self.host.complete_store(move.keys(), success)
        self._release(move)

    def _stored(self, move: Move, success: bool) -> None:
        self.host.complete_load(move.keys())
        self.indexes[move.tier].complete_store(move.keys(), success)
        if not success:
            self._forget(move.tier, move.keys())

    def _release(self, move: Move) -> None:
        self.manager.release(move.held)

    def _loaded(self, move: Move, success: bool) -> None:
        self.host.complete_load(move.keys(HOST_TIER))
        for tier, index in self.indexes.items():
            if tier != HOST_TIER and (keys := move.keys(tier)):
                index.complete_load(keys)
                self._fill_host(keys, success)
                if not success:
                    self._drop(tier, keys)
        if move.parked is not None:
            self.manager.release(move.parked)
        else:
            self._resume(move, success)

    def _fill_host(self, keys: Sequence[str], success: bool) -> None:
        """What came from a store on its way up is the host's, if it came."""
        self.host.complete_store(keys, success)

    def _resume(self, move: Move, success: bool) -> None:
        """The request goes on: with what was loaded, or with what it had before."""
        manager, request = self.manager, move.request
        request.loading, request.load = False, ""
        if success:
            request.retired = request.scheduled
        else:
            self._take_back(request, move.hit_blocks)
        manager.publish(request)
        manager.changed.append(request.name)

    def _take_back(self, request: PagedRequest, hit_blocks: int) -> None:
        self.manager.trim(request, hit_blocks)
        request.scheduled, request.goal = hit_blocks * self.manager.block_size, 0
        if not hit_blocks:
            request.forget_blocks()

    def _drop(self, tier: str, keys: Sequence[str]) -> None:
        """A load failed, and it may have been the store: what nobody else is reading is not offered again."""
        for key in keys:
            entry = self.entry(tier, key)
            if entry is not None and entry.ready and not entry.pins:
                self.indexes[tier].drop(key)
                self._forget(tier, [key])

    def _forget(self, tier: str, keys: Sequence[str]) -> None:
        for key in keys:
            self.stores[tier].delete(key)

    def reset(self) -> bool:
        """Empty every tier that a reset reaches, or none while something is in flight."""
        if self.moves and self.emptied:
            return False
        for tier in self.emptied:
            self.indexes[tier].reset()
            if tier != HOST_TIER:
                self._forget(tier, list(self.stores[tier].keys()))
        return True

    def park(self, request: PagedRequest) -> None:
        """The request leaves while its load is in flight: its blocks stay until that is over."""
        self.moves[request.load].parked = request.table

    # -- testimony

    def tiers(self) -> Sequence[str]:
        """Names of the tiers."""
        return tuple(self.indexes)

    def entry(self, tier: str, key: str) -> TierEntry | None:
        """What a tier's index knows of one chunk."""
        return self.indexes[tier].entry(key)

    def entries(self, tier: str) -> Sequence[TierEntry]:
        """Everything that a tier's index knows."""
        return tuple(self.indexes[tier].entries())

    def free_host_units(self) -> int:
        """Host units that belong to no chunk."""
        return self.host.free_places() * self.chunk_blocks
