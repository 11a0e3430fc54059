"""Contiguous K and V of paged sequences, by plain indexing and torch's own types: no kernel of ours has a part in it."""

from __future__ import annotations

import torch

from kvsan.ci.kernels.small_floats import E2M1_NUMBERS, NVFP4_BLOCK
from kvsan.gpu_kernels import formats
from kvsan.gpu_kernels.formats import Format
from kvsan.gpu_kernels.layout import PagedCache

_FP8 = {formats.E4M3: torch.float8_e4m3fn, formats.E5M2: torch.float8_e5m2}


def gathered(cache: PagedCache, tables: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return K and V ``[num_rows, length, num_kv_heads, head_dim]`` of sequences of one length.

    Of the cache's type where it is plain, else float32, dequantised. ``tables`` int64 ``[num_rows, num_blocks]``.
    """
    sides = ((cache.keys, cache.key_scales, cache.key_scale), (cache.values, cache.value_scales, cache.value_scale))
    keys, values = (
        _dequantised(_positions(elements, tables, length), _scales(scales, tables, length), cache.format, scale)
        for elements, scales, scale in sides
    )
    return keys, values


def _positions(tensor: torch.Tensor, tables: torch.Tensor, length: int) -> torch.Tensor:
    return tensor[tables].flatten(1, 2)[:, :length]


def _scales(scales: torch.Tensor | None, tables: torch.Tensor, length: int) -> torch.Tensor | None:
    return None if scales is None else _positions(scales, tables, length)


def _dequantised(elements: torch.Tensor, scales: torch.Tensor | None, form: Format, scale: float) -> torch.Tensor:
    if not form.quantised:
        return elements
    if form.elements == formats.INT8:
        numbers = elements.view(torch.int8).float()
    elif form.elements == formats.E2M1:
        table = torch.tensor((*E2M1_NUMBERS, *(-number for number in E2M1_NUMBERS)), device=elements.device)
        numbers = table[torch.stack((elements & 0xF, elements >> 4), -1).flatten(-2).int()]
    else:
        numbers = elements.view(_FP8[form.elements]).float()
    if form.format == formats.NVFP4:
        assert scales is not None
        numbers = numbers * scales.view(torch.float8_e4m3fn).float().repeat_interleave(NVFP4_BLOCK, -1)
    elif scales is not None:
        numbers = numbers * scales
    return numbers * scale
