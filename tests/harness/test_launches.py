"""Batches on the device: snapshots, outcomes, cancelling, and how a session comes to rest."""

from __future__ import annotations

from typing import Any

import pytest

from kvsan.harness.launches import closing_operations
from kvsan.harness.operations import (
    Abort,
    Advance,
    Cancel,
    Finish,
    Fork,
    Landed,
    Launch,
    Operation,
    Outcome,
    Preempt,
    ResetPrefixCache,
    Retire,
    Schedule,
    Submit,
    token_id,
)
from kvsan.harness.session import Session
from kvsan.harness.target import Effects, Result
from kvsan.harness.verdict import Violation
from kvsan.invariants import INVARIANTS
from kvsan.models_under_test.paged import PagedManager

PREFILLED: tuple[Operation, ...] = (Submit("r1", ((0, 6),)), Schedule("r1", 6), Launch("b1"), Retire("b1"))


class Recorder(PagedManager):
    """Reference manager that remembers what it was told about retired launches."""

    def __init__(self, **options: Any) -> None:
        super().__init__(12, 4, **options)
        self.results: list[list[Result]] = []

    def retire(self, b: str, results: Any) -> Effects:
        self.results.append(list(results))
        return super().retire(b, results)


def results_of(*operations: Operation) -> list[list[Result]]:
    target = Recorder()
    session = Session(target, INVARIANTS, sweep_every=1)
    for operation in operations:
        assert session.step(operation), operation
    return target.results


# -- what a target is told


def test_a_chunk_within_the_prompt_samples_nothing() -> None:
    assert results_of(PREFILLED[0], Schedule("r1", 4), *PREFILLED[2:]) == [[Result("r1", 4, 0, [])]]


def test_the_last_chunk_of_a_prompt_samples_one_token() -> None:
    assert results_of(*PREFILLED) == [[Result("r1", 6, 0, [token_id(0, 6)])]]


@pytest.mark.parametrize(
    ("accepted", "result"),
    [
        (0, Result("r1", 7, 2, [token_id(3, 7)])),
        (1, Result("r1", 8, 1, [token_id(0, 7), token_id(3, 8)])),
        (2, Result("r1", 9, 0, [token_id(0, 7), token_id(0, 8), token_id(3, 9)])),
        (9, Result("r1", 9, 0, [token_id(0, 7), token_id(0, 8), token_id(3, 9)])),
    ],
)
def test_an_outcome_says_how_many_drafts_are_accepted_and_what_follows(accepted: int, result: Result) -> None:
    decode = [Schedule("r1", 3), Launch("b2"), Retire("b2", (Outcome("r1", accepted, 3),))]
    assert results_of(*PREFILLED, *decode)[1] == [result]


def test_an_outcome_of_a_request_that_is_not_in_the_launch_is_nobodys() -> None:
    assert results_of(*PREFILLED[:3], Retire("b1", (Outcome("r9", 0, 3),)))[0][0].sampled == [token_id(0, 6)]


@pytest.mark.parametrize("end", [Abort("r1"), Finish("r1"), Preempt("r1")], ids=lambda end: type(end).__name__)
def test_a_request_that_has_left_its_launch_has_no_result(end: Operation) -> None:
    assert results_of(*PREFILLED[:3], end, Retire("b1")) == [[]]


def test_a_request_that_uses_an_id_again_does_not_get_the_results_of_the_first() -> None:
    again = Submit("r2", ((1, 3),), engine_id="r1")
    assert results_of(*PREFILLED[:3], Abort("r1"), again, Retire("b1")) == [[]]


# -- tables


class ChangesTablesSilently(PagedManager):
    """Swaps two blocks of a table at launch, and tells nobody."""

    def launch(self, b: str) -> None:
        for name in self.batch:
            self.requests[name].table.reverse()
        super().launch(b)


def test_a_launch_with_another_table_than_was_told_is_found() -> None:
    session = Session(ChangesTablesSilently(8, 4), INVARIANTS)
    session.step(PREFILLED[0])
    session.step(PREFILLED[1])
    with pytest.raises(Violation) as caught:
        session.step(Launch("b1"))
    assert caught.value.kind == ("testimony", "table")


def test_a_launch_keeps_the_tables_that_it_was_given() -> None:
    session = Session(PagedManager(8, 4, deferred_free=False), INVARIANTS, sweep_every=1)
    freed = [Abort("r1"), Submit("r2", ((1, 20),)), Schedule("r2", 20), Launch("b2")]
    for operation in (*PREFILLED[:3], *freed, Advance("compute")):
        assert session.step(operation)
    assert session.shadow.writers[1].tolist() == [2] * 4  # the aborted row still writes where it was told to
    assert session.step(Retire("b1"))
    assert session.step(Retire("b2"))


# -- cancelling


def test_a_cancelled_copy_on_write_can_be_scheduled_again() -> None:
    session = Session(PagedManager(8, 4), INVARIANTS, sweep_every=1)
    retry = [Cancel(), Schedule("r2", 1), Launch("b2"), Retire("b2", (Outcome("r2", 0, 2),))]
    for operation in (
        *PREFILLED,
        Fork("r1", "r2"),
        Schedule("r2", 1),
        *retry,
        Schedule("r1", 1),
        Launch("b3"),
        Retire("b3"),
    ):
        assert session.step(operation), operation
    session.close()


def test_a_cancelled_batch_keeps_the_launches_before_it() -> None:
    session = Session(PagedManager(8, 4), INVARIANTS, sweep_every=1)
    for operation in (*PREFILLED[:3], Schedule("r1", 1), Cancel(), Retire("b1")):
        assert session.step(operation)
    request = session.requests["r1"]
    assert (request.scheduled, request.retired, request.planned) == (6, 6, 7)


# -- the end of a session


def test_the_closing_operations_bring_everything_to_rest() -> None:
    session = Session(PagedManager(12, 4), INVARIANTS, sweep_every=1)
    loading = [Submit("r2", ((1, 6),)), Schedule("r2", 1, 0, 4, True)]
    for operation in (*PREFILLED[:3], *loading, Submit("r3", ((2, 3),)), Schedule("r3", 3)):
        assert session.step(operation)
    done = []
    for operation in closing_operations(session):
        assert session.step(operation)
        done.append(operation)
    expected = [
        Retire("b1"),
        Launch("closing"),
        Retire("closing"),
        Landed("r2"),
        Finish("r1"),
        Finish("r2"),
        Finish("r3"),
    ]
    assert done == expected


def test_closing_takes_no_name_that_the_trace_has_used() -> None:
    session = Session(PagedManager(12, 4), INVARIANTS, sweep_every=1)
    for operation in (PREFILLED[0], Schedule("r1", 4), Launch("closing"), Schedule("r1", 2)):
        assert session.step(operation)
    assert list(closing_operations(session))[:3] == [Retire("closing"), Launch("closing+"), Retire("closing+")]


@pytest.mark.parametrize("cached", [True, False])
def test_a_reset_withdraws_every_hash(cached: bool) -> None:
    session = Session(PagedManager(8, 4), INVARIANTS, sweep_every=1)
    for operation in (
        *PREFILLED,
        Submit("r2", ((0, 6),)),
        *([] if cached else [ResetPrefixCache()]),
        Schedule("r2", 6),
    ):
        assert session.step(operation)
    assert (session.counts["full hit"] == 1) is cached
