"""Rows in sharded caches: known bits in a pool of other bits, the same in any layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvsan.gpu_kernels.addressing import blocks_for, slots_of
from kvsan.gpu_kernels.interface import Bits, Kernels, bits_dtype, encode
from kvsan.gpu_kernels.sharded import ShardedCache, ShardedKernels
from kvsan.gpu_kernels.sharding import Layout

HEAD_DIM = 8


def random_bits(seed: int, tokens: int, heads: int, dtype: str = "float32", head_dim: int = HEAD_DIM) -> Bits:
    """Any bit patterns, NaN among them."""
    bits = bits_dtype(dtype)
    return np.random.default_rng(seed).integers(0, 1 << 8 * bits.itemsize, (tokens, heads, head_dim), dtype=bits)


def small_integers(seed: int, tokens: int, heads: int, dtype: str, head_dim: int = HEAD_DIM) -> Bits:
    numbers = np.random.default_rng(seed).integers(-4, 5, (tokens, heads, head_dim))
    return encode(numbers, dtype)


@dataclass(frozen=True)
class Row:
    """A row of ``tokens`` positions in a pool of its own, full of other bits; ``table`` is a random one."""

    kernels: ShardedKernels[Any]
    cache: ShardedCache[Any]
    table: np.ndarray
    tokens: int

    def write(self, keys: Bits, values: Bits, start: int = 0) -> None:
        """Write positions from ``start`` on, as many as there are bits for."""
        slots = slots_of(self.table, start, start + len(keys), self.kernels.layout.unit_tokens)
        self.kernels.write(self.cache, slots, keys, values)

    def read(self, start: int = 0) -> tuple[Bits, Bits]:
        return self.read_as(self.kernels, start)

    def read_as(self, kernels: ShardedKernels[Any], start: int = 0) -> tuple[Bits, Bits]:
        found = self.cache.buffers(self.tokens - start, kernels.layout.num_kv_heads)
        kernels.gather(self.cache, self.table, start, self.tokens, *found)
        return found


def row_in(
    layout: Layout,
    tokens: int,
    inner: Kernels[Any],
    dtype: str = "float32",
    head_dim: int = HEAD_DIM,
    spare: int = 9,
    seed: int = 0,
) -> Row:
    """A row whose pool has ``spare`` more units than it needs, most of them last; slots of nobody hold a number of theirs."""
    kernels = ShardedKernels(inner, layout)
    blocks = blocks_for(tokens, layout.unit_tokens)
    units = blocks + spare
    cache = kernels.allocate(units, layout.unit_tokens, layout.num_kv_heads, head_dim, dtype)
    others = cache.buffers(units * layout.unit_tokens, layout.num_kv_heads)
    for bits in others:
        bits[:] = encode(seed + 1, "float32" if bits.itemsize == 4 else dtype)
    kernels.write(cache, np.arange(units * layout.unit_tokens), *others)
    table = np.random.default_rng(seed).permutation(blocks + spare // 3)[:blocks]
    return Row(kernels, cache, table, tokens)


def same(found: tuple[Bits, Bits], expected: tuple[Bits, Bits]) -> bool:
    return all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
