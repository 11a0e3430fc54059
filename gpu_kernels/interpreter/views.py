"""A tensor argument as a set of addresses: which bytes are elements of it, and how to name one.

A view with gaps (one head's keys in a page that holds more) is not a range. Sorted by descending stride, its dimensions
are the digits of an element's offset, and an offset is an element if every digit is below its dimension's size and
nothing is left over::

    shape [4, 2, 32], strides [128, 32, 1]      offset 293 = 2 * 128 + 1 * 32 + 5     an element
                                                offset 357 = 2 * 128 + 3 * 32 + 5     3 >= 2: in a gap

That is exact where each stride is larger than all that the smaller ones span. Other views (overlapping ones, of
``as_strided`` or ``unfold``) get a table of their offsets instead. Dimensions of size 1 or stride 0 add no address.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Offsets = npt.NDArray[np.int64]
Lanes = npt.NDArray[np.bool_]


class _Digit(NamedTuple):
    stride: int
    size: int
    dimension: int


class View:
    """The addresses of one tensor argument; ``stop`` is its last byte's offset plus one, 0 for an empty tensor."""

    def __init__(self, name: str, tensor: Any) -> None:
        self.name = name
        self.shape = tuple(int(size) for size in tensor.shape)
        self.strides = tuple(int(stride) for stride in tensor.stride())
        self.address = int(tensor.data_ptr())
        self.itemsize = int(tensor.element_size())
        sizes = zip(self.strides, self.shape, strict=True)
        digits = (_Digit(stride, size, index) for index, (stride, size) in enumerate(sizes) if stride and size > 1)
        self._digits = sorted(digits, reverse=True)
        last = sum(digit.stride * (digit.size - 1) for digit in self._digits)
        self.stop = (last + 1) * self.itemsize if 0 not in self.shape else 0
        inner, self._nested, self._dense = 0, True, True
        for digit in reversed(self._digits):
            self._nested &= digit.stride > inner
            self._dense &= digit.stride == inner + 1
            inner += digit.stride * (digit.size - 1)
        self._table = None if self._nested or not self.stop else self._offsets(last + 1)

    def _offsets(self, count: int) -> Lanes:
        elements = np.zeros((), dtype=np.int64)
        for digit in self._digits:
            elements = np.add.outer(elements, np.arange(digit.size) * digit.stride)
        table = np.zeros(count, dtype=np.bool_)
        table[elements] = True
        return table

    def contains(self, offsets: Offsets, size_bytes: int) -> Lanes:
        """Which accesses of ``size_bytes`` at byte ``offsets`` from the view's address touch nothing but elements."""
        inside: Lanes = (offsets >= 0) & (offsets <= self.stop - size_bytes)
        if self._dense or not inside.any():
            return inside
        first, last = offsets // self.itemsize, (offsets + (size_bytes - 1)) // self.itemsize
        for step in range(int((last - first).max()) + 1):
            inside &= self._are_elements(np.minimum(first + step, last))
        return inside

    def _are_elements(self, elements: Offsets) -> Lanes:
        if self._table is not None:
            return self._table[np.clip(elements, 0, self._table.size - 1)]
        found: Lanes = np.ones(elements.shape, dtype=np.bool_)
        for digit in self._digits:
            index, elements = np.divmod(elements, digit.stride)
            found &= index < digit.size
        found &= elements == 0
        return found

    def __str__(self) -> str:
        return f"argument {self.name} {list(self.shape)}"

    def place(self, offset: int) -> str:
        """Say in words where a byte offset is: which element, in a gap, or how far before or after the view."""
        if offset < 0:
            return f"{_elements(-(offset // self.itemsize))} before the start of {self}"
        if offset >= self.stop:
            return f"{_elements((offset - self.stop) // self.itemsize + 1)} past the end of {self}"
        element = np.array([offset // self.itemsize])
        if not self._are_elements(element)[0]:
            return f"in a gap between elements of {self} with strides {list(self.strides)}"
        if not self._nested:
            return f"offset {element[0]} of {self}"
        index, rest = [0] * len(self.shape), int(element[0])
        for digit in self._digits:
            index[digit.dimension], rest = divmod(rest, digit.stride)
        return f"element {index} of {self}"


def _elements(count: int) -> str:
    return f"{count} element{'s' * (count != 1)}"
