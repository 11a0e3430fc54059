"""What is written to caches: numbers, those at which rounding decides, and slots."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from kvsan.ci.kernels.caches import BITS
from kvsan.ci.kernels.small_floats import E2M1_NUMBERS, decode
from kvsan.gpu_kernels import formats
from kvsan.gpu_kernels.addressing import IntArray
from kvsan.gpu_kernels.formats import Format
from kvsan.gpu_kernels.layout import TORCH_DTYPES

Floats = npt.NDArray[np.float32]


def any_bits(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> torch.Tensor:
    """Draw elements of any bit pattern, NaN and infinities among them."""
    kind = TORCH_DTYPES[dtype]
    bits = np.dtype(f"int{8 * kind.itemsize}")
    numbers = np.iinfo(bits)
    return torch.from_numpy(rng.integers(numbers.min, numbers.max, shape, bits, endpoint=True)).view(kind)


def numbers_at_boundaries(elements: int) -> Floats:
    """Return every number of a small float, the ties between them, what is next to each, and what saturates."""
    if elements == formats.INT8:
        halves = np.arange(0, 129, 0.5).astype(np.float32)
    elif elements == formats.E2M1:
        halves = _with_ties(np.array(E2M1_NUMBERS, np.float32))
    else:
        grid = decode(np.arange(128, dtype=np.uint8), elements).astype(np.float32)
        halves = _with_ties(np.unique(grid[np.isfinite(grid)]))
    around = np.concatenate((halves, np.nextafter(halves, np.float32(0)), np.nextafter(halves, np.float32(np.inf))))
    beyond = np.array([1.1 * halves.max(), 1e30, 1e-30, 0.0], np.float32)
    numbers = np.concatenate((around, beyond))
    return np.concatenate((numbers, -numbers))


def _with_ties(grid: Floats) -> Floats:
    ties = (grid[1:] + grid[:-1]) / 2
    return np.concatenate((grid, ties)).astype(np.float32)


def boundary_numbers(shape: tuple[int, ...], form: Format, scale: float, rng: np.random.Generator) -> Floats:
    """Draw ``[num_tokens, num_kv_heads, head_dim]`` numbers that a format rounds at a boundary.

    Where the page has scales, one element of a vector (or of a block of it) is the largest: a power of two, the number
    below one, or just so that others lie at ties; some vectors are zeros.
    """
    numbers: Floats = rng.choice(numbers_at_boundaries(form.elements), shape).astype(np.float32)
    if form.format == formats.PER_TENSOR:
        return (numbers * np.float32(scale)).astype(np.float32)
    largest = 128.0 if form.elements == formats.INT8 else 256.0 if form.format == formats.PER_TOKEN_HEAD else 6.0
    block = form.scale_block or shape[-1]
    blocks = np.clip(numbers, -largest, largest).reshape(*shape[:-1], shape[-1] // block, block)
    tops = np.array([largest, np.nextafter(np.float32(largest), np.float32(0)), largest / 2, 0.0], np.float32)
    blocks[..., 0] = rng.choice(tops, blocks.shape[:-1])
    sizes = np.exp2(rng.integers(-6, 7, (*blocks.shape[:-1], 1))).astype(np.float32) * np.float32(scale)
    sizes[rng.random(sizes.shape) < 0.1] = 0.0
    if form.format == formats.PER_TOKEN_HEAD:
        sizes[rng.random(sizes.shape) < 0.1] *= np.float32(2.0**-130)
    return (blocks * sizes).reshape(shape).astype(np.float32)


def in_batch(tokens: torch.Tensor, padded: int, fused: bool, device: str | torch.device) -> torch.Tensor:
    """Return ``[num_tokens, heads, dim]`` with ``padded`` tokens of garbage behind; as a slice of a qkv if ``fused``."""
    count, heads, dim = tokens.shape
    base = torch.empty((count + padded, heads + (3 if fused else 0), dim), dtype=tokens.dtype, device=device)
    base.view(BITS[base.element_size()]).fill_(0x55)
    batch = base[:, 2 : 2 + heads] if fused else base
    batch[:count] = tokens.to(device)
    return batch


def draw_slots(tokens: int, skipped: int, num_slots: int, rng: np.random.Generator) -> IntArray:
    """Draw another slot for each token, in no order, and -1 for ``skipped`` of them."""
    slots: IntArray = rng.permutation(num_slots)[:tokens].astype(np.int64)
    slots[rng.permutation(tokens)[:skipped]] = -1
    return slots
