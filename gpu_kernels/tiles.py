"""What the attention kernels share: which positions are visible, how a tile of K or V is read, and online softmax.

Tiles run over *positions*, whatever the block size; each position finds its own block, so that a tile of 64 works for
blocks of 1 as for blocks of 256, and ``tl.dot`` always has the 16 positions that tensor cores ask for::

    visible      first .................................................. stop
    tiles        [first, first + TILE) [ ... ) [ ...  stop)       the last one masked
    position p   block_tables[row, p // BLOCK_SIZE] -> block, p % BLOCK_SIZE -> slot in it

Numbers from memory (block, slot, sequence number) become int64 as soon as they are loaded: a product of one of them and
a stride overflows int32 in pools that exist (vLLM 1486, 47671, 50427). What a mask excludes is never multiplied: unused
slots may hold NaN, unused table entries anything.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kvsan.gpu_kernels import formats

CAUSAL = tl.constexpr(0)
"""Mask: a query sees itself and everything before it."""
SLIDING = tl.constexpr(1)
"""Mask: of those, the last ``span``, its own among them."""
CHUNKED = tl.constexpr(2)
"""Mask: of those, the ones in its own chunk of ``span`` positions."""

PLAIN = tl.constexpr(formats.PLAIN)
PER_TOKEN_HEAD = tl.constexpr(formats.PER_TOKEN_HEAD)
NVFP4 = tl.constexpr(formats.NVFP4)
INT8 = tl.constexpr(formats.INT8)
E4M3 = tl.constexpr(formats.E4M3)
E5M2 = tl.constexpr(formats.E5M2)
E2M1 = tl.constexpr(formats.E2M1)

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
NVFP4_BLOCK = tl.constexpr(16)


@triton.jit
def first_visible(position, span, MASK: tl.constexpr):
    """Return the first position that the query at ``position`` sees; 0 at least."""
    if MASK == SLIDING:
        first = tl.maximum(position - span + 1, 0)
    elif MASK == CHUNKED:
        first = tl.maximum(position, 0) // span * span
    else:
        first = position * 0
    return first


@triton.jit
def decode_small_float(codes, FORMAT: tl.constexpr):
    """Return the float16 values of E4M3, E5M2 or E2M1 codes, exactly; integer arithmetic that every GPU has.

    Their bits are moved to where float16 has its exponent and mantissa, subnormals included, and a power of two mends
    the bias. E4M3 has NaN (0x7F), E5M2 has infinities and NaN, E2M1 neither.
    """
    wide = codes.to(tl.uint16)
    if FORMAT == E5M2:
        result = (wide << 8).to(tl.float16, bitcast=True)
    elif FORMAT == E4M3:
        bits = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
        exact = bits.to(tl.float16, bitcast=True) * 256.0
        nan = ((wide & 0x7F) * 0 + 0x7E00).to(tl.float16, bitcast=True)
        result = tl.where((wide & 0x7F) == 0x7F, nan, exact.to(tl.float16))
    else:
        tl.static_assert(FORMAT == E2M1)
        bits = ((wide & 0x8) << 12) | ((wide & 0x7) << 9)
        result = (bits.to(tl.float16, bitcast=True) * 16384.0).to(tl.float16)
    return result


@triton.jit
def load_vectors(
    cache, offsets, d, mask, scales, scale_offsets, ELEMENTS: tl.constexpr, FORMAT: tl.constexpr, COMPUTE: tl.constexpr
):
    """Read ``[TILE, DIM]`` elements of K or V as ``COMPUTE``, without scales that a whole vector shares.

    ``offsets`` and ``scale_offsets`` int64 ``[TILE]`` in elements of ``cache`` and ``scales``; zeros where ``mask`` is
    false. NVFP4 packs element d in byte ``d // 2`` and scales blocks of 16 elements, which happens here.
    """
    if FORMAT == NVFP4:
        packed = tl.load(cache + offsets[:, None] + (d // 2)[None, :], mask=mask, other=0)
        nibbles = (packed >> ((d % 2) * 4).to(tl.uint8)[None, :]) & 0xF
        codes = tl.load(scales + scale_offsets[:, None] + (d // NVFP4_BLOCK)[None, :], mask=mask, other=0)
        numbers = decode_small_float(nibbles, E2M1).to(tl.float32) * decode_small_float(codes, E4M3).to(tl.float32)
        result = numbers.to(COMPUTE)
    elif FORMAT == PLAIN:
        result = tl.load(cache + offsets[:, None] + d[None, :], mask=mask, other=0.0)
    else:
        codes = tl.load(cache + offsets[:, None] + d[None, :], mask=mask, other=0)
        if ELEMENTS == INT8:
            result = codes.to(tl.int8, bitcast=True).to(COMPUTE)
        else:
            result = decode_small_float(codes, ELEMENTS).to(COMPUTE)
    return result


@triton.jit
def load_vector_scales(scales, scale_offsets, mask, FORMAT: tl.constexpr):
    """Read the float32 ``[TILE]`` scale that each K or V vector has for itself; ones where the format has none."""
    if FORMAT == PER_TOKEN_HEAD:
        result = tl.load(scales + scale_offsets, mask=mask, other=0.0)
    else:
        result = tl.full(mask.shape, 1.0, tl.float32)
    return result


@triton.jit
def largest_scale(scales):
    """Return the largest of a tile's scales, 1 if all are 0.

    Weights times scales are as small as V is, and float16 has no room below 2**-24. Taken out of a tile's product the
    largest costs no rounding, because scales are powers of two.
    """
    largest = tl.max(scales, 0)
    return tl.where(largest == 0.0, 1.0, largest)


@triton.jit
def cap_scores(scores, softcap, SOFTCAP: tl.constexpr):
    """Return ``softcap * tanh(scores / softcap)`` if ``SOFTCAP``, else the scores; 0 stays exactly 0."""
    if SOFTCAP:
        power = tl.exp2(scores * (2.0 * LOG2_E / softcap))
        scores = softcap * (1.0 - 2.0 / (power + 1.0))
    return scores


@triton.jit
def attend(
    query, positions, firsts, start, stop, table, keys, values, key_scales, value_scales,
    stride_block, stride_slot, scale_stride_block, scale_stride_slot, scale, softcap,
    BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, TILE: tl.constexpr, SOFTCAP: tl.constexpr,
    ELEMENTS: tl.constexpr, FORMAT: tl.constexpr,
):  # fmt: skip
    """Attend with ``query [ROWS, DIM]`` to positions ``[start, stop)`` of one sequence and kv head, by online softmax.

    Row i is at ``positions[i]`` and sees positions from ``firsts[i]`` to its own. ``keys`` and ``values`` point at the
    kv head's first element, ``table`` at the sequence's block table; strides are in elements. Dot products take Q, K, V and
    weights in the query's type. Returns the sums
    ``[ROWS, DIM]`` of ``exp2(score - maximum) * V``, the row sums and the maxima, which are in units of log 2.
    """
    sums = tl.zeros(query.shape, tl.float32)
    row_sums = tl.zeros(positions.shape, tl.float32)
    maxima = tl.full(positions.shape, float("-inf"), tl.float32)
    d = tl.arange(0, DIM)
    for tile in range(start, stop, TILE):
        at = tile + tl.arange(0, TILE)
        needed = at < stop
        blocks = tl.load(table + at // BLOCK_SIZE, mask=needed, other=0).to(tl.int64)
        slots = (at % BLOCK_SIZE).to(tl.int64)
        offsets = blocks * stride_block + slots * stride_slot
        scale_offsets = blocks * scale_stride_block + slots * scale_stride_slot
        mask = needed[:, None] & (d < HEAD_DIM)[None, :]
        k = load_vectors(keys, offsets, d, mask, key_scales, scale_offsets, ELEMENTS, FORMAT, query.dtype)
        v = load_vectors(values, offsets, d, mask, value_scales, scale_offsets, ELEMENTS, FORMAT, query.dtype)
        scores = tl.dot(query, tl.trans(k), input_precision="ieee") * scale
        if FORMAT == PER_TOKEN_HEAD:
            scores *= load_vector_scales(key_scales, scale_offsets, needed, FORMAT)[None, :]
        scores = cap_scores(scores, softcap, SOFTCAP) * LOG2_E
        visible = needed[None, :] & (at[None, :] <= positions[:, None]) & (at[None, :] >= firsts[:, None])
        scores = tl.where(visible, scores, float("-inf"))
        highest = tl.maximum(maxima, tl.max(scores, 1))
        finite = tl.where(highest == float("-inf"), 0.0, highest)
        weights = tl.exp2(scores - finite[:, None])
        shrink = tl.exp2(maxima - finite)
        row_sums = row_sums * shrink + tl.sum(weights, 1)
        added = weights
        if FORMAT == PER_TOKEN_HEAD:
            units = load_vector_scales(value_scales, scale_offsets, needed, FORMAT)
            unit = largest_scale(units)
            added = weights * tl.div_rn(units, tl.zeros_like(units) + unit)[None, :]
        product = tl.dot(added.to(query.dtype), v, input_precision="ieee")
        if FORMAT == PER_TOKEN_HEAD:
            product *= unit
        sums = sums * shrink[:, None] + product
        maxima = highest
    return sums, row_sums, maxima


@triton.jit
def in_compute_type(query, keys, FORMAT: tl.constexpr):
    """Return queries in the type of dot products: the cache's where its elements are floats, else their own."""
    if FORMAT == PLAIN:
        query = query.to(keys.dtype.element_ty)
    return query


@triton.jit
def normalised(sums, row_sums):
    """Return sums by row sums; zeros for a row that sees nothing."""
    divisor = tl.where(row_sums == 0.0, 1.0, row_sums)
    return tl.div_rn(sums, tl.broadcast_to(divisor[:, None], sums.shape))


@triton.jit
def log_sum_exp(row_sums, maxima):
    """Return the natural logarithm of the sum of exp(score); minus infinity for a row that sees nothing."""
    empty = row_sums == 0.0
    lse = (tl.where(empty, 0.0, maxima) + tl.log2(tl.where(empty, 1.0, row_sums))) * LN_2
    return tl.where(empty, float("-inf"), lse)
