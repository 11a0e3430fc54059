"""What a query sees: everything, a sliding window or its own chunk; and where chunks and blocks begin."""

from __future__ import annotations

from kvsan.invariants.proofs.addressing.arithmetic import divisions_combine, products_grow, quotients_are_read_back
from kvsan.invariants.proofs.addressing.functions import Functions
from kvsan.invariants.proofs.addressing.theorem import Statement, theorem
from kvsan.invariants.proofs.term import Condition, Number, both, implies, minimum, same, within


@theorem(lambda *, position, seen, **_: seen <= position, window=1, position=0, seen=0)
def a_window_is_exact(f: Functions, window: Number, position: Number, seen: Number) -> Condition:
    """A query sees an earlier position, or its own, if and only if fewer than window tokens lie between: no more, no less."""
    first = f.first_visible(position, window)
    return both(within(0, first, position + 1), same(seen >= first, position - seen < window))


@theorem(window=1, position=0)
def a_window_has_its_tokens(f: Functions, window: Number, position: Number) -> Condition:
    """A query sees window tokens, its own among them, or all that there are."""
    return position - f.first_visible(position, window) + 1 == minimum(window, position + 1)


@theorem(position=0)
def without_a_window_all_is_seen(f: Functions, position: Number) -> Condition:
    """Without a window the first position that is seen is 0."""
    return f.first_visible(position, None) == 0


@theorem(lambda *, block_size, window, position, seen: seen <= position, block_size=1, window=1, position=0, seen=0)
def blocks_before_hold_nothing_visible(
    f: Functions, block_size: Number, window: Number, position: Number, seen: Number
) -> Condition:
    """A visible position is never in a block before first_visible_block, and the first one is in that block."""
    block, first = f.first_visible_block(position, window, block_size), f.first_visible(position, window)
    return both(
        implies(seen >= first, f.block_of(seen, block_size) >= block),
        f.block_of(first, block_size) == block,
        block >= 0,
    )


@theorem(lambda *, position, later, **_: position <= later, block_size=1, window=1, position=0, later=0)
def what_left_the_window_stays_out(
    f: Functions, block_size: Number, window: Number, position: Number, later: Number
) -> Condition:
    """A later query sees nothing earlier than this one does: a block that left the window can be freed for good."""
    return both(
        f.first_visible(position, window) <= f.first_visible(later, window),
        f.first_visible_block(position, window, block_size) <= f.first_visible_block(later, window, block_size),
    )


@theorem(
    lambda *, position, seen, **_: seen <= position,
    (quotients_are_read_back, lambda f, *, chunk, position, **_: {
        "size": chunk, "whole": position // chunk, "rest": 0
    }),
    chunk=1,
    position=0,
    seen=0,
)  # fmt: skip
def a_chunk_is_exact(f: Functions, chunk: Number, position: Number, seen: Number) -> Condition:
    """A query sees an earlier position, or its own, if and only if both are in one chunk; the first starts a chunk."""
    first = f.first_visible_in_chunk(position, chunk)
    own = both(within(0, first, position + 1), position - first < chunk, first % chunk == 0)
    return both(own, same(seen >= first, seen // chunk == position // chunk))


@theorem(chunk=1, before=1)
def before_the_first_token_there_is_no_chunk(f: Functions, chunk: Number, before: Number) -> Condition:
    """Positions below 0, which rows without tokens have, see from 0."""
    return f.first_visible_in_chunk(-before, chunk) == 0


@theorem(
    None,
    (divisions_combine, lambda f, *, block_size, chunk_blocks, position: {
        "size": block_size, "count": chunk_blocks, "number": position
    }),
    (quotients_are_read_back, lambda f, *, block_size, chunk_blocks, position: {
        "size": block_size, "whole": position // (chunk_blocks * block_size) * chunk_blocks, "rest": 0
    }),
    block_size=1,
    chunk_blocks=1,
    position=0,
)  # fmt: skip
def chunks_of_blocks_start_blocks(
    f: Functions, block_size: Number, chunk_blocks: Number, position: Number
) -> Condition:
    """Where a chunk is chunk_blocks blocks, it starts at the start of a block, whose number chunk_blocks divides."""
    first = f.first_visible_in_chunk(position, chunk_blocks * block_size)
    block = f.block_of(position, block_size)
    return both(
        f.offset_of(first, block_size) == 0, f.block_of(first, block_size) == block // chunk_blocks * chunk_blocks
    )


@theorem(
    lambda *, chunk_blocks, place, **_: place < chunk_blocks,
    (products_grow, lambda f, *, block_size, chunk_blocks, place, **_: {
        "size": block_size, "few": place + 1, "many": chunk_blocks
    }),
    block_size=1,
    chunk_blocks=1,
    chunk=0,
    place=0,
    offset=0,
)  # fmt: skip
def a_chunk_holds_its_blocks(
    f: Functions, block_size: Number, chunk_blocks: Number, chunk: Number, place: Number, offset: Number
) -> Condition:
    """Every position of one of a chunk's blocks is in that chunk: a block is never in two chunks."""
    tokens = chunk_blocks * block_size
    position = (chunk * chunk_blocks + place) * block_size + offset
    return implies(offset < block_size, both(position >= chunk * tokens, position < chunk * tokens + tokens))


@theorem(block_size=1, chunk_blocks=1, tokens=0)
def full_chunks_are_full_blocks(f: Functions, block_size: Number, chunk_blocks: Number, tokens: Number) -> Condition:
    """As many chunks are full, counted in tokens, as groups of chunk_blocks full blocks."""
    return f.full_blocks(tokens, chunk_blocks * block_size) == f.full_blocks(tokens, block_size) // chunk_blocks


@theorem(lambda *, chunk, chunks, place, **_: place < chunks, chunk=1, chunks=1, block=0, place=0)
def blocks_of_chunks_start_chunks(
    f: Functions, chunk: Number, chunks: Number, block: Number, place: Number
) -> Condition:
    """Where a block is some number of chunks, each of its chunks starts, and ends, within that block."""
    block_size = chunks * chunk
    first = f.first_visible_in_chunk((block * chunks + place) * chunk, chunk)
    return both(f.block_of(first, block_size) == block, f.block_of(first + chunk - 1, block_size) == block)


@theorem(block_size=1, window=1, position=0)
def a_window_spans_its_blocks(f: Functions, block_size: Number, window: Number, position: Number) -> Condition:
    """What a query sees is in no more than the blocks for window - 1 tokens and one block."""
    first = f.first_visible_block(position, window, block_size)
    return f.block_of(position, block_size) - first <= f.blocks_for(window - 1, block_size)


STATEMENTS = (
    Statement(
        "window",
        "a sliding window shows exactly its tokens: window of them with the query's own, or all that there are",
        (a_window_is_exact, a_window_has_its_tokens, without_a_window_all_is_seen),
    ),
    Statement(
        "window-blocks",
        "blocks before first_visible_block hold nothing that this query or a later one sees; that block does",
        (blocks_before_hold_nothing_visible, what_left_the_window_stays_out, a_window_spans_its_blocks),
    ),
    Statement(
        "chunk",
        "with a chunk, exactly the positions of the query's own chunk up to it are seen",
        (a_chunk_is_exact, before_the_first_token_there_is_no_chunk),
    ),
    Statement(
        "chunk-boundaries",
        "boundaries of chunks and blocks align where the larger is a multiple of the smaller",
        (
            chunks_of_blocks_start_blocks,
            a_chunk_holds_its_blocks,
            full_chunks_are_full_blocks,
            blocks_of_chunks_start_chunks,
        ),
        ("a chunk is a whole number of blocks, as tiers have it, or a block of chunks",),
    ),
)
