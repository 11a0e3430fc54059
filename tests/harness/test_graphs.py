"""Captured graphs: a replay reads its static buffers when it executes, and goes by what they say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from kvsan.harness.configuration import Configuration
from kvsan.harness.effects import enqueue_effects
from kvsan.harness.expectation import Expected, Life
from kvsan.harness.graphs import Buffer, Captured, GraphRow, Replaying
from kvsan.harness.numbers import Numbers
from kvsan.harness.operations import (
    Abort,
    Advance,
    Capture,
    Finish,
    Launch,
    Operation,
    Preempt,
    Replay,
    ResetPrefixCache,
    Retire,
    Schedule,
    Submit,
)
from kvsan.harness.session import Session
from kvsan.harness.target import Fill, Target
from kvsan.harness.trace import Trace, dumps, loads
from kvsan.harness.transfer import Transfer
from kvsan.harness.verdict import UsageError, Violation
from kvsan.invariants.graph_metadata import GraphMetadata
from kvsan.models_under_test.graphs.runner import GraphRunner, Staging
from kvsan.models_under_test.paged import PagedManager

SIZE = 2


def prefilled(r: str, tokens: int) -> tuple[Operation, ...]:
    """A request that can decode."""
    b = f"prefill of {r}"
    return Submit(r, ((int(r[1:]), tokens),)), Schedule(r, tokens), Launch(b), Retire(b)


def session_of(
    kind: type[GraphRunner] = GraphRunner, *, fills: str = "compute", numbers: Numbers | None = None, units: int = 16
) -> Session:
    """No invariants: what is seen here, the oracles see."""
    return Session(cast(Target, kind(cast(Target, PagedManager(units, SIZE)), fills)), (), numbers)


def drive(session: Session, *operations: Operation) -> Session:
    for operation in operations:
        assert session.step(operation), operation
    return session


def kind_of(session: Session, *operations: Operation) -> tuple[str, str]:
    with pytest.raises(Violation) as caught:
        drive(session, *operations)
    return caught.value.kind


DECODE: tuple[Operation, ...] = (
    *prefilled("r1", 4),
    Capture("g1", 2),
    Schedule("r1", 1),
    Replay("b1", "g1"),
    Retire("b1"),
)


# -- what is replayed


@pytest.mark.parametrize("fills", ["compute", "copy"])
def test_two_replays_in_flight_and_outputs_are_those_of_the_reference(fills: str) -> None:
    numbers = Numbers(16, SIZE)
    session = session_of(fills=fills, numbers=numbers)
    in_flight = [Schedule("r1", 1), Replay("b1", "g1"), Schedule("r2", 1), Schedule("r1", 1), Replay("b2", "g1")]
    drive(session, *prefilled("r1", 4), *prefilled("r2", 3), Capture("g1", 3))
    compared = numbers.outputs_compared
    drive(session, *in_flight, Retire("b1"), Retire("b2")).close()
    assert numbers.outputs_compared > compared
    assert session.counts["padded replay"] == 2
    assert session.counts["two replays in flight"] == session.counts["replay with other rows"] == 1


def test_a_request_that_was_preempted_comes_back_to_the_graph() -> None:
    again = (Preempt("r1"), Schedule("r1", 5), Launch("b2"), Retire("b2"), Schedule("r1", 1), Replay("b3", "g1"))
    assert drive(session_of(), *DECODE, *again).counts["replay after preemption"] == 1


def test_operations_of_graphs_are_traces() -> None:
    trace = Trace(Configuration("graphs"), (Capture("g1", 4), Replay("b1", "g1")))
    assert loads(dumps(trace)).trace == trace


# -- what fits


def skipped(session: Session, *operations: Operation) -> bool:
    *before, last = operations
    return not drive(session, *before).step(last)


def test_a_batch_of_more_rows_than_were_captured_does_not_fit() -> None:
    both = (*prefilled("r1", 2), *prefilled("r2", 2), Schedule("r1", 1), Schedule("r2", 1))
    assert skipped(session_of(), *both, Capture("g1", 1), Replay("b1", "g1"))
    assert not skipped(session_of(), *both, Capture("g1", 2), Replay("b1", "g1"))


def test_a_row_of_more_than_one_token_does_not_fit() -> None:
    assert skipped(session_of(), Capture("g1", 2), Submit("r1", ((0, 2),)), Schedule("r1", 2), Replay("b1", "g1"))


def test_a_row_behind_drafts_in_flight_does_not_fit() -> None:
    drafts = (*prefilled("r1", 2), Capture("g1", 2), Schedule("r1", 2), Launch("b1"), Schedule("r1", 1))
    assert skipped(session_of(), *drafts, Replay("b2", "g1"))
    assert not skipped(session_of(), *drafts, Retire("b1"), Replay("b2", "g1"))


def test_an_unknown_graph_and_a_used_name_are_skipped() -> None:
    assert skipped(session_of(), *prefilled("r1", 2), Schedule("r1", 1), Replay("b1", "g1"))
    assert skipped(session_of(), Capture("g1", 1), Capture("g1", 1))
    assert skipped(session_of(), Capture("g1", 9))
    assert skipped(session_of(), *DECODE, Schedule("r1", 1), Replay("b1", "g1"))


def test_a_target_without_a_runner_captures_nothing() -> None:
    assert skipped(Session(PagedManager(8, 4), ()), Capture("g1", 1))


# -- what the oracles see in the buffers, without the invariant


class Odd(GraphRunner):
    """A runner whose staging memory is changed before it is copied."""

    def change(self, staging: Staging, rows: int) -> None: ...

    def fill(self, staging: Staging, rows: int) -> list[Fill]:
        self.change(staging, rows)
        return super().fill(staging, rows)


class OtherTable(Odd):
    def change(self, staging: Staging, rows: int) -> None:
        staging.tables[0][0, 0] += 1


class NoSuchUnit(Odd):
    def change(self, staging: Staging, rows: int) -> None:
        staging.tables[0][0, 0] = -1


class OtherLength(Odd):
    def change(self, staging: Staging, rows: int) -> None:
        staging.lengths[0] -= 1


class NobodysSlot(Odd):
    def change(self, staging: Staging, rows: int) -> None:
        staging.slots[0][0] = -1


class NoSuchSlot(Odd):
    def change(self, staging: Staging, rows: int) -> None:
        staging.slots[0][0] = 1 << 20


class NullSlot(Odd):
    def change(self, staging: Staging, rows: int) -> None:
        staging.slots[0][0] = 1


class ReliedOnSlot(Odd):
    def change(self, staging: Staging, rows: int) -> None:
        staging.slots[0][0] = SIZE * self.manager.view().tables("r1")[0][0]


class RealPadding(Odd):
    def change(self, staging: Staging, rows: int) -> None:
        staging.slots[0][1] = SIZE


class NarrowTable(GraphRunner):
    """Kernels that read past the columns of a row find the next one."""

    def longest_table(self) -> int:
        return 2

    def stage_table(self, staged: Any, index: int, row: GraphRow, table: Sequence[int]) -> None:
        super().stage_table(staged, index, row, table[:2])


@pytest.mark.parametrize(
    ("kind", "seen"),
    [
        (OtherTable, ("provenance", "foreign")),
        (NoSuchUnit, ("provenance", "outside the pool")),
        (OtherLength, ("provenance", "length")),
        (NobodysSlot, ("provenance", "unwritten")),
        (NoSuchSlot, ("foreign_write", "outside the pool")),
        (NullSlot, ("provenance", "null write")),
        (ReliedOnSlot, ("foreign_write", "shared")),
        (RealPadding, ("foreign_write", "padding")),
        (NarrowTable, ("provenance", "null unit")),
    ],
)
def test_what_is_wrong_in_a_buffer_is_seen(kind: type[GraphRunner], seen: tuple[str, str]) -> None:
    assert kind_of(session_of(kind), *DECODE) == seen


class SinkPadding(Odd):
    def change(self, staging: Staging, rows: int) -> None:
        staging.slots[0][1:rows] = 0
        staging.lengths[1:rows] = 99


def test_padding_may_write_the_null_unit_and_read_anything() -> None:
    drive(session_of(SinkPadding), *DECODE).close()


class OneStaging(GraphRunner):
    def staging_sets(self) -> int:
        return 1


def test_a_fill_takes_what_the_staging_memory_holds_when_it_executes() -> None:
    first = (*prefilled("r1", 4), *prefilled("r2", 3), Capture("g1", 1), Schedule("r1", 1), Replay("b1", "g1"))
    second = (Schedule("r2", 1), Replay("b2", "g1"))
    assert kind_of(session_of(OneStaging), *first, *second, Retire("b1"))[0] == "provenance"
    done = (*[Advance("compute")] * 4, *second, Retire("b1"), Retire("b2"))
    drive(session_of(OneStaging), *first, *done).close()


# -- order


class Unordered(GraphRunner):
    """Fills that wait for nobody."""

    def fills_wait_for(self) -> tuple[str, ...]:
        return ()


def test_a_fill_that_nothing_orders_behind_an_earlier_replay_is_a_race_whichever_comes_first() -> None:
    both = (
        *prefilled("r1", 4), Capture("g1", 1), Schedule("r1", 1), Replay("b1", "g1"), Schedule("r1", 1), Replay("b2", "g1"),
    )  # fmt: skip
    session = session_of(Unordered, fills="copy")
    late = (Advance("copy"), Advance("copy"), Advance("copy"), Advance("compute"), Advance("copy"))
    with pytest.raises(
        Violation, match=r"row 0 of buffer 'table 0': launch b1 through graph g1 .* and the filling of"
    ) as found:
        drive(session, *both, *late)
    assert found.value.kind == ("order", "read-write")
    drive(session_of(fills="copy"), *both, *late[:4]).close()


# -- what is no runner


def refused(kind: type[GraphRunner]) -> str:
    with pytest.raises(UsageError) as caught:
        drive(session_of(kind), *DECODE)
    return str(caught.value)


class CapturesNothing(GraphRunner):
    def capture(self, g: str, rows: int) -> Captured:
        return None  # type: ignore[return-value]


class TwoTables(GraphRunner):
    def capture(self, g: str, rows: int) -> Captured:
        captured = super().capture(g, rows)
        return captured._replace(tables=captured.tables * 2)


class TooFewRows(GraphRunner):
    def capture(self, g: str, rows: int) -> Captured:
        return super().capture(g, rows)._replace(lengths=Buffer("lengths", rows - 1))


class OneNameTwoShapes(GraphRunner):
    def capture(self, g: str, rows: int) -> Captured:
        return super().capture(g, rows)._replace(lengths=Buffer("table 0", rows))


class ReplaysNothing(GraphRunner):
    def replay(self, _b: str, g: str, rows: Sequence[GraphRow]) -> Replaying:
        return None  # type: ignore[return-value]


class NoSuchStream(GraphRunner):
    def graph_waits_for(self) -> tuple[str, ...]:
        return ("side",)


class NoSuchBuffer(GraphRunner):
    def replay(self, _b: str, g: str, rows: Sequence[GraphRow]) -> Replaying:
        return Replaying([Fill("mask", 0, np.zeros((1, 1), np.int64))])


class FillsWithAList(GraphRunner):
    def replay(self, _b: str, g: str, rows: Sequence[GraphRow]) -> Replaying:
        return Replaying([Fill("lengths", 0, [[1]])])  # type: ignore[arg-type]


class FillsWithFractions(GraphRunner):
    def replay(self, _b: str, g: str, rows: Sequence[GraphRow]) -> Replaying:
        return Replaying([Fill("lengths", 0, np.array([[1.5]]))])  # type: ignore[arg-type]


class FillsNothing(GraphRunner):
    def replay(self, _b: str, g: str, rows: Sequence[GraphRow]) -> Replaying:
        return Replaying(None)  # type: ignore[arg-type]


class CapturesWords(GraphRunner):
    def capture(self, g: str, rows: int) -> Captured:
        captured = super().capture(g, rows)
        return captured._replace(lengths=Buffer("lengths", "8"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            FillsWithAList,
            "FillsWithAList.replay returned values of buffer 'lengths' [[1]]; expected integers [rows, columns]",
        ),
        (FillsWithFractions, "expected integers [rows, columns]"),
        (FillsNothing, "FillsNothing.replay returned effects None; expected a sequence"),
        (CapturesWords, "expected integers of rows and columns"),
        (CapturesNothing, "CapturesNothing.capture returned None; expected Captured"),
        (TwoTables, "2 tables and 1 slot mappings; expected one of each for 1 cache groups"),
        (TooFewRows, "expected at least 2 rows"),
        (OneNameTwoShapes, "a buffer of that name has the shape"),
        (ReplaysNothing, "ReplaysNothing.replay returned None; expected Replaying"),
        (NoSuchStream, "waits for stream 'side'; expected some of compute, copy"),
        (NoSuchBuffer, "buffer 'mask' is filled; the graphs have table 0, lengths, slots 0"),
    ],
)
def test_a_runner_that_breaks_the_protocol_is_bad_input(kind: type[GraphRunner], message: str) -> None:
    assert message in refused(kind)


class TooWide(GraphRunner):
    def replay(self, _b: str, g: str, rows: Sequence[GraphRow]) -> Replaying:
        return Replaying([Fill("lengths", 7, np.zeros((2, 1), np.int64))])


def test_a_fill_that_leaves_its_buffer_is_a_violation() -> None:
    assert kind_of(session_of(TooWide), *DECODE) == ("graph_metadata", "outside the buffer")


@pytest.mark.parametrize("end", [Finish("r1"), Abort("r1"), Preempt("r1"), ResetPrefixCache()])
def test_a_request_may_go_while_its_replay_is_in_flight(end: Operation) -> None:
    drive(session_of(), *DECODE, Schedule("r1", 1), Replay("b2", "g1"), end).close()


def test_a_finding_names_who_filled_the_buffer_last() -> None:
    session = session_of(OtherTable)
    session.executor.graphs.judges = [GraphMetadata(session.books, session.shadow).on_replay]
    with pytest.raises(Violation) as caught:
        drive(session, *DECODE)
    assert caught.value.kind == ("graph_metadata", "stale table")
    assert caught.value.lineage == ("row 0 of buffer 'table 0' was last filled by operation 6",)


def test_a_transfer_fills_no_buffer() -> None:
    session = session_of()
    transfer = Transfer("t1", "offload", "host", Expected("r1", "r1", Life("r1", None, ()), "", None), ())
    with pytest.raises(UsageError, match="transfer t1 fills buffer 'lengths'"):
        enqueue_effects(session, [Fill("lengths", 0, np.zeros((1, 1), np.int64))], transfer)
