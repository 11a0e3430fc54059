"""The reference manager with one small step done wrong, once for each thing that an invariant can say."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from kvsan.harness.target import Admission, Effects
from kvsan.models_under_test.paged import PagedManager
from kvsan.models_under_test.paged.batch import Row
from kvsan.models_under_test.paged.keys import KeyChain
from kvsan.models_under_test.paged.pool import BlockPool
from kvsan.models_under_test.paged.request import PagedRequest

# -- what it says about itself


class ForkSaysNothing(PagedManager):
    def fork(self, name: str, child: str) -> Effects:
        super().fork(name, child)
        self.delta()
        return ()


class WithdrawsSilently(PagedManager):
    def finish(self, name: str) -> None:
        units = self.requests[name].table[:]
        super().finish(name)
        reported = self.pool.touched[:]
        for unit in units:
            if self.pool.keys[unit] is not None:
                self.pool.withdraw(unit)
        self.pool.touched = [unit for unit in reported if unit not in units]


# -- who owns a block


class TakesFromAnother(PagedManager):
    """The last block of a new request is the first block of the oldest one."""

    def extend(self, request: PagedRequest, fresh: int) -> None:
        oldest = next(iter(self.requests.values()))
        if oldest is request:
            super().extend(request, fresh)
        else:
            super().extend(request, fresh - 1)
            self._hold(oldest.table[:1])
            request.table += oldest.table[:1]


class TakesItsOwn(PagedManager):
    """The last block of a request is its first block again."""

    def extend(self, request: PagedRequest, fresh: int) -> None:
        super().extend(request, fresh - 1)
        self._hold(request.table[:1])
        request.table += request.table[:1]


class CopiesIntoAnother(PagedManager):
    """A copy on write goes into a block that the oldest request has."""

    def _copy_on_write(self, row: Row, block: int, start: int) -> Effects:
        (effect,) = super()._copy_on_write(row, block, start)
        other = next(iter(self.requests.values())).table[0]
        self.pool.release(row.request.table[block])
        self._hold([other])
        row.request.table[block] = other
        return (effect._replace(destination=other),)  # type: ignore[union-attr]


class ReplacesWithoutCopy(PagedManager):
    """The shared block is exchanged for a new one, and nothing is copied."""

    def _copy_on_write(self, row: Row, block: int, start: int) -> Effects:
        super()._copy_on_write(row, block, start)
        return ()


class TrimsScheduled(PagedManager):
    """A retired request gives its last block back, whatever is in it."""

    def retire(self, b: str, results: object) -> Effects:
        effects = super().retire(b, results)  # type: ignore[arg-type]
        for request in self.requests.values():
            self.trim(request, len(request.table) - 1)
        return effects


class OneBlockShort(PagedManager):
    def blocks_needed(self, slots: int) -> int:
        return super().blocks_needed(slots) - 1


class OutsideThePool(PagedManager):
    def extend(self, request: PagedRequest, fresh: int) -> None:
        super().extend(request, fresh)
        request.table[-1] = self.pool.num_units


# -- hits


class HitsEverything(PagedManager):
    def lookup(self, name: str) -> int:
        super().lookup(name)
        return len(self.requests[name].tokens)


class HitsHalfABlock(PagedManager):
    def lookup(self, name: str) -> int:
        return super().lookup(name) + 1


class HitsNothing(PagedManager):
    def _find(self, request: PagedRequest, limit: int) -> list[int]:
        return []


class HitsOneBlock(PagedManager):
    def _find(self, request: PagedRequest, limit: int) -> list[int]:
        return super()._find(request, min(limit, 1))


class HitsWhatIsGone(PagedManager):
    def _pending_hits(self, request: PagedRequest) -> list[int]:
        return request.hits


class _NoSalt(KeyChain):
    def root(self, request: PagedRequest) -> Hashable:
        return request.adapter


class NoSalt(PagedManager):
    keys_type = _NoSalt


class _NoAdapter(KeyChain):
    def root(self, request: PagedRequest) -> Hashable:
        return request.salt


class NoAdapter(PagedManager):
    keys_type = _NoAdapter


class _NoAdapterId(KeyChain):
    def root(self, request: PagedRequest) -> Hashable:
        return request.salt, request.adapter and request.adapter.name


class NoAdapterId(PagedManager):
    keys_type = _NoAdapterId


class _NoMedia(KeyChain):
    def media_of(self, request: PagedRequest, start: int, stop: int) -> Hashable:
        return ()


class NoMedia(PagedManager):
    keys_type = _NoMedia


class _NoParent(KeyChain):
    def parent(self, request: PagedRequest) -> int:
        return 0


class NoParent(PagedManager):
    keys_type = _NoParent


# -- refusals


class RefusedWithBlocks(PagedManager):
    """Takes what there is, and then refuses."""

    def schedule(self, name: str, n: int, lookahead: int, external: int, delayed: bool) -> Admission | None:
        admission = super().schedule(name, n, lookahead, external, delayed)
        if admission is None:
            self.extend(self.requests[name], self.pool.num_free)
            self.changed.append(name)
        return admission


class RefusedAndTouched(PagedManager):
    """Touches the hits, finds no room, and does not give them back."""

    def fits(self, request: PagedRequest, hits: list[int], fresh: int) -> bool:
        fits = super().fits(request, hits, fresh)
        if not fits:
            self._hold(hits)
        return fits


class RefusesEverything(PagedManager):
    def fits(self, request: PagedRequest, hits: list[int], fresh: int) -> bool:
        return False


# -- freeing


class FreesWhileLaunched(PagedManager):
    def _give_back(self, request: PagedRequest) -> None:
        request.launches = []
        super()._give_back(request)


class FreesWhileLoading(PagedManager):
    def abort(self, name: str) -> None:
        self.requests[name].loading = False
        super().abort(name)


class FreesNothing(PagedManager):
    def _give_back(self, request: PagedRequest) -> None:
        for unit in request.table:
            self.pool.references[unit] -= 1
            self.pool.touched.append(unit)


class CountsWhatItDoesNotFree(FreesNothing):
    """Loses blocks, and counts them as free."""

    def _give_back(self, request: PagedRequest) -> None:
        super()._give_back(request)
        self.pool.num_free += len(request.table)


class _Careless(BlockPool):
    __slots__ = ()

    def release(self, unit: int) -> None:
        super().release(unit)
        if self.references[unit]:
            self.append(unit)


class FreesWhileShared(PagedManager):
    pool_type = _Careless


class FreesTwice(PagedManager):
    """Puts the units of a finished request into the queue again, behind their first places."""

    def finish(self, name: str) -> None:
        units = self.requests[name].table[:]
        super().finish(name)
        self.extra = units

    def view(self):  # type: ignore[no-untyped-def]
        view = super().view()
        walk = self.pool.queue
        view.free_queue = lambda: walk() + getattr(self, "extra", [])
        return view


class MiscountsQueue(PagedManager):
    """The walk of the free queue stops before its last unit."""

    def view(self):  # type: ignore[no-untyped-def]
        view = super().view()
        walk = self.pool.queue
        view.free_queue = lambda: walk()[:-1]
        return view


class FreesHeadFirst(PagedManager):
    def release(self, table: list[int]) -> None:
        super().release(table[::-1])


class _TakesNewest(BlockPool):
    __slots__ = ()

    def allocate(self) -> int:
        newest = self._previous[self.num_units]
        self._unlink(newest)
        self.append(newest)
        queue = self.queue()
        for unit in queue[:-1]:
            self._unlink(unit)
            self.append(unit)
        return super().allocate()


class EvictsNewest(PagedManager):
    pool_type = _TakesNewest


class CountsForkTwice(PagedManager):
    def _hold(self, table: list[int]) -> None:
        super()._hold(table)
        super()._hold(table)


class CountsForkNever(PagedManager):
    def fork(self, name: str, child: str) -> Effects:
        super().fork(name, child)
        for unit in self.requests[child].table:
            self.pool.references[unit] -= 1
        return ()


# -- hashes


class _MapKeepsEvicted(BlockPool):
    __slots__ = ()

    def allocate(self) -> int:
        self.keys[self._next[self.num_units]] = None
        return super().allocate()


class MapKeepsEvicted(PagedManager):
    pool_type = _MapKeepsEvicted


class _NeverInTheMap(BlockPool):
    __slots__ = ()

    def publish(self, unit: int, key: int) -> None:
        self.keys[unit] = key
        self.touched.append(unit)


class NeverInTheMap(PagedManager):
    pool_type = _NeverInTheMap


class PublishesScheduled(PagedManager):
    """Publishes at retire what the next launch has yet to compute."""

    def _publishable(self, request: PagedRequest) -> int:
        return min(request.scheduled, len(request.tokens))


class PublishesLookahead(PagedManager):
    """Publishes blocks whose tokens nobody knows."""

    def publish(self, request: PagedRequest) -> None:
        super().publish(request)
        self.pool.publish(request.table[-1], -1)


class PublishesFreed(PagedManager):
    """Publishes a block that nobody holds."""

    def finish(self, name: str) -> None:
        super().finish(name)
        unit = self.pool.front()
        assert unit is not None
        self.pool.publish(unit, -1)


class PublishesThenCancels(PagedManager):
    """Publishes at allocation, legally; a cancelled batch keeps what it has published."""

    def __init__(self, num_units: int, block_size: int) -> None:
        super().__init__(num_units, block_size)
        self.traits = replace(self.traits, publish="allocation")

    def schedule(self, name: str, n: int, lookahead: int, external: int, delayed: bool) -> Admission | None:
        admission = super().schedule(name, n, lookahead, external, delayed)
        self.publish(self.requests[name])
        return admission

    def _publishable(self, request: PagedRequest) -> int:
        return min(request.scheduled, len(request.tokens))


class LeaksOnAbort(PagedManager):
    """Forgets the last block of an aborted request, with its reference."""

    def abort(self, name: str) -> None:
        self.requests[name].table.pop()
        super().abort(name)


class RefusesTheProbe(PagedManager):
    """Admits no request that fills the pool."""

    def fits(self, request: PagedRequest, hits: list[int], fresh: int) -> bool:
        return fresh < self.pool.num_units - 1 and super().fits(request, hits, fresh)
