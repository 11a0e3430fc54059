"""Writing to caches of any format, and reading back: bit for bit."""

from __future__ import annotations

import numpy as np
import torch

from kvsan.ci.kernels.caches import INTEGERS, Untouched, as_bits, clear, compare, make_cache, twin
from kvsan.ci.kernels.contents import real_content
from kvsan.ci.kernels.inputs import any_bits, boundary_numbers, draw_slots, in_batch
from kvsan.ci.kernels.kernel_set import Failure, KernelSet, first_place, watched
from kvsan.ci.kernels.problems import GatherProblem, WriteProblem
from kvsan.ci.kernels.sequences import place_sequences
from kvsan.ci.kernels.small_floats import decode, quantise, unpack
from kvsan.gpu_kernels import formats
from kvsan.gpu_kernels.addressing import IntArray
from kvsan.gpu_kernels.formats import format_named
from kvsan.gpu_kernels.layout import TORCH_DTYPES, PagedCache


def check_write(problem: WriteProblem, kernels: KernelSet, device: str | torch.device) -> list[Failure]:
    """Write, and say what fails."""
    rng = np.random.default_rng(problem.seed)
    spec = problem.cache
    cache = make_cache(spec, problem.blocks, device)
    key, value = (_tokens(problem, scale, rng) for scale in (spec.key_scale, spec.value_scale))
    slots = draw_slots(problem.tokens, problem.skipped, problem.blocks * spec.block_size, rng)
    expected, mask = twin(cache), twin(cache)
    put_tokens(expected, key, value, slots)
    mark_slots(mask, slots)
    batches = [in_batch(one, problem.padded, problem.fused, device) for one in (key, value)]
    mapping = torch.from_numpy(slots).to(INTEGERS[problem.index_dtype]).to(device)
    inputs = Untouched(key=batches[0], value=batches[1], slot_mapping=mapping)
    failures: list[Failure] = []
    with watched(failures):
        launch = kernels.quant_write if cache.format.quantised else kernels.write
        launch(*batches, cache, mapping)
        failures += compare(cache.tensors(), expected.tensors(), mask.tensors()) + inputs.failures()
    return failures


def _tokens(problem: WriteProblem, scale: float, rng: np.random.Generator) -> torch.Tensor:
    """Draw K or V ``[num_tokens, num_kv_heads, head_dim]``."""
    spec = problem.cache
    shape = (problem.tokens, spec.kv_heads, spec.head_dim)
    form = format_named(spec.dtype)
    kind = TORCH_DTYPES[problem.input_dtype]
    if form.quantised and problem.boundary:
        numbers = torch.from_numpy(boundary_numbers(shape, form, scale, rng))
        largest = torch.finfo(kind).max
        return numbers.clamp(-largest, largest).to(kind)
    if problem.boundary and problem.input_dtype == spec.dtype:
        return any_bits(shape, spec.dtype, rng)
    return torch.from_numpy(rng.standard_normal(shape).astype(np.float32) * np.float32(scale)).to(kind)


def put_tokens(cache: PagedCache, key: torch.Tensor, value: torch.Tensor, slots: IntArray) -> None:
    """Store tokens as a cache's format wants them, by plain indexing and quantisation of our own."""
    written = torch.from_numpy(slots >= 0)
    at = torch.from_numpy(slots[slots >= 0]).to(cache.keys.device)
    place = at // cache.block_size, at % cache.block_size
    sides = (
        (key, cache.keys, cache.key_scales, cache.key_scale),
        (value, cache.values, cache.value_scales, cache.value_scale),
    )
    for numbers, elements, scales, scale in sides:
        tokens = numbers[written]
        if not cache.format.quantised:
            as_bits(elements)[place] = as_bits(tokens.to(elements.dtype)).to(elements.device)
            continue
        codes, of_page = quantise(tokens.float().numpy(), cache.format, scale)
        elements[place] = torch.from_numpy(codes).to(elements.device)
        if scales is not None:
            assert of_page is not None
            scales[place] = torch.from_numpy(of_page).to(scales.device)


def mark_slots(mask: PagedCache, slots: IntArray) -> None:
    """Make the mask of ``caches.compare``: all bytes of these slots."""
    clear(mask.tensors())
    at = torch.from_numpy(slots[slots >= 0]).to(mask.keys.device)
    for tensor in mask.tensors():
        as_bits(tensor)[at // mask.block_size, at % mask.block_size] = -1 if tensor.element_size() > 1 else 0xFF


def check_gather(problem: GatherProblem, kernels: KernelSet, device: str | torch.device) -> list[Failure]:
    """Read positions back, and say what fails."""
    rng = np.random.default_rng(problem.seed)
    spec = problem.cache
    lengths, firsts = (problem.stop,), (problem.start if problem.stop > problem.start else problem.stop,)
    sequences = place_sequences(lengths, firsts, spec.block_size, 0, problem.spare_blocks, 1, rng)
    cache = make_cache(spec, sequences.num_blocks, device)
    content = real_content(spec, problem.stop, rng)
    blocks, places = (one.to(cache.keys.device) for one in sequences.slots(0))
    content.put(cache, blocks, places, firsts[0])
    table = sequences.table_tensor(INTEGERS[problem.index_dtype], device)[0]
    expected = [dequantised(cache, part, one) for part, one in zip(_sides(cache), _parts(content.parts), strict=True)]
    inputs = Untouched(cache, table=table)
    failures: list[Failure] = []
    with watched(failures):
        found = kernels.quant_gather(cache, table, problem.start, problem.stop)
        failures += inputs.failures()
        for name, one, other in zip(("keys", "values"), found, expected, strict=True):
            wrong = as_bits(one.cpu()) != as_bits(other[problem.start :])
            if wrong.any():
                at = first_place(wrong)
                failures.append(
                    Failure("bytes", f"{name} of position {problem.start + at[0]}, head and element {at[1:]}")
                )
    return failures


def _sides(cache: PagedCache) -> tuple[float, float]:
    return cache.key_scale, cache.value_scale


def _parts(parts: tuple[torch.Tensor, ...]) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
    """Return elements and scales of K, then those of V."""
    return [(parts[side], parts[2 + side] if len(parts) > 2 else None) for side in (0, 1)]


def dequantised(cache: PagedCache, scale: float, part: tuple[torch.Tensor, torch.Tensor | None]) -> torch.Tensor:
    """Return what reading gives, to the bit: float32 of a code times the float32 product of its scales."""
    elements, scales = part
    if not cache.format.quantised:
        return elements
    whole = torch.full((), scale, dtype=torch.float32)
    if cache.format.format == formats.NVFP4:
        assert scales is not None
        block_scales = np.repeat(decode(scales.numpy(), formats.E4M3), cache.format.scale_block, axis=-1)
        numbers = decode(unpack(elements.numpy()), formats.E2M1) * block_scales
        return torch.from_numpy(numbers).float() * whole
    numbers = decode(elements.numpy(), cache.format.elements)
    return torch.from_numpy(numbers).float() * (whole if scales is None else scales * whole)
