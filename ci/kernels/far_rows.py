"""Batches, queries and block tables whose rows are so far apart that ``row * stride`` needs 64 bits.

A row is a token or a sequence. The tensors are views of storage of which only the rows are ever touched; without a GPU
the rest costs addresses (16 GB, what the interpreter notes about them among them) and no memory. K and V of a batch, and
the sequences of a table, lie differently: what is read by another's stride is not there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kvsan.ci.kernels.caches import Untouched, compare, make_cache, twin
from kvsan.ci.kernels.check_write import mark_slots, put_tokens
from kvsan.ci.kernels.contents import Content, real_content
from kvsan.ci.kernels.draws import PLAIN, QUANTISED, TINY, Source, draw_cache
from kvsan.ci.kernels.expected import Context, Rounding, attend
from kvsan.ci.kernels.inputs import draw_slots
from kvsan.ci.kernels.judging import Asked, Judge
from kvsan.ci.kernels.kernel_set import Failure, KernelSet, watched
from kvsan.ci.kernels.problems import CacheSpec
from kvsan.ci.kernels.queries import Queries
from kvsan.gpu_kernels.addressing import blocks_for
from kvsan.gpu_kernels.launching import FULL, Attended
from kvsan.gpu_kernels.layout import TORCH_DTYPES

_FAR = 1 << 31


@dataclass(frozen=True, slots=True)
class FarBatchProblem:
    """Write ``tokens`` tokens, two at least; those of K are far apart, those of V contiguous."""

    cache: CacheSpec
    tokens: int
    seed: int = 0


@dataclass(frozen=True, slots=True)
class FarRowsProblem:
    """Decode, and prefill one query each, of two sequences or more whose queries and rows of the table are far apart."""

    cache: CacheSpec
    lengths: tuple[int, ...]
    seed: int = 0


def draw_far_batch(source: Source) -> FarBatchProblem:
    """Draw a write to a cache of any format."""
    cache = draw_cache(source, TINY, (*PLAIN, *QUANTISED))
    return FarBatchProblem(cache, source.integer(2, 30), source.integer(0, 999_999))


def draw_far_rows(source: Source) -> FarRowsProblem:
    """Draw a few sequences over a plain cache."""
    cache = draw_cache(source, TINY, PLAIN)
    lengths = tuple(source.integer(1, TINY.length) for _ in range(source.integer(2, TINY.rows)))
    return FarRowsProblem(cache, lengths, source.integer(0, 999_999))


def spread(rows: torch.Tensor) -> torch.Tensor:
    """Copy a contiguous tensor of two rows or more into a storage in which the last row is far from the first."""
    stride = -(-_FAR // (len(rows) - 1))
    whole = torch.empty((len(rows) - 1) * stride + rows[0].numel(), dtype=rows.dtype, device=rows.device)
    result = whole.as_strided(rows.shape, (stride, *rows.stride()[1:]))
    result.copy_(rows)
    return result


def check_far_batch(problem: FarBatchProblem, kernels: KernelSet, device: str | torch.device) -> list[Failure]:
    """Write, and say what fails."""
    rng = np.random.default_rng(problem.seed)
    spec = problem.cache
    cache = make_cache(spec, blocks_for(problem.tokens, spec.block_size) + 1, device)
    shape = (problem.tokens, spec.kv_heads, spec.head_dim)
    key, value = (torch.from_numpy(rng.standard_normal(shape)).half().to(device) for _ in range(2))
    slots = draw_slots(problem.tokens, 0, cache.num_blocks * spec.block_size, rng)
    expected, mask = twin(cache), twin(cache)
    put_tokens(expected, key, value, slots)
    mark_slots(mask, slots)
    key = spread(key)
    mapping = torch.from_numpy(slots).to(device)
    inputs = Untouched(value=value, slot_mapping=mapping)
    failures: list[Failure] = []
    with watched(failures):
        launch = kernels.quant_write if cache.format.quantised else kernels.write
        launch(key, value, cache, mapping)
        failures += compare(cache.tensors(), expected.tensors(), mask.tensors()) + inputs.failures()
    return failures


def check_far_rows(problem: FarRowsProblem, kernels: KernelSet, device: str | torch.device) -> list[Failure]:
    """Decode and prefill, and say what fails."""
    rng = np.random.default_rng(problem.seed)
    spec, rows = problem.cache, len(problem.lengths)
    width = max(blocks_for(length, spec.block_size) for length in problem.lengths)
    cache = make_cache(spec, rows * width, device)
    table = torch.from_numpy(rng.permutation(rows * width).reshape(rows, width).astype(np.int32)).to(device)
    contents = []
    for row, length in enumerate(problem.lengths):
        contents.append(real_content(spec, length, rng))
        positions = torch.arange(length, device=device)
        contents[-1].put(cache, table[row, positions // spec.block_size].long(), positions % spec.block_size)
    queries = Queries(rows, 2 * spec.kv_heads, spec.head_dim, rng)
    query = spread(queries.tensor(TORCH_DTYPES[spec.dtype], False, 0, device))
    starts = torch.arange(rows + 1, dtype=torch.int32, device=device)
    lengths = torch.tensor(problem.lengths, dtype=torch.int32, device=device)
    table = spread(table)
    scale = spec.head_dim**-0.5
    options = {"checked": True, "output_dtype": torch.float32}
    failures: list[Failure] = []
    with watched(failures):
        attended = kernels.decode(query, cache, table, lengths, scale, **options)
        failures += _judge(attended, queries, contents, problem, scale)
    with watched(failures):
        attended = kernels.prefill(query, starts, 1, cache, table, lengths, scale, **options)
        failures += _judge(attended, queries, contents, problem, scale)
    return failures


def _judge(
    attended: Attended, queries: Queries, contents: list[Content], problem: FarRowsProblem, scale: float
) -> list[Failure]:
    judge = Judge(attended, queries, FULL, checked=True)
    rounded = queries.rounded(TORCH_DTYPES[problem.cache.dtype])
    for row, (length, content) in enumerate(zip(problem.lengths, contents, strict=True)):
        context = Context(content.keys, content.values, content.value_units)
        rounding = Rounding(problem.cache.dtype, "float32")
        expected = attend(rounded[row : row + 1], length - 1, context, scale, FULL, rounding)
        judge.judge(Asked(row, row + 1, length - 1, content), expected)
    return judge.failures
