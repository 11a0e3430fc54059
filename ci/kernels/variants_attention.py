"""Broken variants of the kernels that attend: tiles, decode, prefill and latent attention."""

from __future__ import annotations

from kvsan.ci.kernels.variant import Variant

BOUNDS, RACE, OVERFLOW = "interpreter: out-of-bounds", "interpreter: race", "interpreter: overflow"

_ONE_PASS = "    first = first_visible(length - 1, span, MASK)\n    at_head"
"""What follows the length in ``paged_decode``, and not in ``paged_decode_split``."""

_ONE_PASS_TABLE = (
    "first, first, length,\n        block_tables + row.to(tl.int64) * stride_table, keys + at_head * stride_head, "
    "values + at_head * stride_head,\n"
)

TILES = (
    Variant(
        "block-of-tile", "tiles", "decode", "table + at // BLOCK_SIZE", "table + at // TILE",
        "wrong block index: the tile's size taken for the block's", "reference",
    ),
    Variant(
        "table-unguarded", "tiles", "decode",
        "tl.load(table + at // BLOCK_SIZE, mask=needed, other=0)", "tl.load(table + at // BLOCK_SIZE)",
        "block table read beyond the entries that are used", BOUNDS, "vLLM 54296, 56469",
    ),
    Variant(
        "block-int32", "tiles", "far decode",
        "tl.load(table + at // BLOCK_SIZE, mask=needed, other=0).to(tl.int64)",
        "tl.load(table + at // BLOCK_SIZE, mask=needed, other=0)",
        "block * stride in int32", OVERFLOW, "vLLM 50427, 47671",
    ),
    Variant(
        "v-unmasked", "tiles", "decode",
        "v = load_vectors(values, offsets, d, mask,",
        "v = load_vectors(values, offsets, d, (d < HEAD_DIM)[None, :] & (slots >= 0)[:, None],",
        "mask on one side: K is masked, V is not, and 0 * NaN is NaN", "reference", "vLLM 53856",
    ),
    Variant(
        "window-wide", "tiles", "decode", "position - span + 1", "position - span",
        "window one position too wide", "reference",
    ),
    Variant(
        "window-narrow", "tiles", "decode", "position - span + 1", "position - span + 2",
        "window one position too narrow", "reference",
    ),
    Variant(
        "window-of-tile", "tiles", "windowed prefill",
        " & (at[None, :] >= firsts[:, None])", "",
        "window: all queries of a tile see from where its first one does", "reference",
    ),
    Variant(
        "chunk-late", "tiles", "decode", "tl.maximum(position, 0) // span * span", "(position + 1) // span * span",
        "chunk boundary: the last query of a chunk is put into the next one", "reference",
    ),
    Variant(
        "softcap-dropped", "tiles", "decode", "cap_scores(scores, softcap, SOFTCAP) * LOG2_E", "scores * LOG2_E",
        "soft cap left out", "lse",
    ),
    Variant(
        "softcap-twice", "tiles", "decode",
        "cap_scores(scores, softcap, SOFTCAP)", "cap_scores(cap_scores(scores, softcap, SOFTCAP), softcap, SOFTCAP)",
        "soft cap applied twice", "lse",
    ),
    Variant(
        "softcap-log2", "tiles", "decode",
        "cap_scores(scores, softcap, SOFTCAP) * LOG2_E", "cap_scores(scores * LOG2_E, softcap, SOFTCAP)",
        "soft cap applied after the scores were turned to units of log 2", "lse",
    ),
    Variant(
        "last-tile-of-one", "tiles", "decode", "range(start, stop, TILE)", "range(start, stop - 1, TILE)",
        "length 1, or one position more than whole tiles: the last position is never read", "zero",
    ),
    Variant(
        "sums-not-rescaled", "tiles", "decode", "sums = sums * shrink[:, None] + product", "sums = sums + product",
        "online softmax: sums keep their weights when the maximum grows", "reference",
    ),
    Variant(
        "weights-bfloat16", "tiles", "decode",
        "tl.dot(added.to(query.dtype), v,", "tl.dot(added.to(tl.bfloat16).to(query.dtype), v,",
        "weights rounded to a narrower type than that of dot products", "reference",
    ),
    Variant(
        "lse-base-2", "tiles", "decode",
        "tl.where(empty, 1.0, row_sums))) * LN_2", "tl.where(empty, 1.0, row_sums)))",
        "log-sum-exp in units of log 2", "lse",
    ),
    Variant(
        "empty-divides", "tiles", "decode",
        "divisor = tl.where(row_sums == 0.0, 1.0, row_sums)", "divisor = row_sums",
        "length 0: 0 / 0 is NaN", "reference",
    ),
    Variant(
        "empty-subtracts", "tiles", "windowed prefill",
        'finite = tl.where(highest == float("-inf"), 0.0, highest)', "finite = highest",
        "a row that sees nothing of a tile: inf - inf is NaN", "reference",
    ),
    Variant(
        "k-scale-for-v", "tiles", "quantised decode",
        "load_vector_scales(value_scales,", "load_vector_scales(key_scales,",
        "scale index: K's scales of token and head are used for V", "reference",
    ),
    Variant(
        "e4m3-nan", "tiles", "read any codes",
        "tl.where((wide & 0x7F) == 0x7F, nan, exact.to(tl.float16))", "exact.to(tl.float16)",
        "NaN of E4M3 is read as 480", "bytes",
    ),
    Variant(
        "nvfp4-neighbour", "tiles", "quantised decode",
        "(d // NVFP4_BLOCK)[None, :]", "(d // 2 // NVFP4_BLOCK)[None, :]",
        "scale index: the byte's number taken for the element's, so a neighbour's block scale", "reference",
    ),
    Variant(
        "nvfp4-nibbles", "tiles", "quantised decode", "(d % 2) * 4", "(1 - d % 2) * 4",
        "the other element of a byte", "reference",
    ),
)  # fmt: skip

DECODE = (
    Variant(
        "token-too-many", "decode", "decode",
        f"length = tl.load(seq_lens + row)\n{_ONE_PASS}", f"length = tl.load(seq_lens + row) + 1\n{_ONE_PASS}",
        "last block: one token too many", "reference",
    ),
    Variant(
        "whole-last-block", "decode", "decode",
        f"length = tl.load(seq_lens + row)\n{_ONE_PASS}",
        f"length = tl.cdiv(tl.load(seq_lens + row), BLOCK_SIZE) * BLOCK_SIZE\n{_ONE_PASS}",
        "last block: read to its end whatever the length", "reference", "FlashInfer 320",
    ),
    Variant(
        "block-too-many", "decode", "decode",
        _ONE_PASS_TABLE, _ONE_PASS_TABLE.replace("first, length,", "first, length + BLOCK_SIZE,"),
        "last block: one block too many is loaded, its scores masked", BOUNDS,
    ),
    Variant(
        "last-block-left-out", "decode", "decode",
        _ONE_PASS_TABLE, _ONE_PASS_TABLE.replace("first, length,", "first, (length - 1) // BLOCK_SIZE * BLOCK_SIZE,"),
        "last block: one block too few", "zero",
    ),
    Variant(
        "table-row-int32", "decode", "far rows",
        _ONE_PASS_TABLE, _ONE_PASS_TABLE.replace("row.to(tl.int64) * stride_table", "row * stride_table"),
        "sequence * stride of the block table in int32", OVERFLOW,
    ),
    Variant(
        "table-contiguous", "decode", "far rows", "block_tables.stride(0)", "block_tables.shape[1]",
        "block table read as if it were contiguous", BOUNDS,
    ),
    Variant(
        "query-row-int32", "decode", "far rows", "row.to(tl.int64) * stride_token", "row * stride_token",
        "sequence * stride of queries in int32", OVERFLOW,
    ),
    Variant(
        "heads-interleaved", "decode", "decode",
        f"head = kv_head * GROUP + in_group\n    length = tl.load(seq_lens + row)\n{_ONE_PASS}",
        "head = in_group * (tl.num_programs(1) // HEAD_TILES) + kv_head\n"
        f"    length = tl.load(seq_lens + row)\n{_ONE_PASS}",
        "GQA: q head h reads kv head h % num_kv_heads", "reference",
    ),
    Variant(
        "scale-of-head-0", "decode", "quantised decode",
        f"{_ONE_PASS_TABLE}        key_scales + at_head * scale_stride_head,", f"{_ONE_PASS_TABLE}        key_scales,",
        "scale index: every head reads the K scales of head 0", "reference",
    ),
    Variant(
        "k-tensor-scale-for-v", "decode", "quantised decode", "total *= value_scale", "total *= key_scale",
        "scale of the K tensor used for V", "reference",
    ),
    Variant(
        "head-padding-stored", "decode", "decode",
        "log_sum_exp(row_total, maxima), mask=within)", "log_sum_exp(row_total, maxima))",
        "rows that pad the tile of heads are stored", RACE,
    ),
    Variant(
        "split-rounds-down", "decode", "decode",
        "tl.cdiv(tl.cdiv(length - first, TILE), SPLITS) * TILE", "tl.cdiv(length - first, TILE) // SPLITS * TILE",
        "split: runs are rounded down, so the last tiles belong to nobody", "zero",
    ),
    Variant(
        "splits-in-one-place", "decode", "decode",
        "head.to(tl.int64) * stride_ph + split\n", "head.to(tl.int64) * stride_ph\n",
        "race: all splits leave their sums in one place", RACE,
    ),
    Variant(
        "merge-in-one-place", "decode", "decode",
        "to = row * stride_ot + head * stride_oh + d", "to = row * stride_ot + d",
        "race in the reduce: all heads write one output", RACE,
    ),
    Variant(
        "merge-reads-neighbour", "decode", "decode", "used = split < SPLITS", "used = split >= 0",
        "merge: the number of splits rounded up, so that of another head some are merged", BOUNDS,
    ),
    Variant(
        "merge-not-rescaled", "decode", "decode",
        'tl.exp2(maxima - tl.where(highest == float("-inf"), 0.0, highest))', "tl.where(used, 1.0, 0.0)",
        "merge: sums of splits are added without regard to their maxima", "reference",
    ),
    Variant(
        "merge-stale", "decode", "decode",
        "tl.store(split_maxima + to_head, maxima, mask=within)",
        "tl.store(split_maxima + to_head, maxima, mask=within & (start < length))",
        "merge: an empty split leaves the maximum that was there before", "reference",
    ),
    Variant(
        "merge-lse", "decode", "decode",
        "log_sum_exp(row_total, highest)", "log_sum_exp(tl.sum(row_totals, 0), highest)",
        "merge: log-sum-exp of row sums that were not rescaled", "lse",
    ),
)  # fmt: skip

PREFILL = (
    Variant(
        "causal-late", "prefill", "prefill",
        "positions = length - queries + index", "positions = length - queries + index + 1",
        "causal mask off by one: a query sees the next token", "reference",
    ),
    Variant(
        "prefix-forgotten", "prefill", "prefill",
        "positions = length - queries + index", "positions = index",
        "chunked prefill: positions counted from the chunk's start", "reference",
    ),
    Variant(
        "tile-starts-late", "prefill", "windowed prefill",
        "first_visible(length - queries + tile_first, span, MASK)",
        "first_visible(length - queries + tl.minimum(tile_first + QUERIES, queries) - 1, span, MASK)",
        "a tile begins where the window of its last query does", "reference",
    ),
    Variant(
        "tile-stops-early", "prefill", "prefill",
        "tl.minimum(tile_first + QUERIES, queries),", "tl.minimum(tile_first + QUERIES - 1, queries),",
        "the last query of a full tile does not see itself", "zero",
    ),
    Variant(
        "table-of-query", "prefill", "prefill",
        "block_tables + row.to(tl.int64) * stride_table", "block_tables + query_start.to(tl.int64) * stride_table",
        "place in the flat batch taken for the sequence's number", BOUNDS, "SGLang 35821",
    ),
    Variant(
        "query-token-int32", "prefill", "far rows",
        "token = (query_start + index).to(tl.int64)", "token = query_start + index",
        "token * stride of queries in int32", OVERFLOW,
    ),
    Variant(
        "heads-interleaved-prefill", "prefill", "prefill",
        "head = (kv_head * GROUP + r % GROUP)", "head = (r % GROUP * tl.num_programs(2) + kv_head)",
        "GQA: q head h reads kv head h % num_kv_heads", "reference",
    ),
    Variant(
        "query-padding-stored", "prefill", "prefill",
        "within = (index < queries) & (r < QUERIES * GROUP)", "within = index < queries",
        "rows that pad the tile of queries are stored, where the next tile stores too", RACE,
    ),
)  # fmt: skip

LATENT = (
    Variant(
        "rope-left-out", "mla", "latent decode",
        'scores += tl.dot(q_rope, tl.trans(rope), input_precision="ieee")', "scores += 0.0",
        "MLA: scores leave the RoPE part out", "reference",
    ),
    Variant(
        "v-from-rope", "mla", "latent decode",
        "tl.dot(weights.to(cache.dtype.element_ty), latent,",
        "tl.dot(weights.to(cache.dtype.element_ty), tl.load(cache + offsets + ROPE + d[None, :], "
        "mask=needed[:, None] & (d < LATENT)[None, :], other=0.0),",
        "MLA: V is the end of the vector, RoPE part included", "reference",
    ),
    Variant(
        "latent-block-int32", "mla", "far latent",
        "at // BLOCK_SIZE, mask=needed, other=0).to(tl.int64)", "at // BLOCK_SIZE, mask=needed, other=0)",
        "MLA: block * stride in int32", OVERFLOW, "vLLM 47671",
    ),
    Variant(
        "latent-slot-int32", "mla", "far latent",
        "mask=token < num_tokens, other=-1).to(tl.int64)", "mask=token < num_tokens, other=-1)",
        "MLA: slot arithmetic in int32", OVERFLOW,
    ),
    Variant(
        "rope-behind-padding", "mla", "latent write",
        "tl.store(cache + to[:, None] + LATENT + r", "tl.store(cache + to[:, None] + LATENT_DIM + r",
        "MLA: RoPE part written behind the padded latent", BOUNDS,
    ),
)  # fmt: skip

ATTENTION = (*TILES, *DECODE, *PREFILL, *LATENT)
