"""Latent attention: writing to the shared cache, and decode over it."""

from __future__ import annotations

import pytest
import torch
from drawn_problems import examples, problems
from hypothesis import given

from kvsan.ci.kernels.checks import check
from kvsan.ci.kernels.draws import draw_latent_decode, draw_latent_write
from kvsan.ci.kernels.problems import LatentDecodeProblem, LatentWriteProblem
from kvsan.gpu_kernels.mla import mla, mla_write


@given(problems(draw_latent_write))
@examples(40)
def test_writes(problem: LatentWriteProblem) -> None:
    assert check(problem) == []


@given(problems(draw_latent_decode))
@examples(60)
def test_decodes(problem: LatentDecodeProblem) -> None:
    assert check(problem) == []


@pytest.mark.slow
@given(problems(draw_latent_write))
@examples(200)
def test_many_writes(problem: LatentWriteProblem) -> None:
    assert check(problem) == []


@pytest.mark.slow
@given(problems(draw_latent_decode))
@examples(300)
def test_many_decodes(problem: LatentDecodeProblem) -> None:
    assert check(problem) == []


def test_what_does_not_fit_is_refused() -> None:
    cache = torch.zeros((2, 4, 48))
    one = torch.ones(1, dtype=torch.int32)

    with pytest.raises(ValueError, match="a cache as wide as both together"):
        mla_write(torch.zeros((1, 32)), torch.zeros((1, 32)), cache, one)
    with pytest.raises(ValueError, match="expected the same last dimension"):
        mla(torch.zeros((1, 2, 32)), cache, 16, one[None], one, 1.0)
    with pytest.raises(ValueError, match="expected one query a sequence"):
        mla(torch.zeros((2, 2, 48)), cache, 16, one[None], one, 1.0)
