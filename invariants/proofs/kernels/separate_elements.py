"""Whether the elements of a tensor are different memory, as far as its strides are numbers.

Proofs take it that two indexes are two elements. That is an assumption about strides that a launch has; of strides that a
specification writes down it can be seen.
"""

from __future__ import annotations

from itertools import combinations
from math import gcd

from kvsan.invariants.proofs.kernels.ir import Rejected
from kvsan.invariants.proofs.kernels.specification import Tensor
from kvsan.invariants.proofs.term import Number


def check_separate(name: str, tensor: Tensor) -> None:
    """Rejected if two dimensions have steps that lead to one element; a size that is no number is taken for 2 or more."""
    numbers = [(size, stride) for size, stride in zip(tensor.shape, tensor.strides, strict=True) if type(stride) is int]
    if any(stride == 0 and _has(size, 1) for size, stride in numbers):
        raise Rejected(f"{name} is stored to, with a stride of 0: its elements are the same memory")
    for (size, stride), (other_size, other_stride) in combinations(numbers, 2):
        common = gcd(stride, other_stride)
        if common and _has(size, abs(other_stride) // common) and _has(other_size, abs(stride) // common):
            raise Rejected(f"{name} is stored to, with strides {stride} and {other_stride}: its elements share memory")


def _has(size: Number, steps: int) -> bool:
    """Whether a dimension is known to have an index that is so many steps from its first one."""
    return steps < size if type(size) is int else steps <= 1
