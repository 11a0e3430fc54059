"""Chunked prefill over a paged prefix, and batches that mix it with decode.

    grid       (tile of queries, sequence, kv head)
    rows       query 0 x GROUP heads | query 1 x GROUP heads | ...       QUERIES = ROWS // GROUP queries a tile

K and V of the new tokens are in the cache already. A sequence's last query is at its last position; a tile reads
positions from what its first query sees to where its last one is. The grid is as long as the longest chunk; programs
behind the end of a shorter one do nothing. Tiles come first, because a GPU counts no other dimension beyond 65,535.
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
    check_integers,
    new_attended,
    or_keys,
    power_of_two,
    shape_constants,
)
from kvsan.gpu_kernels.layout import PagedCache, attention_strides
from kvsan.gpu_kernels.tiles import attend, first_visible, in_compute_type, log_sum_exp, normalised

_ROWS = 64


@triton.jit(do_not_specialize=["span"])
def paged_prefill(
    output, lse, sums, row_sums, query, query_start_loc, keys, values, key_scales, value_scales, block_tables, seq_lens,
    scale, key_scale, value_scale, softcap, span, stride_ot, stride_oh, stride_lt, stride_qt, stride_qh, stride_table,
    stride_block, stride_slot, stride_head, scale_stride_block, scale_stride_slot, scale_stride_head,
    GROUP: tl.constexpr, ROWS: tl.constexpr, QUERIES: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, TILE: tl.constexpr, MASK: tl.constexpr, SOFTCAP: tl.constexpr,
    ELEMENTS: tl.constexpr, FORMAT: tl.constexpr, CHECKED: tl.constexpr,
):  # fmt: skip
    """Attend causally with one tile of a sequence's queries and the q heads of one kv head."""
    row = tl.program_id(1)
    kv_head = tl.program_id(2)
    query_start = tl.load(query_start_loc + row)
    queries = tl.load(query_start_loc + row + 1) - query_start
    length = tl.load(seq_lens + row)
    tile_first = tl.program_id(0) * QUERIES
    if tile_first < queries:
        r = tl.arange(0, ROWS)
        index = tile_first + r // GROUP
        within = (index < queries) & (r < QUERIES * GROUP)
        positions = length - queries + index
        token = (query_start + index).to(tl.int64)
        head = (kv_head * GROUP + r % GROUP).to(tl.int64)
        d = tl.arange(0, DIM)
        mask = within[:, None] & (d < HEAD_DIM)[None, :]
        q = tl.load(query + (token * stride_qt + head * stride_qh)[:, None] + d[None, :], mask=mask, other=0.0)
        at_head = kv_head.to(tl.int64)
        total, row_total, maxima = attend(
            in_compute_type(q, keys, FORMAT), positions, first_visible(positions, span, MASK),
            first_visible(length - queries + tile_first, span, MASK),
            length - queries + tl.minimum(tile_first + QUERIES, queries),
            block_tables + row.to(tl.int64) * stride_table,
            keys + at_head * stride_head, values + at_head * stride_head,
            key_scales + at_head * scale_stride_head, value_scales + at_head * scale_stride_head,
            stride_block, stride_slot, scale_stride_block, scale_stride_slot, scale * key_scale, softcap,
            BLOCK_SIZE, HEAD_DIM, DIM, TILE, SOFTCAP, ELEMENTS, FORMAT,
        )  # fmt: skip
        total *= value_scale
        to = (token * stride_ot + head * stride_oh)[:, None] + d[None, :]
        to_head = token * stride_lt + head
        tl.store(output + to, normalised(total, row_total).to(output.dtype.element_ty), mask=mask)
        tl.store(lse + to_head, log_sum_exp(row_total, maxima), mask=within)
        if CHECKED:
            tl.store(sums + to, total, mask=mask)
            tl.store(row_sums + to_head, row_total, mask=within)


def row_constants(group: int, element_bytes: int) -> dict[str, Any]:
    """Constants that follow from the q heads of one kv head: how many queries fill the rows of a tile.

    ``element_bytes`` is the size of the cache's elements: float32 has no tensor cores, and few rows.
    """
    rows = max(_ROWS if element_bytes < 4 else 16, power_of_two(group))
    return {"GROUP": group, "ROWS": rows, "QUERIES": rows // group}


def prefill(
    query: torch.Tensor,
    query_start_loc: torch.Tensor,
    longest_query: int,
    cache: PagedCache,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    masking: Masking = FULL,
    checked: bool = False,
    output_dtype: torch.dtype | None = None,
) -> Attended:
    """Attend causally with the last tokens of each sequence, all of them already in the cache.

    ``query`` ``[num_tokens, num_q_heads, head_dim]``, sequences one after the other; ``query_start_loc`` int32
    ``[num_rows + 1]``: sequence r has queries ``[query_start_loc[r], query_start_loc[r + 1])``, none allowed;
    ``longest_query`` the most that one has (a launch needs it on the host): queries beyond it are not computed. The rest
    as in ``decode.decode``. ValueError on shapes that do not fit.
    """
    check_attention(query, cache, block_tables, seq_lens)
    check_integers("query_start_loc", query_start_loc)
    rows, q_heads = len(seq_lens), query.shape[1]
    if len(query_start_loc) != rows + 1:
        raise ValueError(f"query_start_loc of {len(query_start_loc)}: expected {rows + 1}, one more than sequences")
    attended = new_attended(query, output_dtype or query.dtype, checked)
    if rows == 0 or longest_query == 0:
        return attended
    constants = row_constants(q_heads // cache.num_kv_heads, cache.keys.element_size())
    constants |= shape_constants(cache, masking, query.dtype, constants["ROWS"])
    paged_prefill[(triton.cdiv(longest_query, constants["QUERIES"]), rows, cache.num_kv_heads)](
        attended.output, attended.lse, attended.sums, attended.row_sums, query, query_start_loc,
        cache.keys, cache.values, or_keys(cache, cache.key_scales), or_keys(cache, cache.value_scales),
        block_tables, seq_lens, scale, cache.key_scale, cache.value_scale, masking.softcap or 1.0, masking.span,
        *attended.output.stride()[:2], attended.lse.stride(0), *query.stride()[:2], block_tables.stride(0),
        *attention_strides(cache), CHECKED=checked, **constants,
    )  # fmt: skip
    return attended
