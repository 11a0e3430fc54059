"""Caches whose last block lies 2**31 elements behind the first: offsets that an int32 cannot hold."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from drawn_problems import DEVICE
from narrow_kernels import write_with_int32

from kvsan.ci.kernels.checks import check
from kvsan.ci.kernels.far_problems import FAR_PROBLEMS
from kvsan.ci.kernels.kernel_set import KERNELS
from kvsan.ci.kernels.problems import Problem, WriteProblem

ADDRESSES_BYTES = 20e9

pytestmark = pytest.mark.skipif(
    os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") < ADDRESSES_BYTES,
    reason="a machine of less than 20 GB may refuse 20 GB of addresses",
)


@pytest.mark.parametrize("problem", FAR_PROBLEMS, ids=lambda problem: type(problem).__name__)
def test_far_blocks(problem: Problem) -> None:
    assert check(problem) == []


@pytest.mark.skipif(DEVICE == "cuda", reason="what leaves its tensor is seen by the interpreter")
def test_int32_offsets_are_seen() -> None:
    problem = next(one for one in FAR_PROBLEMS if isinstance(one, WriteProblem))

    failures = check(problem, replace(KERNELS, write=write_with_int32))

    assert {failure.check for failure in failures} == {"interpreter: overflow"}
