"""Transfers between tiers: how they begin, what may happen to them, and what comes of it."""

from __future__ import annotations

import pytest
from tiered import PROMPT, computed, filling, manager_of, offloaded, only_in, run, tiered

from kvsan.harness.operations import (
    Abort,
    Advance,
    Complete,
    Fail,
    Finish,
    Launch,
    Load,
    Offload,
    Preempt,
    ResetPrefixCache,
    Restart,
    Retire,
    Schedule,
    Spoil,
    Submit,
    Tear,
)
from kvsan.harness.session import Session
from kvsan.harness.verdict import UsageError


def loading(session: Session, *tiers: str) -> None:
    """A request waits for a load of three blocks from the last of the tiers."""
    run(session, only_in(*tiers))
    if tiers[-1] != "host":
        manager = manager_of(session)
        for entry in manager.tiers.entries("host"):
            manager.tiers.host.drop(entry.key)
    run(session, [Submit("r", PROMPT), Load("t", "r")])
    assert session.requests["r"].loading == (0, 6)


# -- the good way


@pytest.mark.parametrize("tiers", [("host",), ("host", "disk"), ("host", "remote")])
def test_what_went_down_comes_up_and_every_output_is_exact(tiers: tuple[str, ...]) -> None:
    session = tiered(numbers=True)
    loading(session, *tiers)
    run(session, [Complete("t"), Schedule("r", 1), Launch("b"), Retire("b")])
    assert session.counts[f"load from {tiers[-1]}"] == 1
    assert session.requests["r"].retired == 7
    oracle = session.executor.numbers
    assert oracle is not None
    assert oracle.outputs_compared > 0
    session.close()


def test_a_load_begins_behind_what_the_device_has_in_the_middle_of_a_chunk() -> None:
    session = tiered(num_units=12, chunk_blocks=3)
    run(session, [*computed("old"), *offloaded("old", "host"), Finish("old")])
    run(session, [Submit("filler", ((9, 20),)), Schedule("filler", 64), Finish("filler")])  # evicts all but one block
    run(session, [Submit("r", PROMPT), Load("t", "r")])
    assert session.requests["r"].loading == (2, 6)
    run(session, [Complete("t"), Schedule("r", 64), Launch("b"), Retire("b")])
    session.close()


def test_a_chunk_on_its_way_down_is_not_offered() -> None:
    session = tiered()
    run(session, [*computed("old"), Offload("down", "old"), Finish("old"), *filling()])
    run(session, [Submit("r", PROMPT), Load("t", "r")])
    assert session.counts["load refused"] == 1
    session.close()


def test_the_streams_decide_when_bytes_move() -> None:
    session = tiered()
    run(session, [*computed("old"), Offload("down", "old")])
    transfer = session.transfers["down"]
    assert transfer.left == 3
    assert session.step(Advance("offload"))
    assert transfer.left == 2
    assert not session.step(Advance("disk"))
    assert not session.step(Advance("no such stream"))


def test_blocks_that_go_down_stay_until_the_end_is_told() -> None:
    session = tiered()
    run(session, [*computed("old"), Offload("down", "old"), Finish("old")])
    units = session.transfers["down"].held
    run(session, [Advance("offload")] * 3)
    assert [session.books.holders[unit] for unit in units] == [1, 1, 1]
    assert session.step(Complete("down"))
    assert [session.books.holders[unit] for unit in units] == [0, 0, 0]
    assert session.counts["late completion"] == 1


def test_transfers_may_end_in_any_order() -> None:
    session = tiered()
    run(session, [*computed("a"), *computed("b", ((1, 5),)), Offload("first", "a"), Offload("second", "b")])
    assert run(session, [Complete("second"), Complete("first")]) == [True, True]
    assert session.counts["reordered completion"] == 1
    assert session.counts["two transfers in flight"] == 1
    session.close()


# -- what goes wrong


@pytest.mark.parametrize("fault", [Fail("t"), Tear("t")])
@pytest.mark.parametrize("tiers", [("host",), ("host", "disk")])
def test_a_load_that_fails_is_computed_instead(fault: Fail | Tear, tiers: tuple[str, ...]) -> None:
    session = tiered(numbers=True)
    loading(session, *tiers)
    assert run(session, [Advance(tiers[-1]), fault, Complete("t")])[1:] == [True, True]
    assert session.counts["recompute after a failed load"] == 1
    assert session.requests["r"].scheduled == 0
    run(session, [Schedule("r", 64), Launch("b"), Retire("b")])
    assert session.requests["r"].retired == 7
    session.close()


def test_a_failed_load_keeps_what_the_device_had() -> None:
    session = tiered(chunk_blocks=3)
    run(session, [*computed("old"), *offloaded("old", "host"), Finish("old")])
    run(session, [Submit("filler", ((9, 20),)), Schedule("filler", 64), Finish("filler")])
    run(session, [Submit("r", PROMPT), Load("t", "r"), Fail("t"), Complete("t")])
    assert (session.requests["r"].scheduled, len(session.requests["r"].tables[0])) == (2, 1)


def test_an_offload_that_fails_is_not_in_the_tier() -> None:
    session = tiered()
    run(session, [*computed("old"), Offload("down", "old"), Advance("offload"), Fail("down"), Complete("down")])
    assert manager_of(session).tiers.entries("host") == ()
    assert session.counts["transfer failed"] == 1
    session.close()


def test_half_a_file_is_refused_and_gone() -> None:
    session = tiered()
    run(session, [*computed("old"), *offloaded("old", "host"), Offload("down", "old", "disk"), Tear("down")])
    run(session, [Complete("down")])
    assert manager_of(session).tiers.entries("disk") == ()
    assert list(manager_of(session).stores()["disk"].keys()) == []
    session.close()


@pytest.mark.parametrize("how", ["flip", "truncate"])
@pytest.mark.parametrize("tier", ["disk", "remote"])
def test_damaged_bytes_are_refused_and_recomputed(tier: str, how: str) -> None:
    session = tiered(numbers=True)
    loading(session, "host", tier)
    run(session, [Spoil(tier, 1, how), Complete("t")])  # type: ignore[arg-type]
    assert session.counts["transfer refused"] == 1
    run(session, [Schedule("r", 64), Launch("b"), Retire("b")])
    session.close()


def test_a_restart_tears_what_is_being_stored() -> None:
    session = tiered()
    run(session, [*computed("old"), *offloaded("old", "host"), Offload("down", "old", "disk"), Restart("disk")])
    assert session.transfers["down"].failure == "torn"
    assert session.counts["restart while storing"] == 1
    run(session, [Complete("down")])
    session.close()


def test_a_remote_that_restarts_has_lost_all_and_loads_are_computed_instead() -> None:
    session = tiered()
    loading(session, "host", "remote")
    run(session, [Restart("remote"), Complete("t")])
    assert session.counts["transfer refused"] == 1
    session.close()


def test_a_fault_has_nothing_to_break_when_all_has_moved() -> None:
    session = tiered()
    run(session, [*computed("old"), Offload("down", "old"), *[Advance("offload")] * 3])
    assert run(session, [Fail("down"), Tear("down"), Complete("down")]) == [False, False, True]
    assert len(manager_of(session).tiers.entries("host")) == 3


# -- requests that leave, and notices that come late or twice


@pytest.mark.parametrize("leave", [Abort("r"), Preempt("r")])
@pytest.mark.parametrize("fault", [None, Fail("t")])
def test_a_request_that_leaves_while_it_loads_keeps_its_blocks_from_others_until_the_end(
    leave: Abort | Preempt, fault: Fail | None
) -> None:
    session = tiered()
    loading(session, "host")
    written = session.transfers["t"].written
    assert session.step(leave)
    assert [session.books.holders[unit] for unit in written] == [1, 1, 1]
    run(session, [fault] if fault else [])
    assert session.step(Complete("t"))
    assert [session.books.holders[unit] for unit in written] == [0, 0, 0]
    assert session.counts["completion after the end"] == 1
    session.close()


def test_a_preempted_request_may_load_again_while_the_first_load_is_in_flight() -> None:
    session = tiered()
    loading(session, "host")
    assert run(session, [Preempt("r"), Load("again", "r"), Complete("again")]) == [True, True, True]
    assert session.requests["r"].retired == 6
    assert session.step(Complete("t"))
    assert session.requests["r"].retired == 6
    session.close()


def test_a_notice_that_comes_again_changes_nothing() -> None:
    session = tiered()
    run(session, [*computed("old"), Offload("down", "old"), Complete("down")])
    before = list(manager_of(session).pool.references)
    assert session.step(Complete("down"))
    assert session.counts["completion told twice"] == 1
    assert list(manager_of(session).pool.references) == before
    session.close()


def test_a_notice_of_what_never_was_is_skipped() -> None:
    assert not tiered().step(Complete("never"))


def test_a_reset_waits_for_transfers_and_empties_the_tiers() -> None:
    session = tiered()
    run(session, [*only_in("host", "disk"), *computed("other", ((3, 5),)), Offload("down", "other")])
    assert session.step(ResetPrefixCache())
    assert len(manager_of(session).tiers.entries("disk")) == 3  # refused: something was in flight
    run(session, [Complete("down"), ResetPrefixCache()])
    assert [manager_of(session).tiers.entries(tier) for tier in ("host", "disk", "remote")] == [(), (), ()]
    session.close()


def test_the_end_of_a_session_completes_what_is_in_flight() -> None:
    session = tiered()
    run(session, [*computed("old"), Offload("down", "old")])
    session.close()
    assert not session.transfers


# -- skipped, or refused


def test_transfers_need_tiers() -> None:
    session = tiered(host_units=0, stores="")
    run(session, computed("old"))
    assert run(session, [Offload("t", "old"), Load("t", "old"), Spoil("disk", 0), Restart("disk")]) == [False] * 4


def test_what_cannot_be_is_skipped() -> None:
    session = tiered()
    run(session, computed("old"))
    assert not session.step(Offload("t", "nobody"))
    assert not session.step(Offload("t", "old", "tape"))
    assert not session.step(Load("t", "old"))  # it has begun
    assert not session.step(Spoil("disk", 0))  # nothing is stored
    assert not session.step(Restart("host"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "fifo"}, "option policy: 'fifo'; expected one of lru, arc"),
        ({"chunk_blocks": 9}, "option chunk_blocks: 9 blocks; expected 1 to 8"),
        ({"stores": "disk,tape"}, "option stores: 'tape'; expected some of disk, remote"),
        ({"store_chunks": 0}, "option store_chunks: 0; expected at least 1"),
        ({"remote_loses": -1}, "option remote_loses: -1; expected at least 0"),
        ({"host_units": -1}, "option host_units: -1; expected at least 0"),
        ({"host_units": 0, "stores": "", "policy": "fifo"}, "option policy: 'fifo'; expected one of lru, arc"),
        ({"host_units": 0, "stores": "", "chunk_blocks": 0}, "option chunk_blocks: 0; expected at least 1"),
        ({"host_units": 0, "stores": "disk"}, "option stores: disk without host units; expected host_units=N as well"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tiered(**options)  # type: ignore[arg-type]
