"""Discovery and shrinking: every seeded bug is found by every seed, and its reproducer is short and soon there."""

from __future__ import annotations

from functools import cache
from statistics import median

import pytest

from kvsan.ci.shrink_table import MutantRow, measure
from kvsan.models_under_test.mutants import MUTANTS

SEEDS = range(10)
AT_MOST_DECISIONS = {"default": 6, "async": 10}
ALWAYS_SHORT = 3
"""Seeds, the first ones, at which no trace of a bug of transfers is longer; at the others it is the median that counts."""

SHRINK_MEDIAN_S = {"default": 0.25, "async": 3.0}

pytestmark = pytest.mark.slow


@cache
def row(name: str) -> MutantRow:
    return measure(name, SEEDS)


@pytest.mark.parametrize("name", MUTANTS)
def test_every_seed_finds_it(name: str) -> None:
    assert len(row(name).steps) == len(SEEDS)


@pytest.mark.parametrize("name", MUTANTS)
def test_it_is_seen_by_a_check_that_must_see_it(name: str) -> None:
    assert {finding.invariant for finding in row(name).findings} - set(MUTANTS[name].killed_by) == set()


@pytest.mark.parametrize("name", MUTANTS)
def test_reproducers_are_short(name: str) -> None:
    at_most, decisions = AT_MOST_DECISIONS[MUTANTS[name].profile], row(name).decisions
    assert median(decisions) <= at_most
    assert max(decisions if MUTANTS[name].profile == "default" else decisions[:ALWAYS_SHORT]) <= at_most


@pytest.mark.parametrize("profile", SHRINK_MEDIAN_S)
def test_shrinking_is_fast(profile: str) -> None:
    times = [one for name, mutant in MUTANTS.items() if mutant.profile == profile for one in row(name).shrink_s]
    assert median(times) < SHRINK_MEDIAN_S[profile]
