"""Bugs of counting: references and free blocks that are counted once too often or once too rarely."""

from __future__ import annotations

from kvsan.harness.target import Admission
from kvsan.models_under_test.mutants.base import Mutant
from kvsan.models_under_test.paged.pool import BlockPool
from kvsan.models_under_test.paged.request import PagedRequest


class RefusalLeaks(Mutant):
    """Hits are touched first; when the rest is refused, the references are never given back.

    Reports: vLLM 11562 (real), SGLang 16067.
    """

    name = "refusal_leaks"
    killed_by = ("refusal_atomic", "ref_counts", "quiescence")

    def fits(self, request: PagedRequest, hits: list[int], fresh: int) -> bool:
        """Refuse, and keep what was touched before."""
        fits = super().fits(request, hits, fresh)
        if not fits:
            self._hold(hits)
        return fits


class RefusesTooEarly(Mutant):
    """The gate does not count cached blocks that nobody holds, although they could be evicted.

    Reports: vLLM 55461 (eviction answers "none" although a candidate exists), TensorRT-LLM 12834.
    """

    name = "refuses_too_early"
    killed_by = ("refusal_atomic", "quiescence")

    def fits(self, request: PagedRequest, hits: list[int], fresh: int) -> bool:
        """Count only blocks that cache nothing."""
        uncached = sum(self.pool.keys[unit] is None for unit in self.pool.queue())
        return fresh <= uncached and super().fits(request, hits, fresh)


class _UnguardedPool(BlockPool):
    """Frees whatever it is told to, twice if it is told twice."""

    __slots__ = ()

    def release(self, unit: int) -> None:
        self.references[unit] = max(0, self.references[unit] - 1)
        self.touched.append(unit)
        if self.references[unit] == 0:
            self.append(unit)


class DoubleFree(Mutant):
    """A table that two launches use is parked with both, so that both free it; its blocks are queued twice.

    Reports: ascend 14283, UCM 1053 (duplicate free: the list is corrupted and a block is given out twice).
    """

    name = "double_free"
    killed_by = ("free_iff_unreferenced", "ref_counts", "conservation", "free_queue", "ownership")
    pool_type = _UnguardedPool

    def _give_back(self, request: PagedRequest) -> None:
        super()._give_back(request)
        if self.deferred_free and not request.loading:
            for b in request.launches[:-1]:
                self.launches[b].parked.append(request.table)


class AbortForgetsLastBlock(Mutant):
    """An abort gives back all blocks but the last, which it takes for still being filled.

    Reports: vLLM 46283 (blocks held for ever after an abort), 10013.
    """

    name = "abort_forgets_last_block"
    killed_by = ("conservation", "quiescence", "ref_counts", "free_iff_unreferenced")

    def abort(self, name: str) -> None:
        """Free all but the last block."""
        request = self.requests[name]
        if name not in self.batch and request.table:
            request.table = request.table[:-1]
        super().abort(name)


class ProgressLostOnRefusal(Mutant):
    """The scheduled count is state of one step: when an allocation fails, it falls back to what has been retired.

    Reports: vLLM 18631.
    """

    name = "progress_lost_on_refusal"
    killed_by = ("table_covers", "append_only", "ownership", "foreign_write", "provenance")

    def schedule(self, name: str, n: int, lookahead: int, external: int, delayed: bool) -> Admission | None:
        """Get blocks; a refusal forgets the steps in flight."""
        admission = super().schedule(name, n, lookahead, external, delayed)
        if admission is None:
            self.requests[name].scheduled = self.requests[name].retired
        return admission
