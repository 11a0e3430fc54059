"""The index of one tier: places, what is in them, who is reading or writing them.

::

    absent --prepare_store--> being written --complete_store(True)--> ready <--prepare_load / complete_load--> ready, pinned
       ^                            |                                   |
       +---complete_store(False)----+<------- eviction, drop -----------+

Each decision is a method of its own, so that a seeded bug overrides one of them. An index is strict: a completion that
nothing was prepared for is an error, raised before anything has changed. What to tolerate is decided above it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from kvsan.harness.tiers import TierEntry
from kvsan.harness.verdict import UsageError
from kvsan.models_under_test.tiers.interface import Prepared
from kvsan.models_under_test.tiers.policy import EvictionPolicy


@dataclass(slots=True)
class Chunk:
    """What an index knows of a chunk: its place, whether it is written, and the loads in flight that read it."""

    place: int
    ready: bool = False
    pins: int = 0


class ChunkIndex:
    """Implements ``TierIndex``; place ``p`` has the ``chunk_blocks`` host units from ``first_unit + p * chunk_blocks`` on.

    A store's index has ``chunk_blocks=0``: its chunks have no units. Places that were given back last are taken first.
    """

    def __init__(self, capacity: int, policy: EvictionPolicy, first_unit: int = 0, chunk_blocks: int = 0) -> None:
        if capacity < 1:
            raise UsageError(f"capacity {capacity} of a tier: expected at least 1 chunk")
        self._policy = policy
        self._first_unit = first_unit
        self._chunk_blocks = chunk_blocks
        self._chunks: dict[str, Chunk] = {}
        self._free = list(range(capacity - 1, -1, -1))

    # -- loads

    def lookup(self, key: str) -> bool:
        """Whether it can be served now."""
        chunk = self._chunks.get(key)
        return chunk is not None and self._may_serve(chunk)

    def _may_serve(self, chunk: Chunk) -> bool:
        return chunk.ready

    def touch(self, keys: Sequence[str]) -> None:
        """The most recently used comes last."""
        for key in keys:
            if key in self._chunks:
                self._policy.touch(key)

    def prepare_load(self, keys: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Pin once for each time a key is named; KeyError, and nobody pinned, if one cannot be served."""
        for key in keys:
            if not self.lookup(key):
                raise KeyError(f"chunk {key} cannot be served: {self._state(key)}")
        for key in keys:
            self._pin(self._chunks[key])
        return tuple(self._units(self._chunks[key].place) for key in keys)

    def complete_load(self, keys: Sequence[str]) -> None:
        """KeyError for an unknown chunk, RuntimeError for one that has fewer pins than are given back; then no change."""
        for key, times in Counter(keys).items():
            if self._known(key, "load").pins < times:
                raise RuntimeError(f"load of chunk {key} completed {times} times: {self._state(key)}")
        for key in keys:
            self._unpin(self._chunks[key])

    def _pin(self, chunk: Chunk) -> None:
        chunk.pins += 1

    def _unpin(self, chunk: Chunk) -> None:
        chunk.pins -= 1

    # -- stores

    def prepare_store(self, keys: Sequence[str], protected: Collection[str] = ()) -> Prepared | None:
        """Chunks of ``keys`` that are there already are not evicted either: the rest would follow a gap."""
        new = self._missing(keys)
        stay = {*protected, *keys}
        evicted = self._policy.admit(new, self._shortage(len(new)), lambda key: self._evictable(key, stay))
        if evicted is None:
            return None
        for key in evicted:
            self._evict(key)
        for key in new:
            self._chunks[key] = Chunk(self._take_place())
        return Prepared(new, tuple(self._units(self._chunks[key].place) for key in new), evicted)

    def _missing(self, keys: Sequence[str]) -> tuple[str, ...]:
        """Keys that are to be written, each once."""
        return tuple(key for key in dict.fromkeys(keys) if key not in self._chunks)

    def _shortage(self, wanted: int) -> int:
        """Chunks that must go first."""
        return max(0, wanted - len(self._free))

    def _evictable(self, key: str, stay: Collection[str]) -> bool:
        """Whether a chunk may go: nobody reads it, nobody writes it, nobody asked for it to stay."""
        chunk = self._chunks[key]
        return chunk.ready and chunk.pins == 0 and key not in stay

    def _evict(self, key: str) -> None:
        """The policy let it go already."""
        self._forget(key)

    def complete_store(self, keys: Sequence[str], success: bool) -> None:
        """KeyError for an unknown chunk, RuntimeError for one that is not being written; then no change."""
        for key, times in Counter(keys).items():
            if self._known(key, "store").ready or times > 1:
                raise RuntimeError(f"store of chunk {key} completed again: {self._state(key)}")
        for key in keys:
            if success:
                self._publish(self._chunks[key])
            else:
                self._fail(key)

    def _publish(self, chunk: Chunk) -> None:
        chunk.ready = True

    def _fail(self, key: str) -> None:
        """Nothing was written, so nothing may be found."""
        self._policy.remove(key)
        self._forget(key)

    # -- forgetting

    def drop(self, key: str) -> None:
        """KeyError for an unknown chunk, RuntimeError for one that is pinned or being written."""
        chunk = self._known(key, "drop")
        if chunk.pins or not chunk.ready:
            raise RuntimeError(f"chunk {key} is to be dropped: {self._state(key)}")
        self._policy.remove(key)
        self._forget(key)

    def reset(self) -> bool:
        """The policy forgets what it has learnt, too."""
        if not self._may_reset():
            return False
        for key in list(self._chunks):
            self._forget(key)
        self._policy.clear()
        return True

    def _may_reset(self) -> bool:
        return all(chunk.ready and chunk.pins == 0 for chunk in self._chunks.values())

    def _forget(self, key: str) -> None:
        self._give_place(self._chunks.pop(key).place)

    # -- places

    def _units(self, place: int) -> tuple[int, ...]:
        start = self._first_unit + place * self._chunk_blocks
        return tuple(range(start, start + self._chunk_blocks))

    def _take_place(self) -> int:
        return self._free.pop()

    def _give_place(self, place: int) -> None:
        self._free.append(place)

    # -- testimony

    def entry(self, key: str) -> TierEntry | None:
        """One chunk, in any state."""
        chunk = self._chunks.get(key)
        return None if chunk is None else TierEntry(key, self._units(chunk.place), chunk.ready, chunk.pins)

    def entries(self) -> Collection[TierEntry]:
        """Every chunk, in any state."""
        return [entry for key in self._chunks if (entry := self.entry(key)) is not None]

    def free_places(self) -> int:
        """Places that hold nothing."""
        return len(self._free)

    def _known(self, key: str, what: str) -> Chunk:
        if key not in self._chunks:
            raise KeyError(f"{what} of chunk {key}: the index does not know it")
        return self._chunks[key]

    def _state(self, key: str) -> str:
        chunk = self._chunks.get(key)
        if chunk is None:
            return "the index does not know it"
        return f"it is {'written' if chunk.ready else 'being written'} and has {chunk.pins} pins"
