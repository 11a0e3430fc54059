"""What the tokens of a sequence hold: what a page stores of them, and the numbers that this stands for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kvsan.ci.kernels.problems import CacheSpec
from kvsan.ci.kernels.small_floats import dequantise, encode, pack, quantise
from kvsan.gpu_kernels import formats
from kvsan.gpu_kernels.formats import Format, format_named
from kvsan.gpu_kernels.layout import TORCH_DTYPES, PagedCache

Float64Array = npt.NDArray[np.float64]

_INTEGERS = tuple(float(number) for number in range(-8, 8))
_E2M1_INTEGERS = (-6.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 6.0)


@dataclass(frozen=True, slots=True)
class Content:
    """Tokens of one sequence.

    ``parts``: what each of ``PagedCache.tensors`` holds of them, ``[num_tokens, num_kv_heads, width]``; ``keys, values``
    ``[num_tokens, num_kv_heads, head_dim]``: the numbers; ``value_units`` ``[num_tokens, num_kv_heads, 1]``: what a
    kernel multiplies weights by before it rounds them.
    """

    parts: tuple[torch.Tensor, ...]
    keys: Float64Array
    values: Float64Array
    value_units: Float64Array

    def after(self, start: Content, tokens: int) -> Content:
        """Return this content with the first ``tokens`` tokens of another."""
        parts = tuple(torch.cat((a[:tokens], b[tokens:])) for a, b in zip(start.parts, self.parts, strict=True))
        numbers = (
            np.concatenate((getattr(start, name)[:tokens], getattr(self, name)[tokens:]))
            for name in ("keys", "values", "value_units")
        )
        return Content(parts, *numbers)

    def put(self, cache: PagedCache, blocks: torch.Tensor, places: torch.Tensor, first: int = 0) -> None:
        """Store tokens from ``first`` on in blocks and places of a cache, by plain indexing."""
        for tensor, part in zip(cache.tensors(), self.parts, strict=True):
            tensor[blocks, places] = part[first:].to(tensor.device)


def real_content(spec: CacheSpec, tokens: int, rng: np.random.Generator) -> Content:
    """Draw normally distributed K and V, of another size in each vector."""
    shape = (tokens, spec.kv_heads, spec.head_dim)
    sizes = (1.0, 1.0) if not format_named(spec.dtype).quantised else (spec.key_scale, spec.value_scale)
    numbers = []
    for size in sizes:
        spread = np.exp2(rng.uniform(-1, 1, (*shape[:2], 1)))
        numbers.append((rng.standard_normal(shape) * spread * size).astype(np.float32))
    return content_of(spec, *numbers)


def content_of(spec: CacheSpec, keys: npt.NDArray[np.float32], values: npt.NDArray[np.float32]) -> Content:
    """Round K and V to what a cache holds of them."""
    form = format_named(spec.dtype)
    if not form.quantised:
        parts = tuple(torch.from_numpy(one).to(TORCH_DTYPES[spec.dtype]) for one in (keys, values))
        return _content(form, spec, parts)
    elements, scales = [], []
    for numbers, scale in ((keys, spec.key_scale), (values, spec.value_scale)):
        codes, of_page = quantise(numbers, form, scale)
        elements.append(torch.from_numpy(codes))
        if of_page is not None:
            scales.append(torch.from_numpy(of_page))
    return _content(form, spec, (*elements, *scales))


def code_content(spec: CacheSpec, tokens: int, rng: np.random.Generator) -> Content:
    """Draw K of one size up to its sign and V of small integers, each scaled by other powers of two if it can be."""
    form = format_named(spec.dtype)
    shape = (tokens, spec.kv_heads, spec.head_dim)
    keys = rng.choice((-1.0, 1.0), shape)
    values = rng.choice(_E2M1_INTEGERS if form.format == formats.NVFP4 else _INTEGERS, shape)
    if not form.quantised:
        parts = tuple(torch.from_numpy(one).to(TORCH_DTYPES[spec.dtype]) for one in (keys, values))
        return _content(form, spec, parts)
    codes = [encode(one.astype(np.float32), form.elements) for one in (keys, values)]
    if form.format == formats.NVFP4:
        codes = [pack(one) for one in codes]
    elements = [torch.from_numpy(one) for one in codes]
    scales = []
    for _ in elements if form.scale_bytes else ():
        exponents = rng.integers(-1, 2, (*shape[:2], form.scale_width(spec.head_dim)))
        powers = np.exp2(exponents).astype(np.float32)
        scales.append(torch.from_numpy(powers if form.scale_bytes == 4 else encode(powers, formats.E4M3)))
    return _content(form, spec, (*elements, *scales))


def _content(form: Format, spec: CacheSpec, parts: tuple[torch.Tensor, ...]) -> Content:
    sides = []
    for side, scale in ((0, spec.key_scale), (1, spec.value_scale)):
        if form.quantised:
            scales = parts[2 + side].numpy() if form.scale_bytes else None
            sides.append(dequantise(parts[side].numpy(), scales, form) * float(np.float32(scale)))
        else:
            sides.append(parts[side].double().numpy())
    units = np.ones((*sides[0].shape[:2], 1))
    if form.format == formats.PER_TOKEN_HEAD:
        units = parts[3].double().numpy()
    return Content(parts, sides[0], sides[1], units)
