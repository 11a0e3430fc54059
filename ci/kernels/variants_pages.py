"""Broken variants of the kernels that write, quantise, read back and move pages."""

from __future__ import annotations

from kvsan.ci.kernels.variant import Variant
from kvsan.ci.kernels.variants_attention import BOUNDS, OVERFLOW, RACE

WRITE = (
    Variant(
        "write-block-of-tile", "write", "write", "slot // BLOCK_SIZE * stride_block", "slot // TOKENS * stride_block",
        "wrong block index: the tile's size taken for the block's", "bytes",
    ),
    Variant(
        "padding-written", "write", "write", "mask = (slot >= 0)[:, None]", "mask = (token < num_tokens)[:, None]",
        "missing padding mask: slot -1 is written", BOUNDS, "vLLM 43810",
    ),
    Variant(
        "batch-decides", "write", "write", "tokens = len(slot_mapping)\n    if", "tokens = len(key)\n    if",
        "the padded batch is written, beyond the length of the slot mapping", BOUNDS,
    ),
    Variant(
        "mapping-unguarded", "write", "write",
        "tl.load(slot_mapping + token, mask=token < num_tokens, other=-1)", "tl.load(slot_mapping + token)",
        "slot mapping read beyond its end", BOUNDS,
    ),
    Variant(
        "slot-int32", "write", "far write",
        "mask=token < num_tokens, other=-1).to(tl.int64)", "mask=token < num_tokens, other=-1)",
        "slot arithmetic in int32", OVERFLOW, "vLLM 1486",
    ),
    Variant(
        "token-int32", "write", "far batch", "at = token.to(tl.int64)", "at = token",
        "token * stride of the batch in int32", OVERFLOW,
    ),
    Variant(
        "append-stride", "write", "write",
        "slot // BLOCK_SIZE * stride_block", "slot // BLOCK_SIZE * (BLOCK_SIZE * stride_slot)",
        "append: the stride of blocks is computed as if the cache were contiguous", BOUNDS,
        "FlashInfer 527, aiter 3498",
    ),
    Variant(
        "strides-swapped", "write", "write",
        "slot % BLOCK_SIZE * stride_slot + head * stride_head", "slot % BLOCK_SIZE * stride_head + head * stride_slot",
        "strides of slot and head exchanged", "bytes",
    ),
    Variant(
        "v-by-stride-of-k", "write", "far batch",
        "at * stride_vt + head * stride_vh", "at * stride_kt + head * stride_kh",
        "V of the batch is read with the strides of K", BOUNDS,
    ),
    Variant(
        "k-for-v", "write", "write", "tl.store(values + to, v.to", "tl.store(values + to, k.to",
        "K written in the place of V", "bytes",
    ),
    Variant(
        "dim-padding-written", "write", "write",
        "mask = (slot >= 0)[:, None] & (d < HEAD_DIM)[None, :]", "mask = (slot >= 0)[:, None] & (d >= 0)[None, :]",
        "lanes that pad the head dimension are written", BOUNDS,
    ),
)  # fmt: skip

QUANTISED = (
    Variant(
        "scale-written-to-head-0", "quant", "quantised write",
        "to_scale = block * scale_stride_block + place * scale_stride_slot + head * scale_stride_head",
        "to_scale = block * scale_stride_block + place * scale_stride_slot",
        "scale index: all heads leave their scales at head 0", RACE,
    ),
    Variant(
        "k-tensor-scale-for-v-written", "quant", "quantised write",
        "to, to_scale, written, value_scale,", "to, to_scale, written, key_scale,",
        "V quantised with the scale of the K tensor", "bytes",
    ),
    Variant(
        "truncates", "quant", "quantised write",
        "(bits + ((1 << (shift - 1)) - 1) + ((bits >> shift) & 1)) >> shift", "bits >> shift",
        "FP8 and FP4 codes truncated", "bytes",
    ),
    Variant(
        "ties-up", "quant", "quantised write",
        "((1 << (shift - 1)) - 1) + ((bits >> shift) & 1)", "(1 << (shift - 1))",
        "ties rounded away from zero", "bytes",
    ),
    Variant(
        "no-saturation", "quant", "quantised write", "tl.minimum(tl.abs(x), LARGEST)", "tl.abs(x)",
        "what is too large for a code is not saturated", "bytes",
    ),
    Variant(
        "scale-off-by-two", "quant", "quantised write", "6 if ELEMENTS == INT8 else 7", "5 if ELEMENTS == INT8 else 6",
        "scale of a token and head larger by a factor of two", "bytes",
    ),
    Variant(
        "scale-of-padding", "quant", "quantised write",
        "tl.store(scales + scale_offsets, unit, mask=mask)", "tl.store(scales + scale_offsets, unit)",
        "padding mask on codes but not on scales", BOUNDS,
    ),
    Variant(
        "nibbles-swapped", "quant", "quantised write", "low | (high << 4)", "high | (low << 4)",
        "two elements of a byte exchanged", "bytes",
    ),
    Variant(
        "quantised-slot-int32", "quant", "far write",
        "mask=token < num_tokens, other=-1).to(tl.int64)", "mask=token < num_tokens, other=-1)",
        "slot arithmetic in int32", OVERFLOW,
    ),
    Variant(
        "gather-int32", "quant", "far read",
        "position // BLOCK_SIZE, mask=needed, other=0).to(tl.int64)", "position // BLOCK_SIZE, mask=needed, other=0)",
        "block * stride in int32", OVERFLOW,
    ),
    Variant(
        "gather-other-head", "quant", "read",
        "offsets = block * stride_block + place * stride_slot + head * stride_head",
        "offsets = block * stride_block + place * stride_slot + (tl.num_programs(1) - 1 - head) * stride_head",
        "gather of another head", "bytes",
    ),
    Variant(
        "gather-from-start", "quant", "read",
        "place = (position % BLOCK_SIZE)", "place = ((position - start) % BLOCK_SIZE)",
        "place in the block counted from the first position that is read", "bytes",
    ),
)  # fmt: skip

MOVED = (
    Variant(
        "copy-ignores-start", "copy", "copy", "(slot >= start) & (slot < stop)", "(slot < stop)",
        "copy ignores where it starts", "untouched",
    ),
    Variant(
        "copy-ignores-stop", "copy", "copy", "(slot >= start) & (slot < stop)", "(slot >= start)",
        "copy ignores where it stops", BOUNDS,
    ),
    Variant(
        "copy-without-scales", "copy", "copy",
        "for tensor in cache.tensors():\n        _move", "for tensor in cache.tensors()[:2]:\n        _move",
        "copy on write leaves the scales behind", "bytes",
    ),
    Variant(
        "copy-int32", "copy", "far copy",
        "goal = tl.load(target_blocks + pair).to(tl.int64)", "goal = tl.load(target_blocks + pair).to(tl.int32)",
        "block * stride in int32", OVERFLOW,
    ),
    Variant(
        "scatter-strides-swapped", "copy", "transfer",
        "goal * stride_tb + at * stride_ts + head * stride_th", "goal * stride_tb + at * stride_th + head * stride_ts",
        "strides of slot and head exchanged on one side of a transfer", "bytes", "vLLM 37703, 46204",
    ),
    Variant(
        "reshard-rank", "copy", "reshard",
        "origin = head * SOURCE_RANKS // NUM_HEADS", "origin = rank * SOURCE_RANKS // TARGET_RANKS",
        "re-sharding: the source rank follows from the target rank, not from the head", "bytes",
    ),
    Variant(
        "reshard-place", "copy", "reshard",
        "there = head - origin * NUM_HEADS // SOURCE_RANKS", "there = own",
        "re-sharding: a head's place on the target rank taken for that on the source rank", "bytes",
    ),
    Variant(
        "reshard-shared", "copy", "reshard",
        "rank * NUM_HEADS // TARGET_RANKS + own", "rank * (NUM_HEADS // TARGET_RANKS) + own",
        "re-sharding: all ranks that share heads get head 0", "bytes",
    ),
)  # fmt: skip

PAGES = (*WRITE, *QUANTISED, *MOVED)
