"""Address arithmetic of a paged cache: the only place where positions, blocks, units and slots meet.

A request sees *positions*; a *block table* names, for each block of ``block_size`` positions, the *unit* that holds it;
a *slot* numbers one token's place in the whole pool::

    position     0  1  2  3 | 4  5  6  7 | 8  9        block_size 4
    block             0     |      1     |   2         block_of
    table             7     |      2     |   5         unit by block
    slot        28 29 30 31 | 8  9 10 11 | 20 21       slot_of(unit, offset)

The scalar functions are branch-free and use only ``+ - * // %`` and comparisons on non-negative integers, so that a
symbolic integer can run them too; the array functions are the same arithmetic, vectorised.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

PADDING_SLOT = -1
"""In a slot mapping: the token belongs to nobody and is not written."""


def block_of(position: int, block_size: int) -> int:
    """Block number that holds a token position."""
    return position // block_size


def offset_of(position: int, block_size: int) -> int:
    """Offset, in tokens, of a position in its block."""
    return position % block_size


def slot_of(unit: int, offset: int, block_size: int) -> int:
    """Slot of an offset in a unit."""
    return unit * block_size + offset


def unit_of(slot: int, block_size: int) -> int:
    """Unit that a slot is in; ``offset_of`` gives its offset."""
    return slot // block_size


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold ``tokens`` tokens, the last one perhaps in part."""
    return (tokens + block_size - 1) // block_size


def full_blocks(tokens: int, block_size: int) -> int:
    """Blocks that ``tokens`` tokens fill entirely."""
    return tokens // block_size


def first_visible(position: int, window: int | None) -> int:
    """First position that the query at ``position`` sees: it sees ``window`` tokens with its own, None: all."""
    if window is None:
        return 0
    first = position - window + 1
    return first * (first > 0)


def first_visible_block(position: int, window: int | None, block_size: int) -> int:
    """Block of the first position that the query at ``position`` sees."""
    return block_of(first_visible(position, window), block_size)


def slots_of(table: Sequence[int] | IntArray, start: int, stop: int, block_size: int) -> IntArray:
    """Slots of positions ``[start, stop)``, int64 ``[stop - start]``.

    ``table`` holds units by block number and may be longer than needed; IndexError if it is shorter.
    """
    positions = np.arange(start, stop, dtype=np.int64)
    units = np.asarray(table, dtype=np.int64)[positions // block_size]
    slots: IntArray = units * block_size + positions % block_size
    return slots


def heads_per_rank(num_heads: int, ranks: int) -> int:
    """Heads that one of ``ranks`` tensor-parallel ranks holds; where there are more ranks than heads, ranks share one."""
    share = num_heads // ranks
    return share + (share == 0)


def last_of_each(slots: IntArray) -> IntArray:
    """Return the index of the last token of each slot, ascending, int64 ``[number of distinct slots]``."""
    _, first_reversed = np.unique(slots[::-1], return_index=True)
    result: IntArray = np.sort(len(slots) - 1 - first_reversed)
    return result
