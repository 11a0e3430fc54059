"""What ``graph_metadata`` says of each buffer, for managers of one cache group and of two."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, cast

import pytest
from windowed import WindowedManager

from kvsan.fuzz.generate import Generator, draw_features
from kvsan.fuzz.known import KnownFindings
from kvsan.fuzz.profiles import GRAPHS, small_scope
from kvsan.fuzz.search import Reporter, Search, SearchSettings
from kvsan.fuzz.shrink import weight
from kvsan.harness.configuration import Configuration
from kvsan.harness.graphs import Captured, GraphRow
from kvsan.harness.operations import Capture, Launch, Operation, Replay, Retire, Schedule, Submit
from kvsan.harness.session import Session
from kvsan.harness.target import Target
from kvsan.harness.verdict import Finding, UsageError, Violation
from kvsan.invariants import INVARIANTS
from kvsan.invariants.graph_metadata import GraphMetadata
from kvsan.models_under_test.graphs.mutants import MUTANTS
from kvsan.models_under_test.graphs.runner import GraphRunner, Staging

DECODE: tuple[Operation, ...] = (
    Submit("r1", ((0, 9),)), Schedule("r1", 9), Launch("b1"), Retire("b1"),
    Capture("g1", 2), Schedule("r1", 1), Replay("b2", "g1"), Retire("b2"),
)  # fmt: skip


def two_groups(kind: type[GraphRunner], num_units: int = 16, block_size: int = 2, fills: str = "compute") -> Target:
    manager = cast(Target, WindowedManager(num_units, block_size))
    return cast(Target, kind(manager, fills))


def kind_of(kind: type[GraphRunner]) -> str:
    """What the invariant alone says of a decode step; nothing of a runner that is in order."""
    session = Session(two_groups(kind), (GraphMetadata,))
    try:
        for operation in DECODE:
            assert session.step(operation)
    except Violation as violation:
        return ": ".join(violation.kind)
    return ""


class ForgetsTheTable(GraphRunner):
    def stage_table(self, staged: Any, index: int, _row: GraphRow, table: Sequence[int]) -> None: ...


class ForgetsTheSlot(GraphRunner):
    def stage(self, staging: Staging, index: int, row: GraphRow) -> None:
        super().stage(staging, index, row)
        staging.slots[1][index] -= 1


class ForgetsTheLength(GraphRunner):
    def stage(self, staging: Staging, index: int, row: GraphRow) -> None:
        super().stage(staging, index, row._replace())
        staging.lengths[index] = 0


class SwapsGroups(GraphRunner):
    def make_buffers(self, generation: str = "") -> Captured:
        own = super().make_buffers(generation)
        return own._replace(tables=own.tables[::-1]) if self.graphs else own

    def capture(self, g: str, rows: int) -> Captured:
        super().capture(g, rows)
        return self.make_buffers()


class FillsPadding(GraphRunner):
    def stage_padding(self, staging: Staging, index: int) -> None:
        staging.slots[1][index] = 3


class TwoColumns(GraphRunner):
    def longest_table(self) -> int:
        return 2

    def stage_table(self, staged: Any, index: int, row: GraphRow, table: Sequence[int]) -> None:
        super().stage_table(staged, index, row, table[:2])


@pytest.mark.parametrize(
    ("kind", "seen"),
    [
        (GraphRunner, ""),
        (ForgetsTheTable, "graph_metadata: stale table"),
        (ForgetsTheSlot, "graph_metadata: slot"),
        (ForgetsTheLength, "graph_metadata: length"),
        (SwapsGroups, "graph_metadata: another group's table"),
        (FillsPadding, "graph_metadata: padding"),
        (TwoColumns, "graph_metadata: narrow table"),
    ],
)
def test_cause_names_what_is_wrong(kind: type[GraphRunner], seen: str) -> None:
    assert kind_of(kind) == seen


@pytest.mark.parametrize("fills", ["compute", "copy"])
def test_a_runner_over_two_groups_is_clean(fills: str) -> None:
    replays = 0
    for seed in range(30):
        random = Random(seed)
        profile = random.choice((GRAPHS, small_scope(GRAPHS)))
        target = two_groups(GraphRunner, random.choice(profile.num_units), random.choice(profile.block_sizes), fills)
        session = Session(target, INVARIANTS, sweep_every=20)
        generator = Generator(session, profile, random, draw_features(random, profile))
        for _ in range(150):
            session.step(generator.next())
        session.close()
        replays += session.counts["Replay"]
    assert replays > 100


def shared_buffer_found() -> Finding:
    def factory(configuration: Configuration) -> Target:
        return two_groups(MUTANTS["groups_share_buffer"], configuration.num_units, configuration.block_size)

    settings = SearchSettings(
        Configuration("graphs-mutant:groups_share_buffer"), GRAPHS, seed=5, steps=20_000, numbers=0.0
    )
    summary = Search(factory, settings, KnownFindings(), Reporter()).run()
    return summary.findings[0]


def test_a_buffer_that_two_groups_share_is_found_and_named() -> None:
    finding = shared_buffer_found()
    assert (finding.invariant, finding.cause) == ("graph_metadata", "another group's table")
    assert weight(finding.trace.operations)[0] <= 4


def test_a_bug_of_two_groups_asks_for_two() -> None:
    from kvsan.models_under_test.graphs.mutants import make_target

    with pytest.raises(UsageError, match="expected 2: name one with option over"):
        make_target(Configuration("graphs-mutant:groups_share_buffer"))
