"""Paged attention on one CPU core: online softmax in float32, compiled.

K and V of a tile are transposed to ``[head_dim, TILE]`` as they are read, so that every inner loop runs over the
``TILE`` positions. The compiler vectorises that: it does not vectorise loops over 16 or 32 elements of a head, which it
unrolls first (measured: 14 ns against 1.5 ns for a dot product of 32).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from kvsan.gpu_kernels.addressing import IntArray
from kvsan.gpu_kernels.interface import Bits, Float32Array
from kvsan.gpu_kernels.jit import compiled, compiled_any_order

TILE = 64
_FLOAT16 = 1
_BFLOAT16 = 2

_LOG2_E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
_LOWEST = np.float32(-87.0)


@intrinsic
def _float_of_bits(_context: Any, bits: Any) -> Any:
    """Float32 whose bit pattern is a uint32."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


@intrinsic
def _float_of_half_bits(_context: Any, bits: Any) -> Any:
    """Float32 equal to the float16 whose bit pattern is a uint16."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), generate


# The decorator's type says that callers pass the typing context; they do not.
float_of_bits: Any = _float_of_bits
float_of_half_bits: Any = _float_of_half_bits


@compiled
def exp_not_positive(x: np.float32) -> np.float32:
    """Return exp(x) in float32 for x <= 0, within 2 ulp; exactly 1 at 0, exactly 0 below -87, NaN for NaN.

    Cephes' expf; libm's is not vectorised.
    """
    clamped = x if x > _LOWEST else _LOWEST
    power = np.int32(clamped * _LOG2_E - np.float32(0.5))
    r = clamped - np.float32(power) * _LN2_HIGH
    r = r - np.float32(power) * _LN2_LOW
    y = np.float32(1.9875691500e-4)
    y = y * r + np.float32(1.3981999507e-3)
    y = y * r + np.float32(8.3334519073e-3)
    y = y * r + np.float32(4.1665795894e-2)
    y = y * r + np.float32(1.6666665459e-1)
    y = y * r + np.float32(5.0000001201e-1)
    y = y * (r * r) + r + np.float32(1.0)
    result: np.float32 = y * float_of_bits(np.uint32(power + np.int32(127)) << np.uint32(23))
    if x >= _LOWEST:
        return result
    return np.float32(0.0) if x < _LOWEST else x


@compiled
def _load(bits: Bits, slots: IntArray, head: int, element_format: int, tile: Float32Array) -> None:
    """Read one kv head of a tile's slots as float32, transposed to ``[head_dim, TILE]``; zeros after the last slot.

    The zeros matter: weights there are 0, and 0 times what an uninitialised tile holds may be NaN.
    """
    if len(slots) < TILE:
        tile[:] = 0.0
    for t in range(len(slots)):
        source = bits[slots[t], head]
        if element_format == _FLOAT16:
            for d in range(len(source)):
                tile[d, t] = float_of_half_bits(np.uint16(source[d]))
        elif element_format == _BFLOAT16:
            for d in range(len(source)):
                tile[d, t] = float_of_bits(np.uint32(source[d]) << np.uint32(16))
        else:
            for d in range(len(source)):
                tile[d, t] = float_of_bits(np.uint32(source[d]))


@compiled_any_order
def _attend_tile(
    query: Float32Array,
    keys: Float32Array,
    values: Float32Array,
    low: int,
    high: int,
    weights: Float32Array,
    sums: Float32Array,
    state: Float32Array,
) -> None:
    """Add entries ``[low, high)`` of a tile to one query's ``sums``; ``state`` is (running maximum, row sum)."""
    for t in range(TILE):
        weights[t] = 0.0
    for d in range(0, len(query), 4):  # four at a time: a quarter of the loads and stores of weights
        q0, q1, q2, q3 = query[d], query[d + 1], query[d + 2], query[d + 3]
        k0, k1, k2, k3 = keys[d], keys[d + 1], keys[d + 2], keys[d + 3]
        for t in range(TILE):
            weights[t] += (q0 * k0[t] + q1 * k1[t]) + (q2 * k2[t] + q3 * k3[t])
    weights[:low] = -np.inf
    weights[high:] = -np.inf
    m0, m1, m2, m3 = state[0], state[0], state[0], state[0]
    for t in range(0, TILE, 4):  # four chains: one would wait for its last comparison each time
        m0, m1 = max(m0, weights[t]), max(m1, weights[t + 1])
        m2, m3 = max(m2, weights[t + 2]), max(m3, weights[t + 3])
    maximum = max(max(m0, m1), max(m2, m3))
    if maximum > state[0]:
        shrink = exp_not_positive(state[0] - maximum)
        state[0] = maximum
        state[1] *= shrink
        for d in range(len(sums)):
            sums[d] *= shrink
    row_sum = np.float32(0.0)
    for t in range(TILE):
        weight = exp_not_positive(weights[t] - maximum)
        weights[t] = weight
        row_sum += weight
    state[1] += row_sum
    for d in range(len(sums)):
        column = values[d]
        total = np.float32(0.0)
        for t in range(TILE):
            total += weights[t] * column[t]
        sums[d] += total


@compiled
def _slots(table: IntArray, start: int, stop: int, block_size: int, num_slots: int, slots: IntArray) -> bool:
    """Fill ``slots`` with those of positions ``[start, stop)``; False if one is not in the pool."""
    for position in range(start, stop):
        block = position // block_size
        if block >= len(table) or table[block] < 0:
            return False
        slot = table[block] * block_size + position % block_size
        if slot >= num_slots:
            return False
        slots[position - start] = slot
    return True


@compiled
def attend_rows(
    cache_keys: Bits,
    cache_values: Bits,
    element_format: int,
    block_size: int,
    queries: Float32Array,
    query_starts: IntArray,
    tables: IntArray,
    lengths: IntArray,
    window: int,
    output: Float32Array,
    sums: Float32Array,
    row_sums: Float32Array,
) -> int:
    """Prefill or decode of many rows, as in ``interface.Kernels.prefill``; -1, or the first row with a bad table."""
    num_kv_heads, head_dim = cache_keys.shape[1:]
    group = queries.shape[1] // num_kv_heads
    keys = np.empty((head_dim, TILE), np.float32)
    values = np.empty((head_dim, TILE), np.float32)
    weights = np.empty(TILE, np.float32)
    slots = np.empty(TILE, np.int64)
    states = np.empty((queries.shape[0], queries.shape[1], 2), np.float32)
    states[:, :, 0] = -np.inf
    states[:, :, 1] = 0.0
    sums[:] = 0.0
    for row in range(len(lengths)):
        first, end = query_starts[row], query_starts[row + 1]
        shift = lengths[row] - end  # position of a query = its index + shift
        begin = max(0, first + shift - window + 1)
        for tile_start in range(begin, lengths[row], TILE):
            tile_stop = min(tile_start + TILE, lengths[row])
            count = tile_stop - tile_start
            if not _slots(tables[row], tile_start, tile_stop, block_size, len(cache_keys), slots):
                return row
            for kv_head in range(num_kv_heads):
                _load(cache_keys, slots[:count], kv_head, element_format, keys)
                _load(cache_values, slots[:count], kv_head, element_format, values)
                for i in range(max(first, tile_start - shift), end):
                    low = max(tile_start, i + shift - window + 1) - tile_start
                    high = min(tile_stop, i + shift + 1) - tile_start
                    if low < high:
                        for h in range(kv_head * group, kv_head * group + group):
                            _attend_tile(queries[i, h], keys, values, low, high, weights, sums[i, h], states[i, h])
        for i in range(first, end):
            for h in range(queries.shape[1]):
                row_sums[i, h] = states[i, h, 1]
                for d in range(head_dim):
                    output[i, h, d] = sums[i, h, d] / states[i, h, 1]
    return -1
