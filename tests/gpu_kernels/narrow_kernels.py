"""A write kernel that computes offsets as wide as the slots it is given; Triton needs its source in a file."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvsan.gpu_kernels.layout import PagedCache


@triton.jit
def write_narrow(
    key, value, keys, values, slot_mapping, stride_block, stride_slot, stride_head,
    BLOCK_SIZE: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    head = tl.program_id(1)
    slot = tl.load(slot_mapping + token)
    d = tl.arange(0, DIM)
    to = slot // BLOCK_SIZE * stride_block + slot % BLOCK_SIZE * stride_slot + head * stride_head + d
    at = (token * tl.num_programs(1) + head) * DIM + d
    tl.store(keys + to, tl.load(key + at))
    tl.store(values + to, tl.load(value + at))


def write_with_int32(key: torch.Tensor, value: torch.Tensor, cache: PagedCache, slot_mapping: torch.Tensor) -> None:
    """Write all tokens, none of them skipped."""
    write_narrow[(len(slot_mapping), cache.num_kv_heads)](
        key.contiguous(), value.contiguous(), cache.keys, cache.values, slot_mapping, *cache.keys.stride()[:3],
        BLOCK_SIZE=cache.block_size, DIM=cache.head_dim,
    )  # fmt: skip
