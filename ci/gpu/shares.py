"""How near attention outputs come to their bound, noted while problems are checked.

A check says which outputs are out of bounds; here the same judge also notes the largest error as a share of its bound, so
that a kernel that is ten times less exact than it was is seen before it fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import numpy as np
import torch

from kvsan.ci.kernels import check_attention, check_mla, far_rows
from kvsan.ci.kernels.contents import Float64Array
from kvsan.ci.kernels.expected import Expected
from kvsan.ci.kernels.judging import Asked, Judge
from kvsan.ci.kernels.queries import Queries
from kvsan.gpu_kernels.launching import Attended, Masking


@contextmanager
def noted_shares() -> Iterator[list[float]]:
    """Note the worst share of each sequence that is judged inside; NaN where an output is none."""
    shares: list[float] = []

    class NotingJudge(Judge):
        def __init__(self, attended: Attended, queries: Queries, masking: Masking, checked: bool) -> None:
            super().__init__(attended, queries, masking, checked)
            self._attended = attended

        def judge(self, asked: Asked, expected: Expected) -> None:
            tokens = slice(asked.start, asked.stop)
            shares.append(worst_share(self._attended.output[tokens], expected.output, expected.output_bound))
            shares.append(worst_share(self._attended.lse[tokens], expected.lse, expected.lse_bound))
            super().judge(asked, expected)

    with ExitStack() as stack:
        for module in (check_attention, check_mla, far_rows):
            stack.enter_context(patch.object(module, "Judge", NotingJudge))
        yield shares


def worst_share(found: torch.Tensor, wanted: Float64Array, bound: Float64Array) -> float:
    """Return the largest error as a share of its bound; 0 for what is equal, even where the bound is 0."""
    numbers = found.double().cpu().numpy()
    if not numbers.size:
        return 0.0
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = np.where(numbers == wanted, 0.0, np.abs(numbers - wanted) / bound)
    return float(shares.max())
