"""The block pool: who holds a block, which free block goes next, which hash names it.

::

    free queue      sentinel <-> 7 <-> 3 <-> 12 <-> sentinel       front is evicted first; a freed block goes to the end
    hash map        key -> block, or a list of blocks with equal content (never merged: tables only ever grow)

A block in the free queue may still carry a hash: it is a cached block that nobody holds, and a prefix hit takes it out of
the middle of the queue in O(1). Only when it is given out again is its hash withdrawn.

Columns are arrays of machine integers, so that a pool of a million blocks costs megabytes and no garbage collection.
"""

from __future__ import annotations

from array import array

import numpy as np

NULL_UNIT = 0
_NOT_QUEUED = -1


class BlockPool:
    """``num_units`` blocks, of which block 0 is the null block: never free, never written, never counted."""

    __slots__ = ("_next", "_previous", "by_key", "keys", "num_free", "num_units", "references", "touched")

    def __init__(self, num_units: int) -> None:
        self.num_units = num_units
        self.num_free = num_units - 1
        self.references = array("i", bytes(4 * num_units))
        self.keys: list[int | None] = [None] * num_units
        self.by_key: dict[int, int | list[int]] = {}
        self.touched: list[int] = []
        ring = np.r_[1:num_units, num_units]  # the sentinel is the index behind the last block
        forward, backward = np.empty(num_units + 1, np.int32), np.empty(num_units + 1, np.int32)
        forward[ring], backward[np.roll(ring, -1)] = np.roll(ring, -1), ring
        forward[NULL_UNIT] = backward[NULL_UNIT] = _NOT_QUEUED
        self._next, self._previous = array("i", forward.tobytes()), array("i", backward.tobytes())

    # -- the free queue

    def front(self) -> int | None:
        """Block that would be given out next."""
        unit = self._next[self.num_units]
        return unit if unit != self.num_units else None

    def is_queued(self, unit: int) -> bool:
        """Whether the block is in the free queue, by its own links and its neighbours'."""
        following = self._next[unit]
        return (
            following != _NOT_QUEUED and self._previous[following] == unit and self._next[self._previous[unit]] == unit
        )

    def queue(self) -> list[int]:
        """Walk the free queue; a broken ring ends after ``num_units`` blocks."""
        following = self._next
        walked: list[int] = []
        unit = following[self.num_units]
        while unit != self.num_units and unit != _NOT_QUEUED and len(walked) <= self.num_units:
            walked.append(unit)
            unit = following[unit]
        return walked

    def _unlink(self, unit: int) -> None:
        before, after = self._previous[unit], self._next[unit]
        self._next[before] = after
        self._previous[after] = before
        self._next[unit] = _NOT_QUEUED
        self.num_free -= 1

    def append(self, unit: int) -> None:
        """Put a block at the end of the free queue."""
        sentinel = self.num_units
        last = self._previous[sentinel]
        self._next[last] = unit
        self._previous[unit] = last
        self._next[unit] = sentinel
        self._previous[sentinel] = unit
        self.num_free += 1

    # -- references

    def allocate(self) -> int:
        """Give out the front of the free queue, evicting what it caches; the caller has checked that there is one."""
        unit = self._next[self.num_units]
        self._unlink(unit)
        if self.keys[unit] is not None:
            self.withdraw(unit)
        self.references[unit] = 1
        self.touched.append(unit)
        return unit

    def touch(self, unit: int) -> None:
        """Take one more reference; a cached block leaves the free queue."""
        if self.references[unit] == 0:
            self._unlink(unit)
        self.references[unit] += 1
        self.touched.append(unit)

    def release(self, unit: int) -> None:
        """Give one reference back; the last one puts the block into the free queue, its hash kept."""
        left = self.references[unit] - 1
        if left < 0:
            raise RuntimeError(f"block {unit} is released but nobody holds it")
        self.references[unit] = left
        self.touched.append(unit)
        if left == 0:
            self.append(unit)

    # -- hashes

    def publish(self, unit: int, key: int) -> None:
        """Make a full block findable; a second block with the same content joins the first."""
        self.keys[unit] = key
        present = self.by_key.get(key)
        if present is None:
            self.by_key[key] = unit
        elif isinstance(present, int):
            self.by_key[key] = [present, unit]
        else:
            present.append(unit)
        self.touched.append(unit)

    def withdraw(self, unit: int) -> None:
        """Take a block's hash back."""
        key = self.keys[unit]
        assert key is not None
        self.keys[unit] = None
        self.touched.append(unit)
        present = self.by_key[key]
        if isinstance(present, int):
            del self.by_key[key]
            return
        present.remove(unit)
        if len(present) == 1:
            self.by_key[key] = present[0]

    def find(self, key: int) -> int | None:
        """Return a block published under ``key``, the oldest if there are several."""
        present = self.by_key.get(key)
        return present if present is None or isinstance(present, int) else present[0]

    def published(self, key: int) -> tuple[int, ...]:
        """Every block published under ``key``."""
        present = self.by_key.get(key)
        if present is None:
            return ()
        return (present,) if isinstance(present, int) else tuple(present)
