"""vLLM's state, read-only and live: block tables, reference counts, hashes and the free queue of its block pool."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import Any

import numpy as np

from kvsan.harness.target import IntArray


class VllmView:
    """Implements ``kvsan.harness.target.View`` over a ``KVCacheManager``.

    The null block's count goes below zero in some releases (``BlockPool.free_blocks`` counts it down, nobody counts it
    up); it is given as it is.
    """

    def __init__(self, manager: Any) -> None:
        self._pool = manager.block_pool
        self._blocks = self._pool.blocks
        self._queue = self._pool.free_block_queue
        self._has_sentinels = hasattr(self._queue, "fake_free_list_head")
        coordinator = getattr(manager, "coordinator", None)
        owners = (manager,) if coordinator is None else coordinator.single_type_managers
        self._tables = tuple(owner.req_to_blocks for owner in owners)

    def tables(self, name: str) -> Sequence[Sequence[int]]:
        """Block tables of a request, one a group; empty ones if it holds nothing."""
        return [[block.block_id for block in table.get(name, ())] for table in self._tables]

    def requests(self) -> Collection[str]:
        """Names of the requests that hold a table in any group."""
        return {name for table in self._tables for name, blocks in table.items() if blocks}

    def ref_count(self, unit: int) -> int:
        """Return the ``ref_cnt`` of one block."""
        return int(self._blocks[unit].ref_cnt)

    def ref_counts(self) -> IntArray:
        """Return the ``ref_cnt`` of all blocks."""
        return np.fromiter((block.ref_cnt for block in self._blocks), np.int64, len(self._blocks))

    def key(self, unit: int) -> Hashable | None:
        """Return the ``block_hash`` of one block: hash and cache group."""
        key: Hashable | None = self._blocks[unit].block_hash
        return key

    def published(self, key: Hashable) -> Collection[int]:
        """Blocks that the hash map holds under one key; since 0.11 a value is a block or a dict of blocks."""
        entry = self._map().get(key)
        if entry is None:
            return ()
        return list(entry) if isinstance(entry, dict) else (entry.block_id,)

    def keys(self) -> Collection[Hashable]:
        """Keys of the hash map."""
        keys: Collection[Hashable] = self._map().keys()
        return keys

    def _map(self) -> Any:
        """Return the hash map, which a reset replaces; since 0.11 it is inside a ``BlockHashToBlockMap``."""
        holder = self._pool.cached_block_hash_to_block
        return getattr(holder, "_cache", holder)

    def is_free(self, unit: int) -> bool:
        """Whether the block is linked into the free queue: removal clears both links."""
        block = self._blocks[unit]
        if block.next_free_block is not None or block.prev_free_block is not None:
            return True
        return not self._has_sentinels and self._queue.free_list_head is block

    def num_free(self) -> int:
        """Length of the free queue as vLLM counts it."""
        return int(self._queue.num_free_blocks)

    def free_queue(self) -> Sequence[int]:
        """Walk the free queue from its front; a walk longer than the pool is cut, as it goes in a circle."""
        return list(self._walk())

    def free_front(self) -> int | None:
        """First block of the free queue."""
        return next(self._walk(), None)

    def _walk(self) -> Iterator[int]:
        queue = self._queue
        if self._has_sentinels:
            block, end = queue.fake_free_list_head.next_free_block, queue.fake_free_list_tail
        else:
            block, end = queue.free_list_head, None
        for _ in range(len(self._blocks) + 1):
            if block is end or block is None:
                return
            yield block.block_id
            block = block.next_free_block
