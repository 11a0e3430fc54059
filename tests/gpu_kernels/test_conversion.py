"""Transfers between pools of different layouts: the destination holds, bit for bit, what a direct write would put there."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sharded_problems import Row, random_bits, row_in, same, small_integers
from wrong_layouts import wrong

from kvsan.gpu_kernels.conversion import Piece, Plan, Side, convert, plan, read_piece, write_parcel
from kvsan.gpu_kernels.copy import reshard
from kvsan.gpu_kernels.host import HostKernels
from kvsan.gpu_kernels.interface import Bits, Kernels, OutsidePool
from kvsan.gpu_kernels.sharded import RanksDisagree
from kvsan.gpu_kernels.sharding import Layout, cp_rank_of, tp_rank_of
from kvsan.gpu_kernels.triton_kernels import TritonKernels

HOST = HostKernels()
PARALLEL = list(product((1, 2, 4, 8), (1, 2, 4), (1, 2)))
"""tp, dcp, pcp."""


@st.composite
def layouts(draw: st.DrawFn, num_kv_heads: int = 4) -> Layout:
    interleave = draw(st.sampled_from((1, 2, 4)))
    return Layout(
        *draw(st.sampled_from(PARALLEL)),
        interleave,
        interleave * draw(st.integers(1, 3)),
        num_kv_heads,
        draw(st.sampled_from(("NHD", "HND"))),
    )


ranges = st.tuples(st.integers(0, 60), st.integers(0, 60)).map(lambda pair: (min(pair), max(pair)))


class Transfer:
    """A row in a pool of each layout: written to the source, to be converted, and what the destination shall be."""

    def __init__(
        self,
        source: Layout,
        destination: Layout,
        start: int,
        stop: int,
        inner: tuple[Kernels[Any], Kernels[Any]] = (HOST, HOST),
        dtype: str = "float32",
        head_dim: int = 8,
        bits: Any = random_bits,
    ) -> None:
        heads, plain = source.num_kv_heads, dtype if dtype in ("float16", "bfloat16") else "float32"
        self.keys, self.values = (bits(seed, stop, heads, plain, head_dim) for seed in (1, 2))
        self.source = row_in(source, stop, inner[0], dtype, head_dim, seed=3)
        self.source.write(self.keys, self.values)
        self.destination = row_in(destination, stop, inner[1], dtype, head_dim, seed=4)
        self.expected = row_in(destination, stop, inner[1], dtype, head_dim, seed=4)
        self.expected.write(self.keys[start:], self.values[start:], start)
        self.start, self.stop = start, stop

    def plan(self) -> Plan:
        return plan(self.source.kernels.layout, self.destination.kernels.layout, self.start, self.stop)

    def convert(self, planned: Plan, pieces: list[Piece] | None = None) -> None:
        convert(planned, side(self.source), side(self.destination), pieces)

    def wrong_ranks(self) -> list[int]:
        """Ranks of the destination whose pools, all of it, are not what a direct write makes of them."""
        pools = zip(pool(self.destination), pool(self.expected), strict=True)
        return [rank for rank, (found, expected) in enumerate(pools) if not same(found, expected)]


def side(row: Row) -> Side:
    return Side(row.kernels, row.cache, row.table)


def pool(row: Row) -> list[tuple[Bits, Bits]]:
    """All that each rank holds."""
    layout, found = row.kernels.layout, []
    for rank in row.cache.ranks:
        tokens = row.cache.num_units * layout.block_size
        buffers = row.cache.buffers(tokens, layout.heads)
        row.kernels.inner.gather(rank, np.arange(row.cache.num_units), 0, tokens, *buffers)
        found.append(buffers)
    return found


@given(layouts(), layouts(), ranges)
@settings(max_examples=60, deadline=None)
def test_a_plan_covers_what_each_destination_rank_holds_exactly_once(
    source: Layout, destination: Layout, positions: tuple[int, int]
) -> None:
    given_to: Counter[tuple[int, int, int]] = Counter()
    for piece in plan(source, destination, *positions).pieces:
        theirs, ours = (
            layout.first_head(tp_rank_of(rank, layout.tp, layout.dcp)) + head
            for layout, rank, head in (
                (source, piece.source_rank, piece.source_head),
                (destination, piece.destination_rank, piece.destination_head),
            )
        )
        assert theirs == ours, "another head is sent than is expected"
        assert piece.source_head + piece.heads <= source.heads
        held = cp_rank_of(piece.source_rank, source.tp, source.dcp)
        assert {source.holder(position) for position in piece.positions.tolist()} == {held}
        for position in piece.positions.tolist():
            given_to.update((piece.destination_rank, position, ours + head) for head in range(piece.heads))

    expected = {
        (destination.rank(tp_rank, destination.holder(position)), position, destination.first_head(tp_rank) + head)
        for position in range(*positions)
        for tp_rank in range(destination.tp)
        for head in range(destination.heads)
    }
    assert given_to == Counter(expected)


def test_ranks_that_hold_the_same_head_take_turns_to_be_read() -> None:
    planned = plan(Layout(tp=8, num_kv_heads=2), Layout(tp=2, dcp=4, num_kv_heads=2), 0, 16)

    assert Counter(piece.source_rank for piece in planned.pieces) == Counter(range(8))


@given(layouts(), layouts(), ranges)
@settings(max_examples=30, deadline=None)
def test_a_rank_sends_at_most_one_message_to_another(
    source: Layout, destination: Layout, positions: tuple[int, int]
) -> None:
    pairs = [(piece.source_rank, piece.destination_rank) for piece in plan(source, destination, *positions).pieces]

    assert len(pairs) == len(set(pairs))


def test_a_plan_tells_runs_of_positions() -> None:
    source, destination = Layout(tp=2, dcp=2, interleave=2, num_kv_heads=2), Layout(num_kv_heads=2)

    found = [
        (
            piece.source_rank,
            piece.destination_rank,
            piece.source_head,
            piece.destination_head,
            piece.heads,
            piece.runs(),
        )
        for piece in plan(source, destination, 1, 8).pieces
    ]

    even, odd = [(1, 2), (4, 6)], [(2, 4), (6, 8)]
    assert found == [(0, 0, 0, 0, 1, even), (2, 0, 0, 1, 1, even), (1, 0, 0, 0, 1, odd), (3, 0, 0, 1, 1, odd)]


@given(layouts(), layouts(), ranges, st.sampled_from(("float32", "float16", "bfloat16")))
@settings(max_examples=25, deadline=None)
def test_a_conversion_equals_a_direct_write(
    source: Layout, destination: Layout, positions: tuple[int, int], dtype: str
) -> None:
    transfer = Transfer(source, destination, *positions, dtype=dtype)

    transfer.convert(transfer.plan())

    assert transfer.wrong_ranks() == []


@pytest.mark.parametrize("source", PARALLEL, ids=str)
def test_a_conversion_between_any_two_degrees_of_parallelism(source: tuple[int, int, int]) -> None:
    for destination in PARALLEL:
        transfer = Transfer(Layout(*source, 2, 4, 4), Layout(*destination, 1, 3, 4, "HND"), 5, 37)

        transfer.convert(transfer.plan())

        assert transfer.wrong_ranks() == [], destination


@given(layouts(), layouts(), ranges, st.randoms(use_true_random=False))
@settings(max_examples=15, deadline=None)
def test_the_order_of_pieces_does_not_matter(
    source: Layout, destination: Layout, positions: tuple[int, int], random: Any
) -> None:
    transfer = Transfer(source, destination, *positions)
    planned = transfer.plan()
    pieces = list(planned.pieces)
    random.shuffle(pieces)
    torn = random.randint(0, len(pieces))

    transfer.convert(planned, pieces[:torn])
    transfer.convert(planned, pieces[torn:])

    assert transfer.wrong_ranks() == []


def test_a_torn_transfer_leaves_out_exactly_the_pieces_that_were_not_sent() -> None:
    transfer = Transfer(Layout(tp=2, num_kv_heads=4), Layout(tp=4, dcp=2, num_kv_heads=4), 0, 20)
    planned = transfer.plan()

    transfer.convert(planned, list(planned.pieces[:5]))

    assert transfer.wrong_ranks() == sorted(piece.destination_rank for piece in planned.pieces[5:])


def test_a_piece_carries_what_was_there_when_it_was_read() -> None:
    transfer = Transfer(Layout(), Layout(tp=2), 0, 20)
    planned = transfer.plan()
    parcels = [read_piece(planned, piece, side(transfer.source)) for piece in planned.pieces]
    transfer.source.write(*(random_bits(9 + which, 20, 2) for which in (0, 1)))

    for parcel in parcels:
        write_parcel(planned, parcel, side(transfer.destination))

    assert transfer.wrong_ranks() == []


@pytest.mark.parametrize(("tp", "to"), [(1, 4), (4, 1), (2, 8), (8, 2), (8, 8)])
def test_heads_go_where_the_reshard_kernel_puts_them(tp: int, to: int) -> None:
    """Two implementations that share no code but ``heads_per_rank``."""
    source, destination = (Layout(tp=ranks, block_size=4, num_kv_heads=4) for ranks in (tp, to))
    transfer = Transfer(source, destination, 0, 12)
    replace(transfer.source, table=np.arange(3)).write(transfer.keys, transfer.values)
    sides = [side(row)._replace(table=range(3)) for row in (transfer.source, transfer.destination)]

    convert(plan(source, destination, 0, 12), *sides)

    shards = np.stack([keys[:12] for keys, _ in pool(transfer.source)])
    blocks = torch.from_numpy(shards.reshape(tp, 3, 4, source.heads, 8).view(np.int32))
    expected = reshard(blocks, 4, to).numpy().view(np.uint32).reshape(to, 12, destination.heads, 8)
    assert np.array_equal(np.stack([keys[:12] for keys, _ in pool(transfer.destination)]), expected)


CAUGHT = [
    ("source", "MemoryLayoutMistaken"),  # vLLM 37703, 46204
    ("source", "InterleaveIgnored"),
    ("source", "ReplicasDealt"),
    ("source", "PageTimesDcp"),  # SGLang 38941
    ("source", "CpRanksSwapped"),
    ("source", "LocalHeadForgotten"),
    ("destination", "InterleaveIgnored"),
    ("destination", "ReplicasDealt"),
    ("destination", "LengthOneShort"),
    ("destination", "LengthOneLong"),
    ("destination", "RunInPartForgotten"),
    ("destination", "CpRanksSwapped"),
    ("destination", "BlocksOfOneRank"),
]


@pytest.mark.parametrize(("whose", "variant"), CAUGHT)
def test_a_variant_is_caught(whose: str, variant: str) -> None:
    """The pools of the destination's ranks are not what a direct write makes of them."""
    transfer = Transfer(*seeded(variant), 3, 45)
    right = transfer.plan()

    if whose == "source":
        transfer.convert(plan(wrong(variant, right.source), right.destination, 3, 45))
    else:
        transfer.convert(plan(right.source, wrong(variant, right.destination), 3, 45))

    assert transfer.wrong_ranks() != []


@pytest.mark.parametrize("variant", sorted({variant for _, variant in CAUGHT}))
def test_without_a_variant_nothing_is_caught(variant: str) -> None:
    transfer = Transfer(*seeded(variant), 3, 45)

    transfer.convert(transfer.plan())

    assert transfer.wrong_ranks() == []


def seeded(variant: str) -> tuple[Layout, Layout]:
    """Layouts that a variant makes a difference to: with replicas, with several heads a rank, or with room behind the row."""
    if variant in ("MemoryLayoutMistaken", "LocalHeadForgotten"):
        return Layout(tp=2, dcp=2, num_kv_heads=8), Layout(tp=4, num_kv_heads=8)
    if variant == "LengthOneLong":
        return Layout(), Layout(dcp=2, block_size=8)
    layout = Layout(tp=4, dcp=2, pcp=2, interleave=2, block_size=4, num_kv_heads=2)
    return layout, replace(layout, dcp=4, block_size=6)


def test_a_piece_that_never_came_is_seen_by_who_reads_replicas() -> None:
    transfer = Transfer(Layout(), Layout(tp=4), 0, 20)
    planned = transfer.plan()
    transfer.convert(planned, list(planned.pieces[:-1]))

    with pytest.raises(RanksDisagree, match="head 1 at position 0: rank 3 holds other bits than rank 2"):
        transfer.destination.read()


@pytest.mark.parametrize(
    ("dtype", "to_host"),
    [("bfloat16", True), ("bfloat16", False), ("int8_per_token_head", False), ("fp8_e4m3", False), ("nvfp4", False)],
)
def test_triton_kernels_on_either_side(dtype: str, to_host: bool) -> None:
    """Interpreted, hence small; what the host's kernels do not know stays with Triton's."""
    kernels: tuple[Any, Any] = (TritonKernels(), HOST if to_host else TritonKernels())
    source, destination = Layout(tp=2, block_size=4, memory_layout="HND"), Layout(dcp=2, block_size=2)
    transfer = Transfer(source, destination, 1, 6, kernels, dtype, 16, small_integers)

    transfer.convert(transfer.plan())

    assert transfer.wrong_ranks() == []


def test_bad_transfers_are_refused() -> None:
    transfer = Transfer(Layout(), Layout(tp=2), 0, 20)
    with pytest.raises(ValueError, match="2 kv heads to 4"):
        plan(Layout(), Layout(num_kv_heads=4), 0, 20)
    with pytest.raises(ValueError, match=r"positions \[3, 2\)"):
        plan(Layout(), Layout(), 3, 2)
    with pytest.raises(ValueError, match=r"source: ranks, block size, heads are \(1, 16, 2\); the plan expected \(2,"):
        transfer.convert(plan(Layout(tp=2), Layout(tp=2), 0, 20))
    other = row_in(Layout(tp=2), 20, HOST, "float16")
    with pytest.raises(ValueError, match=r"\('float32', 8\), destination of \('float16', 8\)"):
        convert(transfer.plan(), side(transfer.source), side(other))


@pytest.mark.parametrize("bad", ["source", "destination"])
@pytest.mark.parametrize("table", [[0, 99], [0, -1], [0]])
def test_units_outside_the_pool_are_refused(bad: str, table: list[int]) -> None:
    """Of the last slot of unit -1 too: its number is that of padding."""
    transfer = Transfer(Layout(), Layout(tp=2), 31, 32)
    sides = {"source": side(transfer.source), "destination": side(transfer.destination)}
    sides[bad] = sides[bad]._replace(table=table)

    with pytest.raises(OutsidePool, match="position 31"):
        convert(transfer.plan(), sides["source"], sides["destination"])
