"""Searches over a pair: what they exercise, that they repeat, and what is demanded of whom."""

from __future__ import annotations

from kvsan.fuzz.floors import impossible_in
from kvsan.fuzz.known import KnownFindings
from kvsan.fuzz.profiles import DISAGG
from kvsan.fuzz.replay import open_session
from kvsan.fuzz.search import Reporter, Search, SearchSettings, SearchSummary
from kvsan.harness.configuration import Configuration, OptionValue
from kvsan.harness.pair_session import PairSession
from kvsan.harness.session import Session
from kvsan.models_under_test.disagg import make_target
from kvsan.models_under_test.paged import make_target as make_manager


def searched(steps: int, numbers: float, seed: int) -> SearchSummary:
    settings = SearchSettings(Configuration("disagg"), DISAGG, seed=seed, steps=steps, numbers=numbers)
    return Search(make_target, settings, KnownFindings(), Reporter()).run()  # type: ignore[arg-type]


def test_the_reference_pair_is_clean_and_everything_is_tried() -> None:
    summary = searched(25_000, 0.0, seed=2)
    assert summary.findings == []
    assert summary.too_little == []


def test_with_numbers_every_output_of_both_pools_is_compared() -> None:
    summary = searched(3_000, 1.0, seed=3)
    assert summary.findings == []
    assert summary.outputs_compared > 10_000
    assert summary.counts["pull between layouts"] > 0


def test_a_search_repeats() -> None:
    first, second = searched(2_000, 0.0, seed=4), searched(2_000, 0.0, seed=4)
    assert (first.counts, first.steps, first.skipped) == (second.counts, second.steps, second.skipped)


def opened(**options: OptionValue) -> Session | PairSession:
    configuration = Configuration("disagg", 8, 2, options=tuple(options.items()))
    return open_session(make_target, configuration, numbers=False)  # type: ignore[arg-type]


def test_a_pull_between_layouts_is_demanded_of_pairs_that_have_two() -> None:
    assert impossible_in(opened()) - impossible_in(opened(prefill_tp=2)) == {"pull between layouts"}


def test_an_exchange_is_demanded_of_pairs_alone() -> None:
    pair = opened(prefill_tp=2)
    alone = open_session(make_manager, Configuration("paged", 8, 2), numbers=False)
    wanted = {"Send", "Receive", "Release", "Expire", "pull", "expired", "launches in both pools"}
    assert not wanted & impossible_in(pair)
    assert wanted <= impossible_in(alone)
    assert {"Complete", "transfer torn", "completion told twice", "abort while loading"} <= impossible_in(alone)
    assert not set(DISAGG.floors) & impossible_in(pair)
