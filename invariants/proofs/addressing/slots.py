"""Positions, blocks, units and slots of a paged cache, and how many blocks there must be."""

from __future__ import annotations

from kvsan.gpu_kernels.addressing import PADDING_SLOT
from kvsan.invariants.proofs.addressing.functions import Functions
from kvsan.invariants.proofs.addressing.theorem import Statement, theorem
from kvsan.invariants.proofs.term import Condition, Number, both, negation, one_of, same, within


@theorem(block_size=1, position=0)
def a_position_is_its_block_and_offset(f: Functions, block_size: Number, position: Number) -> Condition:
    """A position is block * block_size + offset, the offset one of the block, the block not negative."""
    block, offset = f.block_of(position, block_size), f.offset_of(position, block_size)
    return both(block * block_size + offset == position, within(0, offset, block_size), block >= 0)


@theorem(lambda *, block_size, offset, **_: offset < block_size, block_size=1, block=0, offset=0)
def a_block_and_offset_are_of_one_position(
    f: Functions, block_size: Number, block: Number, offset: Number
) -> Condition:
    """Position block * block_size + offset is at that offset of that block."""
    position = block * block_size + offset
    return both(f.block_of(position, block_size) == block, f.offset_of(position, block_size) == offset)


@theorem(
    lambda *, block_size, num_units, unit, offset: both(unit < num_units, offset < block_size),
    block_size=1,
    num_units=1,
    unit=0,
    offset=0,
)
def slots_are_in_the_pool(
    f: Functions, block_size: Number, num_units: Number, unit: Number, offset: Number
) -> Condition:
    """The slot of an offset of a unit of the pool is one of the pool's num_units * block_size slots."""
    return within(0, f.slot_of(unit, offset, block_size), num_units * block_size)


@theorem(lambda *, block_size, offset, **_: offset < block_size, block_size=1, unit=0, offset=0)
def a_slot_knows_its_unit_and_offset(f: Functions, block_size: Number, unit: Number, offset: Number) -> Condition:
    """Unit and offset of a slot are those that it was made of."""
    slot = f.slot_of(unit, offset, block_size)
    return both(f.unit_of(slot, block_size) == unit, f.offset_of(slot, block_size) == offset)


@theorem(block_size=1, slot=0)
def unit_and_offset_make_the_slot(f: Functions, block_size: Number, slot: Number) -> Condition:
    """The slot of a slot's unit and offset is that slot, and the offset is within the unit."""
    unit, offset = f.unit_of(slot, block_size), f.offset_of(slot, block_size)
    return both(f.slot_of(unit, offset, block_size) == slot, within(0, offset, block_size), unit >= 0)


@theorem(
    lambda *, block_size, unit, offset, other_unit, other_offset: both(
        offset < block_size, other_offset < block_size, one_of(unit != other_unit, offset != other_offset)
    ),
    block_size=1,
    unit=0,
    offset=0,
    other_unit=0,
    other_offset=0,
)
def no_two_share_a_slot(
    f: Functions, block_size: Number, unit: Number, offset: Number, other_unit: Number, other_offset: Number
) -> Condition:
    """Two offsets, or offsets of two distinct units, have two slots."""
    return negation(f.slot_of(unit, offset, block_size) == f.slot_of(other_unit, other_offset, block_size))


@theorem(
    lambda *, block_size, position, other, unit, other_unit: both(
        position != other, same(position // block_size == other // block_size, unit == other_unit)
    ),
    block_size=1,
    position=0,
    other=0,
    unit=0,
    other_unit=0,
)
def positions_do_not_share_a_slot(
    f: Functions, block_size: Number, position: Number, other: Number, unit: Number, other_unit: Number
) -> Condition:
    """Two positions of a request whose table names a distinct unit for each block have two slots."""
    first = f.slot_of(unit, f.offset_of(position, block_size), block_size)
    second = f.slot_of(other_unit, f.offset_of(other, block_size), block_size)
    return negation(first == second)


@theorem(block_size=1, tokens=0)
def blocks_are_enough_and_none_too_many(f: Functions, block_size: Number, tokens: Number) -> Condition:
    """Blocks for some tokens hold them all, and one block fewer would not."""
    blocks = f.blocks_for(tokens, block_size)
    return both(blocks >= 0, blocks * block_size >= tokens, (blocks - 1) * block_size < tokens)


@theorem(block_size=1, tokens=0)
def full_blocks_are_full(f: Functions, block_size: Number, tokens: Number) -> Condition:
    """Full blocks hold no more than there are tokens, one block more would; they are all blocks, or all but the last."""
    full, blocks = f.full_blocks(tokens, block_size), f.blocks_for(tokens, block_size)
    filled = both(full >= 0, full * block_size <= tokens, tokens < (full + 1) * block_size)
    return both(filled, full <= blocks, blocks <= full + 1)


@theorem(
    lambda *, tokens, position, **_: position < tokens,
    block_size=1,
    tokens=1,
    position=0,
)
def a_table_covers_its_positions(f: Functions, block_size: Number, tokens: Number, position: Number) -> Condition:
    """A table of the blocks for some tokens has a block for each position; the last token is in the last block."""
    length = f.blocks_for(tokens, block_size)
    return both(f.block_of(position, block_size) < length, f.block_of(tokens - 1, block_size) == length - 1)


@theorem(lambda *, block_size, offset, **_: offset < block_size, block_size=1, unit=0, offset=0)
def padding_is_no_slot(f: Functions, block_size: Number, unit: Number, offset: Number) -> Condition:
    """Padding, which kernels skip by its number, is the slot of no offset of any unit: a token is never taken for it."""
    return negation(f.slot_of(unit, offset, block_size) == PADDING_SLOT)


@theorem(lambda *, block_size, offset, **_: offset < block_size, block_size=1, unit=0, offset=0)
def a_write_stays_in_its_unit(f: Functions, block_size: Number, unit: Number, offset: Number) -> Condition:
    """A slot is among the block_size slots of its own unit."""
    slot = f.slot_of(unit, offset, block_size)
    return within(unit * block_size, slot, unit * block_size + block_size)


STATEMENTS = (
    Statement(
        "positions",
        "positions and pairs of a block and an offset within it correspond one to one",
        (a_position_is_its_block_and_offset, a_block_and_offset_are_of_one_position),
    ),
    Statement("slots-in-range", "slots of units of the pool are slots of the pool", (slots_are_in_the_pool,)),
    Statement(
        "slots-inverse",
        "slots and pairs of a unit and an offset within it correspond one to one, each function inverse to the other",
        (a_slot_knows_its_unit_and_offset, unit_and_offset_make_the_slot),
    ),
    Statement(
        "slots-injective",
        "distinct offsets, distinct units and distinct positions never share a slot",
        (no_two_share_a_slot, positions_do_not_share_a_slot),
        ("a table names a unit at most once: the invariants on ownership check that of each run",),
    ),
    Statement(
        "table-length",
        "blocks_for is enough and none too many, full_blocks counts those that are full, and tables cover all positions",
        (blocks_are_enough_and_none_too_many, full_blocks_are_full, a_table_covers_its_positions),
    ),
    Statement(
        "padding",
        "padding is never a slot, and a write stays in the slots of its unit",
        (padding_is_no_slot, a_write_stays_in_its_unit),
        ("kernels skip tokens whose slot is negative: proved of the kernels themselves",),
    ),
)
