"""Specifications of the kernels that attend: ``decode.py``, ``prefill.py``, ``mla.py``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvsan.gpu_kernels import formats, tiles
from kvsan.gpu_kernels.addressing import block_of, first_visible, first_visible_in_chunk, offset_of
from kvsan.invariants.proofs.kernels.execution import STORE
from kvsan.invariants.proofs.kernels.specification import (
    Access,
    At,
    Complete,
    Load,
    Store,
    Tensor,
)
from kvsan.invariants.proofs.term import (
    Condition,
    Number,
    both,
    ceil_div,
    implies,
    minimum,
    within,
)

LARGEST_INT = 2**31 - 1
LARGEST_GRID = 65_535
"""Of the second and third dimension, on NVIDIA GPUs."""

MASKED = float("-inf")
"""Score of a position that is not visible."""

POSITIONS = 2**30
"""The longest sequence that is assumed: int32 has room for the end of the last tile, of the last split."""

VECTORS = ("output", "sums", "split_sums")
"""Outputs that have a vector for each token and head; the others have a number."""

Formula = Callable[[At], Number]
Where = Callable[[At], Condition]


def strides(k: Any, names: str) -> tuple[Condition, ...]:
    """That strides, named with spaces between, are not negative; as arguments of type int32 they are below 2**31."""
    return tuple(getattr(k, name) >= 0 for name in names.split())


def first_seen(k: Any, position: Number) -> Number:
    """First position that a query sees, by the functions that managers and the host side of kernels use."""
    if tiles.SLIDING.value == k.MASK:
        return first_visible(position, k.span)  # type: ignore[arg-type]
    if tiles.CHUNKED.value == k.MASK:
        return first_visible_in_chunk(position, k.span)  # type: ignore[arg-type]
    return 0


def paged_tensors(
    k: Any, rows: Number, kv_heads: Number, blocks: Number, first: Callable[[Number], Any]
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


def table(k: Any, rows: Number, blocks: Number, first: Callable[[Number], Any]) -> Tensor:
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


def complete_outputs(
    accesses: Sequence[Access],
    unknowns: tuple[str, ...],
    given: Callable[..., Condition],
    index: Callable[..., tuple[Number, ...]],
    place: Callable[..., At],
) -> list[Complete]:
    """That every element of every output is written: of vectors, whose last unknown is ``d``, and of a number a vector.

    The functions take the ``unknowns``, and ``d`` last. A number is where its vector's first element is, in one dimension of
    lanes less.
    """

    def of_number(*numbers: Number) -> At:
        at = place(*numbers, 0)
        return At(at.program, at.lane[:-1], at.loops)

    found = []
    for number, store in enumerate(accesses):
        if store.kind != STORE:
            continue
        if store.tensor in VECTORS:
            told = f"every element of {store.tensor} is written"
            found.append(Complete(told, number, (*unknowns, "d"), given, index, place))
            continue
        found.append(
            Complete(
                f"every number of {store.tensor} is written",
                number,
                unknowns,
                lambda *numbers: given(*numbers, 0),
                lambda *numbers: index(*numbers, 0)[:-1],
                of_number,
            )
        )
    return found


def output_accesses(k: Any, token: Formula, head: Formula, whole: Where, by_head: Where) -> list[Access]:
    """Stores of attention: vectors in two dimensions of lanes, numbers in one."""
    stores = []
    for vector, number in (("output", "lse"), ("sums", "row_sums"))[: 1 + bool(k.CHECKED)]:
        stores.append(Store(vector, lambda at: (token(at), head(at), at.lane[1]), whole))
        stores.append(Store(number, lambda at: (token(at), head(at)), by_head))
    return stores


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
