"""Writing to plain caches, and reading back."""

from __future__ import annotations

import pytest
import torch
from drawn_problems import examples, problems
from hypothesis import given

from kvsan.ci.kernels.checks import check
from kvsan.ci.kernels.draws import draw_gather, draw_write
from kvsan.ci.kernels.problems import GatherProblem, WriteProblem
from kvsan.gpu_kernels.layout import allocate_cache
from kvsan.gpu_kernels.write import write


@given(problems(draw_write))
@examples(100)
def test_writes(problem: WriteProblem) -> None:
    assert check(problem) == []


@given(problems(draw_gather))
@examples(50)
def test_reads(problem: GatherProblem) -> None:
    assert check(problem) == []


@pytest.mark.slow
@given(problems(draw_write))
@examples(300)
def test_many_writes(problem: WriteProblem) -> None:
    assert check(problem) == []


@pytest.mark.slow
@given(problems(draw_gather))
@examples(200)
def test_many_reads(problem: GatherProblem) -> None:
    assert check(problem) == []


@pytest.mark.parametrize(
    ("tokens", "dtype", "message"),
    [
        ((3, 2, 32), "fp8_e4m3", "quant.write quantises"),
        ((2, 2, 32), "float16", r"\[3 or more, 2, 32\]"),
        ((3, 1, 32), "float16", r"\[3 or more, 2, 32\]"),
        ((3, 2, 16), "float16", r"\[3 or more, 2, 32\]"),
    ],
)
def test_what_does_not_fit_is_refused(tokens: tuple[int, ...], dtype: str, message: str) -> None:
    cache = allocate_cache(2, 4, 2, 32, dtype)
    key = torch.zeros(tokens)

    with pytest.raises(ValueError, match=message):
        write(key, key, cache, torch.arange(3))
