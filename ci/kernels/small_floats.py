"""Quantisation once more, by other means than the kernels': torch's FP8 casts, a table for E2M1, frexp for exponents.

Rounding is to nearest, ties to even, with saturation. A negative zero is stored as zero; a negative number that rounds to
zero keeps its sign. NaN, which only the formats with one scale a tensor are asked about, becomes the largest number.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from kvsan.gpu_kernels import formats
from kvsan.gpu_kernels.formats import Format

E2M1_NUMBERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""What E2M1 codes 0 to 7 stand for; 8 more are the sign."""

NVFP4_BLOCK = 16
_FP8 = {formats.E4M3: torch.float8_e4m3fn, formats.E5M2: torch.float8_e5m2}
_PLACES = {formats.INT8: 6, formats.E4M3: 7}
_LEAST_EXPONENT = -120

Codes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def encode(numbers: Floats, elements: int) -> Codes:
    """Return codes of scaled numbers, one a byte."""
    wanted = np.nan_to_num(numbers, nan=np.inf, posinf=np.inf, neginf=-np.inf)
    result: Codes
    if elements == formats.INT8:
        result = np.clip(np.rint(wanted), -127, 127).astype(np.int8).view(np.uint8)
    elif elements == formats.E2M1:
        result = _encode_e2m1(wanted)
    else:
        kind = _FP8[elements]
        largest = torch.finfo(kind).max
        positive_zero = torch.from_numpy(wanted) + 0.0
        result = positive_zero.clamp(-largest, largest).to(kind).view(torch.uint8).numpy()
    return result


def _encode_e2m1(numbers: Floats) -> Codes:
    table = np.array(E2M1_NUMBERS, np.float64)
    distances = np.abs(np.minimum(np.abs(numbers), 6.0).astype(np.float64)[..., None] - table)
    nearest = distances.min(-1, keepdims=True)
    odd = np.arange(len(table)) % 2
    codes = np.where(distances == nearest, odd, 2).argmin(-1)  # of two that are as near, the even one
    result: Codes = np.asarray(codes + 8 * (numbers < 0), np.uint8)
    return result


def decode(codes: Codes, elements: int) -> npt.NDArray[np.float64]:
    """Return the numbers that codes, one a byte, stand for."""
    if elements == formats.INT8:
        return codes.view(np.int8).astype(np.float64)
    if elements == formats.E2M1:
        return np.array((*E2M1_NUMBERS, *(-number for number in E2M1_NUMBERS)))[codes]
    result: npt.NDArray[np.float64] = torch.from_numpy(codes).view(_FP8[elements]).double().numpy()
    return result


def quantise(numbers: Floats, form: Format, scale: float) -> tuple[Codes, npt.NDArray[np.generic] | None]:
    """Return what the page holds of ``[..., head_dim]``: elements, and their scales where the page has some."""
    tensor_scale = np.float32(scale)
    with np.errstate(over="ignore", invalid="ignore"):
        if form.format == formats.PER_TENSOR:
            return encode((numbers / tensor_scale).astype(np.float32), form.elements), None
        if form.format == formats.PER_TOKEN_HEAD:
            scales = vector_scales(numbers, form.elements)
            return encode(numbers / scales, form.elements), scales
        shape = (*numbers.shape[:-1], numbers.shape[-1] // NVFP4_BLOCK, NVFP4_BLOCK)
        blocks = numbers.reshape(shape)
        largest = np.abs(blocks).max(-1)
        scale_codes = encode((largest * np.float32(1 / 6) / tensor_scale).astype(np.float32), formats.E4M3)
        units = decode(scale_codes, formats.E4M3).astype(np.float32) * tensor_scale
        scaled = (blocks / np.where(units == 0, np.float32(1), units)[..., None]).reshape(numbers.shape)
    return pack(encode(scaled.astype(np.float32), formats.E2M1)), scale_codes


def vector_scales(numbers: Floats, elements: int) -> Floats:
    """Return the power of two that each vector of ``[..., head_dim]`` is scaled by, ``[..., 1]``."""
    largest = np.abs(numbers).max(-1, keepdims=True)
    exponents = np.frexp(largest)[1] - 1 - _PLACES[elements]
    exponents = np.where(largest == 0, _LEAST_EXPONENT, np.maximum(exponents, _LEAST_EXPONENT))
    result: Floats = np.ldexp(np.float32(1), exponents).astype(np.float32)
    return result


def pack(nibbles: Codes) -> Codes:
    """Put two E2M1 codes into a byte, the first one into the lower half."""
    return (nibbles[..., 0::2] | (nibbles[..., 1::2] << 4)).astype(np.uint8)


def unpack(packed: Codes) -> Codes:
    """Return E2M1 codes, one a byte."""
    return np.stack((packed & 0xF, packed >> 4), -1).reshape(*packed.shape[:-1], 2 * packed.shape[-1])


def dequantise(elements: Codes, scales: npt.NDArray[np.generic] | None, form: Format) -> npt.NDArray[np.float64]:
    """Return the numbers ``[..., head_dim]`` that a page holds, but for the tensor's scale."""
    if form.format == formats.NVFP4:
        assert scales is not None
        block_scales = decode(scales.view(np.uint8), formats.E4M3)
        return decode(unpack(elements), formats.E2M1) * np.repeat(block_scales, NVFP4_BLOCK, axis=-1)
    numbers = decode(elements, form.elements)
    return numbers if scales is None else numbers * scales.astype(np.float64)
