"""Problems as Hypothesis strategies, and how many of them tests look at.

Hypothesis draws one string of bytes and the choices of a problem are read from it: given many draws of the same kind it
would spend five of six examples on the last one with some part repeated. Bytes shrink to zeros, which are the first
options and the least integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

T = TypeVar("T")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""Where kernels run here."""

_SIZE = 96


class _Bytes:
    """A ``draws.Source`` that reads its choices from bytes, and zeros behind their end."""

    def __init__(self, numbers: bytes) -> None:
        self._numbers = numbers

    def choice(self, options: Sequence[T]) -> T:
        return options[self.integer(0, len(options) - 1)]

    def integer(self, low: int, high: int) -> int:
        size = 1 + (high - low).bit_length() // 8
        number, self._numbers = self._numbers[:size], self._numbers[size:]
        return low + int.from_bytes(number, "big") % (high - low + 1)


def problems(make: Callable[..., T], **options: Any) -> st.SearchStrategy[T]:
    """What ``make(source, **options)`` of ``kvsan.ci.kernels.draws`` draws."""
    return st.binary(min_size=_SIZE, max_size=_SIZE).map(lambda numbers: make(_Bytes(numbers), **options))


def examples(count: int) -> settings:
    """So many problems, always the same ones."""
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
