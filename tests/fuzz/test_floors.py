"""A search is held to what its target can do, and to nothing else."""

from __future__ import annotations

from dataclasses import replace

from kvsan.fuzz.floors import impossible_events, steered_events
from kvsan.harness.configuration import Configuration
from kvsan.harness.operations import TRANSFERS, Abort, Operation, Schedule
from kvsan.harness.target import PrefixIndex, RequestState, SessionState
from kvsan.models_under_test.paged import PagedManager, make_target

TIERS = {"host_units": 8, "stores": "disk,remote"}
TRAITS = replace(make_target(Configuration(options=tuple(TIERS.items()))).traits, graph_rows=8)


def one_step_at_a_time(request: RequestState | None, _: SessionState, operation: Operation) -> bool:
    return not (isinstance(operation, Abort) and request is not None and request.in_flight)


def no_connector(_: RequestState | None, __: SessionState, operation: Operation) -> bool:
    return not (isinstance(operation, Schedule) and operation.external)


def one_block_less(index: PrefixIndex, tokens: int) -> int:
    return (tokens - 1) // index.block_size * index.block_size - index.block_size


def test_nothing_is_impossible_for_the_reference() -> None:
    assert impossible_events(TRAITS) == frozenset()


def test_what_the_contract_never_allows_is_not_demanded() -> None:
    assert impossible_events(replace(TRAITS, allows=one_step_at_a_time)) == {"abort in flight"}
    assert impossible_events(replace(TRAITS, allows=no_connector)) == {"external load", "Landed"}


def test_hits_are_demanded_as_far_as_they_are_promised() -> None:
    assert impossible_events(replace(TRAITS, promised_hit=one_block_less)) == {"full hit"}
    assert impossible_events(replace(TRAITS, promised_hit=None)) == {"full hit", "partial hit", "eviction"}


def test_transfers_are_demanded_where_there_are_tiers() -> None:
    without = impossible_events(PagedManager(8, 4).traits)
    assert {kind.__name__ for kind in TRANSFERS} <= without
    assert "load from host" in without
    host_alone = impossible_events(make_target(Configuration(options=(("host_units", 8),))).traits)
    assert {"Spoil", "Restart", "offload to disk", "load from remote", "transfer refused"} <= host_alone
    assert not {"Offload", "Load", "load from host", "transfer failed"} & host_alone


def test_what_known_findings_steer_away_from_is_not_demanded() -> None:
    assert steered_events(frozenset({"drafts", "salts"})) == {"rejected draft"}


def test_replays_are_demanded_where_there_is_a_runner() -> None:
    assert {"Capture", "Replay", "padded replay", "replay after preemption"} <= impossible_events(
        PagedManager(8, 4).traits
    )
    one_row = impossible_events(replace(TRAITS, graph_rows=1, max_in_flight=1))
    assert {"padded replay", "two replays in flight"} <= one_row
    assert "Replay" not in one_row
