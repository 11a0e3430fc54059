"""How the outputs of attention are judged against what is expected; comparisons are written so that NaN fails them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kvsan.ci.kernels.contents import Content, Float64Array
from kvsan.ci.kernels.expected import Expected
from kvsan.ci.kernels.kernel_set import Failure
from kvsan.ci.kernels.queries import NEEDLE, ZERO, Queries
from kvsan.gpu_kernels.launching import Attended, Masking

_shares: ContextVar[list[float] | None] = ContextVar("shares", default=None)


@contextmanager
def noted_shares() -> Iterator[list[float]]:
    """Note how near outputs come to their bound, as a share of it for each sequence judged inside; NaN for no number.

    So a kernel that is ten times less exact than it was is seen before it fails.
    """
    shares: list[float] = []
    before = _shares.set(shares)
    try:
        yield shares
    finally:
        _shares.reset(before)


def worst_share(found: Float64Array, wanted: Float64Array, bound: Float64Array) -> float:
    """Return the largest error as a share of its bound; 0 for what is equal, even where the bound is 0."""
    if not found.size:
        return 0.0
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = np.where(found == wanted, 0.0, np.abs(found - wanted) / bound)
    return float(shares.max())


@dataclass(frozen=True, slots=True)
class Asked:
    """One sequence's part of a launch: queries ``[start, stop)``, the first of them at ``position`` of ``content``."""

    start: int
    stop: int
    position: int
    content: Content


class Judge:
    """The outputs of one launch on the host; ``failures`` grows with each sequence that is judged.

    ``checked``: sums and row sums are there too.
    """

    def __init__(self, attended: Attended, queries: Queries, masking: Masking, checked: bool) -> None:
        self._output = attended.output.double().cpu().numpy()
        self._lse = attended.lse.double().cpu().numpy()
        self._sums = attended.sums.double().cpu().numpy()
        self._row_sums = attended.row_sums.double().cpu().numpy()
        self._queries = queries
        self._masking = masking
        self._checked = checked
        self.failures: list[Failure] = []

    def judge(self, asked: Asked, expected: Expected) -> None:
        """Judge the queries of one sequence."""
        tokens = slice(asked.start, asked.stop)
        self._near("reference", "output", asked, self._output[tokens], expected.output, expected.output_bound)
        self._near("lse", "log-sum-exp", asked, self._lse[tokens], expected.lse, expected.lse_bound)
        if self._checked:
            row_sums = self._row_sums[tokens][..., None]
            quotient = self._sums[tokens] / np.where(row_sums == 0, 1.0, row_sums)
            self._near("reference", "sums / row sums", asked, quotient, expected.output, expected.quotient_bound)
        for token in range(asked.start, asked.stop):
            self._judge_exact(asked, token)

    def _near(
        self, check: str, name: str, asked: Asked, found: Float64Array, wanted: Float64Array, bound: Float64Array
    ) -> None:
        with np.errstate(invalid="ignore"):
            near = (np.abs(found - wanted) <= bound) | (found == wanted)
        noted = _shares.get()
        if noted is not None:
            noted.append(worst_share(found, wanted, bound))
        self._all(check, name, asked.start, near, found, wanted)

    def _judge_exact(self, asked: Asked, token: int) -> None:
        """Judge what is known to the bit: a sequence that sees nothing, zero queries, needles."""
        position = asked.position + token - asked.start
        seen = slice(self._masking.first(position), position + 1)
        group = self._output.shape[1] // asked.content.values.shape[1]
        for head in range(self._output.shape[1]):
            values = asked.content.values[seen, head // group]
            kind = self._queries.kinds[token, head]
            if self._checked and (kind == ZERO or not len(values)):
                total, count = values.sum(0), np.array(float(len(values)))
                found = self._sums[token, head]
                self._all("zero", "sums", token, found == total, found, total, head)
                row_sum = self._row_sums[token, head]
                self._all("zero", "row sums", token, row_sum == count, row_sum, count, head)
            if kind == NEEDLE:
                wanted = asked.content.values[self._queries.needles[token, head], head // group]
                found = self._output[token, head]
                self._all("needle", "output", token, found == wanted, found, wanted, head)

    def _all(
        self,
        check: str,
        name: str,
        token: int,
        right: npt.NDArray[np.bool_] | np.bool_,
        found: npt.NDArray[np.float64],
        wanted: npt.NDArray[np.float64],
        head: int | None = None,
    ) -> None:
        wrong = ~np.atleast_1d(right)
        if wrong.any():
            place = tuple(int(index[0]) for index in np.nonzero(wrong))
            where = f"query {token}, q head {head}, element {place[0]}"
            if head is None:
                where = f"query {token + place[0]}, q head {place[1]}, element {place[2:]}"
            got, want = (np.atleast_1d(one)[place] for one in (found, wanted))
            self.failures.append(Failure(check, f"{name} of {where}: {got:.9g}, expected {want:.9g}"))


def outputs_of_padding(attended: Attended, tokens: int) -> list[Failure]:
    """Say which outputs, poisoned before, were written for queries from ``tokens`` on, which belong to no sequence."""
    names = ("output", "lse", "sums", "row_sums")
    return [
        Failure("untouched", f"{name} was written for padding")
        for name, tensor in zip(names, attended, strict=True)
        if not bool(torch.isnan(tensor[tokens:]).all())
    ]
