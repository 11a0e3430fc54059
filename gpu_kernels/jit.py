"""How host code is compiled: numba, cached on disk where a place can be written, kept in memory otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])

# Order of summation and contraction are free; NaN, infinity and division keep their meaning.
_FREE_ORDER = {"reassoc", "contract", "nsz"}


def compiled(function: Function) -> Function:
    """Compile for the CPU with IEEE arithmetic in the order written."""
    return _compile(function, fastmath=False)


def compiled_any_order(function: Function) -> Function:
    """Compile for the CPU; sums may be taken in any order, which is what vectorises dot products."""
    return _compile(function, fastmath=_FREE_ORDER)


def _compile(function: Function, **options: Any) -> Function:
    try:
        result: Function = njit(cache=True, error_model="numpy", **options)(function)
    except RuntimeError:  # numba found no folder it can write: neither the package's, nor the user's
        result = njit(error_model="numpy", **options)(function)
    return result
