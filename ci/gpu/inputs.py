"""Input sets of attention: sequences of one length in pages that lie in no order, and the same K and V contiguous."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvsan.ci.gpu.dense import gathered
from kvsan.ci.kernels.kernel_set import KernelSet
from kvsan.gpu_kernels.formats import format_named
from kvsan.gpu_kernels.layout import PagedCache, allocate_cache

_TOKENS_AT_ONCE = 1 << 16
_TENSOR_SCALES = {"fp8_e4m3": (0.03125, 0.0625), "fp8_e5m2": (0.03125, 0.0625), "nvfp4": (0.03125, 0.0625)}


@dataclass(frozen=True, slots=True)
class Shape:
    """``rows`` sequences of ``length`` tokens, the last ``queries`` of which ask; 1 is a decode."""

    rows: int
    length: int
    queries: int
    q_heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    dtype: str = "bfloat16"

    @property
    def name(self) -> str:
        """What a table says of it."""
        heads = f"{self.q_heads}/{self.kv_heads} heads of {self.head_dim}, {self.dtype}, blocks of {self.block_size}"
        if self.queries == 1:
            return f"decode, {self.rows} x {self.length:,} tokens, {heads}"
        return f"prefill, {self.rows} x {self.queries:,} of {self.length:,} tokens, {heads}"

    @property
    def moved_bytes(self) -> int:
        """K, V and their scales, the queries and the outputs, each once."""
        form = format_named(self.dtype)
        vector = form.width(self.head_dim) * form.element_bytes + form.scale_width(self.head_dim) * form.scale_bytes
        asked = self.rows * self.queries * self.q_heads * self.head_dim * 2
        return 2 * self.rows * self.length * self.kv_heads * vector + 2 * asked

    @property
    def operations(self) -> int:
        """Floating-point operations of the two matrix products."""
        before = self.length - self.queries
        pairs = self.queries * before + self.queries * (self.queries + 1) // 2
        return 4 * self.rows * pairs * self.q_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class Inputs:
    """One input set; ``tables`` int32 ``[rows, blocks]``, ``starts`` int32 ``[rows + 1]``.

    ``keys, values`` ``[rows, length, kv_heads, head_dim]`` of bfloat16: what the pages hold, contiguous.
    """

    query: torch.Tensor
    cache: PagedCache
    tables: torch.Tensor
    lengths: torch.Tensor
    starts: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor


def make_inputs(shape: Shape, kernels: KernelSet, device: str) -> Inputs:
    """Draw an input set from torch's generator; quantised pages are written by the kernel for it."""
    blocks_of_row = -(-shape.length // shape.block_size)
    num_blocks = shape.rows * blocks_of_row
    scales = _TENSOR_SCALES.get(shape.dtype, (1.0, 1.0))
    sizes = (num_blocks, shape.block_size, shape.kv_heads, shape.head_dim)
    cache = allocate_cache(*sizes, shape.dtype, "NHD", device, *scales)
    if cache.format.quantised:
        slots = torch.arange(num_blocks * shape.block_size, device=device)
        for start in range(0, len(slots), _TOKENS_AT_ONCE):
            part = slots[start : start + _TOKENS_AT_ONCE]
            tokens = torch.randn((2, len(part), shape.kv_heads, shape.head_dim), device=device).bfloat16()
            kernels.quant_write(tokens[0], tokens[1], cache, part)
    else:
        cache.keys.normal_()
        cache.values.normal_()
    tables = torch.randperm(num_blocks, device=device).reshape(shape.rows, blocks_of_row)
    rows = [gathered(cache, tables[row : row + 1], shape.length) for row in range(shape.rows)]
    keys, values = (torch.cat([row[side].bfloat16() for row in rows]) for side in (0, 1))
    return Inputs(
        torch.randn((shape.rows * shape.queries, shape.q_heads, shape.head_dim), device=device).bfloat16(),
        cache,
        tables.int(),
        torch.full((shape.rows,), shape.length, dtype=torch.int32, device=device),
        torch.arange(shape.rows + 1, dtype=torch.int32, device=device) * shape.queries,
        keys,
        values,
    )
