"""A pull on its way: pieces of a conversion plan, what each finds at the source, and when a token has arrived.

The reader computes addresses by the layout that it takes the source's for; what lies there is decided by the layout that the
source has (``kvsan.gpu_kernels.conversion``). A token has arrived when every rank of the destination that holds it has each
of its heads; until then the slot holds nothing that could be read.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from kvsan.gpu_kernels.addressing import block_of, blocks_for
from kvsan.gpu_kernels.conversion import Piece, Plan, addresses
from kvsan.gpu_kernels.interface import OutsidePool
from kvsan.gpu_kernels.sharding import Layout, cp_rank_of, position_of, tp_rank_of
from kvsan.harness.target import IntArray
from kvsan.harness.verdict import Violation


@dataclass(slots=True)
class Route:
    """What the pieces of one pull have in common: the plan, the tables of both ends, and how far each token is.

    The pull is of positions ``[start, stop)``; ``vectors`` int64 ``[stop - start]`` counts the heads that have arrived, on all
    ranks, and ``wrong`` says where one of them is another's.
    """

    plan: Plan
    source_table: IntArray
    destination_table: IntArray
    start: int
    stop: int
    vectors: IntArray = field(init=False)
    wrong: IntArray = field(init=False)

    def __post_init__(self) -> None:
        self.vectors = np.zeros(self.stop - self.start, np.int64)
        self.wrong = np.zeros(self.stop - self.start, np.int64)

    def source_units(self) -> list[int]:
        """Units that the pull reads."""
        size = self.plan.source.unit_tokens
        return [int(unit) for unit in self.source_table[block_of(self.start, size) : blocks_for(self.stop, size)]]


@dataclass(slots=True)
class PullWork:
    """One piece on the network."""

    t: str
    route: Route
    piece: Piece

    def half(self) -> PullWork:
        """The first half of its positions."""
        positions = self.piece.positions
        return PullWork(self.t, self.route, replace(self.piece, positions=positions[: len(positions) // 2]))

    def __str__(self) -> str:
        piece, layout = self.piece, self.route.plan.destination
        first = layout.first_head(tp_rank_of(piece.destination_rank, layout.tp, layout.dcp)) + piece.destination_head
        heads = f"head {first}" if piece.heads == 1 else f"heads {first} to {first + piece.heads - 1}"
        return (
            f"{heads} of {len(piece.positions)} tokens from {piece.positions[0]} on, "
            f"rank {piece.source_rank} to rank {piece.destination_rank}"
        )


class Found(NamedTuple):
    """What a piece reads: slots of the source and kv heads, int64 ``[num_tokens, heads]``; ``heads`` are those wanted."""

    slots: IntArray
    heads: IntArray
    wanted: IntArray


class Pulled(NamedTuple):
    """What a piece has read: ``found`` identities int64 ``[num_tokens, heads]``, ``expected`` ``[num_tokens]``."""

    work: PullWork
    at: Found
    found: IntArray
    expected: IntArray


def look_at(work: PullWork, layout: Layout, num_units: int) -> Found:
    """Say where a piece reads, in terms of the layout that the source really has."""
    piece, route = work.piece, work.route
    assumed = route.plan.source
    destination = route.plan.destination
    first = destination.first_head(tp_rank_of(piece.destination_rank, destination.tp, destination.dcp))
    wanted = first + piece.destination_head + np.arange(piece.heads)
    if assumed == layout:
        if piece.positions[-1] // layout.unit_tokens >= len(route.source_table):
            raise _beyond(work)
        slots = slots_at(route.source_table, piece.positions, layout.unit_tokens)[:, None]
        return Found(np.broadcast_to(slots, (len(slots), piece.heads)), wanted[None, :], wanted)
    try:
        at = addresses(route.plan, piece, route.source_table, layout, num_units)
    except OutsidePool:
        raise _beyond(work) from None
    cp_rank = cp_rank_of(piece.source_rank, layout.tp, layout.dcp)
    slots = at.pages * layout.unit_tokens + position_of(cp_rank, at.offsets, layout.interleave, layout.cp)
    heads = layout.first_head(tp_rank_of(piece.source_rank, layout.tp, layout.dcp)) + at.heads
    return Found(slots, heads, wanted)


def _beyond(work: PullWork) -> Violation:
    return Violation("exchange_content", "outside", f"{work.t} reads {work}: beyond what it was given")


def slots_at(table: IntArray, positions: IntArray, unit_tokens: int) -> IntArray:
    """Slots of positions of a row, int64 of their shape."""
    slots: IntArray = table[positions // unit_tokens] * unit_tokens + positions % unit_tokens
    return slots
