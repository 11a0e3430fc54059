"""Quantised pages: write with quantisation, and read back. Reading while attending is in ``tiles.load_vectors``.

    grid       (tile of TOKENS tokens, kv head)
    per tensor       code = E4M3 or E5M2 of x / scale
    token and head   scale = 2**e with max|x| in [2**(e + k), 2**(e + k + 1)), k = 6 for INT8, 7 for E4M3, written beside
    NVFP4            for 16 elements: scale = E4M3 of max|x| / 6 / tensor scale; two E2M1 codes a byte

Rounding is to nearest, ties to even, with saturation, in integer arithmetic: the same bits on every GPU, whether it has
FP8 instructions (from sm_89 on) or its own kind of FP8 (gfx942).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvsan.gpu_kernels.launching import check_integers, format_constants, or_keys
from kvsan.gpu_kernels.layout import PagedCache, attention_strides
from kvsan.gpu_kernels.tiles import (
    E2M1,
    E4M3,
    E5M2,
    INT8,
    NVFP4,
    NVFP4_BLOCK,
    PER_TOKEN_HEAD,
    PLAIN,
    decode_small_float,
    load_vector_scales,
    load_vectors,
)
from kvsan.gpu_kernels.write import check_tokens, token_constants


@triton.jit
def round_to_bits(
    x, MANTISSA: tl.constexpr, LARGEST: tl.constexpr, REBIAS: tl.constexpr, NORMAL: tl.constexpr, MAGIC: tl.constexpr
):
    """Return the exponent and mantissa bits, as int32, of the nearest small float to ``|x|``, saturating; NaN like inf.

    ``REBIAS`` is 127 less the bias; ``NORMAL`` the least normal number, below which adding ``MAGIC`` (whose unit in the
    last place is the least subnormal) rounds to a count of subnormals.
    """
    magnitude = tl.minimum(tl.abs(x), LARGEST)
    bits = magnitude.to(tl.int32, bitcast=True)
    shift: tl.constexpr = 23 - MANTISSA
    rounded = (bits + ((1 << (shift - 1)) - 1) + ((bits >> shift) & 1)) >> shift
    magic = (tl.zeros_like(magnitude) + MAGIC).to(tl.int32, bitcast=True)
    subnormal = (magnitude + MAGIC).to(tl.int32, bitcast=True) - magic
    return tl.where(magnitude < NORMAL, subnormal, rounded - (REBIAS << MANTISSA))


@triton.jit
def encode_small_float(x, ELEMENTS: tl.constexpr):
    """Return E4M3, E5M2 or E2M1 codes, uint8, of float32: to nearest even, saturating; NaN becomes the largest.

    -0.0 becomes 0, and what is negative and rounds to zero -0.0.
    """
    negative = (x < 0.0).to(tl.int32)
    if ELEMENTS == E4M3:
        codes = round_to_bits(x, 3, 448.0, 120, 0.015625, 16384.0) | (negative << 7)
    elif ELEMENTS == E5M2:
        codes = round_to_bits(x, 2, 57344.0, 112, 6.103515625e-05, 128.0) | (negative << 7)
    else:
        tl.static_assert(ELEMENTS == E2M1)
        codes = round_to_bits(x, 1, 6.0, 126, 1.0, 4194304.0) | (negative << 3)
    return codes.to(tl.uint8)


@triton.jit
def encode_elements(x, ELEMENTS: tl.constexpr):
    """Return uint8 codes of scaled elements; INT8 as two's complement."""
    if ELEMENTS == INT8:
        whole = (x + 12582912.0) - 12582912.0
        codes = tl.minimum(tl.maximum(whole, -127.0), 127.0).to(tl.int8).to(tl.uint8, bitcast=True)
    else:
        codes = encode_small_float(x, ELEMENTS)
    return codes


@triton.jit
def power_of_two_scale(largest, ELEMENTS: tl.constexpr):
    """Return the scale, a power of two from 2**-120 on, that puts ``largest`` below 128 (INT8) or 256 (E4M3)."""
    place: tl.constexpr = 6 if ELEMENTS == INT8 else 7
    exponent = tl.maximum((largest.to(tl.int32, bitcast=True) >> 23) - place, 7)
    return (exponent << 23).to(tl.float32, bitcast=True)


@triton.jit
def quantise_vectors(
    x, cache, scales, offsets, scale_offsets, mask, scale,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, TOKENS: tl.constexpr, ELEMENTS: tl.constexpr, FORMAT: tl.constexpr,
):  # fmt: skip
    """Store ``[TOKENS, DIM]`` float32 as codes, and their scales; ``mask`` int1 ``[TOKENS]``."""
    d = tl.arange(0, DIM)
    if FORMAT == NVFP4:
        blocks: tl.constexpr = DIM // NVFP4_BLOCK
        grouped = tl.reshape(x, [TOKENS, blocks, NVFP4_BLOCK])
        largest = tl.max(tl.abs(grouped), 2)
        codes = encode_small_float(tl.div_rn(largest * (1.0 / 6.0), tl.zeros_like(largest) + scale), E4M3)
        b = tl.arange(0, blocks)
        of_block = mask[:, None] & (b < HEAD_DIM // NVFP4_BLOCK)[None, :]
        tl.store(scales + scale_offsets[:, None] + b[None, :], codes, mask=of_block)
        unit = decode_small_float(codes, E4M3).to(tl.float32) * scale
        divisor = tl.where(unit == 0.0, 1.0, unit)[:, :, None]
        scaled = tl.div_rn(grouped, tl.broadcast_to(divisor, grouped.shape))
        nibbles = tl.reshape(encode_small_float(scaled, E2M1), [TOKENS, DIM // 2, 2])
        low, high = tl.split(nibbles)
        half = tl.arange(0, DIM // 2)
        of_byte = mask[:, None] & (half < HEAD_DIM // 2)[None, :]
        tl.store(cache + offsets[:, None] + half[None, :], low | (high << 4), mask=of_byte)
    else:
        if FORMAT == PER_TOKEN_HEAD:
            unit = power_of_two_scale(tl.max(tl.abs(x), 1), ELEMENTS)
            tl.store(scales + scale_offsets, unit, mask=mask)
            scaled = tl.div_rn(x, tl.broadcast_to(unit[:, None], x.shape))
        else:
            scaled = tl.div_rn(x, tl.zeros_like(x) + scale)
        of_element = mask[:, None] & (d < HEAD_DIM)[None, :]
        tl.store(cache + offsets[:, None] + d[None, :], encode_elements(scaled, ELEMENTS), mask=of_element)


@triton.jit
def quantise_and_cache(
    key, value, keys, values, key_scales, value_scales, slot_mapping, num_tokens, key_scale, value_scale,
    stride_kt, stride_kh, stride_vt, stride_vh,
    stride_block, stride_slot, stride_head, scale_stride_block, scale_stride_slot, scale_stride_head,
    TOKENS: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
    ELEMENTS: tl.constexpr, FORMAT: tl.constexpr,
):  # fmt: skip
    """Quantise and write ``TOKENS`` tokens of one kv head."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(1).to(tl.int64)
    slot = tl.load(slot_mapping + token, mask=token < num_tokens, other=-1).to(tl.int64)
    written = slot >= 0
    d = tl.arange(0, DIM)
    mask = written[:, None] & (d < HEAD_DIM)[None, :]
    block, place = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    to = block * stride_block + place * stride_slot + head * stride_head
    to_scale = block * scale_stride_block + place * scale_stride_slot + head * scale_stride_head
    at = token.to(tl.int64)
    k = tl.load(key + (at * stride_kt + head * stride_kh)[:, None] + d[None, :], mask=mask, other=0.0)
    v = tl.load(value + (at * stride_vt + head * stride_vh)[:, None] + d[None, :], mask=mask, other=0.0)
    quantise_vectors(
        k.to(tl.float32), keys, key_scales, to, to_scale, written, key_scale,
        HEAD_DIM, DIM, TOKENS, ELEMENTS, FORMAT,
    )  # fmt: skip
    quantise_vectors(
        v.to(tl.float32), values, value_scales, to, to_scale, written, value_scale,
        HEAD_DIM, DIM, TOKENS, ELEMENTS, FORMAT,
    )  # fmt: skip


@triton.jit
def gather_tokens(
    cache, scales, table, result, scale, start, stop, stride_block, stride_slot, stride_head,
    scale_stride_block, scale_stride_slot, scale_stride_head, stride_rt, stride_rh,
    TOKENS: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
    ELEMENTS: tl.constexpr, FORMAT: tl.constexpr,
):  # fmt: skip
    """Read ``TOKENS`` positions of one kv head through a block table, dequantised."""
    position = start + tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(1).to(tl.int64)
    needed = position < stop
    block = tl.load(table + position // BLOCK_SIZE, mask=needed, other=0).to(tl.int64)
    place = (position % BLOCK_SIZE).to(tl.int64)
    offsets = block * stride_block + place * stride_slot + head * stride_head
    scale_offsets = block * scale_stride_block + place * scale_stride_slot + head * scale_stride_head
    d = tl.arange(0, DIM)
    mask = needed[:, None] & (d < HEAD_DIM)[None, :]
    x = load_vectors(cache, offsets, d, mask, scales, scale_offsets, ELEMENTS, FORMAT, tl.float32)
    if FORMAT != PLAIN:
        shared = load_vector_scales(scales, scale_offsets, needed, FORMAT) * scale
        x = x.to(tl.float32) * shared[:, None]
    to = ((position - start).to(tl.int64) * stride_rt + head * stride_rh)[:, None] + d[None, :]
    tl.store(result + to, x.to(result.dtype.element_ty), mask=mask)


def write(key: torch.Tensor, value: torch.Tensor, cache: PagedCache, slot_mapping: torch.Tensor) -> None:
    """Quantise K and V of ``len(slot_mapping)`` tokens and write them to a quantised cache.

    Shapes as in ``write.write``. ValueError on shapes that do not fit, or a plain cache.
    """
    if not cache.format.quantised:
        raise ValueError(f"a cache of {cache.format.name}: expected a quantised one; write.write is for plain ones")
    check_tokens(key, value, cache, slot_mapping)
    tokens = len(slot_mapping)
    if tokens:
        quantise_and_cache[(triton.cdiv(tokens, token_constants(cache)["TOKENS"]), cache.num_kv_heads)](
            key, value, cache.keys, cache.values, or_keys(cache, cache.key_scales), or_keys(cache, cache.value_scales),
            slot_mapping, tokens, cache.key_scale, cache.value_scale, *key.stride()[:2], *value.stride()[:2],
            *attention_strides(cache), **token_constants(cache), **format_constants(cache),
        )  # fmt: skip


def gather(cache: PagedCache, table: torch.Tensor, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Read K and V of positions ``[start, stop)`` of one sequence.

    ``table`` int32 or int64 ``[max_blocks]``. Returns two ``[stop - start, num_kv_heads, head_dim]``: of the cache's own
    type, bit for bit, where it is plain, else float32, dequantised.
    """
    check_integers("table", table)
    tokens = stop - start
    dtype = torch.float32 if cache.format.quantised else cache.keys.dtype
    keys = torch.empty((tokens, cache.num_kv_heads, cache.head_dim), dtype=dtype, device=cache.keys.device)
    values = torch.empty_like(keys)
    strides = attention_strides(cache)
    sides = (
        (cache.keys, cache.key_scales, cache.key_scale, keys),
        (
            cache.values,
            cache.value_scales,
            cache.value_scale,
            values,
        ),
    )
    for elements, scales, scale, result in sides if tokens else ():
        gather_tokens[(triton.cdiv(tokens, token_constants(cache)["TOKENS"]), cache.num_kv_heads)](
            elements, or_keys(cache, scales), table, result, scale, start, stop, *strides, *result.stride()[:2],
            **token_constants(cache), **format_constants(cache),
        )  # fmt: skip
    return keys, values
