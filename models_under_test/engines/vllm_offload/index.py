"""``VllmOffloadIndex``: vLLM's offload manager of a real release behind the protocol of a tier's index.

What is prepared in one call was prepared by a request that finished right after it, so that releases that note recency at a
request's end (0.32.0) do so. Where vLLM has no call for what the protocol asks:

- ``protected``: from 0.19.0 on a store does not evict what it was offered, so protected chunks that are there are offered
  too, as the connector offers a request's chunks that are there; before, they are pinned by a load during the call.
- ``drop``: nobody drops a complete chunk in vLLM, whose workers assert that transfers succeed; the index takes the steps
  that ``complete_store`` takes for a store that failed.
- ``reset``: refused while something is pinned or being written, as vLLM's own reset forgets those too and expects nobody to
  complete them. Up to 0.20.2 there is no reset, and the index begins with a new manager.

What the manager itself gets wrong (``surface`` lists it) is passed on: an exception is raised, chunks are gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kvsan.harness.tiers import TierEntry
from kvsan.harness.verdict import UsageError
from kvsan.models_under_test.engines.vllm_offload import state
from kvsan.models_under_test.engines.vllm_offload.surface import OffloadSurface, load
from kvsan.models_under_test.tiers.interface import Prepared, TierIndex


class VllmOffloadIndex:
    """Implements ``TierIndex``: place ``p`` has the host units ``first_unit + p * chunk_blocks`` and following."""

    def __init__(self, surface: OffloadSurface, policy: str, capacity: int, first_unit: int, chunk_blocks: int) -> None:
        self._surface = surface
        self._policy = policy
        self._capacity = capacity
        self._first_unit = first_unit
        self._chunk_blocks = chunk_blocks
        self._begin()

    def _begin(self) -> None:
        """Make a manager, and a request that looks up and completes, and never prepares anything."""
        self._manager = self._surface.manager(self._policy, self._capacity)
        self._onlooker = self._surface.begin(self._manager)

    def lookup(self, key: str) -> bool:
        """Whether the manager says that a chunk is there and written."""
        return self._surface.lookup(self._manager, self._surface.key(key), self._onlooker)

    def touch(self, keys: Sequence[str]) -> None:
        """Note a use, the most recent last; vLLM's own ``touch`` takes the most recent first."""
        self._call("touch", reversed(keys))

    def prepare_load(self, keys: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Pin chunks and return their units; KeyError, before anything is pinned, if one cannot be served."""
        missing = [key for key in keys if not self.lookup(key)]
        if missing:
            raise KeyError(f"chunk {missing[0]!r} is not in vLLM's index, or not written yet")
        with self._request() as context:
            spec = self._surface.call(self._manager, "prepare_load", list(map(self._surface.key, keys)), context)
        return tuple(self._units(place) for place in spec.block_ids.tolist())

    def complete_load(self, keys: Sequence[str]) -> None:
        """Give pins back."""
        self._call("complete_load", keys)

    def prepare_store(self, keys: Sequence[str], protected: Collection[str] = ()) -> Prepared | None:
        """Make room for the keys that are not there; None if the manager says that it cannot.

        From 0.19.0 on a key of ``keys`` that is there is not evicted either.
        """
        offered = [self._surface.key(key) for key in dict.fromkeys(keys)]
        guarded = [key for key in dict.fromkeys(map(self._surface.key, protected)) if state.find(self._manager, key)]
        if self._surface.protects_offered:
            more = [key for key in guarded if key not in offered]
            with self._request() as context:
                grant = self._surface.prepare_store(self._manager, offered + more, context)
        else:
            with self._request() as context, self._pinned(guarded):
                grant = self._surface.prepare_store(self._manager, offered, context)
        if grant is None:
            return None
        return Prepared(
            tuple(map(self._surface.name, grant.keys)),
            tuple(map(self._units, grant.places)),
            tuple(map(self._surface.name, grant.evicted)),
        )

    def complete_store(self, keys: Sequence[str], success: bool) -> None:
        """End a store; ``keys`` are those that its ``prepare_store`` returned."""
        self._call("complete_store", keys, success=success)

    def drop(self, key: str) -> None:
        """Forget a complete chunk that nobody has pinned, if it is there."""
        engine_key = self._surface.key(key)
        if state.find(self._manager, engine_key):
            state.forget(self._manager, engine_key)

    def reset(self) -> bool:
        """Forget every chunk, by ``reset_cache`` or with a new manager; False while a transfer is in flight."""
        if any(count for _, _, count in state.chunks(self._manager)):
            return False
        if self._surface.resets:
            self._manager.reset_cache()
        else:
            self._begin()
        return True

    def entry(self, key: str) -> TierEntry | None:
        """One chunk as the manager holds it."""
        return next((entry for entry in self.entries() if entry.key == key), None)

    def entries(self) -> Collection[TierEntry]:
        """Every chunk that the manager holds, read from its own tables."""
        return [
            TierEntry(self._surface.name(key), self._units(place), ready=count >= 0, pins=max(count, 0))
            for key, place, count in state.chunks(self._manager)
        ]

    def free_places(self) -> int:
        """Return the manager's own count of free places."""
        return state.num_free(self._manager)

    @contextmanager
    def _request(self) -> Iterator[Any]:
        """Give a context of a request that does one thing and finishes."""
        context = self._surface.begin(self._manager)
        yield context
        self._surface.finish(self._manager, context)

    @contextmanager
    def _pinned(self, keys: Sequence[bytes]) -> Iterator[None]:
        """Pin those of the chunks that are written; those being written are not evicted anyway."""
        ready = [key for key in keys if self._surface.lookup(self._manager, key, None)]
        self._surface.call(self._manager, "prepare_load", ready, None)
        try:
            yield
        finally:
            self._surface.call(self._manager, "complete_load", ready, None)

    def _call(self, name: str, keys: Iterable[str], **options: Any) -> None:
        engine_keys = [self._surface.key(key) for key in keys]
        self._surface.call(self._manager, name, engine_keys, self._onlooker, **options)

    def _units(self, place: int) -> tuple[int, ...]:
        start = self._first_unit + place * self._chunk_blocks
        return tuple(range(start, start + self._chunk_blocks))


def make_index(version: str, policy: str, capacity: int, first_unit: int, chunk_blocks: int) -> TierIndex:
    """Make an index of ``capacity`` chunks over a release's manager; loads the release, one a process.

    UsageError if the release is not in the engines cache, has no offload managers or not this policy, or if a number is
    out of range.
    """
    for name, value, least in (
        ("capacity", capacity, 1),
        ("first_unit", first_unit, 0),
        ("chunk_blocks", chunk_blocks, 1),
    ):
        if value < least:
            raise UsageError(f"vllm-offload {version}: {name}: expected {least} or more, got {value}")
    return VllmOffloadIndex(load(version), policy, capacity, first_unit, chunk_blocks)
