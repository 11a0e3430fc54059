"""Address arithmetic against its definition, position by position."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsan.gpu_kernels import addressing
from kvsan.gpu_kernels.formats import FORMATS
from kvsan.gpu_kernels.launching import Masking
from kvsan.gpu_kernels.layout import allocate_cache
from kvsan.gpu_kernels.sharding import Layout, MemoryLayout

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


@given(position=st.integers(-5, 500), chunk=sizes)
def test_a_query_sees_its_chunk(position: int, chunk: int) -> None:
    seen = [p for p in range(max(0, position) + 1) if p // chunk == max(0, position) // chunk]

    assert addressing.first_visible_in_chunk(position, chunk) == seen[0]
    assert Masking(chunk=chunk).first(position) == seen[0]


@given(size_bytes=st.integers(0, 200))
def test_aligned_bytes_are_the_next_multiple_of_16(size_bytes: int) -> None:
    assert addressing.aligned(size_bytes) == next(n for n in range(size_bytes, size_bytes + 16) if n % 16 == 0)


def test_parts_follow_each_other_to_the_end_of_the_page() -> None:
    """K and V of 32 bytes each, scales of 16."""
    assert [addressing.part_start_of(part, 32, 16) for part in range(5)] == [0, 32, 64, 80, 96]
    assert addressing.page_bytes_of(32, 16) == 96


@given(stride=sizes, data=st.data(), largest=st.integers(0, 300))
def test_one_unit_more_is_too_many(stride: int, data: st.DataObject, largest: int) -> None:
    reach = data.draw(st.integers(1, stride))

    fitting = [units for units in range(1, largest + 2) if (units - 1) * stride + reach - 1 <= largest]

    assert max(0, addressing.most_units(stride, reach, largest)) == len(fitting)


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("memory_layout", get_args(MemoryLayout))
@pytest.mark.parametrize("dtype", FORMATS)
def test_tensors_of_a_cache_are_where_the_functions_say(dtype: str, memory_layout: MemoryLayout, heads: int) -> None:
    """Byte by byte: where torch has an element of K, V and scales, and where unit, part, vector and element have it."""
    form, (blocks, block_size, head_dim) = FORMATS[dtype], (2, 5, 16)
    cache = allocate_cache(blocks, block_size, heads, head_dim, dtype, memory_layout)
    kinds = (form.width(head_dim), form.element_bytes), (form.scale_width(head_dim), form.scale_bytes)
    parts = [addressing.part_bytes_of(block_size * heads, *kind) for kind in kinds]
    page_bytes = addressing.page_bytes_of(parts[0], parts[1])
    layout = Layout(block_size=block_size, num_kv_heads=heads, memory_layout=memory_layout)

    start = cache.keys.data_ptr()
    for part, tensor in enumerate(cache.tensors()):
        width, element_bytes = kinds[part // 2]
        for unit, offset, head, element in np.ndindex(*tensor.shape):
            index = layout.vector(offset, head) * width + element
            expected = unit * page_bytes + addressing.part_start_of(part, parts[0], parts[1]) + index * element_bytes
            assert tensor[unit, offset, head, element].data_ptr() - start == expected
    assert len(cache.tensors()) == (4 if form.scale_bytes else 2)
    assert cache.keys.untyped_storage().nbytes() == blocks * page_bytes


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
