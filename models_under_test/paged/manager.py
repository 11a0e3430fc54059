"""The reference manager: a complete paged KV-cache manager with one full-attention group.

Read it in this order: ``lookup`` (which blocks can be reused), ``schedule`` (all or nothing: touch the hits, copy the shared
partial block, allocate the rest), ``launch`` and ``retire`` (what was computed becomes visible), ``_give_back`` (when a block
may go to somebody else).

Every decision is a small method, so that a seeded bug is a small override (``models_under_test/mutants``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from kvsan.gpu_kernels.addressing import block_of, blocks_for, full_blocks, offset_of
from kvsan.harness.target import (
    Admission,
    Copy,
    Delta,
    Effects,
    Loading,
    Offloading,
    Request,
    Result,
)
from kvsan.harness.tiers import Store
from kvsan.models_under_test.paged.batch import InFlight, Row
from kvsan.models_under_test.paged.keys import KeyChain
from kvsan.models_under_test.paged.pool import BlockPool
from kvsan.models_under_test.paged.request import PagedRequest
from kvsan.models_under_test.paged.tiering import Tiering
from kvsan.models_under_test.paged.tiers import Tiers
from kvsan.models_under_test.paged.traits import traits_of
from kvsan.models_under_test.paged.view import PagedView

if TYPE_CHECKING:
    from kvsan.models_under_test.paged.exchange import PagedConsumer


class PagedManager:
    """Implements ``kvsan.harness.target.Target``.

    ``deferred_free``: blocks of a request that ends while a launch uses them are parked until that launch has retired;
    without it they are free at once and the compute stream's order protects them. Blocks that an external load still
    writes are parked in both cases: no stream orders that load. The source of a copy is held until the copy is launched.
    """

    pool_type: ClassVar[type[BlockPool]] = BlockPool
    keys_type: ClassVar[type[KeyChain]] = KeyChain
    tiering_type: ClassVar[type[Tiering]] = Tiering

    def __init__(
        self,
        num_units: int,
        block_size: int,
        *,
        deferred_free: bool = True,
        watermark: int = 0,
        max_in_flight: int = 2,
        tiers: Tiers | None = None,
    ) -> None:
        self.traits = traits_of(
            num_units,
            block_size,
            deferred_free=deferred_free,
            watermark=watermark,
            max_in_flight=max_in_flight,
            tiers=tiers,
        )
        self.block_size = block_size
        self.deferred_free = deferred_free
        self.watermark = watermark
        self.pool = self.pool_type(num_units)
        self.keys = self.keys_type(block_size)
        self.requests: dict[str, PagedRequest] = {}
        self.batch: dict[str, Row] = {}
        self.launches: dict[str, InFlight] = {}
        self.loads: dict[str, list[int]] = {}
        self.changed: list[str] = []
        self.tiering = None if tiers is None else self.tiering_type(self, tiers)
        self.consumer: PagedConsumer | None = None
        self._view = PagedView(self.pool, self.requests)

    # -- arrival and look-up

    def submit(self, request: Request) -> None:
        """Take a new request."""
        self.requests[request.name] = PagedRequest(
            request.name, list(request.tokens), request.salt, request.adapter, request.media
        )

    def lookup(self, name: str) -> int:
        """Find the longest cached prefix; nothing is held until ``schedule``."""
        request = self.requests[name]
        request.hits = self._find(request, self.reusable_blocks(request))
        return len(request.hits) * self.block_size

    def reusable_blocks(self, request: PagedRequest) -> int:
        """At least one token must be computed, or there would be no output to sample from: a full hit recomputes."""
        return full_blocks(len(request.tokens) - 1, self.block_size)

    def _find(self, request: PagedRequest, limit: int) -> list[int]:
        hits: list[int] = []
        for key in self.keys.upto(request, limit):
            unit = self.pool.find(key)
            if unit is None:
                break
            hits.append(unit)
        return hits

    # -- scheduling

    def schedule(self, name: str, n: int, lookahead: int, external: int, delayed: bool) -> Admission | None:
        """Get blocks for ``n`` tokens more, or refuse and change nothing."""
        request = self.requests[name]
        hits: list[int] = []
        start = request.scheduled
        if not request.table:
            hits, request.hits = self._pending_hits(request), []
            start = len(hits) * self.block_size + external
        fresh = max(0, self.blocks_needed(start + n + lookahead) - len(request.table) - len(hits))
        shared = None if hits else self._shared_partial_block(request, start)
        new, blocks = fresh + (shared is not None), len(request.table) + len(hits) + fresh
        if not self.fits(request, hits, new) or not self._leaves_progress(request, hits, new, blocks, start + n):
            return None
        row = Row(request, request.scheduled, len(request.table))
        self.take_hits(request, hits)
        effects = () if shared is None else self._copy_on_write(row, shared, start)
        self.extend(request, fresh)
        request.scheduled = start + n
        request.loading = delayed
        if not delayed:
            self.batch[name] = row
        self.changed.append(name)
        return Admission(len(hits) * self.block_size, effects)

    def _pending_hits(self, request: PagedRequest) -> list[int]:
        """The cache may have changed since the look-up: only what is still there counts."""
        return self._find(request, len(request.hits))

    def blocks_needed(self, slots: int) -> int:
        """Blocks that a number of slots needs."""
        return blocks_for(slots, self.block_size)

    def _shared_partial_block(self, request: PagedRequest, start: int) -> int | None:
        """Block number that the next token would be written into although somebody else counts on what is in it.

        That is who holds it too, or whoever finds it by its hash: a parent may have filled and published the block that it
        shared, and be gone.
        """
        block = block_of(start, self.block_size)
        if block >= len(request.table):
            return None
        unit = request.table[block]
        return block if self.pool.references[unit] > 1 or self.pool.keys[unit] is not None else None

    def fits(self, request: PagedRequest, hits: list[int], fresh: int) -> bool:
        """Whether ``fresh`` blocks can be had."""
        reserved = 0 if request.table else self.watermark
        return self.taken(hits, fresh) + reserved <= self.pool.num_free

    def taken(self, hits: list[int], fresh: int) -> int:
        """Blocks that leave the free queue: new ones, and hits that nobody holds."""
        references = self.pool.references
        return fresh + sum(references[unit] == 0 for unit in hits)

    def _leaves_progress(self, request: PagedRequest, hits: list[int], new: int, blocks: int, stop: int) -> bool:
        """Whether loads that are in flight, or done, can still lead somewhere (vLLM 45388)."""
        return self.tiering is None or self.tiering.leaves_progress(request, self.taken(hits, new), blocks, stop)

    def take_hits(self, request: PagedRequest, hits: list[int]) -> None:
        """Let a request without a table begin with blocks that are cached."""
        if not hits:
            return
        self._hold(hits)
        request.table.extend(hits)
        request.published = len(hits)
        request.retired = len(hits) * self.block_size

    def _copy_on_write(self, row: Row, block: int, start: int) -> Effects:
        """Give the request a partial block of its own, holding what it had written so far."""
        table = row.request.table
        old, new = table[block], self.pool.allocate()
        table[block] = new
        row.copied = block, old
        return (Copy(old, new, 0, offset_of(start, self.block_size)),)

    def extend(self, request: PagedRequest, fresh: int) -> None:
        """Append newly allocated blocks to a table."""
        for _ in range(fresh):
            request.table.append(self.pool.allocate())

    def cancel(self) -> Effects:
        """Undo the scheduled batch: the copies first, then what was allocated."""
        for row in self.batch.values():
            if row.copied is not None:
                self._uncopy(row.request, *row.copied)
        for name, row in self.batch.items():
            self._undo(row)
            self.changed.append(name)
        self.batch.clear()
        return ()

    def _undo(self, row: Row) -> None:
        request = row.request
        self.trim(request, row.table_length)
        request.scheduled = row.start
        if not request.table:
            request.forget_blocks()

    def _uncopy(self, request: PagedRequest, block: int, old: int) -> None:
        """The copy will not be made: go back to the shared block."""
        self.pool.release(request.table[block])
        request.table[block] = old

    def trim(self, request: PagedRequest, blocks: int) -> None:
        """Give the blocks from number ``blocks`` on back, the last one first."""
        while len(request.table) > blocks:
            self.pool.release(request.table.pop())

    # -- the device's side

    def launch(self, b: str) -> None:
        """The batch is on the device."""
        launch = self.launches[b] = InFlight([row.request for row in self.batch.values()])
        for row in self.batch.values():
            row.request.launches.append(b)
            if row.copied is not None:
                self._copied(launch, row.copied[1])
        self.batch.clear()

    def _copied(self, launch: InFlight, source: int) -> None:
        if self.deferred_free:
            launch.parked.append([source])
        else:
            self.pool.release(source)

    def retire(self, b: str, results: Sequence[Result]) -> Effects:
        """Take results: free what was parked, count, extend, roll rejected drafts back, publish full blocks."""
        launch = self.launches.pop(b)
        for table in launch.parked:
            self.release(table)
        for request in launch.requests:
            if b in request.launches:
                request.launches.remove(b)
        for result in results:
            request = self.requests[result.name]
            request.retired = self._computed(request, result)
            request.tokens.extend(result.sampled)
            if result.rejected:
                self._roll_back(request, result.rejected)
            self.publish(request)
            self.changed.append(result.name)
        return ()

    def _computed(self, request: PagedRequest, result: Result) -> int:
        return result.computed

    def _roll_back(self, request: PagedRequest, rejected: int) -> None:
        """Rejected drafts leave; their blocks too, unless a later step already counts on the table as it is."""
        request.scheduled -= rejected
        if request.name in self.batch:
            self.batch[request.name].start -= rejected
        elif not request.launches:
            self.trim(request, blocks_for(request.scheduled, self.block_size))

    def publish(self, request: PagedRequest) -> None:
        """Make every full block findable that is known to be computed."""
        full = full_blocks(self._publishable(request), self.block_size)
        if full <= request.published:
            return
        keys = self.keys.upto(request, full)
        for block in range(request.published, full):
            if self.pool.keys[request.table[block]] is None:
                self.pool.publish(request.table[block], keys[block])
        request.published = full

    def _publishable(self, request: PagedRequest) -> int:
        """Tokens whose keys and values are known to be there."""
        return request.retired

    def landed(self, name: str) -> None:
        """External tokens are there: they can be published, or, if the request is gone, their blocks freed."""
        parked = self.loads.pop(name, None)
        if parked is not None:
            self.release(parked)
            return
        request = self.requests[name]
        request.loading = False
        request.retired = request.scheduled
        self.publish(request)
        self.changed.append(name)

    # -- sharing and ending

    def fork(self, name: str, child: str) -> Effects:
        """Share every block that holds retired tokens; whoever writes the partial one first copies it."""
        parent = self.requests[name]
        kept = blocks_for(parent.retired, self.block_size)
        twin = PagedRequest(child, parent.tokens[:], parent.salt, parent.adapter, parent.media)
        twin.scheduled = twin.retired = parent.retired
        twin.table = self._shared_table(parent, kept)
        twin.keys, twin.published = parent.keys[:], min(parent.published, kept)
        self._hold(twin.table)
        self.requests[child] = twin
        self.changed.append(child)
        return ()

    def _shared_table(self, parent: PagedRequest, kept: int) -> list[int]:
        return parent.table[:kept]

    def _hold(self, table: list[int]) -> None:
        for unit in table:
            self.pool.touch(unit)

    def finish(self, name: str) -> None:
        """Free a completed request."""
        self._give_back(self.requests.pop(name))

    def abort(self, name: str) -> None:
        """Free a request in any state."""
        self._give_back(self.requests.pop(name))

    def preempt(self, name: str) -> None:
        """Take the blocks; the request starts again from its first token, with whatever is still cached."""
        request = self.requests[name]
        self._give_back(request)
        request.forget_blocks()

    def _give_back(self, request: PagedRequest) -> None:
        """Free a table, or park it with the last work that uses it."""
        row = self.batch.pop(request.name, None)
        if row is not None and row.copied is not None:
            self._uncopy(request, *row.copied)
        self.changed.append(request.name)
        if request.load:
            (self.consumer or self.tiers).park(request)
        elif request.loading:
            self.loads[request.name] = request.table
        elif self.deferred_free and request.launches:
            self.launches[request.launches[-1]].parked.append(request.table)
        else:
            self.release(request.table)

    def release(self, table: list[int]) -> None:
        """Last block first: the tail of a prefix is evicted before its head, or the head would be worth nothing."""
        for unit in reversed(table):
            self.pool.release(unit)

    def reset_prefix_cache(self) -> bool:
        """Withdraw every hash and empty the tiers; blocks in use stay in use. Refused while transfers are in flight."""
        if self.tiering is not None and not self.tiering.reset():
            return False
        for unit, key in enumerate(self.pool.keys):
            if key is not None:
                self.pool.withdraw(unit)
        return True

    # -- tiers

    @property
    def tiers(self) -> Tiering:
        """The tiers; only a manager that has some is asked for them."""
        assert self.tiering is not None, "this manager was made without tiers"
        return self.tiering

    def offload(self, t: str, name: str, tier: str) -> Offloading | None:
        """Keep a request's full chunks in a tier too."""
        return self.tiers.offload(t, self.requests[name], tier)

    def load(self, t: str, name: str) -> Loading | None:
        """Bring a new request's prefix up from the tiers."""
        request = self.requests[name]
        hits, request.hits = self._pending_hits(request), []
        return self.tiers.load(t, request, hits)

    def complete(self, t: str, success: bool) -> None:
        """Transfer ``t`` has ended."""
        self.tiers.complete(t, success)

    def stores(self) -> Mapping[str, Store]:
        """Stores of the tiers below the host."""
        return self.tiers.stores

    def tier_view(self) -> Tiering:
        """Show the tiers."""
        return self.tiers

    # -- testimony

    def view(self) -> PagedView:
        """Everything the manager holds."""
        return self._view

    def delta(self) -> Delta:
        """What changed since the last call."""
        delta = Delta(self.changed, self.pool.touched)
        self.changed, self.pool.touched = [], []
        return delta
