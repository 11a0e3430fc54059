"""Every kind of corruption is caught in every dtype, and by which checks: a sample here, all cases under ``slow``."""

from collections import Counter
from functools import cache

import numpy as np
import pytest

from kvsan.ci.corruption_table import KINDS, Specimen, count_caught, main, verdicts
from kvsan.harness.configuration import DTYPES

BYTES = {"key-bytes", "value-bytes"}
CERTAIN = {
    "slot of another token": {"zero", *BYTES},
    "K of another token": {"key-bytes"},
    "V of another token": {"zero", "value-bytes"},
    "one element, one grid step": set(),
    "one bit flipped": set(),
    "two slots swapped": BYTES,
    "two changes that cancel": {"value-bytes"},
}
"""Checks that catch every case of a kind."""

BLIND = {
    "slot of another token": set(),
    "K of another token": {"zero", "value-bytes"},
    "V of another token": {"key-bytes"},
    "one element, one grid step": set(),
    "one bit flipped": set(),
    "two slots swapped": {"zero", "random", "needle"},
    "two changes that cancel": {"zero", "key-bytes"},
}
"""Checks that catch no case of a kind."""

specimen = cache(Specimen)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_of_each_kind_is_caught(kind: str, dtype: str) -> None:
    cases = 20

    caught = count_caught(specimen(dtype), KINDS[kind], cases, (1, list(KINDS).index(kind)))

    assert caught["any"] == cases
    assert {check for check in CERTAIN[kind] if caught[check] < cases} == set()
    assert {check for check in BLIND[kind] if caught[check]} == set()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_ten_thousand_cases_of_each_kind_are_caught(kind: str, dtype: str) -> None:
    caught = count_caught(specimen(dtype), KINDS[kind], 10_000, (2, list(KINDS).index(kind)))

    assert caught["any"] == 10_000
    assert {check for check in CERTAIN[kind] if caught[check] < 10_000} == set()
    assert {check for check in BLIND[kind] if caught[check]} == set()


def test_contexts_reach_from_one_to_eight_thousand_tokens() -> None:
    kind = KINDS["one bit flipped"]

    lengths = [verdicts(specimen("float32"), kind, (3, case))[0] for case in range(200)]

    assert min(lengths) < 4
    assert max(lengths) > 4096
    assert Counter(length < 100 for length in lengths)[True] in range(70, 130)


def test_damage_is_repaired_after_each_case() -> None:
    pool = specimen("bfloat16")
    before = pool.cache.keys.copy(), pool.cache.values.copy()

    for number, kind in enumerate(KINDS.values()):
        verdicts(pool, kind, (4, number))

    assert np.array_equal(pool.cache.keys, before[0])
    assert np.array_equal(pool.cache.values, before[1])


def test_an_intact_pool_is_silent() -> None:
    found = count_caught(specimen("float16"), lambda damage: None, 20, (5,))

    assert found == {"any": 0}


def test_the_command_prints_one_line_for_each_kind(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--cases", "3", "--dtype", "float16"])

    lines = capsys.readouterr().out.splitlines()
    assert code == 0
    assert [line.split("|")[1].strip() for line in lines[2:]] == list(KINDS)
