"""Latent attention: writing to the shared cache, and decode over it."""

from __future__ import annotations

import numpy as np
import torch

from kvsan.ci.kernels.caches import INTEGERS, Untouched, as_bits, clear, compare, far, twins
from kvsan.ci.kernels.contents import Content, Float64Array
from kvsan.ci.kernels.expected import Context, Rounding, attend
from kvsan.ci.kernels.inputs import draw_slots
from kvsan.ci.kernels.judging import Asked, Judge
from kvsan.ci.kernels.kernel_set import Failure, KernelSet, watched
from kvsan.ci.kernels.problems import LatentDecodeProblem, LatentSpec, LatentWriteProblem
from kvsan.ci.kernels.queries import Queries
from kvsan.ci.kernels.sequences import Sequences, place_sequences
from kvsan.gpu_kernels.launching import FULL
from kvsan.gpu_kernels.layout import TORCH_DTYPES

_POISON = {"nan": float("nan"), "finite": 12288.0}


def make_latent_cache(spec: LatentSpec, num_blocks: int, device: str | torch.device) -> torch.Tensor:
    """Allocate ``[num_blocks, block_size, latent + rope]`` full of poison, ``gap`` elements between vectors."""
    width = spec.latent + spec.rope
    shape = (num_blocks, spec.block_size, width + spec.gap)
    whole = torch.empty(shape, dtype=TORCH_DTYPES[spec.dtype], device=device)
    if spec.far:
        (whole,) = far([whole])
    return whole.fill_(_POISON[spec.poison])[..., :width]


def check_latent_write(problem: LatentWriteProblem, kernels: KernelSet, device: str | torch.device) -> list[Failure]:
    """Write latent and RoPE parts, and say what fails."""
    rng = np.random.default_rng(problem.seed)
    spec = problem.cache
    cache = make_latent_cache(spec, problem.blocks, device)
    kind = TORCH_DTYPES[problem.input_dtype]
    parts = [
        torch.from_numpy(rng.standard_normal((problem.tokens + problem.padded, width))).to(kind).to(device)
        for width in (spec.latent, spec.rope)
    ]
    slots = draw_slots(problem.tokens, problem.skipped, problem.blocks * spec.block_size, rng)
    (expected,), (mask,) = twins([cache]), twins([cache])
    written = torch.from_numpy(slots >= 0).to(device)
    at = torch.from_numpy(slots[slots >= 0]).to(device)
    place = at // spec.block_size, at % spec.block_size
    expected[place] = torch.cat(parts, 1)[: problem.tokens][written].to(cache.dtype)
    clear([mask])
    as_bits(mask)[place] = -1
    mapping = torch.from_numpy(slots).to(INTEGERS[problem.index_dtype]).to(device)
    inputs = Untouched(latent=parts[0], rope=parts[1], slot_mapping=mapping)
    failures: list[Failure] = []
    with watched(failures):
        kernels.mla_write(*parts, cache, mapping)
        failures += compare([cache], [expected], [mask]) + inputs.failures()
    return failures


def check_latent_decode(problem: LatentDecodeProblem, kernels: KernelSet, device: str | torch.device) -> list[Failure]:
    """Decode over a latent cache, and say what fails."""
    rng = np.random.default_rng(problem.seed)
    spec = problem.cache
    sequences = place_sequences(
        problem.lengths,
        tuple(0 for _ in problem.lengths),
        spec.block_size,
        problem.shared_blocks,
        problem.spare_blocks,
        problem.spare_entries,
        rng,
    )
    cache = make_latent_cache(spec, sequences.num_blocks, device)
    contents = _fill(cache, problem, sequences, rng)
    rows = len(problem.lengths)
    queries = Queries(rows, problem.heads, spec.latent + spec.rope, rng)
    for row, length in enumerate(problem.lengths):
        if problem.codes and length:
            queries.choose_kinds(row, contents[row].keys, 0, problem.scale, False)
    indices = INTEGERS[problem.index_dtype]
    query = queries.tensor(TORCH_DTYPES[problem.query_dtype], False, 0, device)
    tables = sequences.table_tensor(indices, device)
    lengths = torch.tensor(problem.lengths, dtype=indices, device=device)
    output = problem.output_dtype or problem.query_dtype
    inputs = Untouched(latent_cache=cache, query=query, block_tables=tables, seq_lens=lengths)
    failures: list[Failure] = []
    with watched(failures):
        attended = kernels.mla(
            query,
            cache,
            spec.rope,
            tables,
            lengths,
            problem.scale,
            checked=problem.checked,
            output_dtype=None if problem.output_dtype is None else TORCH_DTYPES[problem.output_dtype],
        )
        failures += inputs.failures()
        judge = Judge(attended, queries, FULL, problem.checked)
        rounded = queries.rounded(TORCH_DTYPES[problem.query_dtype], cache.dtype)
        for row, (length, content) in enumerate(zip(problem.lengths, contents, strict=True)):
            context = Context(content.keys, content.values, content.value_units)
            rounding = Rounding(spec.dtype, output)
            expected = attend(rounded[row : row + 1], length - 1, context, problem.scale, FULL, rounding)
            judge.judge(Asked(row, row + 1, length - 1, content), expected)
        failures += judge.failures
    return failures


def _fill(
    cache: torch.Tensor, problem: LatentDecodeProblem, sequences: Sequences, rng: np.random.Generator
) -> list[Content]:
    spec = problem.cache
    contents: list[Content] = []
    for row, length in enumerate(sequences.lengths):
        shape = (length, 1, spec.latent + spec.rope)
        numbers: Float64Array = (
            rng.choice((-2.0, -1.0, 1.0, 2.0), shape) if problem.codes else rng.standard_normal(shape)
        )
        content = _content(torch.from_numpy(numbers).to(cache.dtype), spec.latent)
        if row and sequences.shared[row]:
            content = content.after(contents[0], sequences.shared[row])
        contents.append(content)
        blocks, places = (one.to(cache.device) for one in sequences.slots(row))
        cache[blocks, places] = content.parts[0][:, 0].to(cache.device)
    return contents


def _content(part: torch.Tensor, latent: int) -> Content:
    keys = part.double().numpy()
    return Content((part,), keys, keys[..., :latent], np.ones((*keys.shape[:2], 1)))
