"""Every seeded bug is found by one of the checks that must see it, and every check sees the bugs that it names."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from random import Random

import pytest

from kvsan.fuzz.generate import Generator, draw_features
from kvsan.fuzz.known import KnownFindings
from kvsan.fuzz.profiles import DEFAULT, Profile, profile_named, small_scope
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

STEPS = 200_000
SEED = {"default": 5, "async": 0}
AT_MOST_DECISIONS = {"default": 6, "async": 10}
ORACLES_WITHOUT_A_FILE = {"provenance", "foreign_write", "order", "target.crash", "tier_integrity"}


def named_mutants(text: str) -> set[str]:
    """Mutants that an invariant's docstring names."""
    _, _, told = text.partition("Mutant:")
    return set(re.findall(r"``(\w+)``", told))


OF_MANAGERS = [name for name, mutant in MUTANTS.items() if mutant.profile == "default"]
NAMED = sorted((entry.id, mutant) for entry in catalogue() for mutant in named_mutants(entry.text))
NAMED_MUTANTS = {mutant for _, mutant in NAMED}
OF_TRANSFERS = [
    pytest.param(name, marks=() if name in NAMED_MUTANTS else pytest.mark.slow)
    for name, mutant in MUTANTS.items()
    if mutant.profile == "async"
]
"""Those that an invariant names are tried each time."""


@cache
def found(name: str) -> Finding:
    """First finding of one mutant with a fixed seed."""
    profile = profile_named(MUTANTS[name].profile)
    settings = SearchSettings(
        Configuration(f"mutant:{name}"), profile, seed=SEED[profile.name], steps=STEPS, numbers=0.0
    )
    summary = Search(make_target, settings, KnownFindings(), Reporter()).run()
    assert summary.findings, f"{name} was not found in {summary.steps} steps"
    return summary.findings[0]


def violates(finding: Finding, operations: tuple[Operation, ...], sweep_every: int, close: bool) -> bool:
    """Whether operations violate as the finding does."""
    violation = judge_of(make_target, numbers=False)(
        finding.trace.configuration, operations, sweep_every, close
    ).violation
    return violation is not None and violation.kind == finding.kind


def is_killed_by_a_check_that_must_kill_it(name: str) -> bool:
    return found(name).invariant in MUTANTS[name].killed_by


def has_a_short_minimal_trace(name: str) -> bool:
    return weight(found(name).trace.operations)[0] <= AT_MOST_DECISIONS[MUTANTS[name].profile]


def has_a_trace_from_which_nothing_can_be_taken(name: str) -> bool:
    finding = found(name)
    operations = finding.trace.operations
    judges = ((1 << 60, False), (1, False), (1, True))
    judge = next(judge for judge in judges if violates(finding, operations, *judge))
    without = [operations[:position] + operations[position + 1 :] for position in range(len(operations))]
    return not any(violates(finding, fewer, *judge) for fewer in without)


def has_a_trace_that_is_clean_on_the_reference_manager(name: str) -> bool:
    return replay(resolve("paged"), found(name).trace, numbers=False).violation is None


def has_canonical_names(name: str) -> bool:
    ids = dict.fromkeys(r for operation in found(name).trace.operations for r in ids_of(operation))
    return list(ids) == [f"r{number + 1}" for number in range(len(ids))]


QUALITIES = (
    is_killed_by_a_check_that_must_kill_it,
    has_a_short_minimal_trace,
    has_a_trace_from_which_nothing_can_be_taken,
    has_a_trace_that_is_clean_on_the_reference_manager,
    has_canonical_names,
)


@pytest.mark.parametrize("quality", QUALITIES, ids=lambda quality: quality.__name__)
@pytest.mark.parametrize("name", OF_MANAGERS)
def test_a_mutant(name: str, quality: Callable[[str], bool]) -> None:
    assert quality(name)


@pytest.mark.parametrize("name", OF_TRANSFERS)
def test_a_mutant_of_transfers(name: str) -> None:
    """All at once: finding and shrinking these costs a second, and workers do not share what they have found."""
    assert [quality.__name__ for quality in QUALITIES if not quality(name)] == []


@pytest.mark.parametrize(("invariant", "name"), NAMED)
def test_invariant_alone_trips_over_each_mutant_that_it_names(invariant: str, name: str) -> None:
    (kind,) = [one for one in INVARIANTS if one.id == invariant]
    assert invariant in MUTANTS[name].killed_by
    assert killed(name, (kind,), invariant)


@pytest.mark.parametrize(
    ("oracle", "name"),
    [("order", "copy_unordered"), ("order", "load_freed_on_abort"), ("foreign_write", "missing_copy_on_write"),
     ("provenance", "off_by_one_slot"), ("order", "copy_before_arrival"), ("order", "load_not_after_compute"),
     ("tier_integrity", "lost_chunk_is_zeros"), ("target.crash", "unknown_completion_crashes")],
)  # fmt: skip
def test_oracle_sees_its_mutant_without_any_invariant(oracle: str, name: str) -> None:
    assert oracle in MUTANTS[name].killed_by
    assert killed(name, (), oracle)


def killed(name: str, invariants: tuple[type[Invariant], ...], wanted: str) -> bool:
    """Whether runs judged by these invariants alone meet a violation of the wanted one."""
    for run in range(1500):
        random = Random(run)
        whole = profile_named(MUTANTS[name].profile)
        profile = random.choice((whole, small_scope(whole)))
        configuration = drawn_configuration(f"mutant:{name}", profile, random)
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


def drawn_configuration(target: str, profile: Profile, random: Random) -> Configuration:
    """Sizes and options as a search draws them."""
    options = tuple(sorted((option, random.choice(values)) for option, values in profile.options))
    return Configuration(target, random.choice(profile.num_units), random.choice(profile.block_sizes), options=options)


def test_every_mutant_that_a_docstring_names_exists() -> None:
    assert {mutant for _, mutant in NAMED} - set(MUTANTS) == set()


def test_every_invariant_names_a_mutant() -> None:
    """Mutants of pairs and graphs have targets and tests of their own."""
    elsewhere = {entry.id for entry in catalogue() if "-mutant:" in entry.text}
    assert {one.id for one in INVARIANTS} - {invariant for invariant, _ in NAMED} - elsewhere == set()


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
