"""Legal managers of every kind that the traits allow are met with silence."""

from __future__ import annotations

import pytest
from variants import VARIANTS

from kvsan.fuzz.known import KnownFindings
from kvsan.fuzz.profiles import DEFAULT
from kvsan.fuzz.search import Reporter, Search, SearchSettings
from kvsan.harness.configuration import Configuration
from kvsan.harness.target import Target

STEPS = 4_000
MORE_STEPS = 60_000


def findings(name: str, seed: int, steps: int) -> list[str]:
    def make(configuration: Configuration) -> Target:
        return VARIANTS[name](configuration.num_units, configuration.block_size)

    settings = SearchSettings(Configuration("variant"), DEFAULT, seed=seed, steps=steps, numbers=0.1)
    summary = Search(make, settings, KnownFindings(), Reporter()).run()
    assert summary.steps >= steps
    return [f"{one.kind}: {one.message} {one.trace}" for one in summary.findings]


@pytest.mark.parametrize("name", VARIANTS)
def test_a_legal_variant_is_clean(name: str) -> None:
    assert findings(name, 0, STEPS) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", VARIANTS)
def test_a_legal_variant_stays_clean(name: str, seed: int) -> None:
    assert findings(name, seed, MORE_STEPS) == []
