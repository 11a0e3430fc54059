"""Address arithmetic against its definition, position by position."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsan.gpu_kernels import addressing

sizes = st.integers(1, 64)
tokens = st.integers(0, 500)


@given(position=tokens, block_size=sizes)
def test_block_and_offset_make_the_position(position: int, block_size: int) -> None:
    block = addressing.block_of(position, block_size)
    offset = addressing.offset_of(position, block_size)

    assert (block * block_size + offset, offset < block_size) == (position, True)


@given(unit=st.integers(0, 1 << 40), block_size=sizes, data=st.data())
def test_a_slot_knows_its_unit_and_offset(unit: int, block_size: int, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, block_size - 1))

    slot = addressing.slot_of(unit, offset, block_size)

    assert (addressing.unit_of(slot, block_size), addressing.offset_of(slot, block_size)) == (unit, offset)


@given(count=tokens, block_size=sizes)
def test_blocks_are_counted_as_positions_fill_them(count: int, block_size: int) -> None:
    touched = {position // block_size for position in range(count)}
    full = {block for block in touched if (block + 1) * block_size <= count}

    assert (addressing.blocks_for(count, block_size), addressing.full_blocks(count, block_size)) == (
        len(touched),
        len(full),
    )


@given(position=tokens, window=st.none() | st.integers(1, 64), block_size=sizes)
def test_a_query_sees_its_window(position: int, window: int | None, block_size: int) -> None:
    seen = [p for p in range(position + 1) if window is None or p > position - window]

    assert addressing.first_visible(position, window) == seen[0]
    assert addressing.first_visible_block(position, window, block_size) == seen[0] // block_size


def test_slots_follow_the_table() -> None:
    assert addressing.slots_of([7, 2, 5], 2, 10, 4).tolist() == [30, 31, 8, 9, 10, 11, 20, 21]


@given(table=st.lists(st.integers(0, 1 << 30), min_size=1, max_size=8), block_size=sizes, data=st.data())
def test_slots_are_what_the_scalar_functions_say(table: list[int], block_size: int, data: st.DataObject) -> None:
    stop = data.draw(st.integers(0, len(table) * block_size))
    start = data.draw(st.integers(0, stop))

    slots = addressing.slots_of(np.array(table), start, stop, block_size)

    assert slots.dtype == np.int64
    assert slots.tolist() == [
        addressing.slot_of(
            table[addressing.block_of(position, block_size)], addressing.offset_of(position, block_size), block_size
        )
        for position in range(start, stop)
    ]


def test_a_table_that_is_too_short_is_an_index_error() -> None:
    with pytest.raises(IndexError):
        addressing.slots_of([7], 3, 5, 4)
