"""What a session does with operations: the life of a request, what is skipped, and that any sub-list of a trace is one."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsan.fuzz.generate import Generator
from kvsan.fuzz.profiles import DEFAULT, FEATURES, small_scope
from kvsan.harness.operations import (
    Abort,
    Advance,
    Cancel,
    Finish,
    Fork,
    Landed,
    Launch,
    Lookup,
    Operation,
    Outcome,
    Preempt,
    Retire,
    Schedule,
    Submit,
)
from kvsan.harness.session import Session, sweep_interval
from kvsan.harness.target import RequestState, SessionState
from kvsan.invariants import INVARIANTS
from kvsan.models_under_test.paged import PagedManager

SIX_TOKENS = Submit("r1", ((0, 6),))


def started(*operations: Operation, **options: Any) -> Session:
    """Session over a pool of eight blocks of four tokens, after operations that must all have been executed."""
    session = Session(PagedManager(8, 4, **options), INVARIANTS, sweep_every=1)
    ran = [session.step(operation) for operation in operations]
    assert all(ran), ran
    return session


def held(session: Session) -> tuple[dict[str, list[int]], list[int], int]:
    """Tables, reference counts and free blocks, as the target has them."""
    view = session.target.view()
    tables = {request.r: list(view.tables(request.name)[0]) for request in session.requests.values()}
    return tables, view.ref_counts().tolist(), view.num_free()


# -- the life of a request


def test_the_counts_of_a_request_follow_its_life() -> None:
    session = started(SIX_TOKENS)
    request = session.requests["r1"]
    counts = []
    for operation in (Schedule("r1", 6), Launch("b1"), Advance("compute"), Retire("b1"), Schedule("r1", 1)):
        session.step(operation)
        counts.append((request.scheduled, request.life.executed, request.retired))
    assert counts == [(6, 0, 0), (6, 0, 0), (6, 6, 0), (6, 6, 6), (7, 6, 6)]


def test_a_retired_row_that_reaches_the_end_samples_one_token() -> None:
    session = started(SIX_TOKENS, Schedule("r1", 4), Launch("b1"), Retire("b1"))
    request = session.requests["r1"]
    assert len(request.life.tokens) == 6
    for operation in (Schedule("r1", 2), Launch("b2"), Retire("b2")):
        session.step(operation)
    assert len(request.life.tokens) == 7


def test_a_row_behind_drafts_waits_for_their_outcome() -> None:
    session = started(SIX_TOKENS, Schedule("r1", 6), Launch("b1"), Schedule("r1", 1), Launch("b2"))
    assert session.step(Advance("compute"))
    assert not session.step(Advance("compute"))


def test_rejected_drafts_move_the_row_behind_them_back() -> None:
    two_drafts = [SIX_TOKENS, Schedule("r1", 6), Launch("b1"), Retire("b1"), Schedule("r1", 3), Launch("b2")]
    session = started(*two_drafts, Schedule("r1", 1), Launch("b3"), Retire("b2", (Outcome("r1", 0, 0),)))
    request = session.requests["r1"]
    assert (request.scheduled, request.retired) == (8, 7)

    session.step(Advance("compute"))

    writers = session.shadow.writers[request.tables[0][1]].tolist()
    assert writers == [2, 2, 5, 7]  # position 7 held a draft of operation 5 and was written again by operation 7


def test_all_drafts_are_accepted_unless_the_outcome_says_otherwise() -> None:
    prefilled = [SIX_TOKENS, Schedule("r1", 6), Launch("b1"), Retire("b1")]
    session = started(*prefilled, Schedule("r1", 3), Launch("b2"), Retire("b2"))
    assert session.requests["r1"].retired == 9


# -- what is skipped


NOT_LIVE: tuple[Operation, ...] = (
    Lookup("r9"),
    Schedule("r9", 1),
    Landed("r9"),
    Cancel(),
    Launch("b9"),
    Retire("b9"),
    Advance("compute"),
    Advance("copy"),
    Fork("r9", "r10"),
    Finish("r9"),
    Abort("r9"),
    Preempt("r9"),
)


@pytest.mark.parametrize("operation", NOT_LIVE, ids=lambda operation: type(operation).__name__)
def test_an_operation_on_what_is_not_live_is_skipped_and_counted(operation: Operation) -> None:
    session = started(SIX_TOKENS)
    assert not session.step(operation)
    assert session.skipped == {type(operation).__name__: 1}


IMPOSSIBLE: tuple[tuple[str, list[Operation], Operation], ...] = (
    ("an id again", [SIX_TOKENS], SIX_TOKENS),
    ("a child that lives", [SIX_TOKENS, Schedule("r1", 6), Launch("b1"), Retire("b1")], Fork("r1", "r1")),
    ("twice in a batch", [SIX_TOKENS, Schedule("r1", 4)], Schedule("r1", 2)),
    ("a fork of nothing", [SIX_TOKENS], Fork("r1", "r2")),
    ("a fork out of a batch", [SIX_TOKENS, Schedule("r1", 4)], Fork("r1", "r2")),
    ("a look-up after the start", [SIX_TOKENS, Schedule("r1", 4)], Lookup("r1")),
    ("a chunk while loading", [SIX_TOKENS, Schedule("r1", 4, 0, 4, True)], Schedule("r1", 1)),
    ("a launch's name again", [SIX_TOKENS, Schedule("r1", 4), Launch("b1"), Schedule("r1", 1)], Launch("b1")),
    ("a preemption while loading", [SIX_TOKENS, Schedule("r1", 1, 0, 4, True)], Preempt("r1")),
    ("the end while loading", [SIX_TOKENS, Schedule("r1", 1, 0, 4, True)], Finish("r1")),
    ("a preemption of nothing", [SIX_TOKENS], Preempt("r1")),
    ("another pool", [], replace(SIX_TOKENS, at="p1")),
    ("an empty prompt", [], Submit("r1", (("out", "r0", 4),))),
)


@pytest.mark.parametrize(
    ("before", "operation"), [case[1:] for case in IMPOSSIBLE], ids=[case[0] for case in IMPOSSIBLE]
)
def test_what_no_engine_could_do_is_skipped(before: list[Operation], operation: Operation) -> None:
    assert not started(*before).step(operation)


def test_only_the_oldest_launch_retires() -> None:
    session = started(SIX_TOKENS, Schedule("r1", 4), Launch("b1"), Schedule("r1", 2), Launch("b2"))
    assert not session.step(Retire("b2"))
    assert session.step(Retire("b1"))


def test_no_more_launches_are_in_flight_than_the_target_takes() -> None:
    session = started(SIX_TOKENS, Schedule("r1", 2), Launch("b1"), Schedule("r1", 2), max_in_flight=1)
    assert not session.step(Launch("b2"))


class NeverForks(PagedManager):
    """Promises nothing about forks."""

    def __init__(self) -> None:
        super().__init__(8, 4)
        self.traits = replace(self.traits, allows=self.allows)

    @staticmethod
    def allows(_request: RequestState | None, _session: SessionState, operation: Operation) -> bool:
        return not isinstance(operation, Fork)


@pytest.mark.parametrize("beyond_contract", [False, True])
def test_what_the_contract_forbids_runs_only_beyond_it(beyond_contract: bool) -> None:
    session = Session(NeverForks(), INVARIANTS, beyond_contract=beyond_contract)
    for operation in (SIX_TOKENS, Schedule("r1", 6), Launch("b1"), Retire("b1")):
        session.step(operation)
    assert session.step(Fork("r1", "r2")) is beyond_contract


# -- any sub-list of a trace is a trace


@cache
def generated(seed: int, deferred_free: bool) -> tuple[Operation, ...]:
    """Sixty operations that the generator drew for the reference manager, every feature on."""
    session = Session(PagedManager(9, 2, deferred_free=deferred_free), INVARIANTS)
    generator = Generator(session, small_scope(DEFAULT), Random(seed), frozenset(FEATURES))
    operations = []
    for _ in range(60):
        operations.append(generator.next())
        session.step(operations[-1])
    return tuple(operations)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(seed=st.integers(0, 39), deferred_free=st.booleans(), kept=st.lists(st.booleans(), min_size=60, max_size=60))
def test_any_sub_list_of_a_trace_runs_clean_on_the_reference(seed: int, deferred_free: bool, kept: list[bool]) -> None:
    session = Session(PagedManager(9, 2, deferred_free=deferred_free), INVARIANTS, sweep_every=1)
    chosen = [operation for operation, keep in zip(generated(seed, deferred_free), kept, strict=True) if keep]
    executed = sum([session.step(operation) for operation in chosen])
    skipped = session.skipped.total()
    session.close()
    assert executed + skipped == len(chosen)


# -- corners of a life


def test_cancel_restores_tables_counts_and_references() -> None:
    session = started(SIX_TOKENS, Schedule("r1", 6), Launch("b1"), Retire("b1"), Fork("r1", "r2"))
    before = held(session)
    for operation in (Schedule("r1", 3), Schedule("r2", 3)):
        session.step(operation)
    assert held(session) != before

    session.step(Cancel())

    assert held(session) == before
    assert [(r.scheduled, r.planned) for r in session.requests.values()] == [(6, 7), (6, 7)]


def test_cancel_of_a_first_chunk_forgets_its_hit() -> None:
    cached = [SIX_TOKENS, Schedule("r1", 6), Launch("b1"), Retire("b1"), Submit("r2", ((0, 6),)), Schedule("r2", 2)]
    session = started(*cached)
    assert session.requests["r2"].life.executed == 4
    session.step(Cancel())
    request = session.requests["r2"]
    assert (request.scheduled, request.retired, request.life.executed) == (0, 0, 0)


def test_a_load_of_an_aborted_request_lands_and_only_then_frees() -> None:
    session = started(SIX_TOKENS, Schedule("r1", 1, 0, 4, True), Abort("r1"))
    view = session.target.view()
    assert view.num_free() == 6
    assert session.step(Landed("r1"))
    assert view.num_free() == 7
    assert session.counts["landed after the end"] == 1


def test_a_client_may_use_an_id_again_when_its_request_has_ended() -> None:
    again = Submit("r2", ((0, 3),), engine_id="e1")
    session = started(Submit("r1", ((0, 3),), engine_id="e1"))
    assert not session.step(again)
    session.step(Finish("r1"))
    assert session.step(again)


def test_an_id_is_taken_until_its_load_has_landed() -> None:
    again = Submit("r2", ((0, 6),), engine_id="r1")
    session = started(SIX_TOKENS, Schedule("r1", 1, 0, 4, True), Abort("r1"))
    assert not session.step(again)
    session.step(Landed("r1"))
    assert session.step(again)


def test_a_later_turn_repeats_what_a_request_has_generated() -> None:
    decode = [Schedule("r1", 1), Launch("b2"), Retire("b2", (Outcome("r1", 0, 5),))]
    first_turn = [SIX_TOKENS, Schedule("r1", 6), Launch("b1"), Retire("b1"), *decode, Finish("r1")]
    session = started(*first_turn, Submit("r2", ((0, 6), ("out", "r1", 9), (1, 1))))
    assert session.requests["r2"].life.tokens[6:] == [6, (5 << 16) + 7, 1 << 16]


def test_fork_siblings_differ_by_the_family_that_was_sampled() -> None:
    forked = [SIX_TOKENS, Schedule("r1", 6), Launch("b1"), Retire("b1"), Fork("r1", "r2")]
    both = [Schedule("r1", 1), Schedule("r2", 1), Launch("b2"), Retire("b2", (Outcome("r2", 0, 3),))]
    session = started(*forked, *both)
    parent, child = session.requests["r1"].life, session.requests["r2"].life
    assert parent.tokens[:7] == child.tokens[:7]
    assert parent.last_identity() != child.last_identity()


def test_a_preempted_request_starts_again_and_its_launch_in_flight_keeps_the_old_life() -> None:
    session = started(SIX_TOKENS, Schedule("r1", 6), Launch("b1"), Preempt("r1"))
    request = session.requests["r1"]
    assert (request.scheduled, request.planned) == (0, 6)
    session.step(Retire("b1"))
    assert len(request.life.tokens) == 6


@pytest.mark.parametrize("deferred_free", [False, True])
def test_close_leaves_nothing(deferred_free: bool) -> None:
    in_flight = [SIX_TOKENS, Schedule("r1", 6), Launch("b1"), Schedule("r1", 1), Launch("b2")]
    loading = [Submit("r2", ((1, 6),)), Schedule("r2", 1, 0, 4, True)]
    in_batch = [Submit("r3", ((2, 3),)), Schedule("r3", 3)]
    session = started(*in_flight, *loading, *in_batch, deferred_free=deferred_free)

    session.close()

    left = session.requests, session.batch, session.in_flight, session.loads, session.books.parked
    assert not any(left)
    assert session.target.view().requests() == ["kvsan-capacity-probe"]


@pytest.mark.parametrize(("num_units", "interval"), [(64, 1000), (1 << 20, 1 << 18)])
def test_sweeps_grow_apart_with_the_pool(num_units: int, interval: int) -> None:
    assert sweep_interval(num_units) == interval
