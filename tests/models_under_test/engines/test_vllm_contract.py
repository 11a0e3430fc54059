"""The calls that vLLM's scheduler makes, as its contract states them."""

from __future__ import annotations

import pytest

from kvsan.harness.operations import (
    Abort,
    Advance,
    Finish,
    Landed,
    Launch,
    Lookup,
    Operation,
    Preempt,
    ResetPrefixCache,
    Retire,
    Schedule,
    Submit,
)
from kvsan.harness.target import RequestState, SessionState
from kvsan.models_under_test.engines.vllm.contract import Contract

SYNCHRONOUS = Contract(max_in_flight=1, external=True, delayed=True, preempts_in_flight=False)
ASYNCHRONOUS = Contract(max_in_flight=2, external=True, delayed=True, preempts_in_flight=True)

NEW = RequestState(scheduled=0, retired=0, in_flight=0, in_batch=False, loading=False, looked_up=False)
RUNNING = NEW._replace(scheduled=9, retired=9)
IDLE = SessionState(batch_size=0, launches_in_flight=0, lookup_pending=None)
PENDING = IDLE._replace(lookup_pending="r1")


@pytest.mark.parametrize("operation", [Schedule("r2", 4), Lookup("r2"), Preempt("r2"), ResetPrefixCache()])
def test_nothing_takes_blocks_between_a_lookup_and_its_allocation(operation: Operation) -> None:
    assert ASYNCHRONOUS(RUNNING._replace(scheduled=0) if isinstance(operation, Lookup) else RUNNING, IDLE, operation)
    assert not ASYNCHRONOUS(RUNNING, PENDING, operation)


@pytest.mark.parametrize("operation", [Schedule("r1", 4), Lookup("r1"), Abort("r1"), Advance("compute")])
def test_a_pending_lookup_is_used_repeated_or_dropped(operation: Operation) -> None:
    assert ASYNCHRONOUS(NEW._replace(looked_up=True), PENDING, operation)


@pytest.mark.parametrize("operation", [Submit("r2", ((0, 4),)), Launch("b1"), Retire("b1"), Finish("r2")])
def test_a_session_can_end_with_a_pending_lookup(operation: Operation) -> None:
    assert ASYNCHRONOUS(RUNNING, PENDING, operation)


def test_a_lookup_is_for_a_request_without_computed_tokens() -> None:
    assert SYNCHRONOUS(NEW, IDLE, Lookup("r1"))
    assert not SYNCHRONOUS(RUNNING, IDLE, Lookup("r1"))


@pytest.mark.parametrize("operation", [Preempt("r1"), Finish("r1"), Abort("r1"), Schedule("r1", 1)])
def test_a_request_in_the_batch_is_left_alone(operation: Operation) -> None:
    assert not ASYNCHRONOUS(RUNNING._replace(in_batch=True), IDLE._replace(batch_size=1), operation)


@pytest.mark.parametrize("operation", [Preempt("r1"), Finish("r1"), Abort("r1"), Schedule("r1", 1)])
def test_a_loading_request_is_left_alone(operation: Operation) -> None:
    assert not ASYNCHRONOUS(RUNNING._replace(loading=True), IDLE, operation)
    assert ASYNCHRONOUS(RUNNING._replace(loading=True), IDLE, Landed("r1"))


def test_external_tokens_come_with_the_first_allocation_only() -> None:
    assert SYNCHRONOUS(NEW, IDLE, Schedule("r1", 4, external=8))
    assert not SYNCHRONOUS(RUNNING, IDLE, Schedule("r1", 4, external=8))
    no_connector = Contract(max_in_flight=1, external=False, delayed=False, preempts_in_flight=False)
    assert not no_connector(NEW, IDLE, Schedule("r1", 4, external=8))


def test_a_delayed_load_asks_for_no_lookahead() -> None:
    assert SYNCHRONOUS(NEW, IDLE, Schedule("r1", 1, external=8, delayed=True))
    assert not SYNCHRONOUS(NEW, IDLE, Schedule("r1", 1, lookahead=2, external=8, delayed=True))


@pytest.mark.parametrize(
    "operation", [Schedule("r1", 1), Preempt("r1"), Finish("r1"), Abort("r1"), ResetPrefixCache(), Launch("b2")]
)
def test_one_step_at_a_time_without_asynchronous_scheduling(operation: Operation) -> None:
    in_flight = IDLE._replace(launches_in_flight=1)
    assert not SYNCHRONOUS(RUNNING, in_flight, operation)
    assert SYNCHRONOUS(RUNNING, in_flight, Retire("b1"))
    assert ASYNCHRONOUS(RUNNING, in_flight, operation)


def test_a_full_batch_queue_must_drain_first() -> None:
    full = IDLE._replace(launches_in_flight=2)
    assert not ASYNCHRONOUS(RUNNING, full, Schedule("r1", 1))
    assert ASYNCHRONOUS(RUNNING, full, Retire("b1"))


def test_a_request_in_flight_is_preempted_where_the_release_does_that() -> None:
    in_flight = RUNNING._replace(in_flight=1)
    spared = Contract(max_in_flight=2, external=True, delayed=True, preempts_in_flight=False)
    assert ASYNCHRONOUS(in_flight, IDLE, Preempt("r1"))
    assert not spared(in_flight, IDLE, Preempt("r1"))
