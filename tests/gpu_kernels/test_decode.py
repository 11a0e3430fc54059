"""Decode over plain caches, in one pass and split."""

from __future__ import annotations

import pytest
import torch
from drawn_problems import examples, problems
from hypothesis import given

from kvsan.ci.kernels.checks import check
from kvsan.ci.kernels.draws import draw_decode
from kvsan.ci.kernels.problems import Attending, CacheSpec, DecodeProblem
from kvsan.gpu_kernels.decode import decode
from kvsan.gpu_kernels.launching import Masking
from kvsan.gpu_kernels.layout import allocate_cache


@given(problems(draw_decode))
@examples(100)
def test_decodes(problem: DecodeProblem) -> None:
    assert check(problem) == []


@pytest.mark.slow
@given(problems(draw_decode))
@examples(400)
def test_many_decodes(problem: DecodeProblem) -> None:
    assert check(problem) == []


@pytest.mark.parametrize("group", [32, 33, 64])
def test_groups_of_more_heads_than_a_tile(group: int) -> None:
    attending = Attending(CacheSpec("float16", 16, 2, 32), group, 0.2, codes=True)

    assert check(DecodeProblem(attending, (20, 0))) == []


@pytest.mark.parametrize("splits", [2, 3, 7])
def test_more_splits_than_tiles_of_some_sequences(splits: int) -> None:
    attending = Attending(CacheSpec("float32", 16, 1, 32), 2, 0.2, window=40, output_dtype="float32")

    assert check(DecodeProblem(attending, (200, 1, 0, 33), splits=splits)) == []


def test_a_batch_of_no_sequences() -> None:
    cache = allocate_cache(1, 4, 1, 32, "float16")
    nothing = torch.zeros((0, 1), dtype=torch.int32)

    attended = decode(torch.zeros((0, 2, 32)), cache, nothing, nothing[:, 0], 1.0)

    assert attended.output.shape == (0, 2, 32)


@pytest.mark.parametrize(
    ("query", "rows", "dtype", "message"),
    [
        ((2, 2, 16), 2, torch.int32, "expected .num_tokens, num_q_heads, 32."),
        ((2, 3, 32), 2, torch.int32, "expected a multiple of 2 kv heads"),
        ((2, 2, 32), 3, torch.int32, "block_tables"),
        ((2, 2, 32), 2, torch.int16, "expected int32 or int64"),
    ],
)
def test_what_does_not_fit_is_refused(query: tuple[int, ...], rows: int, dtype: torch.dtype, message: str) -> None:
    cache = allocate_cache(2, 4, 2, 32, "float16")

    with pytest.raises(ValueError, match=message):
        decode(torch.zeros(query), cache, torch.zeros((rows, 1), dtype=dtype), torch.ones(2, dtype=dtype), 1.0)


@pytest.mark.parametrize("options", [{"window": 3, "chunk": 3}, {"window": 0}, {"chunk": -1}, {"softcap": 0.0}])
def test_masks_that_make_no_sense_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="expected"):
        Masking(**options)
