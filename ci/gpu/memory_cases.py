"""Kernels that move and do not compute, as cases: writing through a slot mapping, and copying blocks.

The cache is full of NaN before a call is checked; afterwards all of it is compared bit for bit, what must not change too.
The baseline is PyTorch's indexing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvsan.ci.gpu.cases import Case, Contestant, sets_beyond
from kvsan.ci.kernels.caches import as_bits
from kvsan.ci.kernels.kernel_set import KernelSet
from kvsan.gpu_kernels.layout import PagedCache, allocate_cache


@dataclass(frozen=True, slots=True)
class Moved:
    """``amount`` tokens to write, or blocks to copy, of a bfloat16 cache."""

    amount: int
    kv_heads: int
    head_dim: int
    block_size: int

    @property
    def heads(self) -> str:
        """What a table says of the cache."""
        return f"{self.kv_heads} heads of {self.head_dim}, bfloat16, blocks of {self.block_size}"

    @property
    def token_bytes(self) -> int:
        """K and V of one token."""
        return 2 * self.kv_heads * self.head_dim * 2

    def allocate(self, num_blocks: int, device: str) -> PagedCache:
        """Return a cache of random numbers."""
        cache = allocate_cache(num_blocks, self.block_size, self.kv_heads, self.head_dim, "bfloat16", "NHD", device)
        cache.keys.normal_()
        cache.values.normal_()
        return cache


def write_case(moved: Moved, kernels: KernelSet, device: str, l2_bytes: int) -> Case:
    """Write tokens, whole blocks of them in order, the blocks in none; a quarter of the pool stays free."""
    moved_bytes = 2 * moved.amount * moved.token_bytes
    num_blocks = -(-moved.amount // moved.block_size) * 4 // 3 + 1
    inputs = []
    for _ in range(sets_beyond(l2_bytes, moved_bytes)):
        shape = (2, moved.amount, moved.kv_heads, moved.head_dim)
        key, value = torch.randn(shape, device=device).bfloat16()
        blocks = torch.randperm(num_blocks, device=device)
        slots = (blocks[:, None] * moved.block_size + torch.arange(moved.block_size, device=device)).flatten()
        inputs.append((key, value, moved.allocate(num_blocks, device), slots[: moved.amount]))

    def ours(number: int) -> None:
        kernels.write(*inputs[number])

    def indexing(number: int) -> None:
        key, value, cache, slots = inputs[number]
        place = slots // moved.block_size, slots % moved.block_size
        cache.keys[place] = key
        cache.values[place] = value

    def poison(number: int) -> None:
        for tensor in inputs[number][2].tensors():
            tensor.fill_(float("nan"))

    def wrong(number: int, result: object) -> str:
        key, value, cache, slots = inputs[number]
        found = ""
        for name, tokens, tensor in (("K", key, cache.keys), ("V", value, cache.values)):
            expected = torch.full(tensor.shape, float("nan"), dtype=tensor.dtype, device=device)
            expected.flatten(0, 1)[slots] = tokens
            found = found or difference(name, tensor, expected)
        return found

    name = f"write, {moved.amount:,} tokens, {moved.heads}"
    return Case(
        name, len(inputs), moved_bytes, (Contestant("KVSan", ours), Contestant("indexing", indexing)), poison, wrong
    )


def copy_case(moved: Moved, kernels: KernelSet, device: str, l2_bytes: int) -> Case:
    """Copy blocks to others of the same pool, in no order."""
    moved_bytes = 2 * moved.amount * moved.block_size * moved.token_bytes
    inputs = []
    for _ in range(sets_beyond(l2_bytes, moved_bytes)):
        pairs = torch.randperm(2 * moved.amount, device=device).view(moved.amount, 2)
        inputs.append((moved.allocate(2 * moved.amount, device), pairs))

    def ours(number: int) -> None:
        kernels.copy_blocks(*inputs[number])

    def indexing(number: int) -> None:
        cache, pairs = inputs[number]
        for tensor in cache.tensors():
            tensor[pairs[:, 1]] = tensor[pairs[:, 0]]

    def poison(number: int) -> None:
        cache, pairs = inputs[number]
        for tensor in cache.tensors():
            tensor[pairs[:, 1]] = float("nan")

    def wrong(number: int, result: object) -> str:
        cache, pairs = inputs[number]
        found = ""
        for name, tensor in (("K", cache.keys), ("V", cache.values)):
            found = found or difference(name, tensor[pairs[:, 1]], tensor[pairs[:, 0]])
            if bool(torch.isnan(tensor[pairs[:, 0]]).any()):
                found = found or f"{name} of a source was written"
        return found

    name = f"block copy, {moved.amount:,} blocks, {moved.heads}"
    return Case(
        name, len(inputs), moved_bytes, (Contestant("KVSan", ours), Contestant("indexing", indexing)), poison, wrong
    )


def difference(name: str, found: torch.Tensor, expected: torch.Tensor) -> str:
    """Say where two tensors differ, bit for bit, first."""
    wrong = as_bits(found) != as_bits(expected)
    if not bool(wrong.any()):
        return ""
    return f"{name}: {int(wrong.sum())} elements, the first at {tuple(torch.nonzero(wrong)[0].tolist())}"
