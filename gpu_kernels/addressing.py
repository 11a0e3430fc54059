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


PART_ALIGNMENT_BYTES = 16
"""Parts of a page start at multiples of it, where a vector load may."""

INT32_MAX = (1 << 31) - 1
"""Largest index of 32 bits."""


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


def first_visible_in_chunk(position: int, chunk: int) -> int:
    """First position that the query at ``position`` sees where it sees its own chunk of ``chunk`` tokens only."""
    return position * (position > 0) // chunk * chunk


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


def aligned(size_bytes: int) -> int:
    """Bytes rounded up to a multiple of ``PART_ALIGNMENT_BYTES``."""
    return (size_bytes + PART_ALIGNMENT_BYTES - 1) // PART_ALIGNMENT_BYTES * PART_ALIGNMENT_BYTES


def part_bytes_of(vectors: int, width: int, element_bytes: int) -> int:
    """Bytes of one part of a page (its K, say): ``vectors`` vectors of ``width`` elements, then what alignment needs."""
    return aligned(vectors * width * element_bytes)


def part_start_of(part: int, data_bytes: int, scale_bytes: int) -> int:
    """Byte of a page at which a part starts: K is 0, V 1, the scales of K 2 and of V 3; at 4 the page ends.

    ``data_bytes`` are those of K, as many as of V; ``scale_bytes`` those of either's scales.
    """
    scales = (part - 2) * (part > 2)
    return (part - scales) * data_bytes + scales * scale_bytes


def page_bytes_of(data_bytes: int, scale_bytes: int) -> int:
    """Bytes of a page of four parts: what pages of a pool are apart."""
    return part_start_of(4, data_bytes, scale_bytes)


def most_units(stride: int, reach: int, largest: int = INT32_MAX) -> int:
    """Units of the largest pool in which no index is above ``largest``; one unit more, and there is one.

    Units are ``stride`` indexes apart, of which the first ``reach`` are used: for slots both are the block size; for the
    elements that a kernel loads ``stride`` is the page's and ``reach`` the part's.
    """
    return (largest + 1 - reach) // stride + 1


def last_of_each(slots: IntArray) -> IntArray:
    """Return the index of the last token of each slot, ascending, int64 ``[number of distinct slots]``."""
    _, first_reversed = np.unique(slots[::-1], return_index=True)
    result: IntArray = np.sort(len(slots) - 1 - first_reversed)
    return result
