"""Address arithmetic of shards against its definition: deal heads and tokens by hand, one after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsan.gpu_kernels import sharding
from kvsan.gpu_kernels.addressing import heads_per_rank
from kvsan.gpu_kernels.sharding import Layout

HEADS = st.sampled_from(
    [(1, 1), (2, 1), (8, 1), (1, 2), (2, 2), (4, 2), (8, 2), (2, 6), (12, 6), (4, 4), (8, 4), (2, 8)]
)
"""Tensor-parallel ranks and kv heads, one of which divides the other."""


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    tp, heads = draw(HEADS)
    interleave = draw(st.sampled_from((1, 2, 3, 4)))
    return Layout(
        tp=tp,
        dcp=draw(st.sampled_from((1, 2, 3, 4))),
        pcp=draw(st.sampled_from((1, 2, 3))),
        interleave=interleave,
        block_size=interleave * draw(st.integers(1, 4)),
        num_kv_heads=heads,
        memory_layout=draw(st.sampled_from(("NHD", "HND"))),
    )


def dealt(tokens: int, layout: Layout) -> list[list[int]]:
    """Positions of each context-parallel rank, dealt run by run."""
    hands: list[list[int]] = [[] for _ in range(layout.cp)]
    for number, start in enumerate(range(0, tokens, layout.interleave)):
        hands[number % layout.cp] += range(start, min(start + layout.interleave, tokens))
    return hands


def shared_out(layout: Layout) -> list[list[int]]:
    """Heads of each tensor-parallel rank, in order, every head as often as there are ranks to hold it."""
    copies = max(1, layout.tp // layout.num_kv_heads)
    heads = [head for head in range(layout.num_kv_heads) for _ in range(copies)]
    share = len(heads) // layout.tp
    return [heads[rank * share : (rank + 1) * share] for rank in range(layout.tp)]


@given(layouts(), st.integers(0, 200))
def test_tokens_are_dealt_run_by_run(layout: Layout, tokens: int) -> None:
    hands = dealt(tokens, layout)

    assert [layout.positions(rank, 0, tokens).tolist() for rank in range(layout.cp)] == hands
    assert [layout.local_length(tokens, rank) for rank in range(layout.cp)] == [len(hand) for hand in hands]
    for rank, hand in enumerate(hands):
        assert [(layout.holder(position), layout.local(position)) for position in hand] == [
            (rank, local) for local in range(len(hand))
        ]


@given(layouts(), st.data())
def test_a_range_of_positions_is_a_range_of_local_positions(layout: Layout, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, 100))
    stop = data.draw(st.integers(start, 140))

    found = [layout.positions(rank, start, stop).tolist() for rank in range(layout.cp)]

    assert found == [[position for position in hand if position >= start] for hand in dealt(stop, layout)]


@given(layouts())
def test_heads_are_shared_out_in_order(layout: Layout) -> None:
    shares = shared_out(layout)

    assert [
        list(range(layout.first_head(rank), layout.first_head(rank) + layout.heads)) for rank in range(layout.tp)
    ] == (shares)
    for head in range(layout.num_kv_heads):
        holders = [rank for rank, share in enumerate(shares) if head in share]
        assert holders == list(range(layout.first_rank(head), layout.first_rank(head) + layout.replicas))
        assert {shares[rank].index(head) for rank in holders} == {layout.local_head(head)}


@given(layouts(), st.integers(1, 9))
def test_query_heads_are_dealt_to_ranks_that_hold_their_kv_head(layout: Layout, group: int) -> None:
    num_q_heads = layout.num_kv_heads * group
    bounds = [
        sharding.first_query_head_of(rank, layout.tp, layout.num_kv_heads, num_q_heads) for rank in range(layout.tp + 1)
    ]

    assert (bounds[0], bounds[-1], sorted(bounds)) == (0, num_q_heads, bounds)
    for rank, share in enumerate(shared_out(layout)):
        assert {head // group for head in range(bounds[rank], bounds[rank + 1])} <= set(share)
    counts = np.diff(bounds)
    assert max(counts) - min(counts) <= 1


@given(layouts())
def test_rank_numbers_are_a_bijection(layout: Layout) -> None:
    numbers = [layout.rank(tp_rank, cp_rank) for cp_rank in range(layout.cp) for tp_rank in range(layout.tp)]

    assert sorted(numbers) == list(range(layout.ranks))
    for cp_rank in range(layout.cp):
        for tp_rank in range(layout.tp):
            rank = layout.rank(tp_rank, cp_rank)
            found = sharding.tp_rank_of(rank, layout.tp, layout.dcp), sharding.cp_rank_of(rank, layout.tp, layout.dcp)
            assert found == (tp_rank, cp_rank)


@given(layouts(), st.data())
def test_slots_and_vectors_are_a_bijection(layout: Layout, data: st.DataObject) -> None:
    """No two (position, head) of a row share a vector of a page, on all ranks together, and all are used."""
    table = data.draw(st.permutations(range(4)).map(lambda units: units[:3]))
    tokens = len(table) * layout.unit_tokens
    positions = np.arange(tokens)

    slots, holders = layout.slots(table, positions), layout.holder(positions)

    taken = {
        (int(holder), int(slot) // layout.block_size, layout.vector(int(slot) % layout.block_size, head))
        for holder, slot in zip(holders, slots, strict=True)
        for head in range(layout.heads)
    }
    vectors = range(layout.block_size * layout.heads)
    assert taken == {(rank, page, vector) for rank in range(layout.cp) for page in table for vector in vectors}


@given(layouts())
def test_a_vector_knows_its_offset_and_head(layout: Layout) -> None:
    for offset, head in np.ndindex(layout.block_size, layout.heads):
        assert layout.element(layout.vector(offset, head)) == (offset, head)


@given(layouts(), st.integers(0, 3), st.data())
def test_a_slot_is_dealt_like_a_position(layout: Layout, unit: int, data: st.DataObject) -> None:
    """The local slot of a slot of the whole is the one that a block table leads to."""
    offset = data.draw(st.integers(0, layout.unit_tokens - 1))
    slot = unit * layout.unit_tokens + offset

    assert layout.local(slot) == layout.slots([unit], np.array([offset]))[0]
    assert layout.holder(slot) == layout.holder(offset)


def test_runs_of_two_on_two_ranks() -> None:
    layout = Layout(dcp=2, interleave=2, block_size=4)

    assert layout.positions(1, 0, 12).tolist() == [2, 3, 6, 7, 10, 11]
    assert layout.slots([5, 9], np.arange(8, 12)).tolist() == [36, 37, 36, 37]


def test_ranks_are_numbered_as_vllm_does() -> None:
    """vLLM's tensor_parallel_size 8 with decode context parallelism 2 over 2 heads: tp rank r holds head r * 2 // 8."""
    layout = Layout(tp=4, dcp=2, num_kv_heads=2)

    held = {
        layout.rank(tp_rank, cp_rank): (layout.first_head(tp_rank), cp_rank)
        for tp_rank in range(4)
        for cp_rank in (0, 1)
    }

    assert [held[rank] for rank in range(8)] == [(rank * 2 // 8, rank % 2) for rank in range(8)]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tp", 3),
        ("tp", 0),
        ("dcp", 0),
        ("pcp", -1),
        ("interleave", 3),
        ("interleave", 0),
        ("block_size", 0),
        ("num_kv_heads", 0),
        ("memory_layout", "NDH"),
    ],
)
def test_a_bad_layout_is_refused_by_the_name_of_its_field(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{field} "):
        replace(Layout(), **{field: value})


class Symbol:
    """An integer that allows what a symbolic one allows, and no branch on it."""

    def __init__(self, value: int) -> None:
        self.value = value

    @staticmethod
    def of(operation: str, reflected: bool = False) -> Any:
        def run(self: Symbol, other: Any) -> Symbol:
            number = other.value if isinstance(other, Symbol) else other
            left, right = (number, self.value) if reflected else (self.value, number)
            if operation in ("__floordiv__", "__mod__"):
                assert left >= 0, "a negative number is divided"
                assert right > 0, "by no positive number"
            return Symbol(int(getattr(left, operation)(right)))

        return run

    __add__, __sub__, __mul__ = of("__add__"), of("__sub__"), of("__mul__")
    __radd__, __rsub__, __rmul__ = of("__add__", True), of("__sub__", True), of("__mul__", True)
    __floordiv__, __mod__, __gt__ = of("__floordiv__"), of("__mod__"), of("__gt__")
    __eq__ = of("__eq__")
    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise AssertionError("a branch")

    def __index__(self) -> int:
        raise AssertionError("a symbol has no number")


def scalar_calls(layout: Layout, number: int) -> list[tuple[Any, tuple[int, ...]]]:
    """Every scalar function, with arguments."""
    tp, dcp, heads, interleave, cp, size = (
        layout.tp, layout.dcp, layout.num_kv_heads, layout.interleave, layout.cp, layout.block_size,
    )  # fmt: skip
    tp_rank, cp_rank, head = number % tp, number % cp, number % heads
    return [
        (heads_per_rank, (heads, tp)),
        (sharding.replicas_of_head, (tp, heads)),
        (sharding.first_head_of, (tp_rank, tp, heads)),
        (sharding.first_rank_of, (head, tp, heads)),
        (sharding.local_head_of, (head, tp, heads)),
        (sharding.first_query_head_of, (tp_rank, tp, heads, heads * 3)),
        (sharding.holder_of, (number, interleave, cp)),
        (sharding.local_of, (number, interleave, cp)),
        (sharding.position_of, (cp_rank, number, interleave, cp)),
        (sharding.local_length_of, (number, cp_rank, interleave, cp)),
        (sharding.local_slot_of, (3, number, interleave, cp, size)),
        (sharding.rank_of, (tp_rank, cp_rank, tp, dcp)),
        (sharding.tp_rank_of, (number % layout.ranks, tp, dcp)),
        (sharding.cp_rank_of, (number % layout.ranks, tp, dcp)),
        (sharding.nhd_vector_of, (number % size, head, heads)),
        (sharding.hnd_vector_of, (number % size, head, size)),
        (sharding.nhd_element_of, (number, heads)),
        (sharding.hnd_element_of, (number, size)),
    ]


@given(layouts(), st.integers(0, 300))
def test_symbolic_integers_can_run_the_scalar_functions(layout: Layout, number: int) -> None:
    for function, arguments in scalar_calls(layout, number):
        found = function(*map(Symbol, arguments))
        numbers = tuple(symbol.value for symbol in found) if isinstance(found, tuple) else found.value
        assert numbers == function(*arguments)


def test_every_scalar_function_is_run_by_symbols() -> None:
    ours = {value for name, value in vars(sharding).items() if name.endswith("_of") and callable(value)}

    assert ours <= {function for function, _ in scalar_calls(Layout(), 0)}
