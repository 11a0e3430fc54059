"""Decode and prefill of any format against the reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from kvsan.ci.kernels.caches import INTEGERS, Untouched, make_cache
from kvsan.ci.kernels.contents import Content, code_content, real_content
from kvsan.ci.kernels.expected import Context, Rounding, attend
from kvsan.ci.kernels.judging import Asked, Judge, outputs_of_padding
from kvsan.ci.kernels.kernel_set import Failure, KernelSet, watched
from kvsan.ci.kernels.problems import Attending, DecodeProblem, PrefillProblem
from kvsan.ci.kernels.queries import Queries
from kvsan.ci.kernels.sequences import Sequences, place_sequences
from kvsan.gpu_kernels.formats import format_named
from kvsan.gpu_kernels.launching import Attended, Masking
from kvsan.gpu_kernels.layout import TORCH_DTYPES, PagedCache


@dataclass(frozen=True, slots=True)
class Prepared:
    """A problem on the device: what a launch is given, and what each sequence asks."""

    cache: PagedCache
    query: torch.Tensor
    tables: torch.Tensor
    lengths: torch.Tensor
    starts: torch.Tensor
    longest_query: int
    masking: Masking
    queries: Queries
    asked: list[Asked]
    rounding: Rounding


def check_decode(problem: DecodeProblem, kernels: KernelSet, device: str | torch.device) -> list[Failure]:
    """Decode, and say what fails."""
    attending = problem.attending
    rows = tuple((1, length) for length in problem.lengths)
    prepared = prepare(attending, rows, 0, problem.splits, problem.seed, device)

    def launch() -> Attended:
        return kernels.decode(
            prepared.query,
            prepared.cache,
            prepared.tables,
            prepared.lengths,
            attending.scale,
            prepared.masking,
            splits=problem.splits,
            checked=attending.checked,
            output_dtype=None if attending.output_dtype is None else TORCH_DTYPES[attending.output_dtype],
        )

    return _run(launch, prepared, attending)


def check_prefill(problem: PrefillProblem, kernels: KernelSet, device: str | torch.device) -> list[Failure]:
    """Prefill, and say what fails."""
    attending = problem.attending
    prepared = prepare(attending, problem.rows, problem.padded, 1, problem.seed, device)

    def launch() -> Attended:
        return kernels.prefill(
            prepared.query,
            prepared.starts,
            prepared.longest_query,
            prepared.cache,
            prepared.tables,
            prepared.lengths,
            attending.scale,
            prepared.masking,
            checked=attending.checked,
            output_dtype=None if attending.output_dtype is None else TORCH_DTYPES[attending.output_dtype],
        )

    return _run(launch, prepared, attending)


def prepare(
    attending: Attending,
    rows: tuple[tuple[int, int], ...],
    padded: int,
    splits: int,
    seed: int,
    device: str | torch.device,
) -> Prepared:
    """Place sequences, fill a cache with what their queries see, and make the queries.

    ``rows`` are (queries, length); a query of a sequence of length 0 is at position -1 and sees nothing.
    """
    rng = np.random.default_rng(seed)
    spec = attending.cache
    masking = Masking(attending.window, attending.chunk, attending.softcap)
    starts = np.cumsum([0, *(count for count, _ in rows)])
    heads = attending.group * spec.kv_heads
    sequences = place_sequences(
        tuple(length for _, length in rows),
        tuple(masking.first(length - count) if count and length else length for count, length in rows),
        spec.block_size,
        attending.shared_blocks,
        attending.spare_blocks,
        attending.spare_entries,
        rng,
    )
    cache = make_cache(spec, sequences.num_blocks, device)
    contents = fill(cache, attending, sequences, rng)
    queries = Queries(int(starts[-1]), heads, spec.head_dim, rng)
    asked = []
    for (count, length), start, content in zip(rows, starts[:-1].tolist(), contents, strict=True):
        asked.append(Asked(start, start + count, length - count, content))
        for index in range(count if attending.codes and length else 0):
            position = length - count + index
            first = masking.first(position)
            keys = content.keys[first : position + 1]
            queries.choose_kinds(start + index, keys, first, attending.scale, attending.softcap is not None)
    indices = INTEGERS[attending.index_dtype]
    query = queries.tensor(TORCH_DTYPES[attending.query_dtype], attending.fused, padded, device)
    output = attending.output_dtype or attending.query_dtype
    compute = attending.query_dtype if format_named(spec.dtype).quantised else spec.dtype
    return Prepared(
        cache=cache,
        query=query,
        tables=sequences.table_tensor(indices, device),
        lengths=torch.tensor(sequences.lengths, dtype=indices, device=device),
        starts=torch.tensor(starts, dtype=indices, device=device),
        longest_query=max((count for count, _ in rows), default=0),
        masking=masking,
        queries=queries,
        asked=asked,
        rounding=Rounding(compute, output, splits),
    )


def fill(cache: PagedCache, attending: Attending, sequences: Sequences, rng: np.random.Generator) -> list[Content]:
    """Store what the queries of each sequence see; return each sequence's content."""
    make = code_content if attending.codes else real_content
    contents: list[Content] = []
    for row, length in enumerate(sequences.lengths):
        content = make(attending.cache, length, rng)
        if row and sequences.shared[row]:
            content = content.after(contents[0], sequences.shared[row])
        contents.append(content)
        blocks, places = (one.to(cache.keys.device) for one in sequences.slots(row))
        content.put(cache, blocks, places, sequences.firsts[row])
    return contents


def _run(launch: Callable[[], Attended], prepared: Prepared, attending: Attending) -> list[Failure]:
    inputs = Untouched(
        prepared.cache,
        query=prepared.query,
        block_tables=prepared.tables,
        seq_lens=prepared.lengths,
        query_start_loc=prepared.starts,
    )
    failures: list[Failure] = []
    with watched(failures):
        attended = launch()
        failures += inputs.failures()
        judge = Judge(attended, prepared.queries, prepared.masking, attending.checked)
        queries = prepared.queries.rounded(TORCH_DTYPES[attending.query_dtype], TORCH_DTYPES[prepared.rounding.compute])
        for asked in prepared.asked:
            content = asked.content
            context = Context(content.keys, content.values, content.value_units)
            part = queries[asked.start : asked.stop]
            expected = attend(part, asked.position, context, attending.scale, prepared.masking, prepared.rounding)
            judge.judge(asked, expected)
        failures += judge.failures
        if attending.checked:
            failures += outputs_of_padding(attended, len(queries))
    return failures
