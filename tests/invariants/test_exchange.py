"""Each thing that an invariant of an exchange can say, on a trace made by hand; the reference pair runs it clean."""

from __future__ import annotations

import re
from typing import NamedTuple

import broken_pairs as broken
import pytest

from kvsan.harness.configuration import Configuration, OptionValue
from kvsan.harness.operations import (
    Abort,
    Advance,
    Complete,
    Expire,
    Fail,
    Finish,
    Launch,
    Operation,
    Preempt,
    Receive,
    Release,
    Retire,
    Schedule,
    Send,
    Submit,
)
from kvsan.harness.pair_session import PairSession
from kvsan.harness.verdict import Violation
from kvsan.invariants import INVARIANTS
from kvsan.models_under_test.disagg import DisaggregatedPair, pair_arguments
from kvsan.models_under_test.disagg.mutants import MUTANTS

BY_ID = {invariant.id: invariant for invariant in INVARIANTS}
PREFILL = [Submit("r1", ((0, 6),)), Schedule("r1", 6), Launch("b1"), Retire("b1")]
SENT = [*PREFILL, Send("t1", "r1")]
R2 = Submit("r2", ((0, 7),), at="p1")
PULLING = [*SENT, R2, Receive("t1", "r2")]
LATE = [*SENT, Expire("t1"), R2, Receive("t1", "r2")]
REUSED = [Finish("r1"), Submit("r3", ((5, 14),)), Schedule("r3", 14), Launch("b3"), Retire("b3")]
P1_HAS_R1 = [Submit("r0", ((0, 2),), at="p1"), Schedule("r0", 2), Launch("b0", at="p1"), Retire("b0")]
ONE_PAGE = [Submit("r1", ((0, 2),)), Schedule("r1", 2), *PREFILL[2:]]
ONE_UNIT = [Submit("r1", ((0, 4),)), Schedule("r1", 4), *PREFILL[2:]]
NET = Advance("net")


class Case(NamedTuple):
    """A broken pair over pools of eight units of two tokens, and the operations in the last of which it violates."""

    invariant: str
    cause: str
    target: type[DisaggregatedPair]
    operations: list[Operation]
    options: dict[str, OptionValue] = {}


CASES = [
    Case("exchange_content", "not retired", MUTANTS["offers_the_scheduled"], [*PREFILL, Schedule("r1", 1), SENT[-1]]),
    Case("exchange_content", "other units", broken.OffersOtherUnits, SENT),
    Case("exchange_content", "other units", MUTANTS["table_of_the_moment"], [*SENT, Preempt("r1"), *PULLING[-2:]]),
    Case("exchange_content", "outside", broken.OffersUnitsOfNoPool, SENT),
    Case("exchange_content", "outside", broken.ServesUnitsOfNoPool, PULLING),
    Case("exchange_content", "too much", broken.PullsTooMuch, PULLING),
    Case("exchange_content", "outside", broken.TakesOneRankForTwo, [*PULLING, NET, NET], {"prefill_layout": "HND"}),
    Case("exchange_content", "refused", broken.ServesNobody, PULLING),
    Case("exchange_content", "ended", MUTANTS["serves_what_has_ended"], LATE),
    Case("exchange_content", "head", MUTANTS["replicas_dealt"], [*PULLING, NET, NET], {"prefill_tp": 4}),
    Case("exchange_content", "foreign", MUTANTS["source_taken_for_nhd"], [*PULLING, NET], {"prefill_layout": "HND"}),
    Case("exchange_content", "foreign", MUTANTS["interleave_forgotten"], [*PULLING, NET],
         {"prefill_interleave": 2, "prefill_dcp": 2}),
    Case("exchange_content", "foreign", MUTANTS["tp_forgotten"], [*PULLING, NET], {"prefill_tp": 2}),
    Case("exchange_content", "unwritten", MUTANTS["tp_forgotten"], [*ONE_PAGE, *PULLING[4:], NET],
         {"prefill_tp": 2, "prefill_layout": "HND"}),
    Case("exchange_content", "foreign", MUTANTS["freed_unread"], [*PULLING, *REUSED, NET]),
    Case("exchange_content", "unwritten", MUTANTS["page_times_dcp"], [*ONE_UNIT, *PULLING[4:], NET], {"prefill_dcp": 2}),
    Case("exchange_pins", "written", MUTANTS["abort_frees_the_received"], [*PULLING, Abort("r2")]),
    Case("exchange_pins", "read", MUTANTS["expires_while_read"], [*PULLING, Finish("r1"), Expire("t1")]),
    Case("exchange_pins", "read", broken.GivesBackAtTheClaim, [*SENT, Finish("r1"), *PULLING[-2:]]),
    Case("exchange_pins", "offered", MUTANTS["freed_unread"], [*SENT, Finish("r1")]),
    Case("exchange_pins", "kept", broken.NeverExpires, [*SENT, Expire("t1")]),
    Case("exchange_unlanded", "published", MUTANTS["published_before_landed"], PULLING),
    Case("exchange_unlanded", "published", MUTANTS["failed_pull_kept"], [*PULLING, Fail("t1"), Complete("t1")]),
    Case("exchange_unlanded", "shared", broken.PullsIntoWhatOthersHold, [*P1_HAS_R1, *PULLING]),
    Case("exchange_leaks", "offer", broken.RemembersReleased, [*PULLING, Complete("t1"), Release("t1")]),
    Case("exchange_leaks", "pull", MUTANTS["completion_lost"], [*PULLING, Abort("r2"), Complete("t1")]),
]  # fmt: skip


def session_of(case: Case, kind: type[DisaggregatedPair], alone: bool) -> PairSession:
    configuration = Configuration("disagg", 8, 2, options=tuple(sorted(case.options.items())))
    invariants = [BY_ID[case.invariant]] if alone else INVARIANTS
    return PairSession(kind(*pair_arguments(configuration)), invariants, {}, sweep_every=1)


def name(case: Case) -> str:
    return f"{case.invariant} {case.cause} {case.target.__name__}"


@pytest.mark.parametrize("case", CASES, ids=name)
def test_a_broken_pair_trips_the_invariant_in_its_last_operation(case: Case) -> None:
    session = session_of(case, case.target, alone=True)
    at_the_end = case.invariant == "exchange_leaks"
    for operation in case.operations[: len(case.operations) - (not at_the_end)]:
        assert session.step(operation)
    with pytest.raises(Violation) as caught:
        session.close() if at_the_end else session.step(case.operations[-1])
    assert caught.value.kind == (case.invariant, case.cause)


@pytest.mark.parametrize("case", CASES, ids=name)
def test_the_reference_pair_runs_the_same_trace_clean(case: Case) -> None:
    session = session_of(case, DisaggregatedPair, alone=False)
    for operation in case.operations:
        session.step(operation)
    session.close()


def test_every_invariant_of_an_exchange_has_a_case() -> None:
    assert {case.invariant for case in CASES} == {id for id in BY_ID if id.startswith("exchange_")}


def caught_in(kind: type[DisaggregatedPair]) -> Violation:
    case = next(case for case in CASES if case.target is kind)
    session = session_of(case, case.target, alone=True)
    for operation in case.operations[:-1]:
        session.step(operation)
    with pytest.raises(Violation) as caught:
        session.step(case.operations[-1])
    return caught.value


@pytest.mark.parametrize(
    ("kind", "pool"),
    [(MUTANTS["abort_frees_the_received"], "p1"), (broken.NeverExpires, "p0"), (broken.GivesBackAtTheClaim, "p0")],
)
def test_a_violation_says_in_which_pool_it_was_seen(kind: type[DisaggregatedPair], pool: str) -> None:
    assert caught_in(kind).lineage[0] == f"seen in pool {pool}"


def test_a_slot_is_named_with_its_pool() -> None:
    violation = caught_in(MUTANTS["source_taken_for_nhd"])
    assert re.search(r"from slot \d+ of p0, which holds", violation.message)
    assert re.match(r"slot \d+ of p0 was last written by operation 2", violation.lineage[-1])
