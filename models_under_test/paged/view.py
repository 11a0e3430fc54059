"""The reference manager's state, read-only and live."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import cast

import numpy as np

from kvsan.harness.target import IntArray
from kvsan.models_under_test.paged.pool import BlockPool
from kvsan.models_under_test.paged.request import PagedRequest


class PagedView:
    """Implements ``kvsan.harness.target.View``."""

    __slots__ = ("_pool", "_requests", "free_front", "free_queue", "is_free")

    def __init__(self, pool: BlockPool, requests: dict[str, PagedRequest]) -> None:
        self._pool = pool
        self._requests = requests
        self.is_free = pool.is_queued
        self.free_queue = pool.queue
        self.free_front = pool.front

    def tables(self, name: str) -> Sequence[Sequence[int]]:
        """One table: there is one cache group."""
        return (self._requests[name].table,)

    def requests(self) -> Collection[str]:
        """Names of the requests that hold blocks."""
        return [name for name, request in self._requests.items() if request.table]

    def ref_count(self, unit: int) -> int:
        """References of one block."""
        return self._pool.references[unit]

    def ref_counts(self) -> IntArray:
        """References of all blocks."""
        return np.frombuffer(self._pool.references, np.int32).astype(np.int64)

    def key(self, unit: int) -> Hashable | None:
        """Key under which a block is published."""
        return self._pool.keys[unit]

    def published(self, key: Hashable) -> Collection[int]:
        """Blocks under one key."""
        return self._pool.published(cast(int, key))

    def keys(self) -> Collection[Hashable]:
        """Keys of the hash map."""
        return self._pool.by_key.keys()

    def num_free(self) -> int:
        """Length of the free queue as counted."""
        return self._pool.num_free
