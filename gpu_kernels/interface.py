"""What every set of kernels offers, on whatever device: the contract between the harness and the kernels.

Arrays that go in and out are numpy arrays on the host; a cache is whatever ``allocate`` returned, and only the kernels
that made it look inside. Cache elements travel as *bits* (``uint32`` for float32, ``uint16`` for float16 and bfloat16),
so that what is compared bit for bit never passes through a float, where ``-0.0 == 0.0`` and NaN differs from itself.
All arrays are C-contiguous.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from kvsan.gpu_kernels.addressing import IntArray

Bits = npt.NDArray[Any]
"""Bit patterns of cache elements, ``uint32`` or ``uint16``."""

Float32Array = npt.NDArray[np.float32]

CacheT = TypeVar("CacheT")

_BITS_OF_DTYPE: dict[str, type[np.unsignedinteger[Any]]] = {
    "float32": np.uint32,
    "float16": np.uint16,
    "bfloat16": np.uint16,
}


KERNEL_BUGS = ("out-of-bounds", "race", "overflow", "precondition")
"""Kinds of what a sanitizer of kernels can see; the last one is what a launch was given, and not the kernel's doing."""


class OutsidePool(IndexError):
    """A unit or slot given to a kernel is not in the pool, or a block table ends too early; nothing was written."""


class KernelBug(Exception):
    """What a sanitizer of kernels saw a kernel do; tells all of it as text.

    ``kind`` is one of ``KERNEL_BUGS``; ``kernel`` is its name, ``file`` and ``line`` where
    its source does it, ``program`` the program's ids, ``lane`` the element of the block (a tuple: one index a
    dimension), ``message`` what was done to which address.
    """

    def __init__(
        self,
        kind: str,
        kernel: str,
        file: str,
        line: int,
        program: tuple[int, ...],
        lane: int | tuple[int, ...],
        message: str,
    ) -> None:
        assert kind in KERNEL_BUGS, kind
        super().__init__(f"{kind} in {kernel} ({file}:{line}), program {program}, lane {lane}: {message}")
        self.kind = kind
        self.kernel = kernel
        self.file = file
        self.line = line
        self.program = program
        self.lane = lane
        self.message = message


class KernelRaised(Exception):
    """A kernel of a user's own raised an exception; ``kind`` is the exception's name, the text tells all of it."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class UnusableKernels(ValueError):
    """No kernels can be had by a name; the message says why, and what was expected."""


class Attention(NamedTuple):
    """What an attention kernel returns, for ``num_tokens`` queries.

    - ``output``: float32 ``[num_tokens, num_q_heads, head_dim]``, normalised: what a model would use.
    - ``sums``: float32, same shape: the sum of ``exp(score - row maximum) * V``, not normalised.
    - ``row_sums``: float32 ``[num_tokens, num_q_heads]``: the sum of ``exp(score - row maximum)``.
    - ``output_roundoff``: the unit roundoff to which ``output`` was rounded before it became float32, 0 if it was not.

    For a zero query and integer V ``sums`` and ``row_sums`` are integers, exact in float32 below 2**24 whatever the
    order of summation; the quotient is not. Both are None from a kernel that has its output only.
    """

    output: Float32Array
    sums: Float32Array | None
    row_sums: Float32Array | None
    output_roundoff: float = 0.0

    def part(self, start: int, stop: int) -> Attention:
        """Return what queries ``[start, stop)`` got."""
        output, sums, row_sums = (
            None if array is None else array[start:stop] for array in (self.output, self.sums, self.row_sums)
        )
        assert output is not None
        return Attention(output, sums, row_sums, self.output_roundoff)


class Kernels(Protocol[CacheT]):
    """Kernels over one paged cache.

    q heads are grouped: q head h reads kv head ``h // (num_q_heads // num_kv_heads)``. Scores are ``q . k``: a softmax
    scale is the caller's, who folds it into the queries.

    A unit or slot outside the pool raises OutsidePool, and nothing is written then. Any of these may raise KernelBug.
    """

    def weight_roundoff(self, dtype: str) -> float:
        """Unit roundoff to which attention weights are rounded before they meet V, for a cache of this dtype.

        0 where they stay in float32, 2**-11 or 2**-8 on tensor cores that take TF32, float16 or bfloat16 weights.
        """

    def allocate(self, num_units: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: str) -> CacheT:
        """Return a cache of ``num_units * block_size`` slots that hold nothing: zeros, or poison that nobody may multiply.

        ``dtype`` is float32, float16 or bfloat16, or one of ``formats.FORMATS`` for kernels that read its codes.
        """

    def write(self, cache: CacheT, slots: IntArray, keys: Bits, values: Bits) -> None:
        """Write tokens through a slot mapping.

        ``slots`` int64 ``[num_tokens]``, -1 for padding, which is not written; ``keys`` and ``values`` bits
        ``[num_tokens, num_kv_heads, head_dim]``. No slot but -1 comes twice: programs would race for it.
        """

    def decode(
        self, cache: CacheT, queries: Float32Array, tables: IntArray, lengths: IntArray, window: int | None
    ) -> Attention:
        """Attend with one query a row, at position ``length - 1``, to the positions that it sees.

        ``queries`` ``[num_rows, num_q_heads, head_dim]``; ``tables`` int64 ``[num_rows, max_blocks]``, units by block
        number, entries that no query sees are not read; ``lengths`` int64 ``[num_rows]`` in tokens, at least 1;
        ``window`` in tokens, None for full attention.
        """

    def prefill(
        self,
        cache: CacheT,
        queries: Float32Array,
        query_starts: IntArray,
        tables: IntArray,
        lengths: IntArray,
        window: int | None,
    ) -> Attention:
        """Attend causally with the last tokens of each row, all of them already written.

        ``queries`` ``[num_tokens, num_q_heads, head_dim]``, rows one after the other; ``query_starts`` int64
        ``[num_rows + 1]``: row r has queries ``[query_starts[r], query_starts[r + 1])``, and its last one is at
        position ``lengths[r] - 1``. The rest as in ``decode``.
        """

    def gather(self, cache: CacheT, table: IntArray, start: int, stop: int, keys: Bits, values: Bits) -> None:
        """Read positions ``[start, stop)`` of one row into ``keys`` and ``values``.

        ``table`` int64 ``[num_blocks]``; both outputs are bits, at least ``[stop - start, num_kv_heads, head_dim]``.
        """

    def copy(self, cache: CacheT, source: int, destination: int, start: int, stop: int) -> None:
        """Copy K and V of offsets ``[start, stop)`` of one unit to the same offsets of another."""

    def zero(self, cache: CacheT, unit: int, start: int, stop: int) -> None:
        """Zero K and V of offsets ``[start, stop)`` of a unit."""


@runtime_checkable
class CountsCalls(Protocol):
    """Kernels of more than one maker: ``calls`` says which kernel served which launches, and how many."""

    calls: Counter[str]


def bits_dtype(dtype: str) -> np.dtype[Any]:
    """Numpy type of a cache dtype's bit patterns; ValueError for a dtype that is none."""
    if dtype not in _BITS_OF_DTYPE:
        raise ValueError(f"cache dtype {dtype!r}: expected one of {', '.join(_BITS_OF_DTYPE)}")
    return np.dtype(_BITS_OF_DTYPE[dtype])


def encode(numbers: npt.ArrayLike, dtype: str) -> Bits:
    """Bit patterns of numbers that the cache dtype represents exactly; ValueError if it does not."""
    wanted = np.asarray(numbers, dtype=np.float32)
    bits: Bits
    if dtype == "float32":
        bits = wanted.view(np.uint32)
    elif dtype == "float16":
        bits = wanted.astype(np.float16).view(np.uint16)
    else:
        bits = (wanted.view(np.uint32) >> np.uint32(16)).astype(bits_dtype(dtype))
    if not np.array_equal(decode_bits(bits, dtype), wanted):
        raise ValueError(f"these numbers are not exact in {dtype}")
    return bits


def decode_bits(bits: Bits, dtype: str) -> Float32Array:
    """Numbers of bit patterns, exactly, as float32."""
    if dtype == "float32":
        return bits.view(np.float32)
    if dtype == "float16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
