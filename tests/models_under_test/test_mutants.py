"""Every seeded bug is found by one of the checks that must see it, and every check sees the bugs that it names."""

from __future__ import annotations

import re
from functools import cache
from random import Random

import pytest

from kvsan.fuzz.generate import Generator, draw_features
from kvsan.fuzz.known import KnownFindings
from kvsan.fuzz.profiles import DEFAULT, small_scope
from kvsan.fuzz.replay import open_session, replay
from kvsan.fuzz.search import Reporter, Search, SearchSettings
from kvsan.fuzz.shrink import judge_of, weight
from kvsan.fuzz.simplify import ids_of
from kvsan.harness.configuration import Configuration
from kvsan.harness.invariant import Invariant
from kvsan.harness.operations import Operation
from kvsan.harness.registry import resolve
from kvsan.harness.verdict import Finding, UsageError, Violation
from kvsan.invariants import INVARIANTS, catalogue
from kvsan.models_under_test.mutants import MUTANTS, make_target

STEPS = 60_000
AT_MOST_DECISIONS = 6
ORACLES_WITHOUT_A_FILE = {"provenance", "foreign_write", "order", "target.crash"}


def named_mutants(text: str) -> set[str]:
    """Mutants that an invariant's docstring names."""
    _, _, told = text.partition("Mutant:")
    return set(re.findall(r"``(\w+)``", told))


NAMED = sorted((entry.id, mutant) for entry in catalogue() for mutant in named_mutants(entry.text))


@cache
def found(name: str) -> Finding:
    """First finding of one mutant with a fixed seed."""
    settings = SearchSettings(Configuration(f"mutant:{name}"), DEFAULT, seed=5, steps=STEPS, numbers=0.0)
    summary = Search(make_target, settings, KnownFindings(), Reporter()).run()
    assert summary.findings, f"{name} was not found in {summary.steps} steps"
    return summary.findings[0]


@pytest.mark.parametrize("name", MUTANTS)
def test_is_killed_by_a_check_that_must_kill_it(name: str) -> None:
    assert found(name).invariant in MUTANTS[name].killed_by


@pytest.mark.parametrize("name", MUTANTS)
def test_minimal_trace_is_short(name: str) -> None:
    assert weight(found(name).trace.operations)[0] <= AT_MOST_DECISIONS


def violates(finding: Finding, operations: tuple[Operation, ...], sweep_every: int, close: bool) -> bool:
    """Whether operations violate as the finding does."""
    violation = judge_of(make_target, numbers=False)(
        finding.trace.configuration, operations, sweep_every, close
    ).violation
    return violation is not None and violation.kind == finding.kind


@pytest.mark.parametrize("name", MUTANTS)
def test_nothing_can_be_taken_from_the_minimal_trace(name: str) -> None:
    finding = found(name)
    operations = finding.trace.operations
    judges = ((1 << 60, False), (1, False), (1, True))
    judge = next(judge for judge in judges if violates(finding, operations, *judge))
    without = [operations[:position] + operations[position + 1 :] for position in range(len(operations))]
    assert [fewer for fewer in without if violates(finding, fewer, *judge)] == []


@pytest.mark.parametrize("name", MUTANTS)
def test_minimal_trace_is_clean_on_the_reference_manager(name: str) -> None:
    assert replay(resolve("paged"), found(name).trace, numbers=False).violation is None


@pytest.mark.parametrize("name", MUTANTS)
def test_minimal_trace_uses_canonical_names(name: str) -> None:
    ids = dict.fromkeys(r for operation in found(name).trace.operations for r in ids_of(operation))
    assert list(ids) == [f"r{number + 1}" for number in range(len(ids))]


@pytest.mark.parametrize(("invariant", "name"), NAMED)
def test_invariant_alone_trips_over_each_mutant_that_it_names(invariant: str, name: str) -> None:
    (kind,) = [one for one in INVARIANTS if one.id == invariant]
    assert invariant in MUTANTS[name].killed_by
    assert killed(name, (kind,), invariant)


@pytest.mark.parametrize(
    ("oracle", "name"),
    [("order", "copy_unordered"), ("order", "load_freed_on_abort"), ("foreign_write", "missing_copy_on_write"),
     ("provenance", "off_by_one_slot")],
)  # fmt: skip
def test_oracle_sees_its_mutant_without_any_invariant(oracle: str, name: str) -> None:
    assert oracle in MUTANTS[name].killed_by
    assert killed(name, (), oracle)


def killed(name: str, invariants: tuple[type[Invariant], ...], wanted: str) -> bool:
    """Whether runs judged by these invariants alone meet a violation of the wanted one."""
    for run in range(1500):
        random = Random(run)
        profile = random.choice((DEFAULT, small_scope(DEFAULT)))
        configuration = Configuration(
            f"mutant:{name}", random.choice(profile.num_units), random.choice(profile.block_sizes)
        )
        session = open_session(make_target, configuration, numbers=False, sweep_every=10, invariants=invariants)
        generator = Generator(session, profile, random, draw_features(random, profile))
        try:
            for _ in range(150):
                session.step(generator.next())
            session.close()
        except Violation as violation:
            if violation.invariant == wanted:
                return True
    return False


def test_every_mutant_that_a_docstring_names_exists() -> None:
    assert {mutant for _, mutant in NAMED} - set(MUTANTS) == set()


def test_every_invariant_names_a_mutant() -> None:
    assert {one.id for one in INVARIANTS} - {invariant for invariant, _ in NAMED} == set()


def test_killed_by_names_checks_that_exist() -> None:
    ids = {one.id for one in INVARIANTS} | ORACLES_WITHOUT_A_FILE
    assert {check for mutant in MUTANTS.values() for check in mutant.killed_by} - ids == set()


def test_unknown_mutant_is_bad_input_with_a_suggestion() -> None:
    with pytest.raises(UsageError, match="did you mean salt_missing"):
        make_target(Configuration("mutant:salt_mising"))


@pytest.mark.parametrize("seed", range(5))
def test_canary_is_caught_soon(seed: int) -> None:
    settings = SearchSettings(Configuration("canary"), DEFAULT, seed=seed, steps=2000, numbers=0.0)
    summary = Search(resolve("canary"), settings, KnownFindings(), Reporter()).run()
    assert [finding.invariant for finding in summary.findings] == ["hash_map"]
