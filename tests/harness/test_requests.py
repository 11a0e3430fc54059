"""Arrival and scheduling: what is clipped, what comes from a connector, and what a refusal leaves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvsan.harness.operations import (
    Adapter,
    Advance,
    Cancel,
    Finish,
    Fork,
    Landed,
    Launch,
    Lookup,
    Media,
    Operation,
    Preempt,
    Retire,
    Schedule,
    Submit,
)
from kvsan.harness.session import Session
from kvsan.harness.target import Admission
from kvsan.harness.verdict import Violation
from kvsan.invariants import INVARIANTS
from kvsan.models_under_test.paged import PagedManager

PREFILLED: tuple[Operation, ...] = (Submit("r1", ((0, 6),)), Schedule("r1", 6), Launch("b1"), Retire("b1"))


def after(*operations: Operation, num_units: int = 8, **traits: Any) -> Session:
    """Session over blocks of four tokens, after operations that must all have been executed."""
    target = PagedManager(num_units, 4)
    target.traits = replace(target.traits, **traits)
    session = Session(target, INVARIANTS, sweep_every=1)
    for operation in operations:
        assert session.step(operation), operation
    return session


# -- arrival


@pytest.mark.parametrize(
    ("trait", "operation"),
    [
        ("salts", Submit("r1", ((0, 6),), salt="x")),
        ("adapters", Submit("r1", ((0, 6),), adapter=Adapter("a", 1))),
        ("media", Submit("r1", ((0, 6),), media=(Media("x", 0, 2),))),
    ],
)
@pytest.mark.parametrize("has_it", [False, True])
def test_a_request_needs_what_the_target_has(trait: str, operation: Submit, has_it: bool) -> None:
    assert after(**{trait: has_it}).step(operation) is has_it


@pytest.mark.parametrize(("length", "fits"), [(15, True), (16, False)])
def test_a_prompt_leaves_room_for_a_token_of_output(length: int, fits: bool) -> None:
    assert after(max_model_len=16).step(Submit("r1", ((0, length),))) is fits


# -- how much is scheduled


def test_a_first_chunk_ends_with_the_prompt() -> None:
    session = after(PREFILLED[0], Schedule("r1", 100))
    assert session.requests["r1"].scheduled == 6


@pytest.mark.parametrize(("wish", "scheduled"), [(1, 7), (3, 9), (9, 11)])
def test_a_later_chunk_may_hold_as_many_drafts_as_the_target_takes(wish: int, scheduled: int) -> None:
    session = after(*PREFILLED, Schedule("r1", wish))
    assert session.requests["r1"].scheduled == scheduled


def test_a_request_never_outgrows_the_model() -> None:
    session = after(*PREFILLED, Schedule("r1", 5), max_model_len=8)
    assert session.requests["r1"].scheduled == 8


def test_lookahead_slots_get_blocks_and_are_not_scheduled() -> None:
    session = after(PREFILLED[0], Schedule("r1", 6, lookahead=3))
    assert (session.requests["r1"].scheduled, len(session.requests["r1"].tables[0])) == (6, 3)


def test_lookahead_is_cut_to_what_the_target_takes() -> None:
    session = after(PREFILLED[0], Schedule("r1", 6, lookahead=64), max_lookahead=2)
    assert len(session.requests["r1"].tables[0]) == 2


def test_a_refused_request_is_as_it_was() -> None:
    session = after(*PREFILLED, Submit("r2", ((1, 30),)), Schedule("r2", 30), num_units=6)
    assert session.counts["refusal"] == 1
    assert (session.requests["r2"].scheduled, session.requests["r2"].tables) == (0, [[]])


# -- hits


CACHED = (*PREFILLED, Submit("r2", ((0, 6),)))


def test_a_hit_is_there_without_being_computed() -> None:
    session = after(*CACHED, Schedule("r2", 2))
    request = session.requests["r2"]
    assert (request.retired, request.life.executed, request.scheduled) == (4, 4, 6)
    assert session.counts["full hit"] == 1


def test_what_a_look_up_found_may_be_gone_when_the_request_is_scheduled() -> None:
    taken = [Lookup("r2"), Finish("r1"), Submit("r3", ((1, 28),)), Schedule("r3", 28), Cancel()]
    session = after(*CACHED, *taken, Schedule("r2", 6))
    assert session.requests["r2"].retired == 0


class GrowingHit(PagedManager):
    """Hits one block more than it has said."""

    def schedule(self, name: str, n: int, lookahead: int, external: int, delayed: bool) -> Admission | None:
        admission = super().schedule(name, n, lookahead, external, delayed)
        return admission and admission._replace(hit=admission.hit + 4)


def test_a_hit_does_not_grow_behind_the_look_up() -> None:
    session = Session(GrowingHit(8, 4), ())
    session.step(PREFILLED[0])
    with pytest.raises(Violation) as caught:
        session.step(Schedule("r1", 6))
    assert caught.value.kind == ("hit_bounds", "grew")


# -- external tokens


@pytest.mark.parametrize(("external", "loaded"), [(4, 4), (5, 4), (3, 0), (100, 8)])
def test_external_tokens_are_whole_units_and_leave_one_to_compute(external: int, loaded: int) -> None:
    session = after(Submit("r1", ((0, 9),)), Schedule("r1", 9, external=external), external_unit=4)
    row = session.requests["r1"].row
    assert row is not None
    assert (row.external, row.start, row.stop) == (loaded, loaded, 9)


def test_external_tokens_follow_the_hit() -> None:
    session = after(*PREFILLED, Submit("r2", ((0, 6), (1, 9))), Schedule("r2", 20, external=4))
    row = session.requests["r2"].row
    assert row is not None
    assert (row.start - row.external, row.start, row.stop) == (4, 8, 15)


def test_external_tokens_are_written_before_the_launch_reads_them() -> None:
    session = after(Submit("r1", ((0, 9),)), Schedule("r1", 9, external=8), Launch("b1"), Retire("b1"))
    assert session.shadow.writers[1:4].tolist() == [[2] * 4, [2] * 4, [2, 0, 0, 0]]


def test_nothing_is_computed_before_delayed_tokens_have_landed() -> None:
    session = after(Submit("r1", ((0, 9),)), Schedule("r1", 9, external=8, delayed=True))
    request = session.requests["r1"]
    assert (request.scheduled, request.retired, request.row) == (8, 0, None)
    session.step(Landed("r1"))
    assert (request.scheduled, request.retired, request.life.executed) == (8, 8, 8)
    assert session.step(Schedule("r1", 1))


def test_a_load_lands_early_if_the_copy_stream_gets_ahead() -> None:
    session = after(Submit("r1", ((0, 9),)), Schedule("r1", 9, external=8, delayed=True), Advance("copy"))
    assert session.shadow.holds(1, session.requests["r1"], 0, 0)
    assert session.requests["r1"].life.executed == 0


def test_a_target_without_loads_computes_everything() -> None:
    operations = frozenset(PagedManager(8, 4).traits.operations) - {Landed}
    session = after(Submit("r1", ((0, 9),)), Schedule("r1", 9, external=8, delayed=True), operations=operations)
    assert session.requests["r1"].row is not None
    assert session.counts["external load"] == 0


# -- sharing and ending


def test_a_fork_continues_from_the_retired_tokens() -> None:
    session = after(*PREFILLED, Schedule("r1", 1), Launch("b2"), Fork("r1", "r2"))
    parent, child = session.requests["r1"], session.requests["r2"]
    assert (parent.scheduled, child.scheduled) == (7, 6)
    assert child.tables == [[1, 2]]
    assert child.planned == len(child.life.tokens) == 7


def test_whoever_writes_a_shared_block_first_copies_it() -> None:
    session = after(*PREFILLED, Fork("r1", "r2"), Schedule("r2", 1))
    assert session.step_facts.copied == {3: 2}
    assert session.requests["r2"].tables == [[1, 3]]


def test_a_copy_that_is_never_launched_leaves_the_shared_block_in_the_table() -> None:
    session = after(*PREFILLED, Fork("r1", "r2"), Schedule("r2", 1), Preempt("r2"))
    assert session.books.holders.tolist() == [0, 1, 1, 0, 0, 0, 0, 0]


def test_a_request_may_end_while_it_waits_in_a_batch() -> None:
    session = after(*PREFILLED, Schedule("r1", 1), Finish("r1"))
    assert session.batch == {}
    assert not session.step(Launch("b2"))
