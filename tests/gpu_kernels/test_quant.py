"""Quantised pages: codes and scales bit for bit, and attention over them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from drawn_problems import DEVICE, examples, problems
from hypothesis import given

from kvsan.ci.kernels.checks import check
from kvsan.ci.kernels.draws import QUANTISED, draw_decode, draw_gather, draw_prefill, draw_write
from kvsan.ci.kernels.problems import DecodeProblem, GatherProblem, PrefillProblem, WriteProblem
from kvsan.ci.kernels.small_floats import encode
from kvsan.gpu_kernels import quant
from kvsan.gpu_kernels.layout import PagedCache, allocate_cache


@given(problems(draw_write, dtypes=QUANTISED))
@examples(120)
def test_writes(problem: WriteProblem) -> None:
    assert check(problem) == []


@given(problems(draw_gather, dtypes=QUANTISED))
@examples(60)
def test_reads(problem: GatherProblem) -> None:
    assert check(problem) == []


@given(problems(draw_decode, dtypes=QUANTISED))
@examples(90)
def test_decodes(problem: DecodeProblem) -> None:
    assert check(problem) == []


@given(problems(draw_prefill, dtypes=QUANTISED))
@examples(80)
def test_prefills(problem: PrefillProblem) -> None:
    assert check(problem) == []


@pytest.mark.slow
@given(problems(draw_write, dtypes=QUANTISED))
@examples(500)
def test_many_writes(problem: WriteProblem) -> None:
    assert check(problem) == []


@pytest.mark.slow
@given(problems(draw_gather, dtypes=QUANTISED))
@examples(200)
def test_many_reads(problem: GatherProblem) -> None:
    assert check(problem) == []


@pytest.mark.slow
@given(problems(draw_decode, dtypes=QUANTISED))
@examples(400)
def test_many_decodes(problem: DecodeProblem) -> None:
    assert check(problem) == []


@pytest.mark.slow
@given(problems(draw_prefill, dtypes=QUANTISED))
@examples(400)
def test_many_prefills(problem: PrefillProblem) -> None:
    assert check(problem) == []


def written(numbers: torch.Tensor, dtype: str, scale: float = 1.0) -> PagedCache:
    """A cache of one slot a block into which ``[num_tokens, heads, head_dim]`` were written as K and as V."""
    cache = allocate_cache(len(numbers), 1, numbers.shape[1], numbers.shape[2], dtype, "NHD", DEVICE, scale, scale)
    quant.write(numbers.to(DEVICE), numbers.to(DEVICE), cache, torch.arange(len(numbers), device=DEVICE))
    return cache


@pytest.mark.parametrize("scale", [1.0, 0.37])
@pytest.mark.parametrize("dtype", ["fp8_e4m3", "fp8_e5m2"])
def test_every_finite_float16_has_the_nearest_code(dtype: str, scale: float) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    numbers = np.where(np.isfinite(every), every, np.float16(0)).reshape(64, 4, 256)

    cache = written(torch.from_numpy(numbers), dtype, scale)

    expected = encode(numbers.astype(np.float32) / np.float32(scale), cache.format.elements)
    assert np.array_equal(cache.keys[:, 0].cpu().numpy(), expected)
    assert np.array_equal(cache.values[:, 0].cpu().numpy(), expected)


@pytest.mark.parametrize(
    ("dtype", "number", "code"),
    [
        ("fp8_e4m3", float("inf"), 0x7E),
        ("fp8_e4m3", float("-inf"), 0xFE),
        ("fp8_e4m3", float("nan"), 0x7E),
        ("fp8_e4m3", -0.0, 0x00),
        ("fp8_e4m3", -(2.0**-11), 0x80),
        ("fp8_e5m2", float("inf"), 0x7B),
        ("fp8_e5m2", float("-inf"), 0xFB),
        ("fp8_e5m2", float("nan"), 0x7B),
    ],
)
def test_what_is_no_number_saturates(dtype: str, number: float, code: int) -> None:
    cache = written(torch.full((1, 1, 32), number), dtype)

    assert cache.keys.unique().tolist() == [code]


def test_every_block_of_an_nvfp4_page_has_its_own_scale() -> None:
    numbers = torch.cat([torch.full((16,), 6.0 * 2.0**power) for power in range(-4, 4)]).reshape(1, 1, 128)

    cache = written(numbers, "nvfp4")

    assert cache.key_scales is not None
    assert cache.key_scales.view(torch.float8_e4m3fn).float().flatten().tolist() == [2.0**n for n in range(-4, 4)]
    assert cache.keys.unique().tolist() == [0x77]


def test_a_plain_cache_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a quantised one"):
        written(torch.zeros((1, 1, 32)), "float16")
