"""Transfer between two sharded caches, such as those of a prefill and a decode pool: who sends what to whom.

A *piece* is one message: some heads of some tokens, from one rank of the source to one of the destination. The pieces of
a plan give every destination rank each of its (position, head) once, so they can be carried out in any order; a transfer
that tore is a part of them. Where ranks of the source hold the same head, those of the destination take turns to read
it, each from one of them::

    4 kv heads     source tp 2: [0 1] [2 3]                 destination tp 8: [0] [0] [1] [1] [2] [2] [3] [3]
    pieces         rank 0 -> ranks 0 1 (head 0), 2 3 (head 1);  rank 1 -> ranks 4 5 (head 2), 6 7 (head 3)

The reader addresses the pages of the source itself, as one-sided transfers do: by the layout that the *plan* has of the
source, vector by vector, memory layout included. What lies there is decided by the layout that the source really has.
A plan of another layout is how a reader errs: HND assumed of NHD pages (vLLM 37703, 46204), interleaving forgotten.

Bits leave and enter through ``gather`` and ``write`` of the inner kernels, hence in logical order, whatever their own
memory layout is: which vector lies at the address that a reader computes follows from the layout that the source has.
``write`` takes all heads of a token, so a piece with some of a rank's heads is written with what the rank holds of the
others. In a quantised cache what travels are the numbers that codes stand for, which are quantised again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from kvsan.gpu_kernels.addressing import IntArray
from kvsan.gpu_kernels.interface import Bits, OutsidePool
from kvsan.gpu_kernels.sharded import ShardedCache, ShardedKernels
from kvsan.gpu_kernels.sharding import Layout


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """One message: ``heads`` heads of ``positions``, from one rank to another.

    ``source_head`` and ``destination_head`` are the first of the heads, counted on each of the two ranks; ``positions``
    int64, ascending, read-only.
    """

    source_rank: int
    destination_rank: int
    source_head: int
    destination_head: int
    heads: int
    positions: IntArray

    def runs(self) -> list[tuple[int, int]]:
        """Positions as ranges ``[start, stop)``, ascending, no two of which touch."""
        ends = np.flatnonzero(np.diff(self.positions) != 1)
        starts = self.positions[np.concatenate([[0], ends + 1])]
        stops = self.positions[np.concatenate([ends, [len(self.positions) - 1]])] + 1
        return list(zip(starts.tolist(), stops.tolist(), strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The pieces of one transfer of positions, and the layouts that they were made for."""

    source: Layout
    destination: Layout
    pieces: tuple[Piece, ...]


class Side(NamedTuple):
    """One side of a transfer: a cache, and the block table of the row in it, units by virtual block."""

    kernels: ShardedKernels[Any]
    cache: ShardedCache[Any]
    table: Sequence[int] | IntArray


class Addresses(NamedTuple):
    """What a piece reads on its rank of the source: pages, offsets in them and local heads, int64 ``[num_tokens, heads]``."""

    pages: IntArray
    offsets: IntArray
    heads: IntArray


class Parcel(NamedTuple):
    """A piece in flight: its bits, ``[num_tokens, heads, head_dim]``."""

    piece: Piece
    keys: Bits
    values: Bits


class _Share(NamedTuple):
    """Heads that a rank of the destination gets from one tensor-parallel rank of the source."""

    source_tp_rank: int
    source_head: int
    destination_head: int
    heads: int


@lru_cache(maxsize=512)
def plan(source: Layout, destination: Layout, start: int, stop: int) -> Plan:
    """Say who sends what to whom, so that the destination holds positions ``[start, stop)``; cached.

    Pieces are in order of the destination's context-parallel and tensor-parallel rank, then of the source's. ValueError
    if the two have different numbers of kv heads, or on a range that is none.
    """
    if source.num_kv_heads != destination.num_kv_heads:
        raise ValueError(f"{source.num_kv_heads} kv heads to {destination.num_kv_heads}: expected as many")
    if not 0 <= start <= stop:
        raise ValueError(f"positions [{start}, {stop}): expected 0 <= start <= stop")
    pieces = []
    for cp_rank in range(destination.cp):
        positions = destination.positions(cp_rank, start, stop)
        holders = source.holder(positions)
        by_holder = [(one, positions[holders == one]) for one in np.unique(holders).tolist()]
        for _, held in by_holder:
            held.flags.writeable = False
        for tp_rank in range(destination.tp):
            rank = destination.rank(tp_rank, cp_rank)
            shares = list(_shares(source, destination, tp_rank, cp_rank))
            for holder, held in by_holder:
                pieces += [
                    Piece(
                        source.rank(share.source_tp_rank, holder),
                        rank,
                        share.source_head,
                        share.destination_head,
                        share.heads,
                        held,
                    )
                    for share in shares
                ]
    return Plan(source, destination, tuple(pieces))


def read_piece(planned: Plan, piece: Piece, source: Side) -> Parcel:
    """Read a piece from the source's pages, by the addresses that the plan has for them.

    Pages lie one behind the other: an address beyond the end of one is in the next. OutsidePool if the block table does
    not have its positions, or an address, or the rank, is none of the source's.
    """
    layout, real = planned.source, source.kernels.layout
    _check_table(source, layout, piece.positions)
    at = addresses(planned, piece, source.table, real, source.cache.num_units)
    units, index = np.unique(at.pages, return_inverse=True)
    tokens = index.reshape(at.pages.shape) * real.block_size + at.offsets
    bits = source.cache.buffers(len(units) * real.block_size, real.heads)
    source.kernels.inner.gather(source.cache.ranks[piece.source_rank], units, 0, len(bits[0]), *bits)
    return Parcel(piece, *(one[tokens, at.heads] for one in bits))


def addresses(planned: Plan, piece: Piece, table: Sequence[int] | IntArray, real: Layout, num_units: int) -> Addresses:
    """Say where on its rank a piece reads, in terms of the layout that the source really has; OutsidePool as above."""
    layout = planned.source
    local = layout.local(piece.positions)
    if piece.source_rank >= real.ranks:
        raise OutsidePool(f"rank {piece.source_rank}: the source has {real.ranks} ranks")
    if len(local) and int(local.max()) // layout.block_size >= len(table):
        raise OutsidePool(f"the block table of {len(table)} units ends before position {piece.positions[-1]}")
    heads = np.arange(piece.source_head, piece.source_head + piece.heads)
    vectors = layout.vector(local[:, None] % layout.block_size, heads[None, :])
    vectors_of_page = real.block_size * real.heads
    pages = layout.pages(table, local)[:, None] + vectors // vectors_of_page
    outside = pages[(pages < 0) | (pages >= num_units)]
    if len(outside):
        raise OutsidePool(f"page {outside[0]} of rank {piece.source_rank}: the source has {num_units}")
    return Addresses(pages, *real.element(vectors % vectors_of_page))


def write_parcel(planned: Plan, parcel: Parcel, destination: Side) -> None:
    """Write a piece that was read to the destination.

    OutsidePool, and nothing is written, if the block table does not have its positions.
    """
    layout, piece = planned.destination, parcel.piece
    _check_table(destination, layout, piece.positions)
    kernels, cache = destination.kernels, destination.cache
    rank = cache.ranks[piece.destination_rank]
    slots = layout.slots(destination.table, piece.positions)
    whole = parcel.keys, parcel.values
    if piece.heads < layout.heads:
        whole = cache.buffers(len(slots), layout.heads)
        local = layout.local(piece.positions)
        low, high = int(local[0]), int(local[-1]) + 1
        held = cache.buffers(high - low, layout.heads)
        kernels.inner.gather(rank, np.asarray(destination.table, np.int64), low, high, *held)
        heads = slice(piece.destination_head, piece.destination_head + piece.heads)
        for result, others, own in zip(whole, held, (parcel.keys, parcel.values), strict=True):
            result[:] = others[local - low]
            result[:, heads] = own
    kernels.inner.write(rank, slots, *whole)


def convert(planned: Plan, source: Side, destination: Side, pieces: Iterable[Piece] | None = None) -> None:
    """Carry out the pieces of a plan, all of them or those given, one after the other.

    ValueError if the caches do not hold the same kind of elements, or not pages of the plan's sizes.
    """
    _check(planned, source, destination)
    for piece in planned.pieces if pieces is None else pieces:
        write_parcel(planned, read_piece(planned, piece, source), destination)


def _shares(source: Layout, destination: Layout, tp_rank: int, cp_rank: int) -> Iterator[_Share]:
    """Split the heads of a destination rank by the source rank to read them from, in order."""
    first = destination.first_head(tp_rank)
    turn = (tp_rank - destination.first_rank(first)) * destination.cp + cp_rank
    begin, end = first, first + destination.heads
    while begin < end:
        local = source.local_head(begin)
        count = min(end - begin, source.heads - local)
        yield _Share(source.first_rank(begin) + turn % source.replicas, local, begin - first, count)
        begin += count


def _check_table(side: Side, layout: Layout, positions: IntArray) -> None:
    """Raise OutsidePool unless a side's block table names a unit of its pool for all positions."""
    blocks = positions // layout.unit_tokens
    known = blocks < len(side.table)
    units = np.asarray(side.table, dtype=np.int64)[blocks[known]]
    known[known] = (units >= 0) & (units < side.cache.num_units)
    if not known.all():
        position = positions[np.flatnonzero(~known)[0]]
        raise OutsidePool(f"the block table names no unit of the pool for position {position}")


def _check(planned: Plan, source: Side, destination: Side) -> None:
    """Raise ValueError unless two caches hold the same kind of elements, in pages of the sizes of a plan's layouts."""
    kinds = [(side.cache.dtype, side.cache.head_dim) for side in (source, destination)]
    if kinds[0] != kinds[1]:
        raise ValueError(f"source of {kinds[0]}, destination of {kinds[1]}: expected the same dtype and head_dim")
    for name, side, layout in (("source", source, planned.source), ("destination", destination, planned.destination)):
        sizes = [(one.ranks, one.block_size, one.heads) for one in (layout, side.kernels.layout)]
        if sizes[0] != sizes[1]:
            raise ValueError(f"{name}: ranks, block size, heads are {sizes[1]}; the plan expected {sizes[0]}")
