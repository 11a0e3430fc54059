"""The runner of captured graphs over the reference manager is clean, and each of its seeded bugs is found."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random

import pytest
from hypothesis import settings

from kvsan.fuzz.generate import Generator, draw_features
from kvsan.fuzz.known import KnownFindings
from kvsan.fuzz.machine import SETTINGS, machine_for
from kvsan.fuzz.profiles import DEFAULT, GRAPHS, small_scope
from kvsan.fuzz.replay import open_session, replay
from kvsan.fuzz.search import Reporter, Search, SearchSettings
from kvsan.fuzz.shrink import judge_of, weight
from kvsan.harness.configuration import Configuration
from kvsan.harness.invariant import Invariant
from kvsan.harness.operations import Operation, Submit
from kvsan.harness.registry import resolve, runs_in_process, takes_reference_options
from kvsan.harness.session import Session
from kvsan.harness.target import Target
from kvsan.harness.verdict import Finding, UsageError, Violation
from kvsan.invariants import INVARIANTS
from kvsan.invariants.graph_metadata import GraphMetadata
from kvsan.invariants.graph_metadata import __doc__ as GRAPH_METADATA
from kvsan.models_under_test.graphs import make_target
from kvsan.models_under_test.graphs.mutants import MUTANTS
from kvsan.models_under_test.graphs.mutants import make_target as make_mutant
from kvsan.models_under_test.paged import PagedManager

STEPS = 30_000
AT_MOST_DECISIONS = 10
ONE_GROUP = sorted(name for name, mutant in MUTANTS.items() if mutant.groups_needed == 1)
IDS = {one.id for one in INVARIANTS} | {"provenance", "foreign_write", "order"}


# -- the reference runner


def test_a_search_reaches_every_floor_and_finds_nothing() -> None:
    settings = SearchSettings(Configuration("graphs"), GRAPHS, seed=1, steps=GRAPHS.floor_steps, numbers=0.1)
    summary = Search(make_target, settings, KnownFindings(), Reporter()).run()
    assert [finding.message for finding in summary.findings] == []
    assert summary.too_little == []
    assert not {"Capture", "Replay", "padded replay", "replay after preemption"} & summary.impossible


def test_a_search_without_graphs_does_not_ask_for_them() -> None:
    settings = SearchSettings(Configuration("paged"), DEFAULT, steps=1000, numbers=0.0)
    summary = Search(resolve("paged"), settings, KnownFindings(), Reporter()).run()
    assert {"Capture", "Replay", "padded replay", "two replays in flight"} <= summary.impossible


@pytest.mark.parametrize(("target", "found"), [("graphs", False), ("graphs-mutant:lengths_of_last_batch", True)])
def test_the_machine_replays_graphs(target: str, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSAN_OUT", str(tmp_path))
    machine = machine_for(target, num_units=16, block_size=2, numbers=False)
    machine.TestCase.settings = settings(SETTINGS, max_examples=15)
    if found:
        with pytest.raises(AssertionError, match="graph_metadata"):
            machine.TestCase("runTest").debug()
    else:
        machine.TestCase("runTest").debug()
        assert machine.violated is None


def test_tiers_are_passed_on_to_the_manager() -> None:
    options = (("host_units", 8), ("stores", "disk"))
    target = make_target(Configuration("graphs", options=options))
    session = Session(target, INVARIANTS)
    assert session.books.tiers is not None
    assert target.traits.graph_rows == 8


class Raising(PagedManager):
    def submit(self, request: object) -> None:
        raise ValueError("full")


def make_raising(configuration: Configuration) -> Raising:
    return Raising(configuration.num_units, configuration.block_size)


def test_what_a_manager_raises_is_its_own() -> None:
    session = open_session(
        make_target, Configuration("graphs", options=(("over", f"{__name__}:make_raising"),)), numbers=False
    )
    with pytest.raises(Violation, match="ValueError: full") as caught:
        session.step(Submit("r1", ((0, 1),)))
    assert caught.value.kind == ("target.crash", "ValueError")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((("fills", "side"),), "option fills: 'side'; expected one of compute, copy"),
        ((("over", "nobody"),), "target 'nobody': unknown"),
        ((("watermarks", 1),), "unknown option 'watermarks'"),
    ],
)
def test_options_are_checked(options: tuple[tuple[str, str | int], ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_target(Configuration("graphs", options=options))


def test_a_manager_of_somebody_else_gets_a_worker() -> None:
    assert runs_in_process(Configuration("graphs"))
    assert runs_in_process(Configuration("graphs-mutant:stale_table"))
    assert not runs_in_process(Configuration("graphs", options=(("over", "mypool:Pool"),)))
    assert takes_reference_options("graphs-mutant:stale_table")


# -- seeded bugs


@cache
def found(name: str) -> Finding:
    """First finding of one mutant with a fixed seed."""
    settings = SearchSettings(Configuration(f"graphs-mutant:{name}"), GRAPHS, seed=5, steps=STEPS, numbers=0.0)
    summary = Search(make_mutant, settings, KnownFindings(), Reporter()).run()
    assert summary.findings, f"{name} was not found in {summary.steps} steps"
    return summary.findings[0]


@pytest.mark.parametrize("name", ONE_GROUP)
def test_is_killed_by_a_check_that_must_kill_it(name: str) -> None:
    assert found(name).invariant in MUTANTS[name].killed_by


@pytest.mark.parametrize("name", ONE_GROUP)
def test_minimal_trace_is_short_and_canonical(name: str) -> None:
    operations = found(name).trace.operations
    assert weight(operations)[0] <= AT_MOST_DECISIONS
    graphs = dict.fromkeys(g for operation in operations if (g := getattr(operation, "g", None)))
    assert list(graphs) == [f"g{number + 1}" for number in range(len(graphs))]


def violates(finding: Finding, operations: tuple[Operation, ...], sweep_every: int, close: bool) -> bool:
    """Whether operations violate as the finding does."""
    judge = judge_of(make_mutant, numbers=False)
    violation = judge(finding.trace.configuration, operations, sweep_every, close).violation
    return violation is not None and violation.kind == finding.kind


@pytest.mark.parametrize("name", ONE_GROUP)
def test_nothing_can_be_taken_from_the_minimal_trace(name: str) -> None:
    finding = found(name)
    operations = finding.trace.operations
    judge = next(one for one in ((1 << 60, False), (1, False), (1, True)) if violates(finding, operations, *one))
    without = [operations[:position] + operations[position + 1 :] for position in range(len(operations))]
    assert [fewer for fewer in without if violates(finding, fewer, *judge)] == []


@pytest.mark.parametrize("name", ONE_GROUP)
@pytest.mark.parametrize("fills", ["compute", "copy"])
def test_minimal_trace_is_clean_on_the_reference_runner(name: str, fills: str) -> None:
    trace = found(name).trace
    options = dict(trace.configuration.options) | {"fills": fills}
    configuration = Configuration(
        "graphs", trace.configuration.num_units, trace.configuration.block_size, options=tuple(sorted(options.items()))
    )
    judged = judge_of(make_target, numbers=True)(configuration, trace.operations, 1, True)
    assert judged.violation is None
    assert judged.counts["Replay"] >= 1


def killed(name: str, invariants: tuple[type[Invariant], ...], wanted: str) -> bool:
    """Whether runs judged by these invariants alone meet a violation of the wanted one."""
    for run in range(600):
        random = Random(run)
        profile = random.choice((GRAPHS, small_scope(GRAPHS)))
        configuration = Configuration(
            f"graphs-mutant:{name}", random.choice(profile.num_units), random.choice(profile.block_sizes)
        )
        session = open_session(make_mutant, configuration, numbers=False, sweep_every=10, invariants=invariants)
        generator = Generator(session, profile, random, draw_features(random, profile))
        try:
            for _ in range(150):
                session.step(generator.next())
            session.close()
        except Violation as violation:
            if violation.invariant == wanted:
                return True
    return False


NAMED = sorted(name for name in ONE_GROUP if f"``graphs-mutant:{name}``" in (GRAPH_METADATA or ""))


@pytest.mark.parametrize("name", NAMED)
def test_the_invariant_alone_trips_over_each_mutant_that_it_names(name: str) -> None:
    assert "graph_metadata" in MUTANTS[name].killed_by
    assert killed(name, (GraphMetadata,), "graph_metadata")


@pytest.mark.parametrize(
    ("oracle", "name"),
    [
        ("order", "fill_on_another_stream"),
        ("order", "fill_while_in_flight"),
        ("provenance", "stale_table"),
        ("provenance", "staging_reused"),
        ("provenance", "narrow_table"),
        ("provenance", "lengths_of_last_batch"),
        ("provenance", "captured_table_used"),
        ("foreign_write", "padding_writes_last_slot"),
        ("foreign_write", "padding_left_from_last_batch"),
    ],
)
def test_an_oracle_sees_the_mutant_without_any_invariant(oracle: str, name: str) -> None:
    assert oracle in MUTANTS[name].killed_by
    assert killed(name, (), oracle)


def test_killed_by_names_checks_that_exist() -> None:
    assert {check for mutant in MUTANTS.values() for check in mutant.killed_by} <= IDS


def test_unknown_mutant_is_bad_input_with_a_suggestion() -> None:
    with pytest.raises(UsageError, match="did you mean stale_table"):
        make_mutant(Configuration("graphs-mutant:stale_tabel"))


def test_minimal_traces_replay_by_the_name_of_the_target() -> None:
    trace = found("stale_table").trace
    factory = resolve(trace.configuration.target)
    replayed = replay(factory, trace, numbers=False)
    assert replayed.violation is not None
    assert replayed.violation.kind == found("stale_table").kind


def test_a_target_is_made() -> None:
    target: Target = make_target(Configuration("graphs"))
    assert target.traits.graph_rows > 0
