"""Paged decode: one query a sequence, in one pass or split over the context and merged.

    grid       (sequence, kv head x head tile)             paged_decode
               (sequence, kv head x head tile, split)      paged_decode_split, then
               (sequence, q head)                          merge_splits

The q heads of one kv head are the rows of a matrix, so K and V are read once for all of them. Splits cut what the
sequence sees into equal runs of whole tiles and leave *unnormalised* sums with their maxima: merging then multiplies
by exp2 of a difference, which is exactly 1 for a zero query, and sums of integers stay integers.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from kvsan.gpu_kernels.launching import (
    FULL,
    Attended,
    Masking,
    check_attention,
    new_attended,
    or_keys,
    power_of_two,
    shape_constants,
)
from kvsan.gpu_kernels.layout import PagedCache, attention_strides
from kvsan.gpu_kernels.tiles import attend, first_visible, in_compute_type, log_sum_exp, normalised

_LARGEST_HEAD_TILE = 32


@triton.jit
def load_queries(query, row, head, within, stride_token, stride_head, HEAD_DIM: tl.constexpr, DIM: tl.constexpr):
    """Read ``[HEADS, DIM]`` queries of one token; zeros where a head is not ``within``."""
    d = tl.arange(0, DIM)
    offsets = row.to(tl.int64) * stride_token + head.to(tl.int64)[:, None] * stride_head + d[None, :]
    return tl.load(query + offsets, mask=within[:, None] & (d < HEAD_DIM)[None, :], other=0.0)


@triton.jit(do_not_specialize=["span"])
def paged_decode(
    output, lse, sums, row_sums, query, keys, values, key_scales, value_scales, block_tables, seq_lens,
    scale, key_scale, value_scale, softcap, span, stride_ot, stride_oh, stride_lt, stride_qt, stride_qh, stride_table,
    stride_block, stride_slot, stride_head, scale_stride_block, scale_stride_slot, scale_stride_head,
    GROUP: tl.constexpr, HEADS: tl.constexpr, HEAD_TILES: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, TILE: tl.constexpr, MASK: tl.constexpr, SOFTCAP: tl.constexpr,
    ELEMENTS: tl.constexpr, FORMAT: tl.constexpr, CHECKED: tl.constexpr,
):  # fmt: skip
    """Attend with one query a sequence, at its last position; zeros and -inf for a sequence of length 0."""
    row = tl.program_id(0)
    kv_head = tl.program_id(1) // HEAD_TILES
    in_group = tl.program_id(1) % HEAD_TILES * HEADS + tl.arange(0, HEADS)
    within = in_group < GROUP
    head = kv_head * GROUP + in_group
    length = tl.load(seq_lens + row)
    first = first_visible(length - 1, span, MASK)
    at_head = kv_head.to(tl.int64)
    q = load_queries(query, row, head, within, stride_qt, stride_qh, HEAD_DIM, DIM)
    total, row_total, maxima = attend(
        in_compute_type(q, keys, FORMAT), tl.full([HEADS], 0, tl.int32) + (length - 1),
        tl.full([HEADS], 0, tl.int32) + first, first, length,
        block_tables + row.to(tl.int64) * stride_table, keys + at_head * stride_head, values + at_head * stride_head,
        key_scales + at_head * scale_stride_head, value_scales + at_head * scale_stride_head,
        stride_block, stride_slot, scale_stride_block, scale_stride_slot, scale * key_scale, softcap,
        BLOCK_SIZE, HEAD_DIM, DIM, TILE, SOFTCAP, ELEMENTS, FORMAT,
    )  # fmt: skip
    total *= value_scale
    d = tl.arange(0, DIM)
    mask = within[:, None] & (d < HEAD_DIM)[None, :]
    to = row.to(tl.int64) * stride_ot + head.to(tl.int64)[:, None] * stride_oh + d[None, :]
    to_head = row.to(tl.int64) * stride_lt + head
    tl.store(output + to, normalised(total, row_total).to(output.dtype.element_ty), mask=mask)
    tl.store(lse + to_head, log_sum_exp(row_total, maxima), mask=within)
    if CHECKED:
        tl.store(sums + to, total, mask=mask)
        tl.store(row_sums + to_head, row_total, mask=within)


@triton.jit(do_not_specialize=["span"])
def paged_decode_split(
    split_sums, split_row_sums, split_maxima, query, keys, values, key_scales, value_scales, block_tables, seq_lens,
    scale, key_scale, value_scale, softcap, span, stride_pt, stride_ph, stride_qt, stride_qh, stride_table,
    stride_block, stride_slot, stride_head, scale_stride_block, scale_stride_slot, scale_stride_head,
    SPLITS: tl.constexpr,
    GROUP: tl.constexpr, HEADS: tl.constexpr, HEAD_TILES: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, TILE: tl.constexpr, MASK: tl.constexpr, SOFTCAP: tl.constexpr,
    ELEMENTS: tl.constexpr, FORMAT: tl.constexpr,
):  # fmt: skip
    """Attend to one of ``SPLITS`` runs of tiles; an empty run leaves zeros and -inf.

    ``split_sums`` float32 ``[num_rows, num_q_heads, SPLITS, head_dim]``, contiguous, ``split_row_sums`` and
    ``split_maxima`` without the last dimension; ``stride_pt`` and ``stride_ph`` count splits.
    """
    row = tl.program_id(0)
    kv_head = tl.program_id(1) // HEAD_TILES
    split = tl.program_id(2)
    in_group = tl.program_id(1) % HEAD_TILES * HEADS + tl.arange(0, HEADS)
    within = in_group < GROUP
    head = kv_head * GROUP + in_group
    length = tl.load(seq_lens + row)
    first = first_visible(length - 1, span, MASK)
    run = tl.cdiv(tl.cdiv(length - first, TILE), SPLITS) * TILE
    start = first + split * run
    at_head = kv_head.to(tl.int64)
    q = load_queries(query, row, head, within, stride_qt, stride_qh, HEAD_DIM, DIM)
    total, row_total, maxima = attend(
        in_compute_type(q, keys, FORMAT), tl.full([HEADS], 0, tl.int32) + (length - 1), tl.full([HEADS], 0, tl.int32) + first,
        start, tl.minimum(start + run, length),
        block_tables + row.to(tl.int64) * stride_table, keys + at_head * stride_head, values + at_head * stride_head,
        key_scales + at_head * scale_stride_head, value_scales + at_head * scale_stride_head,
        stride_block, stride_slot, scale_stride_block, scale_stride_slot, scale * key_scale, softcap,
        BLOCK_SIZE, HEAD_DIM, DIM, TILE, SOFTCAP, ELEMENTS, FORMAT,
    )  # fmt: skip
    d = tl.arange(0, DIM)
    to_head = row.to(tl.int64) * stride_pt + head.to(tl.int64) * stride_ph + split
    mask = within[:, None] & (d < HEAD_DIM)[None, :]
    tl.store(split_sums + to_head[:, None] * HEAD_DIM + d[None, :], total * value_scale, mask=mask)
    tl.store(split_row_sums + to_head, row_total, mask=within)
    tl.store(split_maxima + to_head, maxima, mask=within)


@triton.jit
def merge_splits(
    output, lse, sums, row_sums, split_sums, split_row_sums, split_maxima,
    stride_ot, stride_oh, stride_lt, stride_pt, stride_ph,
    SPLITS: tl.constexpr, SPLITS_PADDED: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, CHECKED: tl.constexpr,
):  # fmt: skip
    """Merge the splits of one sequence and q head; those that saw nothing weigh 0."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    split = tl.arange(0, SPLITS_PADDED)
    used = split < SPLITS
    d = tl.arange(0, DIM)
    at = row * stride_pt + head * stride_ph + split
    maxima = tl.load(split_maxima + at, mask=used, other=float("-inf"))
    row_totals = tl.load(split_row_sums + at, mask=used, other=0.0)
    mask = used[:, None] & (d < HEAD_DIM)[None, :]
    totals = tl.load(split_sums + at[:, None] * HEAD_DIM + d[None, :], mask=mask, other=0.0)
    highest = tl.max(maxima, 0)
    weights = tl.exp2(maxima - tl.where(highest == float("-inf"), 0.0, highest))
    total = tl.sum(totals * weights[:, None], 0)
    row_total = tl.sum(row_totals * weights, 0)
    result = tl.div_rn(total, tl.zeros_like(total) + tl.where(row_total == 0.0, 1.0, row_total))
    to = row * stride_ot + head * stride_oh + d
    to_head = row * stride_lt + head
    tl.store(output + to, result.to(output.dtype.element_ty), mask=d < HEAD_DIM)
    tl.store(lse + to_head, log_sum_exp(row_total, highest))
    if CHECKED:
        tl.store(sums + to, total, mask=d < HEAD_DIM)
        tl.store(row_sums + to_head, row_total)


def head_constants(group: int) -> dict[str, Any]:
    """Constants that follow from the q heads of one kv head: a matrix has 16 rows at least and ``HEADS`` at most."""
    heads = max(16, min(power_of_two(group), _LARGEST_HEAD_TILE))
    return {"GROUP": group, "HEADS": heads, "HEAD_TILES": -(-group // heads)}


def merge_constants(splits: int, head_dim: int) -> dict[str, int]:
    """Constants of ``merge_splits``."""
    padded = {"SPLITS_PADDED": power_of_two(splits), "DIM": max(16, power_of_two(head_dim))}
    return {"SPLITS": splits, "HEAD_DIM": head_dim, **padded}


def decode(
    query: torch.Tensor,
    cache: PagedCache,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    masking: Masking = FULL,
    splits: int = 1,
    checked: bool = False,
    output_dtype: torch.dtype | None = None,
) -> Attended:
    """Attend with one query a sequence, at its last position.

    ``query`` ``[num_rows, num_q_heads, head_dim]``, the last dimension contiguous; ``block_tables`` int32 ``[num_rows,
    max_blocks]``; ``seq_lens`` int32 ``[num_rows]``, 0 allowed; ``scale`` multiplies scores; ``splits`` programs share
    one context; ``checked`` returns unnormalised sums too; ``output_dtype`` is the query's unless given. Dot
    products are taken in the cache's type, for codes of a quantised cache in the query's. ValueError on shapes that do
    not fit.
    """
    check_attention(query, cache, block_tables, seq_lens)
    rows, q_heads, _ = query.shape
    if rows != len(seq_lens):
        raise ValueError(f"{rows} queries, {len(seq_lens)} lengths: expected one query a sequence")
    if splits < 1:
        raise ValueError(f"splits {splits}: expected 1 or more")
    attended = new_attended(query, output_dtype or query.dtype, checked)
    if rows == 0:
        return attended
    constants = head_constants(q_heads // cache.num_kv_heads)
    constants |= shape_constants(cache, masking, query.dtype, constants["HEADS"])
    grid = (rows, cache.num_kv_heads * constants["HEAD_TILES"])
    common = (
        query, cache.keys, cache.values, or_keys(cache, cache.key_scales), or_keys(cache, cache.value_scales),
        block_tables, seq_lens, scale, cache.key_scale, cache.value_scale, masking.softcap or 1.0, masking.span,
    )  # fmt: skip
    strides = (*query.stride()[:2], block_tables.stride(0), *attention_strides(cache))
    outputs = (attended.output, attended.lse, attended.sums, attended.row_sums)
    out_strides = (*attended.output.stride()[:2], attended.lse.stride(0))
    if splits == 1:
        paged_decode[grid](*outputs, *common, *out_strides, *strides, CHECKED=checked, **constants)
        return attended
    parts = query.new_empty((rows, q_heads, splits), dtype=torch.float32)
    partial = (query.new_empty((*parts.shape, cache.head_dim), dtype=torch.float32), parts, torch.empty_like(parts))
    paged_decode_split[(*grid, splits)](*partial, *common, *parts.stride()[:2], *strides, SPLITS=splits, **constants)
    merge_splits[(rows, q_heads)](
        *outputs, *partial, *out_strides, *parts.stride()[:2], CHECKED=checked, **merge_constants(splits, cache.head_dim),
    )  # fmt: skip
    return attended
