"""Bugs of freeing: too early, too late in the queue, or what somebody else still holds."""

from __future__ import annotations

from kvsan.gpu_kernels.addressing import full_blocks
from kvsan.models_under_test.mutants.base import Mutant
from kvsan.models_under_test.paged.pool import BlockPool
from kvsan.models_under_test.paged.request import PagedRequest


class FreedWhileLaunched(Mutant):
    """A request that ends frees its blocks although a launch in flight still writes them.

    Reports: vLLM 45357, 52360.
    """

    name = "freed_while_launched"
    killed_by = ("deferred_free", "free_iff_unreferenced")

    def _give_back(self, request: PagedRequest) -> None:
        request.launches = []
        super()._give_back(request)


class LoadFreedOnAbort(Mutant):
    """An abort during a delayed load frees the blocks that the load is still writing.

    Reports: vLLM 32255, SGLang 35769.
    """

    name = "load_freed_on_abort"
    killed_by = ("deferred_free", "free_iff_unreferenced", "ref_counts", "order")

    def _give_back(self, request: PagedRequest) -> None:
        request.loading = False
        super()._give_back(request)

    def landed(self, name: str) -> None:
        """Take the news of a load whose request is gone, and do nothing."""
        if name in self.requests:
            super().landed(name)


class _CarelessPool(BlockPool):
    __slots__ = ()

    def release(self, unit: int) -> None:
        super().release(unit)
        if self.references[unit]:
            self.append(unit)


class FreedWhileShared(Mutant):
    """A block goes into the free queue when the first of its holders leaves.

    Reports: SGLang 31486, mini-SGLang 142 (pages freed but still in a table), SGLang 27038.
    """

    name = "freed_while_shared"
    killed_by = ("free_iff_unreferenced", "conservation", "deferred_free")
    pool_type = _CarelessPool


class FreeOrderReversed(Mutant):
    """A table is freed from its first block on, so that the head of a prefix is evicted before its tail.

    Reports: SGLang 29860 (eviction frontier), vLLM 57610.
    """

    name = "free_order_reversed"
    killed_by = ("free_order",)

    def release(self, table: list[int]) -> None:
        """Free from the first block on."""
        super().release(table[::-1])


class ParkedWithTheOldest(Mutant):
    """A table that two launches use is freed when the first of them has retired.

    Reports: vLLM 45357, 52360 in kind.
    """

    name = "parked_with_the_oldest"
    killed_by = ("free_iff_unreferenced", "ref_counts")

    def _give_back(self, request: PagedRequest) -> None:
        del request.launches[1:]
        super()._give_back(request)


class DuplicateFreedInTable(Mutant):
    """A block whose content is in the cache already is freed as a duplicate; the request's table goes on naming it.

    Reports: SGLang 31486, mini-SGLang 142.
    """

    name = "duplicate_freed_in_table"
    killed_by = ("ref_counts", "free_iff_unreferenced")

    def publish(self, request: PagedRequest) -> None:
        """Free a block whose content is cached already."""
        full = full_blocks(self._publishable(request), self.block_size)
        keys = self.keys.upto(request, full)
        for block in range(request.published, full):
            unit = request.table[block]
            if self.pool.keys[unit] is None and self.pool.find(keys[block]) is not None:
                self.pool.release(unit)
        super().publish(request)
