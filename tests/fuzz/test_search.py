"""The search loop: the same seed is the same search, budgets hold, and what was found or is known is passed over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvsan.fuzz.floors import impossible_events
from kvsan.fuzz.known import Known, KnownFindings, shape
from kvsan.fuzz.profiles import ASYNC, DEFAULT, DISAGG, GRAPHS, Profile
from kvsan.fuzz.search import (
    Reporter,
    Search,
    SearchSettings,
    SearchSummary,
    fitted,
    floors_missed,
)
from kvsan.harness import registry
from kvsan.harness.configuration import Configuration, OptionValue
from kvsan.harness.operations import OPERATIONS, Abort, Cancel, Fork, Landed
from kvsan.harness.trace import Trace, TraceFile
from kvsan.harness.verdict import Finding, UsageError, Violation
from kvsan.models_under_test.paged import PagedManager


def settings(target: str = "paged", **changed: Any) -> SearchSettings:
    return replace(SearchSettings(Configuration(target), DEFAULT, steps=3000, numbers=0.0), **changed)


def search(target: str = "paged", known: KnownFindings | None = None, **changed: Any) -> SearchSummary:
    wanted = settings(target, **changed)
    return Search(registry.resolve(target), wanted, known or KnownFindings(), Reporter()).run()


# -- determinism and budgets


@pytest.mark.parametrize("target", ["paged", "mutant:hash_kept_on_reuse"])
def test_a_seed_is_a_search(target: str) -> None:
    first, second = (search(target, seed=7) for _ in range(2))
    assert first.counts == second.counts
    assert (first.steps, first.runs, first.skipped) == (second.steps, second.runs, second.skipped)
    assert first.findings == second.findings


def test_another_seed_is_another_search() -> None:
    assert search(seed=1).counts != search(seed=2).counts


@pytest.mark.parametrize("steps", [1, 100, 3000])
def test_steps_are_the_budget_and_only_closing_the_last_run_goes_beyond_it(steps: int) -> None:
    done = search(steps=steps)
    assert steps <= done.steps <= steps + 60


def test_runs_are_a_budget_too() -> None:
    assert search(steps=None, runs=3).runs == 3


def test_a_budget_in_seconds_ends_a_search() -> None:
    assert search(steps=None, budget_s=0.0).runs == 0


class Runs(Reporter):
    """Counts operations run by run."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def run_done(self, summary: SearchSummary) -> None:
        self.counts.append(summary.steps + summary.skipped)


def run_lengths(**changed: Any) -> list[int]:
    reporter = Runs()
    Search(registry.resolve("paged"), settings(steps=None, **changed), KnownFindings(), reporter).run()
    return [now - before for before, now in zip([0, *reporter.counts], reporter.counts, strict=False)]


def test_shards_run_the_runs_of_the_whole_search() -> None:
    whole = run_lengths(runs=6)
    even, odd = (run_lengths(runs=3, first_run=first, run_stride=2) for first in (0, 1))
    assert [even[0], odd[0], even[1], odd[1], even[2], odd[2]] == whole


def test_a_size_that_is_given_is_not_drawn() -> None:
    sizes = set()

    def factory(configuration: Configuration) -> PagedManager:
        sizes.add((configuration.num_units, configuration.block_size))
        return PagedManager(configuration.num_units, configuration.block_size)

    wanted = settings(drawn=frozenset({"num_units"}), steps=1000)
    Search(factory, wanted, KnownFindings(), Reporter()).run()
    assert {block_size for _, block_size in sizes} == {4}
    assert len(sizes) > 1


def test_a_size_that_a_target_does_not_take_is_bad_input_and_says_that_it_was_drawn() -> None:
    def factory(_configuration: Configuration) -> PagedManager:
        raise ValueError("no such pool")

    with pytest.raises(UsageError, match=r"no such pool .*this run drew .*num_units=\d+"):
        Search(factory, settings(), KnownFindings(), Reporter()).run()


# -- findings


def test_a_seeded_bug_is_found_shrunk_and_told() -> None:
    (finding,) = search("mutant:hash_kept_on_reuse").findings
    assert finding.invariant == "hash_map"
    assert len(finding.trace.operations) <= 12
    assert finding.replays == (3, 3)


class Kinds(Reporter):
    """Notes which kinds of violation were shrunk, and which findings were told."""

    def __init__(self) -> None:
        self.shrunk: list[tuple[str, str]] = []
        self.told: list[tuple[str, str]] = []

    def violated(self, violation: Violation, trace: Trace) -> None:
        self.shrunk.append(violation.kind)

    def found(self, finding: Finding) -> None:
        self.told.append(finding.kind)


def test_no_kind_is_shrunk_or_told_twice() -> None:
    """A read of another's token is told as one of an unwritten slot; it was once shrunk each time it was met."""
    reporter = Kinds()
    wanted = settings("mutant:published_then_cancelled", max_findings=9, steps=6000)
    Search(registry.resolve("mutant"), wanted, KnownFindings(), reporter).run()
    assert len(reporter.shrunk) == len(set(reporter.shrunk))
    assert len(reporter.told) == len(set(reporter.told))
    assert len(reporter.shrunk) > len(reporter.told) > 1


def test_kinds_that_were_seen_are_passed_over() -> None:
    first = search("mutant:hash_kept_on_reuse", seed=3)
    (finding,) = first.findings
    again = search("mutant:hash_kept_on_reuse", seed=3, seen=frozenset({finding.kind}))
    assert finding.kind not in {one.kind for one in again.findings}
    assert again.steps > first.steps


def known_of(finding: Finding) -> Known:
    file = TraceFile(finding.trace)
    return Known("on-file.json", finding.kind, shape(finding.trace.operations), frozenset(), file)


def test_what_is_known_is_counted_and_not_told() -> None:
    (finding,) = search("mutant:hash_kept_on_reuse", seed=3).findings
    known = known_of(finding)
    done = search("mutant:hash_kept_on_reuse", KnownFindings([known]), seed=3)
    assert finding.kind not in {one.kind for one in done.findings}
    assert done.known["on-file.json"] == known.met > 1


def test_a_feature_that_is_left_out_is_not_drawn() -> None:
    assert search(without=frozenset({"fork"})).counts["Fork"] == 0


# -- floors


def test_the_reference_reaches_every_floor_of_the_default_profile_in_30_000_steps() -> None:
    done = search(steps=30_000)
    assert done.findings == []
    assert done.too_little == []


def test_an_event_that_never_happens_is_missed() -> None:
    done = search(steps=20_000, without=frozenset({"fork"}))
    assert [missed.partition(":")[0] for missed in done.too_little] == ["Fork", "copy on write"]


@pytest.mark.parametrize(("steps", "too_little"), [(19_999, False), (20_000, True)])
def test_floors_count_from_as_many_steps_as_the_profile_says(steps: int, too_little: bool) -> None:
    assert bool(floors_missed(SearchSummary(steps=steps), settings(steps=30_000))) is too_little


def test_what_a_target_cannot_do_has_no_floor() -> None:
    impossible = frozenset(DEFAULT.floors)
    assert floors_missed(SearchSummary(steps=20_000, impossible=impossible), settings()) == []


def test_traits_rule_events_out() -> None:
    traits = PagedManager(8, 4, max_in_flight=1).traits
    without = traits.operations - {Fork, Landed, Cancel, Abort}
    assert impossible_events(replace(traits, operations=without, max_drafts=0)) >= {
        "Fork", "copy on write", "Landed", "external load", "Cancel", "two launches in flight", "rejected draft"
    }  # fmt: skip


def test_a_target_without_abort_cannot_abort_in_flight() -> None:
    traits = PagedManager(8, 4).traits
    assert "abort in flight" in impossible_events(replace(traits, operations=traits.operations - {Abort}))


# -- what a profile draws, and what the target can do


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"host_units": 4, "chunk_blocks": 3, "stores": "disk"}),
        ({"host_units": 2}, {"host_units": 2, "chunk_blocks": 2, "stores": "disk"}),
        ({"chunk_blocks": 6}, {"host_units": 6, "chunk_blocks": 6, "stores": "disk"}),
        ({"host_units": 0}, {"host_units": 0, "chunk_blocks": 1, "stores": ""}),
        ({"host_units": 2, "chunk_blocks": 3}, {"host_units": 2, "chunk_blocks": 3, "stores": "disk"}),
    ],
)
def test_what_was_drawn_gives_way_to_what_was_given(
    given: dict[str, OptionValue], expected: dict[str, OptionValue]
) -> None:
    assert fitted({"host_units": 4, "chunk_blocks": 3, "stores": "disk"}, given) == expected


@pytest.mark.parametrize("option", [("host_units", 2), ("host_units", 0), ("chunk_blocks", 6)])
def test_one_option_of_the_tiers_is_enough(option: tuple[str, int]) -> None:
    done = search(configuration=Configuration(options=(option,)), profile=ASYNC, steps=2000)
    assert done.findings == []
    assert done.steps >= 2000


@pytest.mark.parametrize("profile", [ASYNC, DEFAULT], ids=lambda profile: profile.name)
def test_a_target_that_names_every_operation_is_given_those_that_it_has_the_means_for(profile: Profile) -> None:
    class NamesAll(PagedManager):
        def __init__(self, configuration: Configuration) -> None:
            super().__init__(configuration.num_units, configuration.block_size)
            self.traits = replace(self.traits, operations=frozenset(OPERATIONS))

    done = Search(NamesAll, settings("own", profile=profile), KnownFindings(), Reporter()).run()
    assert done.findings == []
    assert done.counts["Launch"] > 0
    assert not {"Offload", "Load", "Complete", "Capture"} & done.counts.keys()


@pytest.mark.parametrize(
    ("target", "profile", "message"),
    [
        ("paged", DISAGG, "profile disagg: the target is one pool; expected --profile default, async or graphs"),
        ("disagg", DEFAULT, "profile default: the target is a pair of pools; expected --profile disagg"),
        ("canary", GRAPHS, "profile graphs: the target replays no graphs; expected --profile default or async"),
    ],
)
def test_a_profile_that_the_target_is_not_made_for_is_refused(target: str, profile: Profile, message: str) -> None:
    settings = SearchSettings(Configuration(target), replace(profile, options=()), steps=100)
    with pytest.raises(UsageError, match=message):
        Search(registry.resolve(target), settings, KnownFindings(), Reporter()).run()
