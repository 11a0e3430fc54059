"""Legal managers that differ from the reference in what the traits leave open: each must be met with silence.

A false alarm costs more trust than a missed bug. Each class changes one decision that a real engine takes differently, and
says so in its traits where they have a word for it.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import replace
from random import Random

from kvsan.gpu_kernels.addressing import blocks_for, full_blocks, offset_of
from kvsan.harness.operations import Abort, Cancel, Finish, Fork, Landed, Operation, Preempt
from kvsan.harness.target import (
    Admission,
    Copy,
    Delta,
    Effects,
    IntArray,
    RequestState,
    Result,
    SessionState,
    Traits,
    Zero,
)
from kvsan.models_under_test.paged import PagedManager
from kvsan.models_under_test.paged.batch import Row
from kvsan.models_under_test.paged.pool import BlockPool
from kvsan.models_under_test.paged.request import PagedRequest
from kvsan.models_under_test.paged.view import PagedView


class Variant(PagedManager):
    """The reference manager with some traits and options set; ``changes`` and ``options`` are what differs."""

    changes: dict[str, object] = {}
    options: dict[str, int] = {}

    def __init__(self, num_units: int, block_size: int) -> None:
        super().__init__(num_units, block_size, **self.options)  # type: ignore[arg-type]
        self.traits: Traits = replace(self.traits, **self.changes)  # type: ignore[arg-type]


# -- options of the reference manager itself


class OneInFlight(Variant):
    options = {"max_in_flight": 1}


class ThreeInFlight(Variant):
    options = {"max_in_flight": 3}


class OrderedByTheStream(Variant):
    options = {"deferred_free": False}


class ThreeInFlightOrderedByTheStream(Variant):
    options = {"max_in_flight": 3, "deferred_free": False}


class Watermark(Variant):
    options = {"watermark": 2}


class ShortModel(Variant):
    """No request may grow beyond 13 tokens."""

    changes = {"max_model_len": 13}


class ExternalTokensOfAnySize(Variant):
    changes = {"external_unit": 3}


class FewOperations(Variant):
    """No fork, no cancel, no connector, no drafts."""

    def __init__(self, num_units: int, block_size: int) -> None:
        super().__init__(num_units, block_size)
        few = self.traits.operations - {Fork, Cancel, Landed}
        self.traits = replace(self.traits, operations=few, max_drafts=0, max_lookahead=0)


# -- when a hash becomes visible


class PublishesAtLaunch(Variant):
    changes = {"publish": "launch"}

    def launch(self, b: str) -> None:
        rows = list(self.batch)
        super().launch(b)
        for name in rows:
            self.publish(self.requests[name])

    def _publishable(self, request: PagedRequest) -> int:
        row = self.batch.get(request.name)
        return min(request.scheduled if row is None else row.start, len(request.tokens))


class PublishesAtLaunchOrderedByTheStream(PublishesAtLaunch):
    options = {"deferred_free": False}


class PublishesAtAllocation(Variant):
    """Requests of one batch share what one of them is about to fill; whoever will not write withdraws.

    As in vLLM, nobody ends while a batch is put together: a sharer would wait for a writer that is gone.
    """

    changes = {"publish": "allocation"}

    def __init__(self, num_units: int, block_size: int) -> None:
        super().__init__(num_units, block_size)
        self.traits = replace(self.traits, allows=nobody_ends_in_a_batch)
        self.promised: dict[str, list[int]] = {}

    def schedule(self, name: str, n: int, lookahead: int, external: int, delayed: bool) -> Admission | None:
        admission = super().schedule(name, n, lookahead, external, delayed)
        if admission is not None and not delayed:
            self.publish(self.requests[name])
        return admission

    def publish(self, request: PagedRequest) -> None:
        before = {unit for unit in request.table if self.pool.keys[unit] is not None}
        super().publish(request)
        if row := self.batch.get(request.name):
            unwritten = request.table[full_blocks(row.start, self.block_size) : request.published]
            self.promised.setdefault(request.name, []).extend(unit for unit in unwritten if unit not in before)

    def launch(self, b: str) -> None:
        self.promised.clear()
        super().launch(b)

    def _undo(self, row: Row) -> None:
        self._withdraw(row.request)
        super()._undo(row)
        row.request.published = min(row.request.published, full_blocks(row.request.scheduled, self.block_size))

    def _withdraw(self, request: PagedRequest) -> None:
        for unit in self.promised.pop(request.name, ()):
            if self.pool.keys[unit] is not None:
                self.pool.withdraw(unit)

    def _publishable(self, request: PagedRequest) -> int:
        return min(request.scheduled, len(request.tokens))


class PublishesAtAllocationOrderedByTheStream(PublishesAtAllocation):
    options = {"deferred_free": False, "max_in_flight": 3}


def nobody_ends_in_a_batch(request: RequestState | None, session: SessionState, operation: Operation) -> bool:
    """Contract: a batch is put together without interruption; only a cancel may drop it."""
    return not (isinstance(operation, Finish | Abort | Preempt) and session.batch_size)


class HitsOnlyWhatIsLaunched(PublishesAtAllocation):
    """Publishes at allocation, but shares a block only when its writer is on the stream: any end is survived."""

    changes = {"publish": "allocation", "promised_hit": None}

    def __init__(self, num_units: int, block_size: int) -> None:
        super().__init__(num_units, block_size)
        self.traits = replace(self.traits, allows=lambda *_: True)

    def _find(self, request: PagedRequest, limit: int) -> list[int]:
        waiting = {unit for units in self.promised.values() for unit in units}
        hits = super()._find(request, limit)
        return hits[: next((block for block, unit in enumerate(hits) if unit in waiting), len(hits))]

    def _give_back(self, request: PagedRequest) -> None:
        self._withdraw(request)
        super()._give_back(request)


class PublishesWhenItEnds(Variant):
    """A request's blocks go into the cache when it finishes, is aborted or is preempted, as SGLang inserts them."""

    def publish(self, request: PagedRequest) -> None:
        pass

    def _give_back(self, request: PagedRequest) -> None:
        super().publish(request)
        super()._give_back(request)


class PublishesWhenItEndsOrderedByTheStream(PublishesWhenItEnds):
    options = {"deferred_free": False}


class PublishesLate(Variant):
    """Leaves the newest full block out until the next one is full."""

    def _publishable(self, request: PagedRequest) -> int:
        return max(0, request.retired - self.block_size)


class _OneBlockAHash(BlockPool):
    __slots__ = ()

    def publish(self, unit: int, key: int) -> None:
        if key not in self.by_key:
            super().publish(unit, key)


class PublishesTheFirstOnly(Variant):
    """A second block of one content gets no hash."""

    pool_type = _OneBlockAHash


class _NewestFirst(BlockPool):
    __slots__ = ()

    def find(self, key: int) -> int | None:
        return (self.published(key) or (None,))[-1]


class HitsTheNewest(Variant):
    pool_type = _NewestFirst


class _NoCachedFreeBlocks(BlockPool):
    __slots__ = ()

    def release(self, unit: int) -> None:
        super().release(unit)
        if self.references[unit] == 0 and self.keys[unit] is not None:
            self.withdraw(unit)


class CachesOnlyWhatIsHeld(Variant):
    """A block loses its hash with its last holder."""

    pool_type = _NoCachedFreeBlocks


class MergesEqualBlocks(Variant):
    """Of two blocks of one content the later goes back, and its table names the earlier: vLLM's V0, SGLang's radix tree."""

    options = {"deferred_free": False}

    def publish(self, request: PagedRequest) -> None:
        full = full_blocks(self._publishable(request), self.block_size)
        keys = self.keys.upto(request, full)
        for block in range(request.published, full):
            unit, twin = request.table[block], self.pool.find(keys[block])
            if twin is not None and twin != unit and twin not in request.table and self.pool.keys[unit] is None:
                self.pool.touch(twin)
                self.pool.release(unit)
                request.table[block] = twin
        super().publish(request)


# -- what a look-up gives


class HitsHalf(Variant):
    changes = {"promised_hit": None}

    def reusable_blocks(self, request: PagedRequest) -> int:
        return super().reusable_blocks(request) // 2


class TakesHalfOfWhatItFound(Variant):
    """Finds all, and takes over less when the blocks are allocated."""

    def _pending_hits(self, request: PagedRequest) -> list[int]:
        hits = super()._pending_hits(request)
        return hits[: (len(hits) + 1) // 2]


class NeverHits(Variant):
    changes = {"promised_hit": None}

    def reusable_blocks(self, request: PagedRequest) -> int:
        return 0


# -- which free block goes next


class _Lifo(BlockPool):
    __slots__ = ()

    def append(self, unit: int) -> None:
        sentinel = self.num_units
        first = self._next[sentinel]
        self._previous[first], self._next[sentinel] = unit, unit
        self._next[unit], self._previous[unit] = first, sentinel
        self.num_free += 1


class LastInFirstOut(Variant):
    changes = {"free_order": "any"}
    pool_type = _Lifo


class LastInFirstOutOrderedByTheStream(LastInFirstOut):
    options = {"deferred_free": False}


class _Lottery(BlockPool):
    __slots__ = ("random",)

    def __init__(self, num_units: int) -> None:
        super().__init__(num_units)
        self.random = Random(num_units)

    def allocate(self) -> int:
        chosen = self.random.choice(self.queue())
        before, after = self._previous[chosen], self._next[chosen]
        self._next[before], self._previous[after] = after, before
        sentinel = self.num_units
        first = self._next[sentinel]
        self._next[sentinel], self._previous[first] = chosen, chosen
        self._next[chosen], self._previous[chosen] = first, sentinel
        return super().allocate()


class FreeBlocksByLot(Variant):
    changes = {"free_order": "any"}
    pool_type = _Lottery


class HeadsFirst(Variant):
    """Frees a table from its first block on, and promises nothing about it."""

    changes = {"free_order": "any"}

    def release(self, table: list[int]) -> None:
        for unit in table:
            self.pool.release(unit)


class _Backwards(BlockPool):
    __slots__ = ()

    def __init__(self, num_units: int) -> None:
        super().__init__(num_units)
        for unit in self.queue():
            self._unlink(unit)
        for unit in range(num_units - 1, 0, -1):
            self.append(unit)


class QueueBeginsBackwards(Variant):
    """Least recently used, and before the first use the highest number goes first."""

    pool_type = _Backwards


class ParkedLast(Variant):
    """Takes the results of a launch first, and frees what waited for it after that."""

    def retire(self, b: str, results: Sequence[Result]) -> Effects:
        parked, self.launches[b].parked = self.launches[b].parked, []
        super().retire(b, results)
        for table in parked:
            self.release(table)
        return ()


class CancelsRowByRow(Variant):
    """Undoes one request after the other, copies and blocks of each together."""

    def cancel(self) -> Effects:
        for name, row in reversed(self.batch.items()):
            self._undo(row)
            if row.copied is not None:
                self._uncopy(row.request, *row.copied)
            self.changed.append(name)
        self.batch.clear()
        return ()


# -- what is kept, freed and refused


class KeepsBlocksOfRejectedDrafts(Variant):
    def _roll_back(self, request: PagedRequest, rejected: int) -> None:
        request.scheduled -= rejected
        if request.name in self.batch:
            self.batch[request.name].start -= rejected


class KeepsBlocksOnCancel(Variant):
    """A cancelled request keeps its blocks for the next try, on a first chunk what it has hit."""

    def _undo(self, row: Row) -> None:
        request = row.request
        if row.table_length:
            request.scheduled = row.start
            return
        hits = full_blocks(request.retired, self.block_size)
        self.trim(request, hits)
        request.scheduled = request.retired
        if not hits:
            request.forget_blocks()


class TakesOneBlockMore(Variant):
    """Allocates ahead when there is room."""

    def extend(self, request: PagedRequest, fresh: int) -> None:
        super().extend(request, fresh + (fresh < self.pool.num_free))


class EvictsBeforeItRefuses(Variant):
    changes = {"atomic_refusal": False}

    def fits(self, request: PagedRequest, hits: list[int], fresh: int) -> bool:
        fits = super().fits(request, hits, fresh)
        if not fits:
            for unit in self.pool.queue():
                if self.pool.keys[unit] is not None:
                    self.pool.withdraw(unit)
        return fits


class TriesBeforeItRefuses(Variant):
    """Takes what there is, sees that it is too little, and gives it back."""

    changes = {"atomic_refusal": False, "free_order": "any"}

    def fits(self, request: PagedRequest, hits: list[int], fresh: int) -> bool:
        fits = super().fits(request, hits, fresh)
        if not fits:
            self._hold(hits)
            taken = [self.pool.allocate() for _ in range(min(fresh, self.pool.num_free))]
            self.release(hits + taken)
        return fits


class TouchesBeforeItRefuses(Variant):
    """Takes the hits, finds no room for the rest, and gives them back: nothing but the order of free blocks has changed."""

    changes = {"free_order": "any"}

    def fits(self, request: PagedRequest, hits: list[int], fresh: int) -> bool:
        fits = super().fits(request, hits, fresh)
        if not fits:
            self._hold(hits)
            self.release(hits)
        return fits


class FreesBeforeItRefuses(KeepsBlocksOfRejectedDrafts):
    """Gives back its own blocks behind the scheduled tokens, if no launch has them in its table."""

    changes = {"atomic_refusal": False}

    def fits(self, request: PagedRequest, hits: list[int], fresh: int) -> bool:
        fits = super().fits(request, hits, fresh)
        if not fits and not request.launches:
            self.trim(request, blocks_for(request.scheduled, self.block_size))
            self.changed.append(request.name)
        return fits


class RefusesForSafety(Variant):
    """Wants twice the blocks that are needed to be free."""

    changes = {"judge_admission": False}

    def fits(self, request: PagedRequest, hits: list[int], fresh: int) -> bool:
        return super().fits(request, hits, 2 * fresh)


class NeverResets(Variant):
    def reset_prefix_cache(self) -> bool:
        return False


# -- what it tells


class TellsNothing(Variant):
    def delta(self) -> None:  # type: ignore[override]
        super().delta()


class TellsEverything(Variant):
    """Names all requests and units, some of them twice, after every call."""

    def delta(self) -> Delta:
        told = super().delta()
        return Delta([*told.requests, *self.requests], [*range(self.traits.num_units), *told.units])


class _Tuples(PagedView):
    __slots__ = ()

    def tables(self, name: str) -> Sequence[Sequence[int]]:
        return (tuple(self._requests[name].table),)


class TablesAreTuples(Variant):
    def view(self) -> PagedView:
        return _Tuples(self.pool, self.requests)


class _Uncounted(PagedView):
    __slots__ = ()

    def ref_count(self, unit: int) -> int:
        raise NotImplementedError

    def ref_counts(self) -> IntArray:
        raise NotImplementedError


class CountsNoReferences(Variant):
    changes = {"counts_references": False}

    def view(self) -> PagedView:
        return _Uncounted(self.pool, self.requests)


class _WordKeys(PagedView):
    __slots__ = ()

    def key(self, unit: int) -> Hashable | None:
        key = self._pool.keys[unit]
        return key if key is None else ("key", str(key))

    def published(self, key: Hashable) -> Collection[int]:
        assert isinstance(key, tuple)
        return set(self._pool.published(int(key[1])))

    def keys(self) -> Collection[Hashable]:
        return [("key", str(key)) for key in self._pool.by_key]


class KeysAreTuples(Variant):
    def view(self) -> PagedView:
        return _WordKeys(self.pool, self.requests)


# -- which bytes move


class ZeroesFreshBlocks(Variant):
    """Zeroes what it allocates; if a load follows, on the load's stream, which is then in front of the launch too."""

    fresh: list[int]

    def schedule(self, name: str, n: int, lookahead: int, external: int, delayed: bool) -> Admission | None:
        self.fresh = []
        admission = super().schedule(name, n, lookahead, external, delayed)
        if admission is None:
            return None
        size = self.block_size
        zeroes = [Zero(unit, 0, size, "copy" if external and self.deferred_free else "compute") for unit in self.fresh]
        return Admission(admission.hit, [*admission.effects, *zeroes])

    def extend(self, request: PagedRequest, fresh: int) -> None:
        before = len(request.table)
        super().extend(request, fresh)
        self.fresh = request.table[before:]


class ZeroesFreshBlocksOrderedByTheStream(ZeroesFreshBlocks):
    options = {"deferred_free": False}


class CopiesAtFork(Variant):
    """The child gets its own partial block at once, if there is one; copy on write is left for when there is none."""

    options = {"deferred_free": False}

    def fork(self, name: str, child: str) -> Effects:
        super().fork(name, child)
        twin = self.requests[child]
        rest = offset_of(twin.retired, self.block_size)
        if not rest or not self.pool.num_free:
            return ()
        old, new = twin.table[-1], self.pool.allocate()
        twin.table[-1] = new
        self.pool.release(old)
        return (Copy(old, new, 0, rest),)


# -- which unit is the null unit


class _Shifted(BlockPool):
    """Block 0 is a block like the others; ``null``, if any, is never given out."""

    __slots__ = ()
    null: int | None = None

    def __init__(self, num_units: int) -> None:
        super().__init__(num_units)
        for unit in self.queue():
            self._unlink(unit)
        for unit in range(num_units):
            if unit != self.null:
                self.append(unit)


class NoNullUnit(Variant):
    changes = {"null_unit": None}
    pool_type = _Shifted


class _NullIsOne(_Shifted):
    __slots__ = ()
    null = 1


class NullUnitIsOne(Variant):
    changes = {"null_unit": 1}
    pool_type = _NullIsOne


VARIANTS: dict[str, type[Variant]] = {
    found.__name__: found
    for found in list(vars().values())
    if isinstance(found, type) and issubclass(found, Variant) and found is not Variant
}
"""Every variant by name."""
