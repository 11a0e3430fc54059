"""Blocks on the move, of plain and quantised caches."""

from __future__ import annotations

import pytest
import torch
from drawn_problems import examples, problems
from hypothesis import given

from kvsan.ci.kernels.checks import check
from kvsan.ci.kernels.draws import draw_copy, draw_reshard, draw_transfer
from kvsan.ci.kernels.problems import CacheSpec, CopyProblem, ReshardProblem, TransferProblem
from kvsan.gpu_kernels.copy import copy_blocks, reshard, scatter_blocks
from kvsan.gpu_kernels.layout import allocate_cache


@given(problems(draw_copy))
@examples(60)
def test_copies(problem: CopyProblem) -> None:
    assert check(problem) == []


@given(problems(draw_transfer))
@examples(40)
def test_transfers(problem: TransferProblem) -> None:
    assert check(problem) == []


@given(problems(draw_reshard))
@examples(40)
def test_resharding(problem: ReshardProblem) -> None:
    assert check(problem) == []


@pytest.mark.slow
@given(problems(draw_copy))
@examples(200)
def test_many_copies(problem: CopyProblem) -> None:
    assert check(problem) == []


@pytest.mark.slow
@given(problems(draw_transfer))
@examples(200)
def test_many_transfers(problem: TransferProblem) -> None:
    assert check(problem) == []


@pytest.mark.slow
@given(problems(draw_reshard))
@examples(200)
def test_much_resharding(problem: ReshardProblem) -> None:
    assert check(problem) == []


@pytest.mark.parametrize("block_size", [100, 256])
def test_large_blocks(block_size: int) -> None:
    spec = CacheSpec("int8_per_token_head", block_size, 1, 32, "pages HND")

    assert check(CopyProblem(spec, 2, 1, 3, block_size)) == []
    assert check(TransferProblem(spec, 1, 1, "pages NHD")) == []


def test_bad_shapes_and_ranges_are_refused() -> None:
    cache = allocate_cache(2, 4, 2, 32, "float16")

    with pytest.raises(ValueError, match=r"expected \[num_pairs, 2\]"):
        copy_blocks(cache, torch.zeros(2, dtype=torch.int64))
    for start, stop in ((-1, 2), (3, 2), (0, 5)):
        with pytest.raises(ValueError, match="expected a range in blocks of 4"):
            copy_blocks(cache, torch.zeros((1, 2), dtype=torch.int64), start, stop)
    with pytest.raises(ValueError, match="buffer"):
        scatter_blocks([torch.zeros((2, 4, 2, 32))] * 2, cache, torch.zeros(1, dtype=torch.int64))


@pytest.mark.parametrize(("heads", "sources", "ranks"), [(6, 4, 2), (6, 2, 4), (4, 2, 3)])
def test_heads_that_no_ranks_share_are_refused(heads: int, sources: int, ranks: int) -> None:
    shards = torch.zeros((sources, 1, 1, max(1, heads // sources), 32))

    with pytest.raises(ValueError, match="expected one to divide the other"):
        reshard(shards, heads, ranks)


def test_shards_of_another_number_of_heads_are_refused() -> None:
    with pytest.raises(ValueError, match="3 heads a rank: expected 4"):
        reshard(torch.zeros((2, 1, 1, 3, 32)), 8, 4)
