"""The reference runner: launches the batches of any manager through captured graphs.

One set of static buffers serves all its graphs, as large as the largest may be; a graph of fewer rows reads the first of them.
Before a replay the rows that the graph reads are written into *staging memory*, arrays of the host, and copied from there by one
fill for each buffer. Two hazards follow, and what is done about them:

- An earlier replay may not have read the buffers yet. Fills go behind it on the compute stream; or, with ``fills="copy"``, to
  the copy stream behind an event of the compute stream, and the replay waits for an event of the copy stream in turn.
- An earlier fill may not have read its staging memory yet. There is one for each launch that may be in flight, used in turn.

Every decision is a small method, so that a seeded bug is a small override (``mutants``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvsan.gpu_kernels.addressing import PADDING_SLOT, blocks_for, slots_of
from kvsan.harness.graphs import Buffer, Captured, GraphRow, Replaying
from kvsan.harness.operations import GRAPHS
from kvsan.harness.target import COMPUTE_STREAM, COPY_STREAM, Fill, IntArray, Target, TieredTarget
from kvsan.harness.verdict import UsageError

ROWS = 8
"""Most rows of a captured graph."""

FILLS = (COMPUTE_STREAM, COPY_STREAM)
"""Streams that can fill the buffers."""


@dataclass(slots=True)
class Staging:
    """What one replay's buffers are filled from: tables a group ``[ROWS, columns]``, lengths and slots ``[ROWS, 1]``."""

    tables: list[IntArray]
    lengths: IntArray
    slots: list[IntArray]


class GraphRunner:
    """Implements ``kvsan.harness.graphs.GraphTarget`` over any ``kvsan.harness.target.Target``.

    All but ``capture`` and ``replay`` is passed on to the manager. ``fills`` is the stream that fills the buffers.
    """

    def __init__(self, manager: Target, fills: str = COMPUTE_STREAM) -> None:
        if fills not in FILLS:
            raise UsageError(f"option fills: {fills!r}; expected one of {', '.join(FILLS)}")
        for name in {*vars(Target), *vars(TieredTarget)}:
            if not name.startswith("_") and hasattr(manager, name):
                setattr(self, name, _passed_on(getattr(manager, name)))
        traits = manager.traits
        self.traits = replace(traits, graph_rows=ROWS, operations=traits.operations | GRAPHS)
        self.manager = manager
        self.fills = fills
        self.groups = range(len(traits.groups))
        self.columns = self.longest_table()
        self.graphs: dict[str, int] = {}
        self.buffers = self.make_buffers()
        self.staging = [self._make_staging() for _ in range(self.staging_sets())]
        self.replays = 0

    # -- memory

    def longest_table(self) -> int:
        """Columns of a table: no request has more blocks than the pool; one that only has windows may be as long as it likes."""
        traits = self.traits
        whole = any(group.window is None for group in traits.groups)
        most = blocks_for(traits.max_model_len, traits.block_size)
        return min(most, traits.num_units) if whole else most

    def make_buffers(self, generation: str = "") -> Captured:
        """Name the static buffers; buffers of another generation are others."""
        return Captured(
            tuple(Buffer(f"table {group}{generation}", ROWS, self.columns) for group in self.groups),
            Buffer(f"lengths{generation}", ROWS),
            tuple(Buffer(f"slots {group}{generation}", ROWS) for group in self.groups),
        )

    def staging_sets(self) -> int:
        """How many replays can be prepared before the first of them has retired."""
        return self.traits.max_in_flight

    def _make_staging(self) -> Staging:
        def zeros(columns: int) -> IntArray:
            return np.zeros((ROWS, columns), np.int64)

        return Staging([zeros(self.columns) for _ in self.groups], zeros(1), [zeros(1) for _ in self.groups])

    # -- graphs

    def capture(self, g: str, rows: int) -> Captured:
        """Capture a graph over the first ``rows`` rows of the buffers."""
        self.graphs[g] = rows
        return self.buffers

    def replay(self, _b: str, g: str, rows: Sequence[GraphRow]) -> Replaying:
        """Stage the batch and its padding, and fill the buffers."""
        staging = self.staging[self.replays % len(self.staging)]
        self.replays += 1
        for index, row in enumerate(rows):
            self.stage(staging, index, row)
        for index in range(len(rows), self.graphs[g]):
            self.stage_padding(staging, index)
        return Replaying(self.fill(staging, self.graphs[g]), self.graph_waits_for())

    def stage(self, staging: Staging, index: int, row: GraphRow) -> None:
        """Write a row's tables, length and slots."""
        staging.lengths[index] = row.length
        for group, table in enumerate(self.manager.view().tables(row.name)):
            self.stage_table(staging.tables[group], index, row, table)
            staging.slots[group][index] = slots_of(table, row.length - 1, row.length, self.traits.block_size)

    def stage_table(self, staged: IntArray, index: int, _row: GraphRow, table: Sequence[int]) -> None:
        """Write one table; what stands behind its end is not seen."""
        staged[index, : len(table)] = table

    def stage_padding(self, staging: Staging, index: int) -> None:
        """A row that belongs to nobody reads nothing and writes nothing; its table is not looked at."""
        staging.lengths[index] = 0
        for slots in staging.slots:
            slots[index] = PADDING_SLOT

    def fill(self, staging: Staging, rows: int) -> list[Fill]:
        """Copy the rows that the graph reads, for each buffer."""
        sources = (*staging.tables, staging.lengths, *staging.slots)
        after = self.fills_wait_for()
        return [
            Fill(buffer.name, 0, source[:rows], self.fills, after)
            for buffer, source in zip(self.buffers.buffers(), sources, strict=True)
        ]

    def fills_wait_for(self) -> tuple[str, ...]:
        """Streams whose replays may still read the buffers."""
        return () if self.fills == COMPUTE_STREAM else (COMPUTE_STREAM,)

    def graph_waits_for(self) -> tuple[str, ...]:
        """Streams that fill the buffers."""
        return () if self.fills == COMPUTE_STREAM else (self.fills,)


def _passed_on(method: Callable[..., Any]) -> Callable[..., Any]:
    """Call the manager from here: what it raises has passed through the target that the session was given."""

    def call(*arguments: Any) -> Any:
        return method(*arguments)

    return call
