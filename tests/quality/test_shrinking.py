"""Discovery and shrinking: every seeded bug is found by every seed, and its reproducer is short and soon there."""

from __future__ import annotations

from functools import cache
from statistics import median

import pytest

from kvsan.ci.shrink_table import MutantRow, measure
from kvsan.models_under_test.mutants import MUTANTS

SEEDS = range(10)
AT_MOST_DECISIONS = {"default": 6, "async": 10}
SHRINK_MEDIAN_S = 0.25

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
    within = max if MUTANTS[name].profile == "default" else median
    assert within(row(name).decisions) <= AT_MOST_DECISIONS[MUTANTS[name].profile]


def test_shrinking_is_fast() -> None:
    assert median(one for name in MUTANTS for one in row(name).shrink_s) < SHRINK_MEDIAN_S
