"""The public pattern "a number from memory times a stride, in int32", as small kernels of our own; `int32_pools` has the rest.

Each kernel is written both ways: ``WIDE`` casts the number to int64 as soon as it is loaded, which is the fix.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def write_slot(cache, new, slot_mapping, VECTOR: tl.constexpr, BLOCK_SIZE: tl.constexpr, WIDE: tl.constexpr):
    """Write one token's vector to its slot: ``slot * stride`` (vLLM 1486)."""
    token = tl.program_id(0)
    slot = tl.load(slot_mapping + token)
    if WIDE:
        slot = slot.to(tl.int64)
    at = tl.arange(0, VECTOR)
    vector = tl.load(new + token.to(tl.int64) * VECTOR + at)
    tl.store(cache + slot * VECTOR + at, vector, mask=slot >= 0)


@triton.jit
def read_block(
    cache, out, table, BLOCK_SIZE: tl.constexpr, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, WIDE: tl.constexpr
):
    """Read one block's vectors of one head: ``block * stride_block + slot * stride_slot`` (vLLM 50427)."""
    entry = tl.program_id(0)
    head = tl.program_id(1)
    block = tl.load(table + entry)
    if WIDE:
        block = block.to(tl.int64)
    slot = tl.arange(0, BLOCK_SIZE)
    d = tl.arange(0, HEAD_DIM)
    offsets = block * (BLOCK_SIZE * HEADS * HEAD_DIM) + slot * (HEADS * HEAD_DIM) + head * HEAD_DIM
    vectors = tl.load(cache + offsets[:, None] + d[None, :])
    to = ((entry.to(tl.int64) * HEADS + head) * BLOCK_SIZE + slot) * HEAD_DIM
    tl.store(out + to[:, None] + d[None, :], vectors)


@triton.jit
def read_latent(
    cache, out, table, BLOCK_SIZE: tl.constexpr, WIDTH: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr
):
    """Read one token's latent vector, of a width that is no power of two, by its position (vLLM 47671)."""
    position = tl.program_id(0)
    block = tl.load(table + position // BLOCK_SIZE)
    if WIDE:
        block = block.to(tl.int64)
    d = tl.arange(0, DIM)
    offset = block * (BLOCK_SIZE * WIDTH) + position % BLOCK_SIZE * WIDTH
    vector = tl.load(cache + offset + d, mask=d < WIDTH)
    tl.store(out + position.to(tl.int64) * WIDTH + d, vector, mask=d < WIDTH)


@triton.jit
def append_pages(
    pages, new, table, places, HEADS: tl.constexpr, PAGE_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, WIDE: tl.constexpr
):
    """Append one head of one sequence's next token, K and V, to pages ``[2, head, place]`` (FlashInfer 527)."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    page = tl.load(table + row)
    place = tl.load(places + row)
    if WIDE:
        page = page.to(tl.int64)
    d = tl.arange(0, HEAD_DIM)
    for side in range(2):
        vector = tl.load(new + ((row.to(tl.int64) * 2 + side) * HEADS + head) * HEAD_DIM + d)
        to = page * (2 * HEADS * PAGE_SIZE * HEAD_DIM) + ((side * HEADS + head) * PAGE_SIZE + place) * HEAD_DIM
        tl.store(pages + to + d, vector)


@triton.jit
def copy_row(table, out, MAX_BLOCKS: tl.constexpr, ENTRIES: tl.constexpr, WIDE: tl.constexpr):
    """Read the first entries of one sequence's row of a block table: ``row * stride_table``."""
    row = tl.program_id(0)
    if WIDE:
        row = row.to(tl.int64)
    entry = tl.arange(0, ENTRIES)
    tl.store(out + row.to(tl.int64) * ENTRIES + entry, tl.load(table + row * MAX_BLOCKS + entry))
