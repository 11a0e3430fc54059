"""Draws problems: the sizes that matter are relations between block size, tile, window and length, not their size.

The same functions serve Hypothesis (tests) and a seeded generator (the GPU script): they ask a ``Source`` for choices.
First options are the simplest, which is what Hypothesis shrinks to.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from kvsan.ci.kernels.problems import (
    FLOATS,
    POISONS,
    STORAGES,
    Attending,
    CacheSpec,
    CopyProblem,
    DecodeProblem,
    GatherProblem,
    LatentDecodeProblem,
    LatentSpec,
    LatentWriteProblem,
    PrefillProblem,
    ReshardProblem,
    TransferProblem,
    WriteProblem,
)
from kvsan.gpu_kernels.formats import FORMATS, format_named

PLAIN = FLOATS
QUANTISED = tuple(name for name, form in FORMATS.items() if form.quantised)

T = TypeVar("T")

_BLOCK_SIZES = (1, 2, 3, 4, 5, 8, 12, 16, 17, 32, 48, 64, 100, 256)
_HEAD_DIMS = (32, 32, 32, 64, 64, 80, 96, 128, 256)
_HUGE = 1 << 20
_MOVED_BLOCK = 32
_SCALES = (1.0, 0.25, 0.125, 0.17677669529663687, 0.3)
_TENSOR_SCALES = (1.0, 0.5, 2.0, 0.0625)


class Source(Protocol):
    """Where choices come from."""

    def choice(self, options: Sequence[T]) -> T:
        """Choose one of some options."""

    def integer(self, low: int, high: int) -> int:
        """Choose an integer of ``[low, high]``."""


class Seeded:
    """Choices of a seeded generator."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def choice(self, options: Sequence[T]) -> T:
        """Choose one of some options."""
        return self._random.choice(options)

    def integer(self, low: int, high: int) -> int:
        """Choose an integer of ``[low, high]``."""
        return self._random.randint(low, high)


@dataclass(frozen=True, slots=True)
class Limits:
    """How large problems are at most; 1 is the least of each.

    ``block_sizes``, ``head_dims`` and ``poisons`` are what is drawn from, as often as it is named: few where each
    combination has to be compiled.
    """

    rows: int
    length: int
    queries: int
    kv_heads: int
    group: int
    tokens: int
    splits: int = 4
    block_sizes: tuple[int, ...] = _BLOCK_SIZES
    head_dims: tuple[int, ...] = _HEAD_DIMS
    poisons: tuple[str, ...] = POISONS[:1]


TINY = Limits(rows=3, length=70, queries=40, kv_heads=4, group=8, tokens=40)
"""For the interpreter: a few programs and tiles each."""
LARGE = Limits(rows=6, length=700, queries=100, kv_heads=4, group=8, tokens=700, splits=8)
"""For a GPU."""


def draw_cache(source: Source, limits: Limits, dtypes: Sequence[str], largest_block: int = _HUGE) -> CacheSpec:
    """Draw a cache of one of some formats."""
    dtype = source.choice(dtypes)
    scaled = format_named(dtype).quantised and "per_token_head" not in dtype
    block_size = source.choice([size for size in limits.block_sizes if size <= largest_block] or limits.block_sizes[:1])
    head_dims = [size for size in limits.head_dims if size <= 96 or block_size <= 32] or limits.head_dims
    return CacheSpec(
        dtype=dtype,
        block_size=block_size,
        kv_heads=min(source.choice((1, 1, 2, 2, 3, 4)), limits.kv_heads),
        head_dim=source.choice(head_dims),
        storage=source.choice(STORAGES),
        key_scale=source.choice(_TENSOR_SCALES) if scaled else 1.0,
        value_scale=source.choice(_TENSOR_SCALES) if scaled else 1.0,
        poison=source.choice(limits.poisons),
    )


def draw_write(source: Source, limits: Limits = TINY, dtypes: Sequence[str] = PLAIN) -> WriteProblem:
    """Draw a write to a cache of one of some formats."""
    cache = draw_cache(source, limits, dtypes)
    tokens = source.integer(0, limits.tokens)
    quantised = format_named(cache.dtype).quantised
    blocks = -(-tokens // cache.block_size) + source.integer(1, 2)
    own = not quantised and source.choice((True, True, False))
    return WriteProblem(
        cache=cache,
        blocks=blocks,
        tokens=tokens,
        skipped=source.integer(0, min(tokens, 5)),
        padded=source.integer(0, 3),
        input_dtype=cache.dtype if own else source.choice(FLOATS),
        index_dtype=source.choice(("int64", "int32")),
        fused=source.choice((False, True)),
        boundary=source.choice((False, True)),
        seed=_seed(source),
    )


def draw_gather(source: Source, limits: Limits = TINY, dtypes: Sequence[str] = PLAIN) -> GatherProblem:
    """Draw a read of positions."""
    cache = draw_cache(source, limits, dtypes)
    stop = source.integer(0, limits.length)
    start = source.integer(0, stop)
    return GatherProblem(
        cache=cache,
        length=stop,
        start=start,
        stop=stop,
        spare_blocks=source.integer(1, 2),
        index_dtype=source.choice(("int64", "int32")),
        seed=_seed(source),
    )


def draw_attending(source: Source, limits: Limits, dtypes: Sequence[str], masks: Sequence[str]) -> Attending:
    """Draw what decode and prefill have in common; ``masks``: some of ``full``, ``window``, ``chunk``."""
    cache = draw_cache(source, limits, dtypes)
    mask = source.choice(masks)
    span = source.choice((1, 2, 7, 16, 17, 31, 33, 64))
    quantised = format_named(cache.dtype).quantised
    mixed = quantised or source.choice((False, False, True))
    query = source.choice(FLOATS) if mixed else cache.dtype
    return Attending(
        cache=cache,
        group=min(source.choice((1, 2, 3, 4, 5, 8)), limits.group),
        scale=source.choice(_SCALES),
        window=span if mask == "window" else None,
        chunk=span if mask == "chunk" else None,
        softcap=source.choice((None, None, 2.0, 30.0)),
        query_dtype=query,
        output_dtype=source.choice((None, *FLOATS)),
        codes=source.choice((False, True)),
        shared_blocks=source.integer(0, 3),
        spare_blocks=source.integer(1, 2),
        spare_entries=source.integer(0, 2),
        index_dtype=source.choice(("int32", "int64")),
        fused=source.choice((False, True)),
        checked=source.choice((True, True, True, False)),
    )


def draw_lengths(source: Source, limits: Limits, block_size: int) -> tuple[int, ...]:
    """Draw lengths of sequences: none, one token, ends of blocks and tiles and their neighbours, any."""
    return tuple(_length(source, limits, block_size) for _ in range(source.integer(1, limits.rows)))


def _length(source: Source, limits: Limits, block_size: int) -> int:
    edge = source.choice((0, 1, block_size, 2 * block_size, 16, 32, 64, None))
    if edge is None:
        return source.integer(0, limits.length)
    return min(limits.length, max(0, edge + source.choice((0, 1, -1))))


def draw_decode(
    source: Source,
    limits: Limits = TINY,
    dtypes: Sequence[str] = PLAIN,
    masks: Sequence[str] = ("full", "window", "chunk"),
) -> DecodeProblem:
    """Draw a decode, in one pass or split."""
    attending = draw_attending(source, limits, dtypes, masks)
    lengths = draw_lengths(source, limits, attending.cache.block_size)
    return DecodeProblem(attending, lengths, splits=source.integer(1, limits.splits), seed=_seed(source))


def draw_prefill(
    source: Source,
    limits: Limits = TINY,
    dtypes: Sequence[str] = PLAIN,
    masks: Sequence[str] = ("full", "window", "chunk"),
) -> PrefillProblem:
    """Draw a batch of prefill, chunked prefill, decode, and sequences without queries."""
    attending = draw_attending(source, limits, dtypes, masks)
    rows = []
    for length in draw_lengths(source, limits, attending.cache.block_size):
        most = min(length, limits.queries)
        rows.append((source.choice((most, min(1, most), 0, source.integer(0, most))), length))
    return PrefillProblem(attending, tuple(rows), padded=source.integer(0, 2), seed=_seed(source))


def draw_copy(source: Source, limits: Limits = TINY, dtypes: Sequence[str] = tuple(FORMATS)) -> CopyProblem:
    """Draw a copy of some slots of blocks."""
    cache = draw_cache(source, limits, dtypes, _MOVED_BLOCK)
    pairs = source.integer(0, 4)
    start = source.integer(0, cache.block_size)
    stop = source.integer(start, cache.block_size)
    return CopyProblem(cache, pairs + source.integer(1, 3), pairs, start, stop, _seed(source))


def draw_transfer(source: Source, limits: Limits = TINY, dtypes: Sequence[str] = tuple(FORMATS)) -> TransferProblem:
    """Draw a gather of blocks and a scatter to another cache."""
    cache = draw_cache(source, limits, dtypes, _MOVED_BLOCK)
    blocks = source.integer(1, 4)
    return TransferProblem(cache, blocks, source.integer(0, blocks), source.choice(STORAGES), _seed(source))


def draw_reshard(source: Source) -> ReshardProblem:
    """Draw a change of tensor-parallel layout, heads shared by ranks among them."""
    heads = source.choice((1, 2, 4, 6, 8))
    counts = tuple(count for count in (1, 2, 3, 4, 6, 8) if heads % count == 0 or count % heads == 0)
    return ReshardProblem(
        dtype=source.choice(FLOATS),
        heads=heads,
        source_ranks=source.choice(counts),
        ranks=source.choice(counts),
        blocks=source.integer(0, 3),
        block_size=source.choice((1, 3, 16, 17, 20)),
        width=source.choice((32, 80)),
        strided=source.choice((False, True)),
        seed=_seed(source),
    )


def draw_latent_cache(source: Source, limits: Limits) -> LatentSpec:
    """Draw a latent cache."""
    return LatentSpec(
        dtype=source.choice(FLOATS),
        block_size=source.choice(limits.block_sizes),
        latent=source.choice((32, 64, 96, 512)),
        rope=source.choice((16, 32, 64)),
        gap=source.choice((0, 16)),
        poison=source.choice(limits.poisons),
    )


def draw_latent_write(source: Source, limits: Limits = TINY) -> LatentWriteProblem:
    """Draw a write to a latent cache."""
    cache = draw_latent_cache(source, limits)
    tokens = source.integer(0, limits.tokens)
    return LatentWriteProblem(
        cache=cache,
        blocks=-(-tokens // cache.block_size) + source.integer(1, 2),
        tokens=tokens,
        skipped=source.integer(0, min(tokens, 5)),
        padded=source.integer(0, 3),
        input_dtype=source.choice((cache.dtype, "float32")),
        index_dtype=source.choice(("int64", "int32")),
        seed=_seed(source),
    )


def draw_latent_decode(source: Source, limits: Limits = TINY) -> LatentDecodeProblem:
    """Draw a decode over a latent cache."""
    cache = draw_latent_cache(source, limits)
    return LatentDecodeProblem(
        cache=cache,
        heads=source.choice((1, 3, 8, 16, 17, 24)),
        lengths=draw_lengths(source, limits, cache.block_size),
        scale=source.choice(_SCALES[1:]),
        query_dtype=source.choice((cache.dtype, "float32")),
        output_dtype=source.choice((None, *FLOATS)),
        codes=source.choice((False, True)),
        shared_blocks=source.integer(0, 3),
        spare_blocks=source.integer(1, 2),
        spare_entries=source.integer(0, 2),
        index_dtype=source.choice(("int32", "int64")),
        checked=source.choice((True, True, True, False)),
        seed=_seed(source),
    )


def _seed(source: Source) -> int:
    return source.integer(0, 999_999)
