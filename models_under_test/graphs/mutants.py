"""Seeded bugs of a CUDA-graph runner: the reference runner with one small step done wrong, each from a public report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from kvsan.harness.configuration import Configuration
from kvsan.harness.graphs import Captured, GraphRow, Replaying
from kvsan.harness.target import COMPUTE_STREAM, COPY_STREAM, IntArray, Target
from kvsan.harness.verdict import UsageError
from kvsan.models_under_test.graphs.options import make_runner
from kvsan.models_under_test.graphs.runner import GraphRunner, Staging
from kvsan.models_under_test.naming import mutant_named


class GraphMutant(GraphRunner):
    """One seeded bug. ``killed_by`` are the checks of which one must see it, the first the most telling.

    ``groups_needed`` is how many cache groups the manager must have for the bug to show.
    """

    name: ClassVar[str]
    killed_by: ClassVar[tuple[str, ...]]
    groups_needed: ClassVar[int] = 1

    def __init__(self, manager: Target, fills: str = COMPUTE_STREAM) -> None:
        if len(manager.traits.groups) < self.groups_needed:
            raise UsageError(
                f"target graphs-mutant:{self.name}: the manager has {len(manager.traits.groups)} cache group; expected "
                f"{self.groups_needed}: name one with option over"
            )
        super().__init__(manager, fills)


class StaleTable(GraphMutant):
    """Blocks are appended to a row's table as they come; a request that was preempted and comes back keeps the old ones.

    Reports: vLLM 34874 in kind (a persistent block table is not rewritten).
    """

    name = "stale_table"
    killed_by = ("graph_metadata", "provenance", "foreign_write")

    def stage_table(self, staged: IntArray, index: int, row: GraphRow, table: Sequence[int]) -> None:
        """Write what is new since this request was in this row."""
        known = self.__dict__.setdefault("known", {})
        before = known.get((id(staged), index), ("", 0))
        start = before[1] if before[0] == row.name else 0
        staged[index, start : len(table)] = table[start:]
        known[id(staged), index] = row.name, len(table)


class GroupsShareBuffer(GraphMutant):
    """All cache groups use one table buffer: the last group's blocks stand in it when the graph runs.

    Reports: vLLM 34874 (CUDA-graph buffer of one group left with another's block numbers).
    """

    name = "groups_share_buffer"
    killed_by = ("graph_metadata", "provenance")
    groups_needed = 2

    def make_buffers(self, generation: str = "") -> Captured:
        """Name one table for all."""
        own = super().make_buffers(generation)
        return own._replace(tables=own.tables[:1] * len(own.tables))


class PaddingWritesLastSlot(GraphMutant):
    """The slot of padding is -1, and taken modulo the size of the pool.

    Reports: vLLM 43810 (padding slot -1 writes the last slot).
    """

    name = "padding_writes_last_slot"
    killed_by = ("graph_metadata", "foreign_write")

    def stage_padding(self, staging: Staging, index: int) -> None:
        """Count from the end, as an index that nobody checks does."""
        super().stage_padding(staging, index)
        for slots in staging.slots:
            slots[index] %= self.traits.num_units * self.traits.block_size


class PaddingLeftFromLastBatch(GraphMutant):
    """Rows behind the batch keep what the last batch left in them.

    Reports: vLLM 43810 in kind.
    """

    name = "padding_left_from_last_batch"
    killed_by = ("graph_metadata", "foreign_write")

    def stage_padding(self, staging: Staging, index: int) -> None:
        """Do nothing."""


class FillOnAnotherStream(GraphMutant):
    """The buffers are filled on the copy stream, and the replay waits for no event of it.

    Reports: vLLM 31341, 45704 in kind (work of two streams without an event).
    """

    name = "fill_on_another_stream"
    killed_by = ("order", "graph_metadata", "provenance")

    def __init__(self, manager: Target, fills: str = COMPUTE_STREAM) -> None:
        super().__init__(manager, COPY_STREAM)

    def graph_waits_for(self) -> tuple[str, ...]:
        """Wait for nothing."""
        return ()


class FillWhileInFlight(GraphMutant):
    """The buffers are filled on the copy stream while the replay before may still have to read them.

    Reports: vLLM 31341 in kind.
    """

    name = "fill_while_in_flight"
    killed_by = ("order", "graph_metadata", "provenance")

    def __init__(self, manager: Target, fills: str = COMPUTE_STREAM) -> None:
        super().__init__(manager, COPY_STREAM)

    def fills_wait_for(self) -> tuple[str, ...]:
        """Wait for nothing."""
        return ()


class StagingReused(GraphMutant):
    """There is one staging memory for all replays; the copy out of it may not have been made when it is written again.

    Reports: vLLM 31341 (host buffer reused under an asynchronous copy).
    """

    name = "staging_reused"
    killed_by = ("graph_metadata", "provenance", "foreign_write")

    def staging_sets(self) -> int:
        """One."""
        return 1


class NarrowTable(GraphMutant):
    """The table has room for half of the longest request, and what does not fit is cut off.

    Reports: vLLM 56469, 54296 (block table read past its columns).
    """

    name = "narrow_table"
    killed_by = ("graph_metadata", "provenance")

    def longest_table(self) -> int:
        """Half of it."""
        return max(1, super().longest_table() // 2)

    def stage_table(self, staged: IntArray, index: int, row: GraphRow, table: Sequence[int]) -> None:
        """Cut off what does not fit."""
        super().stage_table(staged, index, row, table[: self.columns])


class LengthsOfLastBatch(GraphMutant):
    """Lengths are written after the replay that they are for.

    Reports: vLLM 31341 in kind (metadata of another step).
    """

    name = "lengths_of_last_batch"
    killed_by = ("graph_metadata", "provenance")

    def replay(self, b: str, g: str, rows: Sequence[GraphRow]) -> Replaying:
        """Fill the lengths that the last replay should have had."""
        lengths = self.__dict__.setdefault("lengths", np.zeros_like(self.staging[0].lengths))
        staging = self.staging[self.replays % len(self.staging)]
        needs = super().replay(b, g, rows)
        late = staging.lengths.copy()
        staging.lengths[:] = lengths
        lengths[:] = late
        return needs


class CapturedTableUsed(GraphMutant):
    """Buffers grow when a larger graph is captured; the smaller ones still read those that they were captured with.

    Reports: vLLM 34874 in kind (a graph reads another buffer than the one that is filled).
    """

    name = "captured_table_used"
    killed_by = ("graph_metadata", "provenance")

    def capture(self, g: str, rows: int) -> Captured:
        """Allocate again for a larger graph."""
        if self.graphs and rows > max(self.graphs.values()):
            self.buffers = self.make_buffers(f", for {rows} rows")
        return super().capture(g, rows)


MUTANTS: dict[str, type[GraphMutant]] = {
    found.name: found
    for found in vars().copy().values()
    if isinstance(found, type) and issubclass(found, GraphMutant) and found is not GraphMutant
}
"""Every seeded bug of the runner by name."""


def make_target(configuration: Configuration) -> Target:
    """Seeded bug NAME of the CUDA-graph runner, as graphs-mutant:NAME."""
    return make_runner(configuration, mutant_named(configuration.target, MUTANTS))


__all__ = ["MUTANTS", "GraphMutant", "make_target"]
