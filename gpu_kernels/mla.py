"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): decode over a latent that K and V share.

cache      [block, slot, LATENT | ROPE]        one vector a token, whatever the number of q heads
K          latent and RoPE part together       scores = q_latent . latent + q_rope . rope
V          the latent alone                    output [q head, LATENT], which the caller projects up

grid       (sequence, tile of HEADS q heads)
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvsan.gpu_kernels.launching import Attended, check_integers, check_rows, new_attended, power_of_two, tile_of
from kvsan.gpu_kernels.tiles import LOG2_E, log_sum_exp, normalised

_TOKENS = 16
_HEADS = 16


@triton.jit
def concat_and_cache(
    latent, rope, cache, slot_mapping, num_tokens, stride_lt, stride_rt, stride_block, stride_slot,
    TOKENS: tl.constexpr, BLOCK_SIZE: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr,
    LATENT_DIM: tl.constexpr, ROPE_DIM: tl.constexpr,
):  # fmt: skip
    """Write ``TOKENS`` tokens: latent, then RoPE part, through a slot mapping; -1 is not written."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    slot = tl.load(slot_mapping + token, mask=token < num_tokens, other=-1).to(tl.int64)
    to = slot // BLOCK_SIZE * stride_block + slot % BLOCK_SIZE * stride_slot
    at = token.to(tl.int64)
    d = tl.arange(0, LATENT_DIM)
    mask = (slot >= 0)[:, None] & (d < LATENT)[None, :]
    x = tl.load(latent + (at * stride_lt)[:, None] + d[None, :], mask=mask, other=0.0)
    tl.store(cache + to[:, None] + d[None, :], x.to(cache.dtype.element_ty), mask=mask)
    r = tl.arange(0, ROPE_DIM)
    rope_mask = (slot >= 0)[:, None] & (r < ROPE)[None, :]
    y = tl.load(rope + (at * stride_rt)[:, None] + r[None, :], mask=rope_mask, other=0.0)
    tl.store(cache + to[:, None] + LATENT + r[None, :], y.to(cache.dtype.element_ty), mask=rope_mask)


@triton.jit
def mla_decode(
    output, lse, sums, row_sums, query, cache, block_tables, seq_lens, scale,
    stride_ot, stride_oh, stride_lt, stride_qt, stride_qh, stride_table, stride_block, stride_slot,
    NUM_HEADS: tl.constexpr, HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr,
    LATENT_DIM: tl.constexpr, ROPE_DIM: tl.constexpr, TILE: tl.constexpr, CHECKED: tl.constexpr,
):  # fmt: skip
    """Attend with one query a sequence and ``HEADS`` q heads, by online softmax over tiles of positions."""
    row = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    within = h < NUM_HEADS
    head = h.to(tl.int64)
    length = tl.load(seq_lens + row)
    d = tl.arange(0, LATENT_DIM)
    r = tl.arange(0, ROPE_DIM)
    from_query = (row * stride_qt + head * stride_qh)[:, None]
    mask = within[:, None] & (d < LATENT)[None, :]
    rope_mask = within[:, None] & (r < ROPE)[None, :]
    q = tl.load(query + from_query + d[None, :], mask=mask, other=0.0).to(cache.dtype.element_ty)
    q_rope = tl.load(query + from_query + LATENT + r[None, :], mask=rope_mask, other=0.0).to(cache.dtype.element_ty)
    total = tl.zeros([HEADS, LATENT_DIM], tl.float32)
    row_total = tl.zeros([HEADS], tl.float32)
    maxima = tl.full([HEADS], float("-inf"), tl.float32)
    for tile in range(0, length, TILE):
        at = tile + tl.arange(0, TILE)
        needed = at < length
        block = tl.load(block_tables + row * stride_table + at // BLOCK_SIZE, mask=needed, other=0).to(tl.int64)
        offsets = (block * stride_block + (at % BLOCK_SIZE).to(tl.int64) * stride_slot)[:, None]
        latent = tl.load(cache + offsets + d[None, :], mask=needed[:, None] & (d < LATENT)[None, :], other=0.0)
        rope = tl.load(cache + offsets + LATENT + r[None, :], mask=needed[:, None] & (r < ROPE)[None, :], other=0.0)
        scores = tl.dot(q, tl.trans(latent), input_precision="ieee")
        scores += tl.dot(q_rope, tl.trans(rope), input_precision="ieee")
        scores = tl.where(needed[None, :], scores * (scale * LOG2_E), float("-inf"))
        highest = tl.maximum(maxima, tl.max(scores, 1))
        weights = tl.exp2(scores - highest[:, None])
        shrink = tl.exp2(maxima - highest)
        row_total = row_total * shrink + tl.sum(weights, 1)
        total = total * shrink[:, None] + tl.dot(weights.to(cache.dtype.element_ty), latent, input_precision="ieee")
        maxima = highest
    to = (row * stride_ot + head * stride_oh)[:, None] + d[None, :]
    to_head = row * stride_lt + head
    tl.store(output + to, normalised(total, row_total).to(output.dtype.element_ty), mask=mask)
    tl.store(lse + to_head, log_sum_exp(row_total, maxima), mask=within)
    if CHECKED:
        tl.store(sums + to, total, mask=mask)
        tl.store(row_sums + to_head, row_total, mask=within)


def write_constants(block_size: int, latent: int, rope: int) -> dict[str, int]:
    """Constants of ``concat_and_cache``."""
    padded = {"LATENT_DIM": power_of_two(latent), "ROPE_DIM": power_of_two(rope)}
    return {"TOKENS": _TOKENS, "BLOCK_SIZE": block_size, "LATENT": latent, "ROPE": rope, **padded, "num_warps": 8}


def decode_constants(heads: int, block_size: int, latent: int, rope: int, dtype: torch.dtype) -> dict[str, int]:
    """Constants of ``mla_decode``; dot products need 16 elements of either part at least."""
    padded = max(16, power_of_two(latent))
    return {
        "NUM_HEADS": heads,
        "HEADS": _HEADS,
        "BLOCK_SIZE": block_size,
        "LATENT": latent,
        "ROPE": rope,
        "LATENT_DIM": padded,
        "ROPE_DIM": max(16, power_of_two(rope)),
        "TILE": tile_of(padded, dtype.itemsize, _HEADS),
        "num_warps": 4,
    }


def mla_write(latent: torch.Tensor, rope: torch.Tensor, cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    """Write tokens' latent and RoPE parts.

    ``latent`` ``[num_tokens or more, latent]``, ``rope`` ``[num_tokens or more, rope]``; ``cache`` ``[num_blocks,
    block_size, latent + rope]``, the last dimension contiguous; ``slot_mapping`` ``[num_tokens]``, -1 for padding.
    ValueError on shapes that do not fit.
    """
    check_integers("slot_mapping", slot_mapping)
    tokens = len(slot_mapping)
    widths = latent.shape[1], rope.shape[1]
    if cache.ndim != 3 or cache.shape[2] != sum(widths) or cache.stride(2) != 1 or min(len(latent), len(rope)) < tokens:
        raise ValueError(
            f"latent {tuple(latent.shape)}, rope {tuple(rope.shape)}, cache {tuple(cache.shape)}: expected "
            f"{tokens} tokens or more, and a cache as wide as both together"
        )
    if tokens and (latent.stride(1) != 1 or rope.stride(1) != 1):
        raise ValueError("latent or rope: expected the last dimension contiguous")
    if tokens:
        concat_and_cache[(triton.cdiv(tokens, _TOKENS),)](
            latent, rope, cache, slot_mapping, tokens, latent.stride(0), rope.stride(0), *cache.stride()[:2],
            **write_constants(cache.shape[1], *widths),
        )  # fmt: skip


def mla(
    query: torch.Tensor,
    cache: torch.Tensor,
    rope: int,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    checked: bool = False,
    output_dtype: torch.dtype | None = None,
) -> Attended:
    """Decode with one query a sequence, at its last position.

    ``query`` ``[num_rows, num_q_heads, latent + rope]``, latent part first; ``cache`` as in ``mla_write``; ``rope`` its
    last elements that are no part of V. ``output`` is ``[num_rows, num_q_heads, latent]``. The rest as in
    ``decode.decode``. ValueError on shapes that do not fit.
    """
    rows, heads, width = query.shape
    if cache.ndim != 3 or cache.shape[2] != width or cache.stride(2) != 1 or query.stride(2) != 1:
        raise ValueError(f"query {tuple(query.shape)}, cache {tuple(cache.shape)}: expected the same last dimension")
    if not 0 < rope < width:
        raise ValueError(f"rope {rope}: expected a part of {width} elements")
    check_rows(block_tables, seq_lens)
    if len(seq_lens) != rows:
        raise ValueError(f"{rows} queries, {len(seq_lens)} lengths: expected one query a sequence")
    latent = width - rope
    attended = new_attended(query[..., :latent], output_dtype or query.dtype, checked)
    if rows:
        constants = decode_constants(heads, cache.shape[1], latent, rope, cache.dtype)
        mla_decode[(rows, triton.cdiv(heads, _HEADS))](
            attended.output, attended.lse, attended.sums, attended.row_sums, query, cache, block_tables, seq_lens,
            scale, *attended.output.stride()[:2], attended.lse.stride(0), *query.stride()[:2], block_tables.stride(0),
            *cache.stride()[:2], CHECKED=checked, **constants,
        )  # fmt: skip
    return attended
