"""Legal tiers of every kind that the traits allow are met with silence."""

from __future__ import annotations

import pytest
from tier_variants import NAMES, make_variant

from kvsan.fuzz.known import KnownFindings
from kvsan.fuzz.profiles import ASYNC
from kvsan.fuzz.search import Reporter, Search, SearchSettings
from kvsan.harness.configuration import Configuration
from kvsan.harness.target import Target

STEPS = 6_000
MORE_STEPS = 100_000


def findings(name: str, seed: int, steps: int) -> list[str]:
    def make(configuration: Configuration) -> Target:
        return make_variant(name, configuration)

    settings = SearchSettings(Configuration(), ASYNC, seed=seed, steps=steps, numbers=0.1)
    summary = Search(make, settings, KnownFindings(), Reporter()).run()
    assert summary.steps >= steps
    assert summary.counts["Load"] > 0
    return [f"{one.kind}: {one.message} {one.trace}" for one in summary.findings]


@pytest.mark.parametrize("name", NAMES)
def test_legal_tiers_are_clean(name: str) -> None:
    assert findings(name, 0, STEPS) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_legal_tiers_stay_clean(name: str, seed: int) -> None:
    assert findings(name, seed, MORE_STEPS) == []
