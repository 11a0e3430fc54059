"""Prefill over plain caches: whole prompts, chunks over a paged prefix, and batches that mix them with decode."""

from __future__ import annotations

import pytest
import torch
from drawn_problems import examples, problems
from hypothesis import given

from kvsan.ci.kernels.checks import check
from kvsan.ci.kernels.draws import draw_prefill
from kvsan.ci.kernels.problems import Attending, CacheSpec, PrefillProblem
from kvsan.gpu_kernels.layout import allocate_cache
from kvsan.gpu_kernels.prefill import prefill


@given(problems(draw_prefill))
@examples(100)
def test_prefills(problem: PrefillProblem) -> None:
    assert check(problem) == []


@pytest.mark.slow
@given(problems(draw_prefill))
@examples(400)
def test_many_prefills(problem: PrefillProblem) -> None:
    assert check(problem) == []


def test_a_mixed_batch() -> None:
    attending = Attending(CacheSpec("bfloat16", 4, 2, 32), 3, 0.2, codes=True, shared_blocks=2, query_dtype="bfloat16")
    rows = ((1, 30), (0, 12), (25, 25), (0, 0), (9, 41), (1, 1))

    assert check(PrefillProblem(attending, rows, padded=3)) == []


def test_a_batch_without_queries_writes_nothing() -> None:
    attending = Attending(CacheSpec("float16", 4, 2, 32), 1, 0.2)

    assert check(PrefillProblem(attending, ((0, 7), (0, 0)), padded=2)) == []


def test_starts_that_do_not_fit_are_refused() -> None:
    cache = allocate_cache(2, 4, 2, 32, "float16")
    one = torch.ones(1, dtype=torch.int32)

    with pytest.raises(ValueError, match="expected 2, one more than sequences"):
        prefill(torch.zeros((1, 2, 32)), one, 1, cache, one[None], one, 1.0)
