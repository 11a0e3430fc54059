"""Kernels over the ranks of one pool: a cache that is sharded over heads and tokens, seen from outside as one cache.

A sharded cache is one cache of the inner kernels for each rank, all with the same number of pages. A unit of the whole
is the same page on every rank, and its tokens and heads are dealt as ``sharding`` says.

Attention over tensor-parallel ranks is what engines do: each attends with its own q heads, and outputs are put side by
side. Over context-parallel ranks it is not: engines let each attend to its own tokens and merge the partial results, for
which the maxima of the rows are needed, and ``interface.Attention`` has none. So what a row sees is first gathered from
the ranks into a scratch cache that no context parallelism shards, and attended to there. That finds whatever is wrong
with where tokens are; it does not test a merge of partial results (``decode.merge_splits`` has its own tests).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic

import numpy as np

from kvsan.gpu_kernels.addressing import PADDING_SLOT, IntArray, block_of, blocks_for, first_visible, slots_of
from kvsan.gpu_kernels.formats import format_named
from kvsan.gpu_kernels.interface import Attention, Bits, CacheT, Float32Array, Kernels, OutsidePool, bits_dtype
from kvsan.gpu_kernels.sharding import Layout, first_query_head_of


class RanksDisagree(Exception):
    """Ranks that hold the same head hold different bits for it.

    ``head`` is the kv head, ``position`` the first position where they differ, ``rank`` the one that differs from rank
    ``other``, the first that holds both; ``part`` is ``"K"`` or ``"V"``.
    """

    def __init__(self, part: str, head: int, position: int, rank: int, other: int) -> None:
        super().__init__(
            f"{part} of head {head} at position {position}: rank {rank} holds other bits than rank {other}"
        )
        self.part = part
        self.head = head
        self.position = position
        self.rank = rank
        self.other = other


@dataclass(frozen=True, slots=True)
class ShardedCache(Generic[CacheT]):
    """A cache of ``num_units`` units; ``ranks[r]`` is what rank r holds. ``dtype`` and ``head_dim`` as allocated."""

    ranks: tuple[CacheT, ...]
    num_units: int
    head_dim: int
    dtype: str

    def buffers(self, tokens: int, heads: int) -> tuple[Bits, Bits]:
        """Return zeros that inner kernels gather K and V of some tokens and heads into; codes are gathered as float32.

        Zeros, because a wrong layout may leave some of it as it is, and what it then finds must not depend on chance.
        """
        bits = bits_dtype("float32" if format_named(self.dtype).quantised else self.dtype)
        shape = (tokens, heads, self.head_dim)
        return np.zeros(shape, bits), np.zeros(shape, bits)


class ShardedKernels(Generic[CacheT]):
    """The kernels of ``interface.Kernels`` over the ranks of a layout, each with a cache of the inner kernels."""

    def __init__(self, inner: Kernels[CacheT], layout: Layout) -> None:
        self.inner = inner
        self.layout = layout

    def weight_roundoff(self, dtype: str) -> float:
        """Unit roundoff of attention weights: that of the inner kernels."""
        return self.inner.weight_roundoff(dtype)

    def allocate(
        self, num_units: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: str
    ) -> ShardedCache[CacheT]:
        """Return a cache of all ranks; see ``interface.Kernels.allocate``.

        ``block_size`` counts the tokens of a unit on all ranks together. ValueError unless it and ``num_kv_heads`` are
        those of the layout.
        """
        layout = self.layout
        if block_size != layout.unit_tokens:
            raise ValueError(
                f"block_size {block_size}: expected {layout.unit_tokens}, {layout.block_size} on each of {layout.cp} ranks"
            )
        if num_kv_heads != layout.num_kv_heads:
            raise ValueError(f"num_kv_heads {num_kv_heads}: expected the layout's {layout.num_kv_heads}")
        ranks = [
            self.inner.allocate(num_units, layout.block_size, layout.heads, head_dim, dtype)
            for _ in range(layout.ranks)
        ]
        return ShardedCache(tuple(ranks), num_units, head_dim, dtype)

    def write(self, cache: ShardedCache[CacheT], slots: IntArray, keys: Bits, values: Bits) -> None:
        """Write tokens through a slot mapping, each on the ranks that hold it; see ``interface.Kernels.write``."""
        layout = self.layout
        num_slots = cache.num_units * layout.unit_tokens
        bad = np.flatnonzero((slots < PADDING_SLOT) | (slots >= num_slots))
        if len(bad):
            raise OutsidePool(f"slot {slots[bad[0]]} of token {bad[0]} is outside the pool of {num_slots} slots")
        written = np.flatnonzero(slots != PADDING_SLOT)
        # A unit is a whole number of rounds of runs: a slot is dealt like a position.
        holders, own = layout.holder(slots[written]), layout.local(slots[written])
        for cp_rank in range(layout.cp):
            mine = holders == cp_rank
            tokens = written[mine]
            if not len(tokens):
                continue
            for tp_rank in range(layout.tp):
                first = layout.first_head(tp_rank)
                shards = (np.ascontiguousarray(one[tokens, first : first + layout.heads]) for one in (keys, values))
                self.inner.write(cache.ranks[layout.rank(tp_rank, cp_rank)], own[mine], *shards)

    def decode(
        self,
        cache: ShardedCache[CacheT],
        queries: Float32Array,
        tables: IntArray,
        lengths: IntArray,
        window: int | None,
    ) -> Attention:
        """Attend with one query a row; see ``interface.Kernels.decode``."""

        def attend(rank: CacheT, tables: IntArray, part: Float32Array) -> Attention:
            return self.inner.decode(rank, part, tables, lengths, window)

        return self._attend(cache, queries, tables, lengths - 1, lengths, window, attend)

    def prefill(
        self,
        cache: ShardedCache[CacheT],
        queries: Float32Array,
        query_starts: IntArray,
        tables: IntArray,
        lengths: IntArray,
        window: int | None,
    ) -> Attention:
        """Attend causally with the last tokens of each row; see ``interface.Kernels.prefill``."""

        def attend(rank: CacheT, tables: IntArray, part: Float32Array) -> Attention:
            return self.inner.prefill(rank, part, query_starts, tables, lengths, window)

        return self._attend(cache, queries, tables, lengths - np.diff(query_starts), lengths, window, attend)

    def gather(
        self, cache: ShardedCache[CacheT], table: IntArray, start: int, stop: int, keys: Bits, values: Bits
    ) -> None:
        """Read positions of one row from all ranks; see ``interface.Kernels.gather``.

        RanksDisagree if replicas of a head differ, with the outputs filled in part.
        """
        layout = self.layout
        self._check_row(cache, table, start, stop)
        for tp_rank in range(layout.tp):
            head = layout.first_head(tp_rank)
            first_rank = layout.first_rank(head)
            heads = slice(head, head + layout.heads)
            found = cache.buffers(stop - start, layout.heads)
            for cp_rank in range(layout.cp):
                self._gather_share(cache, tp_rank, cp_rank, table, start, stop, found)
            for part, result, bits in zip("KV", (keys, values), found, strict=True):
                if tp_rank == first_rank:
                    result[: stop - start, heads] = bits
                elif not np.array_equal(result[: stop - start, heads], bits):
                    token, local = np.argwhere((result[: stop - start, heads] != bits).any(axis=2))[0].tolist()
                    cp_rank = int(layout.holder(start + token))
                    ranks = (layout.rank(one, cp_rank) for one in (tp_rank, first_rank))
                    raise RanksDisagree(part, head + local, start + token, *ranks)

    def copy(self, cache: ShardedCache[CacheT], source: int, destination: int, start: int, stop: int) -> None:
        """Copy offsets ``[start, stop)`` of a unit on all ranks; see ``interface.Kernels.copy``."""
        for unit in (source, destination):
            self._check_part(cache, unit, start, stop)
        for rank, low, high in self._parts(cache, start, stop):
            self.inner.copy(rank, source, destination, low, high)

    def zero(self, cache: ShardedCache[CacheT], unit: int, start: int, stop: int) -> None:
        """Zero offsets ``[start, stop)`` of a unit on all ranks; see ``interface.Kernels.zero``."""
        self._check_part(cache, unit, start, stop)
        for rank, low, high in self._parts(cache, start, stop):
            self.inner.zero(rank, unit, low, high)

    def _attend(
        self,
        cache: ShardedCache[CacheT],
        queries: Float32Array,
        tables: IntArray,
        firsts: IntArray,
        lengths: IntArray,
        window: int | None,
        attend: Callable[[CacheT, IntArray, Float32Array], Attention],
    ) -> Attention:
        """Let every tensor-parallel rank attend with its q heads; ``firsts`` are the rows' first queries."""
        layout = self.layout
        parts = []
        for tp_rank in range(layout.tp):
            low, high = (
                first_query_head_of(one, layout.tp, layout.num_kv_heads, queries.shape[1])
                for one in (tp_rank, tp_rank + 1)
            )
            if low == high:
                continue  # a kv head with fewer q heads than replicas
            rank, own = cache.ranks[layout.rank(tp_rank, 0)], tables
            if layout.cp > 1:
                rank, own = self._without_context_parallelism(cache, tp_rank, tables, firsts, lengths, window)
            parts.append(attend(rank, own, np.ascontiguousarray(queries[:, low:high])))
        output = np.concatenate([part.output for part in parts], axis=1)
        sums = [part.sums for part in parts if part.sums is not None]
        row_sums = [part.row_sums for part in parts if part.row_sums is not None]
        roundoff = max(part.output_roundoff for part in parts)
        if not sums or not row_sums:
            return Attention(output, None, None, roundoff)
        return Attention(output, np.concatenate(sums, axis=1), np.concatenate(row_sums, axis=1), roundoff)

    def _without_context_parallelism(
        self,
        cache: ShardedCache[CacheT],
        tp_rank: int,
        tables: IntArray,
        firsts: IntArray,
        lengths: IntArray,
        window: int | None,
    ) -> tuple[CacheT, IntArray]:
        """Return a cache, and block tables into it, of all that rows see of the heads of a tensor-parallel rank."""
        layout, size = self.layout, self.layout.unit_tokens
        counts = [blocks_for(length, size) for length in lengths.tolist()]
        own = np.zeros((len(counts), max(counts, default=0)), np.int64)
        scratch = self.inner.allocate(max(sum(counts), 1), size, layout.heads, cache.head_dim, cache.dtype)
        units = 0
        for row, count in enumerate(counts):
            own[row, :count] = np.arange(units, units + count)
            units += count
            start, stop = first_visible(int(firsts[row]), window), int(lengths[row])
            self._check_row(cache, tables[row], start, stop)
            found = cache.buffers(stop - start, layout.heads)
            for cp_rank in range(layout.cp):
                self._gather_share(cache, tp_rank, cp_rank, tables[row], start, stop, found)
            self.inner.write(scratch, slots_of(own[row], start, stop, size), *found)
        return scratch, own

    def _gather_share(
        self,
        cache: ShardedCache[CacheT],
        tp_rank: int,
        cp_rank: int,
        table: IntArray,
        start: int,
        stop: int,
        found: tuple[Bits, Bits],
    ) -> None:
        """Read what one rank holds of positions ``[start, stop)`` into its places in ``found``."""
        layout = self.layout
        low, high = layout.local_length(start, cp_rank), layout.local_length(stop, cp_rank)
        if low == high:
            return
        own = cache.buffers(high - low, layout.heads)
        self.inner.gather(cache.ranks[layout.rank(tp_rank, cp_rank)], table, low, high, *own)
        places = layout.positions(cp_rank, start, stop) - start
        for result, bits in zip(found, own, strict=True):
            result[places] = bits

    def _parts(self, cache: ShardedCache[CacheT], start: int, stop: int) -> Iterator[tuple[CacheT, int, int]]:
        """Each rank that holds some of the offsets ``[start, stop)`` of a unit, with the local offsets that they are."""
        layout = self.layout
        for cp_rank in range(layout.cp):
            low, high = layout.local_length(start, cp_rank), layout.local_length(stop, cp_rank)
            if low < high:
                for tp_rank in range(layout.tp):
                    yield cache.ranks[layout.rank(tp_rank, cp_rank)], low, high

    def _check_part(self, cache: ShardedCache[CacheT], unit: int, start: int, stop: int) -> None:
        if not (0 <= unit < cache.num_units and 0 <= start <= stop <= self.layout.unit_tokens):
            raise OutsidePool(f"offsets [{start}, {stop}) of unit {unit}: outside the pool of {cache.num_units} units")

    def _check_row(self, cache: ShardedCache[CacheT], table: IntArray, start: int, stop: int) -> None:
        """Raise OutsidePool unless a block table names a unit of the pool for all positions ``[start, stop)``."""
        size = self.layout.unit_tokens
        first, end = block_of(start, size), blocks_for(stop, size)
        wanted = table[first:end]
        bad = np.flatnonzero((wanted < 0) | (wanted >= cache.num_units))
        if len(bad) or len(table) < end:
            block = first + int(bad[0]) if len(bad) else len(table)
            raise OutsidePool(f"the block table names no unit of the pool for position {max(start, block * size)}")
