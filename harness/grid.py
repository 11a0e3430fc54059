"""Which numbers K and V of a cache dtype are made of, so that each is exact in it and a wrong scale is a wrong number.

K is +1 or -1, V one of 16 small integers. Where elements share a scale that lives in the page, the first element of each
group that shares one is a *marker*, larger than all others: it decides the scale, and its magnitude is drawn from the
identity like the rest, so two tokens' scales differ as their contents do::

    int8_per_token_head    K   m  +1 -1 -1 ...  m in +-{2, 4, 8, 16}             scale 2**e / 64
    one group a head       V   m  -3  7  0 ...  m in +-{8, 16, 32, 64}
    nvfp4                  K   m  +1 -1 ... | m  -1 +1 ...   m in +-{6, 12}      scale m / 6
    a group: 16 elements   V   m  -4  0 ... | m  24  6 ...   m in +-{12, 24}     V of a group with 24 are doubled
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvsan.gpu_kernels.formats import NVFP4, PER_TOKEN_HEAD, format_named
from kvsan.gpu_kernels.reference import Codes
from kvsan.harness.target import IntArray

_INTEGERS = tuple(range(-8, 8))
_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


@dataclass(frozen=True, slots=True)
class Grid:
    """The numbers of a cache dtype.

    ``element_dtype`` is in what K and V are handed to the kernels and read back; ``values`` are those of V, by nibble;
    ``group`` is how many elements of a head share a scale, 0 where none is in the page; ``key_markers`` and
    ``value_markers`` are magnitudes of each group's first element; with ``scaled`` the other V of a group are multiplied
    by its marker over the least one, so that they stay on a coarse grid.
    """

    element_dtype: str
    values: tuple[int, ...] = _INTEGERS
    group: int = 0
    key_markers: tuple[int, ...] = (1, 1, 1, 1)
    value_markers: tuple[int, ...] = (1, 1, 1, 1)
    scaled: bool = False

    def markers(self, head_dim: int) -> IntArray:
        """Elements of a head that are markers."""
        return np.arange(0, head_dim, self.group) if self.group else np.empty(0, np.int64)

    def largest_key(self, head_dim: int) -> IntArray:
        """Largest magnitude of K, int64 ``[head_dim]``."""
        largest = np.ones(head_dim, np.int64)
        largest[self.markers(head_dim)] = max(self.key_markers)
        return largest

    def largest_value(self, head_dim: int) -> IntArray:
        """Largest magnitude of V, int64 ``[head_dim]``."""
        factor = max(self.value_markers) // min(self.value_markers) if self.scaled else 1
        largest = np.full(head_dim, factor * max(abs(value) for value in self.values))
        largest[self.markers(head_dim)] = max(self.value_markers)
        return largest

    def table(self) -> Codes:
        """V by nibble, magnitudes of markers of K and of V, least of V if ``scaled`` else 0: int8 ``[25]``."""
        least = min(self.value_markers) if self.scaled else 0
        return np.array((*self.values, *self.key_markers, *self.value_markers, least), np.int8)


def grid_of(dtype: str, head_dim: int) -> Grid:
    """Return the grid of a cache dtype (``gpu_kernels.formats``); ValueError if there is no such dtype."""
    form = format_named(dtype)
    if form.format == PER_TOKEN_HEAD:
        return Grid("float32", group=head_dim, key_markers=(2, 4, 8, 16), value_markers=(8, 16, 32, 64))
    if form.format == NVFP4:
        return Grid("float32", _E2M1, form.scale_block, (6, 12, 6, 12), (12, 24, 12, 24), scaled=True)
    return Grid("float32" if form.quantised else dtype)
