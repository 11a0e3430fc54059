"""A paged cache as torch tensors: one pool of pages, in which every kernel sees ``[block, slot, head, dim]``.

A page holds a block's K, then its V, then the scales of quantised formats, so that whoever moves a page moves all of it::

    page        | K: block_size x heads x width | V: the same | K scales | V scales |
    NHD         slot-major within each part:  [slot, head, ...]
    HND         head-major:                   [head, slot, ...]

Kernels know strides and no layout. The tensors are views of the pool, in both layouts with the same logical shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast, get_args

import torch

from kvsan.gpu_kernels.addressing import page_bytes_of, part_bytes_of, part_start_of
from kvsan.gpu_kernels.formats import Format, format_named
from kvsan.gpu_kernels.sharding import MemoryLayout, vector_strides

LAYOUTS: tuple[str, ...] = get_args(MemoryLayout)

TORCH_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
"""Of plain caches; codes are uint8."""


@dataclass(frozen=True, slots=True)
class PagedCache:
    """One layer's cache.

    ``keys, values`` ``[num_blocks, block_size, num_kv_heads, width]``: floats, or uint8 codes; ``key_scales,
    value_scales`` likewise with the format's ``scale_width``, float32 or uint8 (E4M3 codes), None where the page holds
    none. ``key_scale, value_scale``: the scales of the whole tensor, 1 where the format has none.
    """

    format: Format
    head_dim: int
    keys: torch.Tensor
    values: torch.Tensor
    key_scales: torch.Tensor | None = None
    value_scales: torch.Tensor | None = None
    key_scale: float = 1.0
    value_scale: float = 1.0

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool."""
        return self.keys.shape[0]

    @property
    def block_size(self) -> int:
        """Slots of a block."""
        return self.keys.shape[1]

    @property
    def num_kv_heads(self) -> int:
        """Heads of K and of V."""
        return self.keys.shape[2]

    def tensors(self) -> list[torch.Tensor]:
        """All that a page holds: keys, values, and scales where there are some."""
        return [one for one in (self.keys, self.values, self.key_scales, self.value_scales) if one is not None]


def allocate_cache(
    num_blocks: int,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: str,
    layout: str = "NHD",
    device: str | torch.device = "cpu",
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> PagedCache:
    """Allocate a zeroed cache of a format (``formats.FORMATS``) in a layout (``LAYOUTS``); ValueError on bad sizes."""
    form = format_named(dtype)
    if layout not in LAYOUTS:
        raise ValueError(f"layout {layout!r}: expected one of {', '.join(LAYOUTS)}")
    if min(num_blocks, block_size, num_kv_heads, head_dim) < 1:
        raise ValueError(f"sizes {num_blocks, block_size, num_kv_heads, head_dim}: expected 1 or more each")
    if form.scale_block and head_dim % form.scale_block:
        raise ValueError(f"head_dim {head_dim}: {dtype} expects a multiple of {form.scale_block}")
    element = TORCH_DTYPES.get(dtype, torch.uint8)
    scale = torch.float32 if form.scale_bytes == 4 else torch.uint8
    vectors = block_size * num_kv_heads
    width, scale_width = form.width(head_dim), form.scale_width(head_dim)
    parts = part_bytes_of(vectors, width, form.element_bytes), part_bytes_of(vectors, scale_width, form.scale_bytes)
    page_bytes = page_bytes_of(*parts)
    pages = torch.zeros((num_blocks, page_bytes), dtype=torch.uint8, device=device)
    slot_stride, head_stride = vector_strides(cast(MemoryLayout, layout), block_size, num_kv_heads)

    def view(part: int, width: int, kind: torch.dtype) -> torch.Tensor:
        return pages.view(kind).as_strided(
            (num_blocks, block_size, num_kv_heads, width),
            (page_bytes // kind.itemsize, slot_stride * width, head_stride * width, 1),
            part_start_of(part, *parts) // kind.itemsize,
        )

    keys, values = view(0, width, element), view(1, width, element)
    key_scales, value_scales = None, None
    if scale_width:
        key_scales, value_scales = view(2, scale_width, scale), view(3, scale_width, scale)
    return PagedCache(form, head_dim, keys, values, key_scales, value_scales, key_scale, value_scale)


def attention_strides(cache: PagedCache) -> tuple[int, ...]:
    """Return what kernels take: block, slot, head strides of elements, then of scales.

    ValueError unless K and V have the same strides and their last dimension is contiguous.
    """
    scales = cache.key_scales, cache.value_scales
    if cache.keys.stride() != cache.values.stride():
        raise ValueError(f"K has strides {cache.keys.stride()}, V {cache.values.stride()}: expected the same")
    if cache.keys.stride(3) != 1:
        raise ValueError(f"the last dimension has stride {cache.keys.stride(3)}: expected 1")
    if scales[0] is None or scales[1] is None:
        return (*cache.keys.stride()[:3], 0, 0, 0)
    if scales[0].stride() != scales[1].stride() or scales[0].stride(3) != 1:
        raise ValueError("the scales of K and V: expected the same strides, the last one 1")
    return (*cache.keys.stride()[:3], *scales[0].stride()[:3])
