"""What the simulated device's work means: identities move in shadow memory, bytes move in the numbers oracle."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kvsan.gpu_kernels.addressing import block_of, first_visible, slots_of
from kvsan.harness.books import Books
from kvsan.harness.device import LaunchWork, LoadWork, Work
from kvsan.harness.execution import BoundRow
from kvsan.harness.expectation import Row
from kvsan.harness.graph_executor import GraphExecutor
from kvsan.harness.numbers_oracle import NumbersOracle
from kvsan.harness.shadow import Shadow
from kvsan.harness.store_executor import StoreExecutor
from kvsan.harness.target import Copy, Effect, Fill, IntArray, Zero
from kvsan.harness.tiers import Get, Put
from kvsan.harness.transfer import Transfer

_NOTHING = np.empty(0, np.int64)


class MemoryExecutor:
    """Implements ``kvsan.harness.device.Executor``."""

    def __init__(self, books: Books, shadow: Shadow, numbers: NumbersOracle | None) -> None:
        self.books = books
        self.shadow = shadow
        self.numbers = numbers
        self.groups = books.traits.groups
        self.block_size = books.block_size
        self.rows_read = 0
        self.tiers = StoreExecutor(books, shadow, numbers)
        self.graphs = GraphExecutor(books, shadow, numbers)
        self.judges: list[Callable[[Transfer, Effect], None]] = []

    def ready(self, work: Work) -> bool:
        """A row is bound by the outcome of its request's earlier rows."""
        if not isinstance(work.payload, LaunchWork):
            return True
        for row in work.payload.rows:
            for earlier in row.life.rows:
                if earlier is row:
                    break
                if earlier.samples:
                    return False
        return True

    def execute(self, work: Work) -> None:
        """Move identities, and bytes if the numbers oracle is on."""
        payload = work.payload
        if isinstance(payload, LaunchWork):
            if payload.graph is None:
                self._launch(payload.rows, work.step)
            else:
                self.rows_read += self.graphs.replay(work)
        elif isinstance(payload, LoadWork):
            self._load(payload, work.step)
        elif isinstance(payload, Copy | Zero):
            self._move(payload, payload.stop, work.step)
        elif isinstance(payload, Fill):
            self.graphs.fill(payload, work.step)
        else:
            self.tiers.execute(work)
        if work.transfer is not None and not work.transfer.failure:
            for judge in self.judges:
                judge(work.transfer, payload)  # type: ignore[arg-type]

    def tear(self, work: Work) -> None:
        """Move the first half of the bytes."""
        payload = work.payload
        assert not isinstance(payload, LaunchWork | LoadWork | Fill), "only pieces of transfers are torn"
        if isinstance(payload, Copy | Zero):
            self._move(payload, (payload.start + payload.stop) // 2, work.step)
        else:
            self.tiers.tear(work)

    def _move(self, effect: Copy | Zero, stop: int, step: int) -> None:
        if isinstance(effect, Copy):
            self.shadow.copy(effect.source, effect.destination, effect.start, stop)
            if self.numbers is not None:
                self.numbers.copy(effect.source, effect.destination, effect.start, stop)
        else:
            self.shadow.zero(effect.unit, effect.start, stop, step)
            if self.numbers is not None:
                self.numbers.zero(effect.unit, effect.start, stop)

    def _launch(self, rows: list[Row], step: int) -> None:
        bound = self._bind(rows)
        shadow = self.shadow
        for one in bound:
            shadow.write(one, one.start, one.stop, step)
        for row in rows:
            row.executed = True
            row.life.executed = row.stop
        for one in bound:
            shadow.read(one)
        if shadow.unwritten:
            shadow.settle()
        self.rows_read += len(bound)
        if self.numbers is not None:
            self.numbers.launch(bound, step)

    def _bind(self, rows: list[Row]) -> list[BoundRow]:
        bound = []
        masks = self.books.masks
        for row in rows:
            life = row.life
            chain = life.identities(row.stop)
            for number, group in enumerate(self.groups):
                identity = chain ^ masks[number] if number else chain
                low = first_visible(row.start, group.window)
                cache = life.cache.setdefault(number, {})
                bound.append(
                    BoundRow(
                        life.name, number, row.tables[number], row.start, row.stop, group.window, low, identity, cache
                    )
                )
        return bound

    def _load(self, load: LoadWork, step: int) -> None:
        life = load.life
        chain = life.identities(load.stop)
        for number, table in enumerate(load.tables):
            identity = chain ^ self.books.masks[number]
            row = BoundRow(life.name, number, table, load.start, load.stop, None, load.start, identity, {})
            for start, stop in self._present(table, load.start, load.stop):
                self.shadow.write(row, start, stop, step)
                if self.numbers is not None:
                    slots = slots_of(table, start, stop, self.block_size)
                    self.numbers.write_external(slots, identity[start:stop])
        if self.shadow.unwritten:
            self.shadow.settle()

    def _present(self, table: IntArray, start: int, stop: int) -> list[tuple[int, int]]:
        """Split ``[start, stop)`` by block, without the blocks that a window has already dropped."""
        size, spans = self.block_size, []
        while start < stop:
            block = block_of(start, size)
            end = min(stop, (block + 1) * size)
            if block >= len(table) or int(table[block]) != self.books.null:
                spans.append((start, end))
            start = end
        return spans

    def accesses(self, work: Work) -> tuple[IntArray, IntArray]:
        """Slots that the work reads and writes."""
        payload, size = work.payload, self.block_size
        if isinstance(payload, LaunchWork):
            reads, writes = [_NOTHING], [_NOTHING]
            for row in payload.rows:
                for number, group in enumerate(self.groups):
                    low = first_visible(row.start, group.window)
                    reads.append(slots_of(row.tables[number], low, row.stop, size))
                    writes.append(slots_of(row.tables[number], row.start, row.stop, size))
            return np.concatenate(reads), np.concatenate(writes)
        if isinstance(payload, LoadWork):
            writes = [_NOTHING]
            for table in payload.tables:
                writes += [slots_of(table, *span, size) for span in self._present(table, payload.start, payload.stop)]
            return _NOTHING, np.concatenate(writes)
        if isinstance(payload, Fill):
            return _NOTHING, self.graphs.cells_of(payload)
        if isinstance(payload, Put | Get):
            slots = slots_of(payload.units, 0, len(payload.units) * size, size)
            return (slots, _NOTHING) if isinstance(payload, Put) else (_NOTHING, slots)
        if isinstance(payload, Copy):
            return (
                np.arange(payload.start, payload.stop) + payload.source * size,
                np.arange(payload.start, payload.stop) + payload.destination * size,
            )
        assert isinstance(payload, Zero)
        return _NOTHING, np.arange(payload.start, payload.stop) + payload.unit * size
