"""Specifications of the kernels that attend: ``decode.py``, ``prefill.py``, ``mla.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvsan.gpu_kernels import formats, tiles
from kvsan.gpu_kernels.addressing import block_of, first_visible, first_visible_in_chunk, offset_of
from kvsan.invariants.proofs.kernels.specification import (
    Access,
    At,
    Complete,
    Guard,
    Load,
    Loop,
    Specification,
    Store,
    Tensor,
    Theorem,
)
from kvsan.invariants.proofs.term import (
    Condition,
    Number,
    both,
    ceil_div,
    either,
    implies,
    minimum,
    within,
)

LARGEST_INT = 2**31 - 1
LARGEST_GRID = 65_535
"""Of the second and third dimension, on NVIDIA GPUs."""

POSITIONS = 2**30
"""The longest sequence that is assumed: int32 has room for the end of the last tile, of the last split."""

Formula = Callable[[At], Number]
Where = Callable[[At], Condition]


def strides(k: Any, names: str) -> tuple[Condition, ...]:
    """That strides, named with spaces between, are not negative; as arguments of type int32 they are below 2**31."""
    return tuple(getattr(k, name) >= 0 for name in names.split())


def first_seen(k: Any, position: Number) -> Number:
    """First position that a query sees, by the functions that managers and the host side of kernels use."""
    if k.MASK == tiles.SLIDING.value:
        return first_visible(position, k.span)  # type: ignore[arg-type]
    if k.MASK == tiles.CHUNKED.value:
        return first_visible_in_chunk(position, k.span)  # type: ignore[arg-type]
    return 0


def paged_tensors(
    k: Any, rows: Number, kv_heads: Number, blocks: Number, first: Callable[[Number], Number]
) -> dict[str, Tensor]:
    """The cache, its scales, block tables and lengths; ``first(row)`` is the first position that a row looks at."""
    width = k.HEAD_DIM // 2 if k.FORMAT == formats.NVFP4 else k.HEAD_DIM
    scales = k.HEAD_DIM // 16 if k.FORMAT == formats.NVFP4 else 1
    cache = Tensor((blocks, k.BLOCK_SIZE, kv_heads, width), (k.stride_block, k.stride_slot, k.stride_head, 1))
    scale = Tensor(
        (blocks, k.BLOCK_SIZE, kv_heads, scales), (k.scale_stride_block, k.scale_stride_slot, k.scale_stride_head, 1)
    )
    return {
        "keys": cache,
        "values": cache,
        "key_scales": scale,
        "value_scales": scale,
        "block_tables": table(k, rows, blocks, first),
        "seq_lens": Tensor((rows,), (1,), contents=lambda length, _: within(0, length, lengths(k) + 1)),
    }


def lengths(k: Any) -> Number:
    """Most tokens of a sequence: what a row of the block table has entries for, and int32 room."""
    return minimum(k.size("max_blocks", most=POSITIONS) * k.BLOCK_SIZE, POSITIONS)


def table(k: Any, rows: Number, blocks: Number, first: Callable[[Number], Number]) -> Tensor:
    """Block tables: entries from the first position that a row looks at to its length name blocks, others hold anything."""
    return Tensor(
        (rows, k.size("max_blocks", most=POSITIONS)),
        (k.stride_table, 1),
        contents=lambda block, row, entry: implies(
            within(block_of(first(row), k.BLOCK_SIZE), entry, ceil_div(k.read("seq_lens", row), k.BLOCK_SIZE)),
            within(0, block, blocks),
        ),
    )


def tile_accesses(k: Any, row: Formula, head: Formula, stop: Formula) -> list[Access]:
    """What ``tiles.attend`` reads each trip: the block table, K and V, their scales."""

    def needed(at: At) -> Condition:
        return at.loop + at.lane[0] < stop(at)

    def block(at: At) -> Number:
        return k.read("block_tables", row(at), block_of(at.loop + at.lane[0], k.BLOCK_SIZE))

    def vector(at: At) -> tuple[Number, ...]:
        return block(at), offset_of(at.loop + at.lane[0], k.BLOCK_SIZE), head(at)

    def elements(tensor: str, per_element: int) -> Access:
        return Load(
            tensor,
            lambda at: (*vector(at), at.lane[1] // per_element),
            lambda at: both(needed(at), at.lane[1] < k.HEAD_DIM),
        )

    accesses = [Load("block_tables", lambda at: (row(at), block_of(at.loop + at.lane[0], k.BLOCK_SIZE)), needed)]
    for side in ("key", "value"):
        if k.FORMAT == formats.NVFP4:
            accesses += [elements(f"{side}s", 2), elements(f"{side}_scales", 16)]
        else:
            accesses.append(elements(f"{side}s", 1))
    if k.FORMAT == formats.PER_TOKEN_HEAD:
        accesses += [Load(f"{side}_scales", lambda at: (*vector(at), 0), needed) for side in ("key", "value")]
    return accesses


def output_tensors(k: Any, tokens: Number, heads: Number, width: int) -> dict[str, Tensor]:
    """Outputs of attention; sums and row sums exist in the checked mode only."""
    output = Tensor((tokens, heads, width), (k.stride_ot, k.stride_oh, 1))
    by_head = Tensor((tokens, heads), (k.stride_lt, 1))
    return {"output": output, "lse": by_head, "sums": output, "row_sums": by_head}


def output_accesses(k: Any, token: Formula, head: Formula, whole: Where, by_head: Where) -> list[Access]:
    """Stores of attention: vectors in two dimensions of lanes, numbers in one."""
    stores = []
    for vector, number in (("output", "lse"), ("sums", "row_sums"))[: 1 + bool(k.CHECKED)]:
        stores.append(Store(vector, lambda at: (token(at), head(at), at.lane[1]), whole))
        stores.append(Store(number, lambda at: (token(at), head(at)), by_head))
    return stores


def paged_decode(k: Any) -> Specification:
    """One query a sequence."""
    return _decode(k, split=False)


def paged_decode_split(k: Any) -> Specification:
    """One query a sequence, one run of tiles a program."""
    return _decode(k, split=True)


def _decode(k: Any, split: bool) -> Specification:
    blocks, rows = k.size("num_blocks"), k.size("num_rows")
    kv_heads = k.size("num_kv_heads", most=LARGEST_GRID)

    def row(at: At) -> Number:
        return at.program[0]

    def kv_head(at: At) -> Number:
        return at.program[1] // k.HEAD_TILES

    def in_group(at: At) -> Number:
        return at.program[1] % k.HEAD_TILES * k.HEADS + at.lane[0]

    def head(at: At) -> Number:
        return kv_head(at) * k.GROUP + in_group(at)

    def within_group(at: At) -> Condition:
        return in_group(at) < k.GROUP

    def whole(at: At) -> Condition:
        return both(within_group(at), at.lane[1] < k.HEAD_DIM)

    def length(at: At) -> Number:
        return k.read("seq_lens", row(at))

    def first(at: At) -> Number:
        return first_seen(k, length(at) - 1)

    parts = k.SPLITS if split else 1

    def run(at: At) -> Number:
        return ceil_div(ceil_div(length(at) - first(at), k.TILE), parts) * k.TILE

    def start(at: At) -> Number:
        return first(at) + at.program[2] * run(at) if split else first(at)

    def stop(at: At) -> Number:
        return minimum(start(at) + run(at), length(at)) if split else length(at)

    def visible(at: At) -> Condition:
        position = at.loop + at.lane[1]
        return both(position < stop(at), position <= length(at) - 1, position >= first(at))

    heads = kv_heads * k.GROUP
    tensors = paged_tensors(k, rows, kv_heads, blocks, lambda row: first(At((row, 0, 0))))
    tensors["query"] = Tensor((rows, heads, k.HEAD_DIM), (k.stride_qt, k.stride_qh, 1))
    accesses = [
        Load("seq_lens", lambda at: (row(at),)),
        Load("query", lambda at: (row(at), head(at), at.lane[1]), whole),
        *tile_accesses(k, row, kv_head, stop),
    ]
    if split:
        tensors |= split_tensors(k, rows, heads)
        accesses.append(Store("split_sums", lambda at: (row(at), head(at), at.program[2], at.lane[1]), whole))
        accesses += [
            Store(name, lambda at: (row(at), head(at), at.program[2]), within_group)
            for name in ("split_row_sums", "split_maxima")
        ]
    else:
        tensors |= output_tensors(k, rows, heads, k.HEAD_DIM)
        accesses += output_accesses(k, row, head, whole, within_group)

    def place(row: Number, head: Number, d: Number, part: Number = 0) -> At:
        group = head % k.GROUP
        return At((row, head // k.GROUP * k.HEAD_TILES + group // k.HEADS, part), (group % k.HEADS, d))

    written = Complete(
        "every element of the output is written",
        next(number for number, one in enumerate(accesses) if one.kind == "store"),
        ("row", "head", "d", *["part"] * split),
        lambda row, head, d, part=0: both(
            within(0, row, rows), within(0, head, heads), within(0, d, k.HEAD_DIM), within(0, part, parts)
        ),
        (lambda row, head, d, part: (row, head, part, d)) if split else (lambda row, head, d: (row, head, d)),
        place,
    )
    names = "stride_ot stride_oh stride_lt" if not split else "stride_pt stride_ph"
    return Specification(
        grid=(rows, kv_heads * k.HEAD_TILES, *([parts] if split else [])),
        tensors=tensors,
        accesses=accesses,
        assume=(kv_heads * k.HEAD_TILES <= LARGEST_GRID, *common(k, names), *(contiguous_splits(k, heads) if split else ())),
        loops=(Loop(start, stop, k.TILE),),
        guards=(Guard(visible),),
        theorems=(written, *([_splits(k, first, length, start, stop)] if split else [])),
        notes=ATTENTION_NOTES,
        limits={"longest sequence": POSITIONS, "largest num_blocks": LARGEST_INT},
    )


def _splits(k: Any, first: Formula, length: Formula, start: Formula, stop: Formula) -> Theorem:
    def holds(row: Number, position: Number, part: Number) -> Condition:
        at = At((row, 0, part))
        run = ceil_div(ceil_div(length(at) - first(at), k.TILE), k.SPLITS) * k.TILE
        visible = both(within(0, row, k.size("num_rows")), within(first(at), position, length(at)), within(0, part, k.SPLITS))
        one = within(start(at), position, stop(at)) == ((position - first(at)) // run == part)
        return implies(visible, both(one, within(0, (position - first(at)) // run, k.SPLITS)))

    return Theorem("every visible position is in exactly one split", ("row", "position", "part"), holds)


def contiguous_splits(k: Any, heads: Number) -> tuple[Condition, ...]:
    """What ``decode`` allocates for splits is contiguous."""
    return k.stride_ph == k.SPLITS, k.stride_pt == heads * k.SPLITS


def split_tensors(k: Any, rows: Number, heads: Number) -> dict[str, Tensor]:
    """What splits leave behind: strides count splits, and vectors lie one behind the other."""
    numbers = Tensor((rows, heads, k.SPLITS), (k.stride_pt, k.stride_ph, 1))
    vectors = Tensor(
        (rows, heads, k.SPLITS, k.HEAD_DIM),
        (k.stride_pt * k.HEAD_DIM, k.stride_ph * k.HEAD_DIM, k.HEAD_DIM, 1),
    )
    return {"split_sums": vectors, "split_row_sums": numbers, "split_maxima": numbers}


def merge_splits(k: Any) -> Specification:
    """One sequence and q head a program."""
    rows, heads = k.size("num_rows"), k.size("num_q_heads", most=LARGEST_GRID)

    def index(at: At) -> tuple[Number, ...]:
        return at.program[0], at.program[1], at.lane[0]

    def used(at: At) -> Condition:
        return at.lane[0] < k.SPLITS

    accesses = [
        Load("split_maxima", index, used),
        Load("split_row_sums", index, used),
        Load("split_sums", lambda at: (*index(at), at.lane[1]), lambda at: both(used(at), at.lane[1] < k.HEAD_DIM)),
    ]
    for vector, number in (("output", "lse"), ("sums", "row_sums"))[: 1 + bool(k.CHECKED)]:
        accesses.append(Store(vector, index, lambda at: at.lane[0] < k.HEAD_DIM))
        accesses.append(Store(number, lambda at: (at.program[0], at.program[1])))
    written = Complete(
        "every element of the output is written",
        3,
        ("row", "head", "d"),
        lambda row, head, d: both(within(0, row, rows), within(0, head, heads), within(0, d, k.HEAD_DIM)),
        lambda row, head, d: (row, head, d),
        lambda row, head, d: At((row, head, 0), (d,)),
    )
    return Specification(
        grid=(rows, heads),
        tensors={**output_tensors(k, rows, heads, k.HEAD_DIM), **split_tensors(k, rows, heads)},
        accesses=accesses,
        assume=(*strides(k, "stride_ot stride_oh stride_lt stride_pt stride_ph"), *contiguous_splits(k, heads)),
        loops=(),
        guards=(),
        theorems=(written,),
        notes=("Strides are not negative; what splits leave behind is contiguous.",),
    )


def paged_prefill(k: Any) -> Specification:
    """One tile of a sequence's queries and the q heads of one kv head a program."""
    blocks, rows = k.size("num_blocks"), k.size("num_rows", most=LARGEST_GRID)
    kv_heads = k.size("num_kv_heads", most=LARGEST_GRID)
    tokens, num_tiles = k.size("num_tokens", most=POSITIONS), k.size("num_tiles", most=POSITIONS // k.QUERIES)
    heads = kv_heads * k.GROUP

    def begin(at: At) -> Number:
        return k.read("query_start_loc", at.program[1])

    def queries(at: At) -> Number:
        return k.read("query_start_loc", at.program[1] + 1) - begin(at)

    def length(at: At) -> Number:
        return k.read("seq_lens", at.program[1])

    def tile(at: At) -> Number:
        return at.program[0] * k.QUERIES

    def index(at: At) -> Number:
        return tile(at) + at.lane[0] // k.GROUP

    def some(at: At) -> Condition:
        return tile(at) < queries(at)

    def by_head(at: At) -> Condition:
        return both(some(at), index(at) < queries(at), at.lane[0] < k.QUERIES * k.GROUP)

    def whole(at: At) -> Condition:
        return both(by_head(at), at.lane[1] < k.HEAD_DIM)

    def token(at: At) -> Number:
        return begin(at) + index(at)

    def head(at: At) -> Number:
        return at.program[2] * k.GROUP + at.lane[0] % k.GROUP

    def position(at: At) -> Number:
        return length(at) - queries(at) + index(at)

    def start(at: At) -> Number:
        return first_seen(k, length(at) - queries(at) + tile(at))

    def stop(at: At) -> Number:
        return length(at) - queries(at) + minimum(tile(at) + k.QUERIES, queries(at))

    def first_of_row(row: Number) -> Number:
        at = At((0, row, 0))
        return either(queries(at) > 0, start(at), length(at))

    def visible(at: At) -> Condition:
        seen = at.loop + at.lane[1]
        return both(seen < stop(at), seen <= position(at), seen >= first_seen(k, position(at)))

    def covered(tile: Number, row: Number, lane: Number, seen: Number) -> Condition:
        at = At((tile, row, 0), (lane, 0))
        here = both(within(0, tile, num_tiles), within(0, row, rows), within(0, lane, k.ROWS))
        sees = within(first_seen(k, position(at)), seen, position(at) + 1)
        return implies(both(here, by_head(at), sees), within(start(at), seen, stop(at)))

    read = tile_accesses(k, lambda at: at.program[1], lambda at: at.program[2], stop)
    accesses = [
        Load("query_start_loc", lambda at: (at.program[1],)),
        Load("query_start_loc", lambda at: (at.program[1] + 1,)),
        Load("seq_lens", lambda at: (at.program[1],)),
        Load("query", lambda at: (token(at), head(at), at.lane[1]), whole),
        *(Access(one.kind, one.tensor, one.index, _also(some, one.where)) for one in read),
        *output_accesses(k, token, head, whole, by_head),
    ]
    written = Complete(
        "every query that the grid has a tile for is written",
        len(accesses) - 2 - 2 * bool(k.CHECKED),
        ("row", "query_number", "head", "d"),
        lambda row, number, head, d: both(
            within(0, row, rows), within(0, number, queries(At((0, row, 0)))), number < num_tiles * k.QUERIES,
            within(0, head, heads), within(0, d, k.HEAD_DIM),
        ),
        lambda row, number, head, d: (k.read("query_start_loc", row) + number, head, d),
        lambda row, number, head, d: At(
            (number // k.QUERIES, row, head // k.GROUP), (number % k.QUERIES * k.GROUP + head % k.GROUP, d)
        ),
    )  # fmt: skip
    tensors = paged_tensors(k, rows, kv_heads, blocks, first_of_row)
    tensors["query"] = Tensor((tokens, heads, k.HEAD_DIM), (k.stride_qt, k.stride_qh, 1))
    tensors["query_start_loc"] = Tensor(
        (rows + 1,),
        (1,),
        contents=lambda start, _: within(0, start, tokens + 1),
        pairs=lambda row, start, other, later: implies(row[0] <= other[0], start <= later),
    )
    tensors["seq_lens"] = Tensor(
        (rows,),
        (1,),
        contents=lambda length, row: both(
            within(0, length, lengths(k) + 1),
            k.read("query_start_loc", row + 1) - k.read("query_start_loc", row) <= length,
        ),
    )
    return Specification(
        grid=(num_tiles, rows, kv_heads),
        tensors={**tensors, **output_tensors(k, tokens, heads, k.HEAD_DIM)},
        accesses=accesses,
        assume=common(k, "stride_ot stride_oh stride_lt"),
        loops=(Loop(start, stop, k.TILE),),
        guards=(Guard(visible),),
        theorems=(written, Theorem("what a query sees is in its tile's loop", ("tile", "row", "lane", "seen"), covered)),
        notes=(*ATTENTION_NOTES, "query_start_loc ascends from 0 or more to num_tokens at most; no sequence has more "
               "queries than tokens."),
        limits={"longest sequence": POSITIONS, "largest num_blocks": LARGEST_INT},
    )  # fmt: skip


def _also(first: Where, second: Where) -> Where:
    return lambda at: both(first(at), second(at))


def common(k: Any, outputs: str) -> tuple[Condition, ...]:
    """Strides of the attention kernels, and the span of their masks."""
    names = f"{outputs} stride_qt stride_qh stride_table stride_block stride_slot stride_head"
    scales = "scale_stride_block scale_stride_slot scale_stride_head"
    return (*strides(k, f"{names} {scales}"), k.span >= 1)


ATTENTION_NOTES = (
    "A length is at most what its row of the block table has entries for, and at most 2**30.",
    "Entries of a block table from the first visible position to the length name blocks of the pool; others hold anything.",
    "Strides are not negative, and below 2**31 as arguments of type int32.",
)


def mla_decode(k: Any) -> Specification:
    """One sequence and ``HEADS`` q heads a program; a vector of latent and RoPE part a token."""
    blocks, rows = k.size("num_blocks"), k.size("num_rows")

    def row(at: At) -> Number:
        return at.program[0]

    def head(at: At) -> Number:
        return at.program[1] * k.HEADS + at.lane[0]

    def within_heads(at: At) -> Condition:
        return head(at) < k.NUM_HEADS

    def length(at: At) -> Number:
        return k.read("seq_lens", row(at))

    def needed(at: At) -> Condition:
        return at.loop + at.lane[0] < length(at)

    def entry(at: At) -> Number:
        return block_of(at.loop + at.lane[0], k.BLOCK_SIZE)

    def token(at: At) -> tuple[Number, ...]:
        return k.read("block_tables", row(at), entry(at)), offset_of(at.loop + at.lane[0], k.BLOCK_SIZE)

    def whole(at: At) -> Condition:
        return both(within_heads(at), at.lane[1] < k.LATENT)

    accesses = [
        Load("seq_lens", lambda at: (row(at),)),
        Load("query", lambda at: (row(at), head(at), at.lane[1]), whole),
        Load("query", lambda at: (row(at), head(at), k.LATENT + at.lane[1]), lambda at: both(within_heads(at), at.lane[1] < k.ROPE)),
        Load("block_tables", lambda at: (row(at), entry(at)), needed),
        Load("cache", lambda at: (*token(at), at.lane[1]), lambda at: both(needed(at), at.lane[1] < k.LATENT)),
        Load("cache", lambda at: (*token(at), k.LATENT + at.lane[1]), lambda at: both(needed(at), at.lane[1] < k.ROPE)),
        *output_accesses(k, row, head, whole, within_heads),
    ]  # fmt: skip
    written = Complete(
        "every element of the output is written",
        6,
        ("row", "head", "d"),
        lambda row, head, d: both(within(0, row, rows), within(0, head, k.NUM_HEADS), within(0, d, k.LATENT)),
        lambda row, head, d: (row, head, d),
        lambda row, head, d: At((row, head // k.HEADS, 0), (head % k.HEADS, d)),
    )
    return Specification(
        grid=(rows, ceil_div(k.NUM_HEADS, k.HEADS)),
        tensors={
            **output_tensors(k, rows, k.NUM_HEADS, k.LATENT),
            "query": Tensor((rows, k.NUM_HEADS, k.LATENT + k.ROPE), (k.stride_qt, k.stride_qh, 1)),
            "cache": Tensor((blocks, k.BLOCK_SIZE, k.LATENT + k.ROPE), (k.stride_block, k.stride_slot, 1)),
            "block_tables": table(k, rows, blocks, lambda _: 0),
            "seq_lens": Tensor((rows,), (1,), contents=lambda length, _: within(0, length, lengths(k) + 1)),
        },
        accesses=accesses,
        assume=strides(k, "stride_ot stride_oh stride_lt stride_qt stride_qh stride_table stride_block stride_slot"),
        loops=(Loop(lambda _: 0, length, k.TILE),),
        guards=(Guard(lambda at: at.loop + at.lane[1] < length(at)),),
        theorems=(written,),
        notes=ATTENTION_NOTES,
        limits={"longest sequence": POSITIONS, "largest num_blocks": LARGEST_INT},
    )
