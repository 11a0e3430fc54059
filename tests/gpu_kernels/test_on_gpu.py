"""The comparisons natively, in this process: what ``ci/gpu_check.py`` does first, for a shorter time."""

from __future__ import annotations

import pytest
import torch

from kvsan.ci.gpu.comparisons import KINDS, outcomes, tallied
from kvsan.ci.kernels.draws import LARGE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device, and kernels are interpreted"),
]


def test_kernels_agree_with_the_reference_natively() -> None:
    tallies = tallied(outcomes(seed=1, seconds=30, limits=LARGE, device="cuda"))

    assert [outcome for tally in tallies for outcome in tally.failed] == []
    assert all(tally.problems for tally in tallies if tally.kind in KINDS)
