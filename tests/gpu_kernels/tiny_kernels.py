"""Kernels that tests compile: one that is fine, and one for each way not to be."""

import triton
import triton.language as tl

STEP = tl.constexpr(1)


@triton.jit
def add(x, out, length, SIZE: tl.constexpr):
    index = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    visible = index < length
    tl.store(out + index, tl.load(x + index, mask=visible, other=0.0) + STEP, mask=visible)


@triton.jit
def greedy(x, out, SIZE: tl.constexpr):
    """Keeps SIZE numbers a program until it knows their sum."""
    index = tl.arange(0, SIZE)
    numbers = tl.load(x + index)
    tl.store(out + index, numbers * tl.sum(numbers, 0))


@triton.jit
def fickle(out, length):
    """Has a type that changes by branch, which the interpreter takes."""
    result = 0
    if length > 4:
        result = 1.5
    tl.store(out, result)


def plain_function(x):
    return x
