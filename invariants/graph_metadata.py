"""A graph is replayed with the batch's own metadata.

Statement: when the device executes a replay, its static buffers hold, for each row of the batch and each cache group, the
visible part of the table that was launched, the row's length and the slot of its token; rows of padding have slot -1 or one in
the null unit.

Why: a captured graph reads whatever is in its buffers. With another batch's tables it attends to another request, and a row of
padding that keeps a real slot writes into somebody's page.

Reports: vLLM 34874 (buffer of one group left with another's block numbers), 43810 (padding writes the last slot), 56469, 54296
(table read past its columns), 31341 (host buffer reused under an asynchronous copy).

Does not see: lengths and tables of padding, whose outputs nobody takes; a kernel that reads them out of bounds.

Mutant: ``graphs-mutant:stale_table``, ``graphs-mutant:groups_share_buffer``, ``graphs-mutant:padding_writes_last_slot``,
``graphs-mutant:padding_left_from_last_batch``, ``graphs-mutant:narrow_table``, ``graphs-mutant:lengths_of_last_batch``,
``graphs-mutant:captured_table_used``, ``graphs-mutant:staging_reused``.
"""

from __future__ import annotations

from kvsan.gpu_kernels.addressing import PADDING_SLOT, block_of, blocks_for, first_visible, offset_of, slot_of, unit_of
from kvsan.harness.expectation import Row
from kvsan.harness.graph_executor import Snapshot
from kvsan.harness.invariant import Invariant
from kvsan.harness.target import IntArray


class GraphMetadata(Invariant):
    """Compares the buffers with what the launch was given."""

    id = "graph_metadata"

    def applies(self) -> bool:
        """Only with a runner that replays graphs."""
        return self.traits.graph_rows > 0

    def on_replay(self, snapshot: Snapshot) -> None:
        """Check each row of the batch, then padding."""
        for index, row in enumerate(snapshot.rows):
            for group in range(len(snapshot.tables)):
                self._check_table(snapshot, index, group)
            self._check_numbers(snapshot, index, row)
        for index in range(len(snapshot.rows), snapshot.graph.rows):
            for group, slots in enumerate(snapshot.slots):
                slot = int(slots[index])
                if slot != PADDING_SLOT and unit_of(slot, self.traits.block_size) != self.traits.null_unit:
                    raise self.violated(
                        "padding",
                        f"{_row(snapshot, index)} is padding and has slot {slot} of group {group}",
                        snapshot.tell(snapshot.graph.captured.slots[group], index),
                    )

    def _visible(self, table: IntArray, row: Row, group: int) -> list[int]:
        """Units of the blocks that the row's query sees."""
        size = self.traits.block_size
        low = first_visible(row.start, self.traits.groups[group].window)
        seen: list[int] = table[block_of(low, size) : blocks_for(row.stop, size)].tolist()
        return seen

    def _check_table(self, snapshot: Snapshot, index: int, group: int) -> None:
        row, found = snapshot.rows[index], snapshot.tables[group][index]
        needed = blocks_for(row.stop, self.traits.block_size)
        if needed > len(found):
            raise self.violated(
                "narrow table",
                f"{_row(snapshot, index)} is {row.life.name} with {needed} blocks; the buffer has {len(found)} columns",
            )
        seen, wanted = self._visible(found, row, group), self._visible(row.tables[group], row, group)
        if seen == wanted:
            return
        others = [
            other
            for other, table in enumerate(row.tables)
            if other != group and self._visible(table, row, group) == seen
        ]
        raise self.violated(
            "another group's table" if others else "stale table",
            f"{_row(snapshot, index)} is {row.life.name} with blocks {wanted} of group {group}; the buffer has {seen}"
            + (f", those of group {others[0]}" if others else ""),
            snapshot.tell(snapshot.graph.captured.tables[group], index),
        )

    def _check_numbers(self, snapshot: Snapshot, index: int, row: Row) -> None:
        size = self.traits.block_size
        length = int(snapshot.lengths[index])
        if length != row.stop:
            raise self.violated(
                "length",
                f"{_row(snapshot, index)} is {row.life.name} with {row.stop} tokens; its length is {length}",
                snapshot.tell(snapshot.graph.captured.lengths, index),
            )
        for group, slots in enumerate(snapshot.slots):
            unit = int(row.tables[group][block_of(row.start, size)])
            wanted, slot = slot_of(unit, offset_of(row.start, size), size), int(slots[index])
            if slot != wanted:
                raise self.violated(
                    "slot",
                    f"{_row(snapshot, index)} is {row.life.name} at position {row.start}, slot {wanted} of group {group}; "
                    f"the buffer has {slot}",
                    snapshot.tell(snapshot.graph.captured.slots[group], index),
                )


def _row(snapshot: Snapshot, index: int) -> str:
    return f"launch {snapshot.b}: row {index} of graph {snapshot.graph.g}"
