"""Every kind of corruption is caught in every dtype, and by which checks: a sample here, all cases under ``slow``."""

from collections import Counter
from functools import cache

import numpy as np
import pytest

from kvsan.ci.corruption_table import count_caught, main
from kvsan.ci.damage import KINDS, Specimen, kinds_of, verdicts
from kvsan.gpu_kernels.formats import FORMATS
from kvsan.gpu_kernels.triton_kernels import TritonKernels

DTYPES = [name for name, form in FORMATS.items() if not form.quantised]

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


@cache
def interpreted(dtype: str) -> Specimen:
    """A pool whose attention runs in Triton, interpreted: short requests, since each tile costs milliseconds."""
    return Specimen(dtype, 64, TritonKernels())


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
    before = [array.copy() for array in pool.pages.arrays]

    for number, kind in enumerate(KINDS.values()):
        verdicts(pool, kind, (4, number))

    assert all(np.array_equal(now, old) for now, old in zip(pool.pages.arrays, before, strict=True))


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_sample_of_each_kind_is_caught_through_triton_kernels(dtype: str) -> None:
    cases, missed = 4, {}

    for number, (name, kind) in enumerate(kinds_of(dtype).items()):
        caught = count_caught(interpreted(dtype), kind, cases, (6, number))
        unsure = {check for check in CERTAIN.get(name, set()) if caught[check] < cases}
        seeing = {check for check in BLIND.get(name, set()) if caught[check]}
        if caught["any"] < cases or unsure or seeing:
            missed[name] = caught, unsure, seeing

    assert missed == {}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FORMATS)
def test_many_cases_of_each_kind_are_caught_through_triton_kernels(dtype: str) -> None:
    counts = {name: count_caught(interpreted(dtype), kind, 100, (7,))["any"] for name, kind in kinds_of(dtype).items()}

    assert counts == dict.fromkeys(kinds_of(dtype), 100)


@pytest.mark.parametrize("dtype", ["int8_per_token_head", "fp8_e4m3", "nvfp4"])
def test_damaged_scales_are_repaired(dtype: str) -> None:
    pool = interpreted(dtype)
    before, intact = [array.copy() for array in pool.pages.arrays], pool.numbers.cache

    for number, kind in enumerate(kinds_of(dtype).values()):
        verdicts(pool, kind, (8, number))

    assert all(np.array_equal(now, old) for now, old in zip(pool.pages.arrays, before, strict=True))
    assert pool.numbers.cache is intact


@pytest.mark.parametrize("dtype", FORMATS)
def test_an_intact_pool_is_silent_through_triton_kernels(dtype: str) -> None:
    assert count_caught(interpreted(dtype), lambda damage: None, 5, (9,)) == {"any": 0}


def test_an_intact_pool_is_silent() -> None:
    found = count_caught(specimen("float16"), lambda damage: None, 20, (5,))

    assert found == {"any": 0}


def test_the_command_prints_one_line_for_each_kind(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--cases", "3", "--dtype", "float16"])

    lines = capsys.readouterr().out.splitlines()
    assert code == 0
    assert [line.split("|")[1].strip() for line in lines[2:]] == list(KINDS)
