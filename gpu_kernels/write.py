"""``reshape_and_cache``: write new K and V through a slot mapping.

    grid       (tile of TOKENS tokens, kv head)
    token t    slot_mapping[t] = slot  ->  block slot // BLOCK_SIZE, place slot % BLOCK_SIZE in it; -1: not written

The length of the slot mapping decides how many tokens there are: ``key`` and ``value`` may be padded beyond it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvsan.gpu_kernels.launching import check_integers, power_of_two
from kvsan.gpu_kernels.layout import PagedCache, attention_strides

_TOKENS = 16


@triton.jit
def reshape_and_cache(
    key, value, keys, values, slot_mapping, num_tokens, stride_kt, stride_kh, stride_vt, stride_vh,
    stride_block, stride_slot, stride_head,
    TOKENS: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """Write ``TOKENS`` tokens of one kv head."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(1).to(tl.int64)
    slot = tl.load(slot_mapping + token, mask=token < num_tokens, other=-1).to(tl.int64)
    d = tl.arange(0, DIM)
    mask = (slot >= 0)[:, None] & (d < HEAD_DIM)[None, :]
    to = (slot // BLOCK_SIZE * stride_block + slot % BLOCK_SIZE * stride_slot + head * stride_head)[:, None] + d[
        None, :
    ]
    at = token.to(tl.int64)
    k = tl.load(key + (at * stride_kt + head * stride_kh)[:, None] + d[None, :], mask=mask, other=0.0)
    v = tl.load(value + (at * stride_vt + head * stride_vh)[:, None] + d[None, :], mask=mask, other=0.0)
    tl.store(keys + to, k.to(keys.dtype.element_ty), mask=mask)
    tl.store(values + to, v.to(values.dtype.element_ty), mask=mask)


def write(key: torch.Tensor, value: torch.Tensor, cache: PagedCache, slot_mapping: torch.Tensor) -> None:
    """Write K and V of ``len(slot_mapping)`` tokens to a plain cache.

    ``key, value`` ``[num_tokens or more, num_kv_heads, head_dim]``, the last dimension contiguous; ``slot_mapping``
    int32 or int64 ``[num_tokens]``, -1 for tokens that are not written. No other slot comes twice: programs would race.
    ValueError on shapes that do not fit, or a quantised cache (``quant.write``).
    """
    if cache.format.quantised:
        raise ValueError(f"a cache of {cache.format.name}: expected a plain one; quant.write quantises")
    check_tokens(key, value, cache, slot_mapping)
    tokens = len(slot_mapping)
    if tokens:
        reshape_and_cache[(triton.cdiv(tokens, _TOKENS), cache.num_kv_heads)](
            key, value, cache.keys, cache.values, slot_mapping, tokens, *key.stride()[:2], *value.stride()[:2],
            *attention_strides(cache)[:3], **token_constants(cache),
        )  # fmt: skip


def token_constants(cache: PagedCache) -> dict[str, int]:
    """Constants of kernels that go through tokens, ``TOKENS`` a program."""
    dim = max(16, power_of_two(cache.head_dim))
    return {"TOKENS": _TOKENS, "BLOCK_SIZE": cache.block_size, "HEAD_DIM": cache.head_dim, "DIM": dim}


def check_tokens(key: torch.Tensor, value: torch.Tensor, cache: PagedCache, slot_mapping: torch.Tensor) -> None:
    """Raise ValueError unless K, V and a slot mapping fit each other and the cache."""
    check_integers("slot_mapping", slot_mapping)
    for name, tensor in (("key", key), ("value", value)):
        fits = tensor.ndim == 3 and tensor.shape[1:] == (cache.num_kv_heads, cache.head_dim) and tensor.stride(2) == 1
        if not fits or len(tensor) < len(slot_mapping):
            raise ValueError(
                f"{name} {tuple(tensor.shape)}, strides {tensor.stride()}: expected [{len(slot_mapping)} or more, "
                f"{cache.num_kv_heads}, {cache.head_dim}], the last dimension contiguous"
            )
