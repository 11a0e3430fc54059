"""What a replay does: it reads the static buffers as they are when it executes, and goes by what they say.

Tokens are written through the slot mapping, rows are read through the table and the length that stand in the buffers. What a
request *must* see is bound as for any launch; so a stale table shows as ``provenance``, a stale slot as ``foreign_write`` or
as a token that nobody wrote. What the numbers oracle attends to goes through the tables of the buffers too; its writes go to
the same place, since a token that the slot mapping puts anywhere else has been reported before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvsan.gpu_kernels.addressing import PADDING_SLOT, block_of, blocks_for, first_visible, slots_of, unit_of
from kvsan.harness.books import Books
from kvsan.harness.device import LaunchWork, Work
from kvsan.harness.execution import BoundRow
from kvsan.harness.expectation import Row
from kvsan.harness.graphs import Buffer, Captured, Graph
from kvsan.harness.numbers_oracle import NumbersOracle
from kvsan.harness.shadow import Shadow
from kvsan.harness.target import Fill, IntArray
from kvsan.harness.verdict import UsageError, Violation


@dataclass(slots=True)
class Snapshot:
    """What a replay finds in the buffers, for as many rows as were captured; the first of them are the batch's ``rows``.

    ``tables`` are int64 ``[graph rows, columns]``, one a group; ``lengths`` int64 ``[graph rows]`` in tokens; ``slots`` int64
    ``[graph rows]``, one a group. All are views, to be looked at while the replay executes.
    """

    b: str
    graph: Graph
    rows: list[Row]
    tables: list[IntArray]
    lengths: IntArray
    slots: list[IntArray]
    fills: dict[str, IntArray]

    def tell(self, buffer: Buffer, row: int) -> str:
        """One line about who filled a row of a buffer last."""
        step = int(self.fills[buffer.name][row])
        what = f"row {row} of buffer {buffer.name!r}"
        return f"{what} was never filled" if step < 0 else f"{what} was last filled by operation {step}"


class GraphExecutor:
    """The static buffers of a session's captured graphs, fills, and replays.

    ``captured`` are graphs by id. Each row of a buffer is a cell; cells are numbered behind the slots of all units.
    """

    def __init__(self, books: Books, shadow: Shadow, numbers: NumbersOracle | None) -> None:
        self.books = books
        self.shadow = shadow
        self.numbers = numbers
        self.block_size = books.block_size
        self.captured: dict[str, Graph] = {}
        self.judges: list[Callable[[Snapshot], None]] = []
        self._memory: dict[str, IntArray] = {}
        self._fills: dict[str, IntArray] = {}
        self._first_cell: dict[str, int] = {}
        self._cells = len(shadow.content)

    # -- buffers

    def capture(self, g: str, rows: int, captured: Captured) -> None:
        """Take the buffers of a graph in; UsageError if they do not fit the target's groups, the rows or each other."""
        groups = len(self.books.traits.groups)
        if len(captured.tables) != groups or len(captured.slots) != groups:
            raise UsageError(
                f"graph {g}: {len(captured.tables)} tables and {len(captured.slots)} slot mappings; expected one of each "
                f"for {groups} cache groups"
            )
        for buffer in captured.buffers():
            if buffer.rows < rows or buffer.columns < 1:
                raise UsageError(f"graph {g}: {buffer}; expected at least {rows} rows of at least 1 column")
            known = self._memory.get(buffer.name)
            if known is None:
                self._allocate(buffer)
            elif known.shape != buffer[1:]:
                raise UsageError(f"graph {g}: {buffer}; a buffer of that name has the shape {known.shape}")
        self.captured[g] = Graph(g, rows, captured)

    def _allocate(self, buffer: Buffer) -> None:
        self._memory[buffer.name] = np.zeros((buffer.rows, buffer.columns), np.int64)
        self._fills[buffer.name] = np.full(buffer.rows, -1, np.int64)
        self._first_cell[buffer.name] = self._cells
        self._cells += buffer.rows

    def fill(self, fill: Fill, step: int) -> None:
        """Write into a buffer; UsageError if no graph has one of that name."""
        memory = self._memory_of(fill)
        rows, columns = fill.values.shape
        if not 0 <= fill.row <= len(memory) - rows or columns > memory.shape[1]:
            raise Violation(
                "graph_metadata",
                "outside the buffer",
                f"{rows} rows of {columns} columns are written from row {fill.row} of buffer {fill.buffer!r} on, which has "
                f"{memory.shape[0]} of {memory.shape[1]}",
            )
        memory[fill.row : fill.row + rows, :columns] = fill.values
        self._fills[fill.buffer][fill.row : fill.row + rows] = step

    def _memory_of(self, fill: Fill) -> IntArray:
        if fill.buffer not in self._memory:
            raise UsageError(
                f"buffer {fill.buffer!r} is filled; the graphs have {', '.join(self._memory) or 'captured none'}"
            )
        return self._memory[fill.buffer]

    def cells_of(self, fill: Fill) -> IntArray:
        """Cells that a fill writes."""
        first = self._first_cell[fill.buffer] + fill.row
        return np.arange(first, first + len(fill.values))

    # -- replays

    def replay(self, work: Work) -> int:
        """Judge the buffers, write and read by them; the number of rows read."""
        snapshot = self._snapshot(work)
        for judge in self.judges:
            judge(snapshot)
        shadow, rows = self.shadow, snapshot.rows
        self._check_padding(snapshot)
        bound = [
            self._bind(snapshot, index, group) for index in range(len(rows)) for group in range(len(snapshot.tables))
        ]
        writes = [slot for one in snapshot.slots for slot in one.tolist() if slot != PADDING_SLOT]
        work.ends = self._reads(snapshot, bound), np.array(writes, np.int64)
        for number, one in enumerate(bound):
            index, group = divmod(number, len(snapshot.tables))
            self._write(one, int(snapshot.slots[group][index]), work.step)
        for row in rows:
            row.executed = True
            row.life.executed = row.stop
        for one in bound:
            shadow.read(one)
        if shadow.unwritten:
            shadow.settle()
        if self.numbers is not None:
            self.numbers.launch(bound, work.step)
        return len(bound)

    def _snapshot(self, work: Work) -> Snapshot:
        payload = work.payload
        assert isinstance(payload, LaunchWork)
        graph = payload.graph
        assert graph is not None
        captured, size = graph.captured, graph.rows
        lengths, *slots = (self._memory[one.name][:size, 0] for one in (captured.lengths, *captured.slots))
        tables = [self._memory[one.name][:size] for one in captured.tables]
        return Snapshot(payload.b, graph, payload.rows, tables, lengths, slots, self._fills)

    def _check_padding(self, snapshot: Snapshot) -> None:
        for group, slots in enumerate(snapshot.slots):
            for index in range(len(snapshot.rows), snapshot.graph.rows):
                slot = int(slots[index])
                if slot != PADDING_SLOT and unit_of(slot, self.block_size) != self.books.null:
                    raise Violation(
                        "foreign_write",
                        "padding",
                        f"row {index} of launch {snapshot.b} is padding and writes slot {slot} of group {group}",
                    )

    def _bind(self, snapshot: Snapshot, index: int, group: int) -> BoundRow:
        """Bind a row to what the buffers say of it; Violation where a kernel could not go on."""
        row, traits = snapshot.rows[index], self.books.traits
        life, window = row.life, traits.groups[group].window
        if snapshot.lengths[index] != row.stop:
            raise Violation(
                "provenance",
                "length",
                f"{life.name} at position {row.start} sees {snapshot.lengths[index]} tokens by the graph's lengths",
            )
        columns = snapshot.tables[group].shape[1]
        blocks = blocks_for(row.stop, self.block_size)
        # A kernel that reads a row past its columns finds the next row.
        table = snapshot.tables[group].reshape(-1)[index * columns : index * columns + blocks]
        low = first_visible(row.start, window)
        seen = table[block_of(low, self.block_size) :]
        if len(table) < blocks or seen.min() < 0 or seen.max() >= traits.num_units:
            raise Violation(
                "provenance",
                "outside the pool",
                f"{life.name} reads blocks {seen.tolist()} by the table of graph {snapshot.graph.g}, group {group}; "
                f"the pool has units 0 to {traits.num_units - 1}",
            )
        identity = life.identities(row.stop) ^ self.books.masks[group]
        cache = life.cache.setdefault(group, {})
        return BoundRow(life.name, group, table, row.start, row.stop, window, low, identity, cache)

    def _reads(self, snapshot: Snapshot, bound: list[BoundRow]) -> IntArray:
        """Rows of the buffers, of padding only the slots; then what the batch's rows see."""
        captured, rows, padded = snapshot.graph.captured, np.arange(len(snapshot.rows)), np.arange(snapshot.graph.rows)
        reads = [self._first_cell[one.name] + rows for one in (*captured.tables, captured.lengths)]
        reads += [self._first_cell[one.name] + padded for one in captured.slots]
        return np.concatenate([*reads, *(slots_of(one.table, one.low, one.stop, self.block_size) for one in bound)])

    def _write(self, row: BoundRow, slot: int, step: int) -> None:
        """Write a row's token where the slot mapping says."""
        if slot == PADDING_SLOT:
            return
        if not 0 <= slot < self.books.num_units * self.block_size:
            raise Violation("foreign_write", "outside the pool", f"{row.name}@{row.start} is written into slot {slot}")
        unit = unit_of(slot, self.block_size)
        if unit == self.books.null:
            raise Violation("provenance", "null write", f"{row.name}@{row.start} is written into the null unit {unit}")
        self.shadow.write_token(row, row.start, slot, step)
