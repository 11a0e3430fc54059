"""Blocks on the move: copies, gather and scatter, re-sharding; bit for bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from kvsan.ci.kernels.caches import BITS, Untouched, as_bits, clear, compare, make_cache, stores, twin
from kvsan.ci.kernels.inputs import any_bits
from kvsan.ci.kernels.kernel_set import Failure, KernelSet, first_place, watched
from kvsan.ci.kernels.problems import CopyProblem, ReshardProblem, TransferProblem
from kvsan.gpu_kernels.addressing import heads_per_rank
from kvsan.gpu_kernels.layout import PagedCache


def check_copy(problem: CopyProblem, kernels: KernelSet, device: str | torch.device) -> list[Failure]:
    """Copy slots of blocks within a cache, and say what fails."""
    rng = np.random.default_rng(problem.seed)
    cache = make_cache(problem.cache, problem.blocks, device)
    _fill_with_bits(cache, rng)
    blocks = rng.permutation(problem.blocks)
    targets, sources = blocks[: problem.pairs], rng.choice(blocks[problem.pairs :], problem.pairs)
    expected, mask = twin(cache), twin(cache)
    clear(mask.tensors())
    part = slice(problem.start, problem.stop)
    for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
        for one, may in zip(expected.tensors(), mask.tensors(), strict=True):
            as_bits(one)[target, part] = as_bits(one)[source, part]
            as_bits(may)[target, part] = _ones(may)
    pairs = torch.from_numpy(np.stack((sources, targets), 1).astype(np.int64)).to(device)
    inputs = Untouched(pairs=pairs)
    failures: list[Failure] = []
    with watched(failures):
        kernels.copy_blocks(cache, pairs, problem.start, problem.stop)
        failures += compare(cache.tensors(), expected.tensors(), mask.tensors()) + inputs.failures()
    return failures


def check_transfer(problem: TransferProblem, kernels: KernelSet, device: str | torch.device) -> list[Failure]:
    """Gather blocks, scatter them to another cache, and say what fails."""
    rng = np.random.default_rng(problem.seed)
    source = make_cache(problem.cache, problem.blocks, device)
    _fill_with_bits(source, rng)
    target = make_cache(replace(problem.cache, storage=problem.target_storage), problem.blocks + 1, device)
    taken = torch.from_numpy(rng.permutation(problem.blocks)[: problem.moved]).to(device)
    given = torch.from_numpy(rng.permutation(problem.blocks + 1)[: problem.moved]).to(device)
    expected, mask = twin(target), twin(target)
    clear(mask.tensors())
    for one, may, origin in zip(expected.tensors(), mask.tensors(), source.tensors(), strict=True):
        as_bits(one)[given] = as_bits(origin)[taken]
        as_bits(may)[given] = _ones(may)
    failures: list[Failure] = []
    with watched(failures):
        buffers = kernels.gather_blocks(source, taken)
        for index, (buffer, origin) in enumerate(zip(buffers, source.tensors(), strict=True)):
            failures += _differences(f"buffer {index}", buffer, origin[taken])
        inputs = Untouched(source, **{f"buffer {index}": buffer for index, buffer in enumerate(buffers)})
        kernels.scatter_blocks(buffers, target, given)
        failures += inputs.failures() + compare(target.tensors(), expected.tensors(), mask.tensors())
    return failures


def check_reshard(problem: ReshardProblem, kernels: KernelSet, device: str | torch.device) -> list[Failure]:
    """Re-shard heads of which each has one content on all ranks that hold it, and say what fails."""
    rng = np.random.default_rng(problem.seed)
    whole = any_bits((problem.blocks, problem.block_size, problem.heads, problem.width), problem.dtype, rng)
    shards = _shards(whole, problem.heads, problem.source_ranks)
    if problem.strided:
        wider = shards.new_empty((*shards.shape[:-1], problem.width + 8))
        wider[..., : problem.width] = shards
        shards = wider.to(device)[..., : problem.width]
    shards = shards.to(device)
    inputs = Untouched(shards=shards)
    failures: list[Failure] = []
    with watched(failures):
        found = kernels.reshard(shards, problem.heads, problem.ranks)
        failures += _differences("shards", found, _shards(whole, problem.heads, problem.ranks)) + inputs.failures()
    return failures


def _shards(whole: torch.Tensor, heads: int, ranks: int) -> torch.Tensor:
    """Cut ``[blocks, slots, heads, width]`` into what each rank holds; where there are more ranks than heads, runs share."""
    held = heads_per_rank(heads, ranks)
    copies = max(1, ranks // heads)
    firsts = range(0, heads, held)
    return torch.stack([whole[:, :, first : first + held] for first in firsts for _ in range(copies)])


def _differences(name: str, found: torch.Tensor, expected: torch.Tensor) -> list[Failure]:
    if found.shape != expected.shape:
        return [Failure("bytes", f"{name} {tuple(found.shape)}, expected {tuple(expected.shape)}")]
    wrong = as_bits(found.cpu()) != as_bits(expected.cpu())
    return [Failure("bytes", f"{name}, element {first_place(wrong)}")] if wrong.any() else []


def _fill_with_bits(cache: PagedCache, rng: np.random.Generator) -> None:
    for store in stores(cache.tensors()):
        store.copy_(torch.from_numpy(rng.integers(0, 256, len(store), np.uint8)))


def _ones(tensor: torch.Tensor) -> int:
    return 0xFF if BITS[tensor.element_size()] == torch.uint8 else -1
