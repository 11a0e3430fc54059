"""Streams run in order, events order streams, and two accesses that nothing orders are found whichever comes first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Literal

import pytest

from kvsan.fuzz.generate import Generator, draw_features
from kvsan.fuzz.profiles import DEFAULT
from kvsan.fuzz.replay import open_session
from kvsan.harness.configuration import Configuration
from kvsan.harness.device import COMPUTE, COPY, Device, LaunchWork
from kvsan.harness.expectation import Expected, Life
from kvsan.harness.operations import Abort, Advance, Landed, Launch, Operation, Retire, Schedule, Submit
from kvsan.harness.session import Session
from kvsan.harness.target import Copy, Zero
from kvsan.harness.transfer import Transfer
from kvsan.harness.verdict import Violation
from kvsan.invariants import INVARIANTS
from kvsan.models_under_test.paged import PagedManager, make_target

ZERO = Zero(1, 0, 4)
READS_UNIT_1 = Copy(1, 2, 0, 4)
ELSEWHERE = Copy(3, 4, 0, 4)


@pytest.fixture
def device() -> Device:
    """Device of a session in which nothing has happened."""
    return Session(PagedManager(8, 4), ()).device


# -- order


def test_a_stream_executes_in_the_order_in_which_it_was_given_work() -> None:
    session = Session(PagedManager(8, 4), ())
    for step, unit in enumerate((1, 2, 1)):
        session.device.enqueue(COMPUTE, Zero(unit, 0, 4), step)
    writers = []
    while session.device.advance(COMPUTE):
        writers.append(session.shadow.writers[1:3, 0].tolist())
    assert writers == [[0, 0], [0, 1], [2, 1]]


def test_an_idle_stream_does_not_advance(device: Device) -> None:
    device.enqueue(COMPUTE, ZERO, 0)
    assert not device.advance(COPY)


def test_work_waits_for_its_event(device: Device) -> None:
    device.enqueue(COMPUTE, ZERO, 0)
    device.enqueue(COPY, READS_UNIT_1, 1, (device.event(COMPUTE),))
    assert not device.advance(COPY)
    assert device.advance(COMPUTE)
    assert device.advance(COPY)


def test_work_behind_a_head_that_waits_waits_too(device: Device) -> None:
    device.enqueue(COMPUTE, ZERO, 0)
    device.enqueue(COPY, READS_UNIT_1, 1, (device.event(COMPUTE),))
    device.enqueue(COPY, ELSEWHERE, 2)
    assert not device.advance(COPY)


def test_complete_executes_what_the_work_needs_and_no_more(device: Device) -> None:
    device.enqueue(COMPUTE, ZERO, 0)
    needed = device.enqueue(COPY, READS_UNIT_1, 1, (device.event(COMPUTE),))
    device.enqueue(COPY, ELSEWHERE, 2)
    assert device.complete(needed)
    assert not device.advance(COMPUTE)
    assert device.advance(COPY)


def test_complete_is_false_while_the_host_owes_an_outcome() -> None:
    session = Session(PagedManager(8, 4), ())
    two_in_flight = [Schedule("r1", 2), Launch("b1"), Schedule("r1", 1), Launch("b2")]
    for operation in (Submit("r1", ((0, 2),)), *two_in_flight):
        assert session.step(operation)
    assert not session.device.complete(session.in_flight["b2"])
    session.step(Retire("b1"))
    assert session.device.complete(session.in_flight["b2"])


def test_drain_stops_at_work_that_cannot_execute() -> None:
    session = Session(PagedManager(8, 4), ())
    for operation in (Submit("r1", ((0, 2),)), Schedule("r1", 2), Launch("b1"), Schedule("r1", 1), Launch("b2")):
        session.step(operation)
    session.device.drain()
    executed = [row.executed for work in session.in_flight.values() for row in _rows(work.payload)]
    assert executed == [True, False]


def _rows(payload: object) -> list:  # type: ignore[type-arg]
    assert isinstance(payload, LaunchWork)
    return payload.rows


# -- accesses


@pytest.mark.parametrize("first", [COMPUTE, COPY])
@pytest.mark.parametrize(
    ("compute", "copy", "causes"),
    [
        (ZERO, Zero(1, 3, 4), {"write-write"}),
        (ZERO, READS_UNIT_1, {"write-read", "read-write"}),
        (Copy(2, 3, 0, 4), READS_UNIT_1, {"write-read", "read-write"}),
    ],
    ids=["both write", "compute writes", "compute reads"],
)
def test_an_unordered_conflict_is_found_in_both_orders(
    device: Device, first: int, compute: Copy | Zero, copy: Copy | Zero, causes: set[str]
) -> None:
    device.enqueue(COMPUTE, compute, 7)
    device.enqueue(COPY, copy, 8)
    assert device.advance(first)
    with pytest.raises(Violation, match=r"operation [78]\) are not ordered by any event") as caught:
        device.advance(1 - first)
    assert caught.value.invariant == "order"
    assert caught.value.cause in causes


@pytest.mark.parametrize("first", [COMPUTE, COPY])
@pytest.mark.parametrize("copy", [ELSEWHERE, Zero(2, 0, 2)], ids=["other units", "other slots"])
def test_accesses_that_share_no_slot_need_no_order(device: Device, first: int, copy: Copy | Zero) -> None:
    device.enqueue(COMPUTE, Copy(1, 2, 2, 4), 0)
    device.enqueue(COPY, copy, 1)
    assert device.advance(first)
    assert device.advance(1 - first)


def test_two_reads_need_no_order(device: Device) -> None:
    device.enqueue(COMPUTE, Copy(1, 2, 0, 4), 0)
    device.enqueue(COPY, Copy(1, 3, 0, 4), 1)
    assert device.advance(COPY)
    assert device.advance(COMPUTE)


def test_an_event_orders_a_conflict(device: Device) -> None:
    device.enqueue(COMPUTE, ZERO, 0)
    device.enqueue(COPY, READS_UNIT_1, 1, (device.event(COMPUTE),))
    device.drain()
    assert not device.advance(COPY)


def test_what_the_host_has_seen_complete_orders_a_conflict(device: Device) -> None:
    device.complete(device.enqueue(COMPUTE, ZERO, 0))
    device.enqueue(COPY, READS_UNIT_1, 1)
    assert device.advance(COPY)


def test_what_has_only_executed_orders_nothing(device: Device) -> None:
    device.enqueue(COMPUTE, ZERO, 0)
    device.advance(COMPUTE)
    device.enqueue(COPY, READS_UNIT_1, 1)
    with pytest.raises(Violation, match="order"):
        device.advance(COPY)


def test_order_is_passed_on_through_a_third_piece_of_work(device: Device) -> None:
    device.enqueue(COMPUTE, ZERO, 0)
    device.enqueue(COPY, ELSEWHERE, 1, (device.event(COMPUTE),))
    device.enqueue(COPY, READS_UNIT_1, 2)
    device.drain()
    assert not device.advance(COPY)


def test_an_access_is_remembered_as_long_as_unordered_work_may_come(device: Device) -> None:
    device.enqueue(COPY, READS_UNIT_1, 0)
    device.advance(COPY)
    for step in range(1, 20):
        device.complete(device.enqueue(COMPUTE, Zero(5, 0, 4), step))
    device.enqueue(COMPUTE, ZERO, 20)
    with pytest.raises(Violation, match="order"):
        device.advance(COMPUTE)


class FreesLoadingBlocks(PagedManager):
    """Takes the blocks of an aborted request for free although an external load still writes them."""

    def abort(self, name: str) -> None:
        self.requests[name].loading = False
        super().abort(name)

    def landed(self, name: str) -> None:
        if name in self.requests:
            super().landed(name)


RACE: tuple[Operation, ...] = (
    Submit("r1", ((0, 5),)),
    Schedule("r1", 1, 0, 4, True),
    Abort("r1"),
    Submit("r2", ((1, 28),)),
    Schedule("r2", 28),
    Launch("b1"),
)


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [("copy", "compute", ("order", "write-write")), ("compute", "copy", ("foreign_write", "shared"))],
)
def test_a_load_that_races_with_a_launch_is_found_in_both_orders(
    first: Literal["compute", "copy"], second: Literal["compute", "copy"], kind: tuple[str, str]
) -> None:
    session = Session(FreesLoadingBlocks(8, 4), ())
    for operation in (*RACE, Advance(first)):
        assert session.step(operation)
    with pytest.raises(Violation) as caught:
        session.step(Advance(second))
    assert caught.value.kind == kind


def test_the_same_load_is_no_race_when_it_has_landed_before_the_launch() -> None:
    session = Session(FreesLoadingBlocks(8, 4), ())
    for operation in (*RACE[:3], Landed("r1"), *RACE[3:], Retire("b1")):
        assert session.step(operation)


@pytest.mark.parametrize("seed", range(4))
def test_a_manager_that_relies_on_stream_order_is_clean(seed: int) -> None:
    random = Random(seed)
    session = Session(PagedManager(17, 4, deferred_free=False), INVARIANTS)
    generator = Generator(session, DEFAULT, random, draw_features(random, DEFAULT) | {"external", "delayed"})
    while session.steps < 1000:
        session.step(generator.next())
    session.close()
    assert session.counts["external load"] > 0


# -- more streams, and transfers that fail


FIVE = ("compute", "copy", "offload", "load", "disk")


def tiered_device() -> tuple[Session, Device]:
    tiers = (("host_units", 4), ("stores", "disk"))
    session = open_session(
        make_target, Configuration(num_units=8, block_size=4, options=tiers), numbers=False, invariants=()
    )
    return session, session.device


def piece_of(session: Session, *stops: int) -> Transfer:
    """Transfer that copies the first slots of units 1, 2, ... into host units, on the offload stream."""
    life = Life("r", None, ())
    transfer = Transfer("t", "offload", "host", Expected("r", "r", life, "", None), ())
    transfer.left = len(stops)
    for number, stop in enumerate(stops):
        effect = Copy(1 + number, 8 + number, 0, stop, "offload")
        transfer.works.append(session.device.enqueue(2, effect, 1, (), transfer))
    return transfer


def test_there_are_as_many_streams_as_the_traits_name() -> None:
    _, device = tiered_device()
    assert device.streams == FIVE


def test_any_two_streams_race_unless_an_event_orders_them() -> None:
    _, device = tiered_device()
    device.enqueue(2, Copy(1, 8, 0, 4, "offload"), 0)
    device.enqueue(3, Copy(8, 2, 0, 4, "load"), 1)
    assert device.advance(3)
    with pytest.raises(Violation, match=r"order \[read-write\].*unit 8 to unit 2 \(load stream.*are not ordered"):
        device.advance(2)


def test_an_event_orders_a_chain_over_three_streams() -> None:
    _, device = tiered_device()
    first = device.enqueue(2, Copy(1, 8, 0, 4, "offload"), 0)
    second = device.enqueue(4, Copy(8, 9, 0, 4, "disk"), 1, (first.clock,))
    device.enqueue(3, Copy(9, 2, 0, 4, "load"), 2, (second.clock,))
    assert not device.advance(3)
    assert [device.advance(stream) for stream in (2, 4, 3)] == [True, True, True]


def test_a_failed_transfer_moves_nothing_more() -> None:
    session, device = tiered_device()
    session.shadow.blocks[1:3] = 77
    transfer = piece_of(session, 4, 4)
    device.advance(2)
    transfer.failure = "failed"
    device.advance(2)
    assert session.shadow.blocks[8:10, 0].tolist() == [77, 0]
    assert transfer.left == 0


def test_a_torn_piece_moves_half() -> None:
    session, device = tiered_device()
    session.shadow.blocks[1:3] = 77
    transfer = piece_of(session, 4, 4)
    assert device.tear(transfer)
    assert session.shadow.blocks[8].tolist() == [77, 77, 0, 0]


def test_a_piece_that_waits_cannot_be_torn() -> None:
    session, device = tiered_device()
    device.enqueue(2, ZERO, 0)
    assert not device.tear(piece_of(session, 4))


def test_what_a_dropped_piece_would_have_touched_races_with_nothing() -> None:
    session, device = tiered_device()
    transfer = piece_of(session, 4)
    transfer.failure = "failed"
    device.advance(2)
    device.enqueue(COMPUTE, ZERO, 2)
    assert device.advance(COMPUTE)


# -- the same work on real streams


class Listed:
    """Real streams that only write down what they are asked for."""

    def __init__(self) -> None:
        self.log: list[tuple[str, tuple[int, ...]]] = []

    @contextmanager
    def work(self, stream: int, clock: tuple[int, ...]) -> Iterator[None]:
        self.log.append((FIVE[stream], clock))
        yield

    def synchronize(self, clock: tuple[int, ...]) -> None:
        self.log.append(("host", clock))


def test_work_is_issued_to_real_streams_with_its_clock_and_the_host_waits_where_it_looks() -> None:
    _, device = tiered_device()
    real = Listed()
    device.issue_to(real)
    device.enqueue(COMPUTE, ZERO, 0)
    last = device.enqueue(2, Copy(1, 8, 0, 4, "offload"), 1, (device.event(COMPUTE),))
    assert device.complete(last)
    assert real.log == [("compute", (1, 0, 0, 0, 0)), ("offload", (1, 0, 1, 0, 0)), ("host", (1, 0, 1, 0, 0))]


def test_what_is_dropped_is_not_issued() -> None:
    session, device = tiered_device()
    real = Listed()
    device.issue_to(real)
    piece_of(session, 4).failure = "failed"
    assert device.advance(2)
    assert real.log == []
