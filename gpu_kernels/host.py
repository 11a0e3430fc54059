"""Kernels for the CPU, fast enough to check every output of a fuzzing run.

Each kernel is the faster of the candidates that ``ci/bench_kernels.py`` compares. Attention is one pass of online
softmax over tiles of positions::

    positions        0 ........ 63 | 64 ....... 127 | 128 .. 170        one row, one kv head
    tile                 K, V -> float32 scratch, then for each query that sees some of the tile:
                         scores -> running maximum -> rescale sums -> exp -> sums += p V, row sum += p

A zero query has the maximum 0 from its first tile on, so nothing is ever rescaled and its sums are sums of integers.
"""

from __future__ import annotations

import math
import mmap
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvsan.gpu_kernels.addressing import PADDING_SLOT, IntArray, slot_of
from kvsan.gpu_kernels.host_attention import attend_rows
from kvsan.gpu_kernels.interface import Attention, Bits, Float32Array, OutsidePool, bits_dtype
from kvsan.gpu_kernels.jit import compiled

_FORMATS = {"float32": 0, "float16": 1, "bfloat16": 2}
_NO_WINDOW = 1 << 62


@dataclass(frozen=True, slots=True)
class HostCache:
    """A paged cache in host memory; ``keys`` and ``values`` are bits ``[num_slots, num_kv_heads, head_dim]``."""

    keys: Bits
    values: Bits
    block_size: int
    dtype: str

    @property
    def num_slots(self) -> int:
        """Slots of the pool."""
        return len(self.keys)


class HostKernels:
    """The kernels of ``interface.Kernels`` on one CPU core. ``head_dim`` must be a multiple of 4."""

    def weight_roundoff(self, dtype: str) -> float:
        """Weights stay in float32."""
        return 0.0

    def allocate(self, num_units: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: str) -> HostCache:
        """Return a zeroed cache; memory is committed where it is first touched. ValueError on a bad ``head_dim``."""
        if head_dim % 4:
            raise ValueError(f"head_dim {head_dim}: expected a multiple of 4")
        shape = (num_units * block_size, num_kv_heads, head_dim)
        bits = bits_dtype(dtype)
        return HostCache(_zeros(shape, bits), _zeros(shape, bits), block_size, dtype)

    def write(self, cache: HostCache, slots: IntArray, keys: Bits, values: Bits) -> None:
        """Write tokens through a slot mapping; see ``interface.Kernels.write``."""
        bad = _write(cache.keys, cache.values, slots, keys, values)
        if bad >= 0:
            raise OutsidePool(f"slot {slots[bad]} of token {bad} is outside the pool of {cache.num_slots} slots")

    def decode(
        self, cache: HostCache, queries: Float32Array, tables: IntArray, lengths: IntArray, window: int | None
    ) -> Attention:
        """Attend with one query a row; see ``interface.Kernels.decode``."""
        return self.prefill(cache, queries, np.arange(len(lengths) + 1), tables, lengths, window)

    def prefill(
        self,
        cache: HostCache,
        queries: Float32Array,
        query_starts: IntArray,
        tables: IntArray,
        lengths: IntArray,
        window: int | None,
    ) -> Attention:
        """Attend causally with the last tokens of each row; see ``interface.Kernels.prefill``."""
        output = np.empty_like(queries)
        sums = np.empty_like(queries)
        row_sums = np.empty(queries.shape[:2], np.float32)
        bad = attend_rows(
            cache.keys,
            cache.values,
            _FORMATS[cache.dtype],
            cache.block_size,
            queries,
            query_starts,
            tables,
            lengths,
            _NO_WINDOW if window is None else window,
            output,
            sums,
            row_sums,
        )
        if bad >= 0:
            raise OutsidePool(f"the block table of row {bad} names a unit outside the pool, or is too short")
        return Attention(output, sums, row_sums)

    def gather(self, cache: HostCache, table: IntArray, start: int, stop: int, keys: Bits, values: Bits) -> None:
        """Read positions of one row; see ``interface.Kernels.gather``."""
        bad = _gather(cache.keys, cache.values, cache.block_size, table, start, stop, keys, values)
        if bad >= 0:
            raise OutsidePool(f"the block table names no unit of the pool for position {bad}")

    def copy(self, cache: HostCache, source: int, destination: int, start: int, stop: int) -> None:
        """Copy a part of a unit; see ``interface.Kernels.copy``."""
        origin = self._part(cache, source, start, stop)
        goal = self._part(cache, destination, start, stop)
        _copy(cache.keys, cache.values, origin.start, goal.start, stop - start)

    def zero(self, cache: HostCache, unit: int, start: int, stop: int) -> None:
        """Zero a part of a unit; see ``interface.Kernels.zero``."""
        part = self._part(cache, unit, start, stop)
        cache.keys[part] = 0
        cache.values[part] = 0

    @staticmethod
    def _part(cache: HostCache, unit: int, start: int, stop: int) -> slice:
        size = cache.block_size
        if not (0 <= slot_of(unit, size, size) <= cache.num_slots and unit >= 0 and 0 <= start <= stop <= size):
            raise OutsidePool(f"offsets [{start}, {stop}) of unit {unit}: outside the pool of {cache.num_slots} slots")
        return slice(slot_of(unit, start, size), slot_of(unit, stop, size))


def _zeros(shape: tuple[int, ...], bits: np.dtype[Any]) -> Bits:
    """Return zeros whose memory is committed page by page.

    ``np.zeros`` asks for huge pages, of which each unit touched in a large pool would commit another 2 MiB.
    """
    size_bytes = math.prod(shape) * bits.itemsize
    if size_bytes == 0:
        return np.zeros(shape, bits)
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux":
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, bits).reshape(shape)


_slot_of = compiled(slot_of)


@compiled
def _move(source: Bits, origin: int, destination: Bits, goal: int, count: int) -> None:
    """Copy ``count`` tokens of contiguous arrays; flat, because a copy by three indices is not vectorised."""
    size = source.shape[1] * source.shape[2]
    elements = source.reshape(-1)[origin * size : (origin + count) * size]
    places = destination.reshape(-1)[goal * size : (goal + count) * size]
    for element in range(len(elements)):
        places[element] = elements[element]


@compiled
def _write(cache_keys: Bits, cache_values: Bits, slots: IntArray, keys: Bits, values: Bits) -> int:
    """Write tokens; the index of the first slot outside the pool, or -1. Nothing is written if there is one."""
    for token in range(len(slots)):
        if slots[token] < PADDING_SLOT or slots[token] >= len(cache_keys):
            return token
    for token in range(len(slots)):
        slot = slots[token]
        if slot != PADDING_SLOT:
            cache_keys[slot] = keys[token]
            cache_values[slot] = values[token]
    return -1


@compiled
def _copy(cache_keys: Bits, cache_values: Bits, origin: int, goal: int, count: int) -> None:
    """Copy ``count`` slots from slot ``origin`` on to those from slot ``goal`` on."""
    _move(cache_keys, origin, cache_keys, goal, count)
    _move(cache_values, origin, cache_values, goal, count)


@compiled
def _gather(
    cache_keys: Bits,
    cache_values: Bits,
    block_size: int,
    table: IntArray,
    start: int,
    stop: int,
    keys: Bits,
    values: Bits,
) -> int:
    """Read positions block by block; the first position without a unit in the pool, or -1."""
    position = start
    while position < stop:
        block = position // block_size
        if block >= len(table) or table[block] < 0 or _slot_of(table[block], block_size, block_size) > len(cache_keys):
            return position
        end = min(stop, (block + 1) * block_size)
        slot = _slot_of(table[block], position - block * block_size, block_size)
        count = end - position
        _move(cache_keys, slot, keys, position - start, count)
        _move(cache_values, slot, values, position - start, count)
        position = end
    return -1
