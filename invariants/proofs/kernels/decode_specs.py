"""Specifications of ``decode.py`` and ``mla.py``: one query a sequence, at its last position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvsan.gpu_kernels.addressing import block_of, offset_of
from kvsan.invariants.proofs.kernels.attention_specs import (
    ATTENTION_NOTES,
    LARGEST_GRID,
    LARGEST_INT,
    MASKED,
    POSITIONS,
    common,
    complete_outputs,
    first_seen,
    lengths,
    output_accesses,
    output_tensors,
    paged_tensors,
    strides,
    table,
    tile_accesses,
)
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
from kvsan.invariants.proofs.term import Condition, Number, both, ceil_div, implies, minimum, within


class _Decode:
    """Formulas of the two kernels that decode; in one pass there is one part, the whole context."""

    def __init__(self, k: Any, split: bool) -> None:
        self.k = k
        self.split = split
        self.parts = k.SPLITS if split else 1
        self.rows = k.size("num_rows")
        self.kv_heads = k.size("num_kv_heads", most=LARGEST_GRID)
        self.heads = self.kv_heads * k.GROUP

    def row(self, at: At) -> Number:
        return at.program[0]

    def kv_head(self, at: At) -> Number:
        return at.program[1] // self.k.HEAD_TILES

    def in_group(self, at: At) -> Number:
        return at.program[1] % self.k.HEAD_TILES * self.k.HEADS + at.lane[0]

    def head(self, at: At) -> Number:
        return self.kv_head(at) * self.k.GROUP + self.in_group(at)

    def within_group(self, at: At) -> Condition:
        return self.in_group(at) < self.k.GROUP

    def whole(self, at: At) -> Condition:
        return both(self.within_group(at), at.lane[1] < self.k.HEAD_DIM)

    def length(self, at: At) -> Number:
        return self.k.read("seq_lens", at.program[0])

    def first(self, at: At) -> Number:
        return first_seen(self.k, self.length(at) - 1)

    def run(self, at: At) -> Number:
        """Positions of a split: whole tiles."""
        return ceil_div(ceil_div(self.length(at) - self.first(at), self.k.TILE), self.parts) * self.k.TILE

    def start(self, at: At) -> Number:
        return self.first(at) + at.program[2] * self.run(at) if self.split else self.first(at)

    def stop(self, at: At) -> Number:
        return minimum(self.start(at) + self.run(at), self.length(at)) if self.split else self.length(at)

    def visible(self, at: At) -> Condition:
        position = at.loop + at.lane[1]
        return both(position < self.stop(at), position <= self.length(at) - 1, position >= self.first(at))

    def in_one_split(self, row: Number, position: Number, part: Number) -> Condition:
        at = At((row, 0, part))
        visible = within(self.first(at), position, self.length(at))
        here = both(within(0, row, self.rows), visible, within(0, part, self.parts))
        number = (position - self.first(at)) // self.run(at)
        is_it = within(self.start(at), position, self.stop(at)) == (number == part)
        return implies(here, both(is_it, within(0, number, self.parts)))

    def place(self, row: Number, head: Number, *rest: Number) -> At:
        """Who writes an element of an output."""
        part, d = rest if self.split else (0, rest[0])
        group = head % self.k.GROUP
        program = row, head // self.k.GROUP * self.k.HEAD_TILES + group // self.k.HEADS, part
        return At(program, (group % self.k.HEADS, d))

    def stores(self) -> list[Access]:
        if not self.split:
            return output_accesses(self.k, self.row, self.head, self.whole, self.within_group)
        whole = Store("split_sums", lambda at: (at.program[0], self.head(at), at.program[2], at.lane[1]), self.whole)
        return [
            whole,
            *(
                Store(name, lambda at: (at.program[0], self.head(at), at.program[2]), self.within_group)
                for name in ("split_row_sums", "split_maxima")
            ),
        ]

    def complete(self, accesses: Sequence[Access]) -> list[Complete]:
        def given(row: Number, head: Number, *rest: Number) -> Condition:
            *part, d = rest
            element = both(within(0, row, self.rows), within(0, head, self.heads), within(0, d, self.k.HEAD_DIM))
            return both(element, *(within(0, one, self.parts) for one in part))

        unknowns = ("row", "head", *(("part",) if self.split else ()))
        return complete_outputs(accesses, unknowns, given, lambda *numbers: numbers, self.place)

    def specification(self) -> Specification:
        k = self.k
        tensors = paged_tensors(
            k, self.rows, self.kv_heads, k.size("num_blocks"), lambda row: self.first(At((row, 0, 0)))
        )
        tensors["query"] = Tensor((self.rows, self.heads, k.HEAD_DIM), (k.stride_qt, k.stride_qh, 1))
        reads = [
            Load("seq_lens", lambda at: (at.program[0],)),
            Load("query", lambda at: (at.program[0], self.head(at), at.lane[1]), self.whole),
            *tile_accesses(k, self.row, self.kv_head, self.stop),
        ]
        assume = [self.kv_heads * k.HEAD_TILES <= LARGEST_GRID]
        accesses = (*reads, *self.stores())
        theorems: list[Theorem | Complete] = [*self.complete(accesses)]
        if self.split:
            tensors |= split_tensors(k, self.rows, self.heads)
            assume += [*common(k, "stride_pt stride_ph"), *contiguous_splits(k, self.heads)]
            statement = "every visible position is in exactly one split"
            theorems.append(Theorem(statement, ("row", "position", "part"), self.in_one_split))
        else:
            tensors |= output_tensors(k, self.rows, self.heads, k.HEAD_DIM)
            assume += common(k, "stride_ot stride_oh stride_lt")
        return Specification(
            grid=(self.rows, self.kv_heads * k.HEAD_TILES, *([self.parts] if self.split else [])),
            tensors=tensors,
            accesses=accesses,
            assume=assume,
            loops=(Loop(self.start, self.stop, k.TILE),),
            guards=(Guard(self.visible, MASKED),),
            theorems=theorems,
            notes=ATTENTION_NOTES,
            limits={"longest sequence": POSITIONS, "largest num_blocks": LARGEST_INT},
        )


def paged_decode(k: Any) -> Specification:
    """One query a sequence."""
    return _Decode(k, split=False).specification()


def paged_decode_split(k: Any) -> Specification:
    """One query a sequence, one run of tiles a program."""
    return _Decode(k, split=True).specification()


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
    written = complete_outputs(
        accesses,
        ("row", "head"),
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
        theorems=written,
        notes=("Strides are not negative; what splits leave behind is contiguous.",),
    )


class _Latent:
    """Formulas of latent decode: a vector of latent and RoPE part a token, whatever the number of q heads."""

    def __init__(self, k: Any) -> None:
        self.k = k

    def row(self, at: At) -> Number:
        return at.program[0]

    def head(self, at: At) -> Number:
        return at.program[1] * self.k.HEADS + at.lane[0]

    def within_heads(self, at: At) -> Condition:
        return self.head(at) < self.k.NUM_HEADS

    def length(self, at: At) -> Number:
        return self.k.read("seq_lens", at.program[0])

    def needed(self, at: At) -> Condition:
        return at.loop + at.lane[0] < self.length(at)

    def entry(self, at: At) -> Number:
        return block_of(at.loop + at.lane[0], self.k.BLOCK_SIZE)

    def token(self, at: At) -> tuple[Number, ...]:
        block = self.k.read("block_tables", at.program[0], self.entry(at))
        return block, offset_of(at.loop + at.lane[0], self.k.BLOCK_SIZE)

    def queries(self, begin: int, width: int) -> Access:
        return Load(
            "query",
            lambda at: (at.program[0], self.head(at), begin + at.lane[1]),
            lambda at: both(self.within_heads(at), at.lane[1] < width),
        )

    def vectors(self, begin: int, width: int) -> Access:
        return Load(
            "cache",
            lambda at: (*self.token(at), begin + at.lane[1]),
            lambda at: both(self.needed(at), at.lane[1] < width),
        )

    def accesses(self) -> list[Access]:
        parts = ((0, self.k.LATENT), (self.k.LATENT, self.k.ROPE))
        return [
            Load("seq_lens", lambda at: (at.program[0],)),
            *(self.queries(*part) for part in parts),
            Load("block_tables", lambda at: (at.program[0], self.entry(at)), self.needed),
            *(self.vectors(*part) for part in parts),
            *output_accesses(
                self.k,
                self.row,
                self.head,
                lambda at: both(self.within_heads(at), at.lane[1] < self.k.LATENT),
                self.within_heads,
            ),
        ]


def mla_decode(k: Any) -> Specification:
    """One sequence and ``HEADS`` q heads a program."""
    latent, rows, blocks = _Latent(k), k.size("num_rows"), k.size("num_blocks")
    accesses = latent.accesses()
    written = complete_outputs(
        accesses,
        ("row", "head"),
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
        loops=(Loop(lambda _: 0, latent.length, k.TILE),),
        guards=(Guard(lambda at: at.loop + at.lane[1] < latent.length(at), MASKED),),
        theorems=written,
        notes=ATTENTION_NOTES,
        limits={"longest sequence": POSITIONS, "largest num_blocks": LARGEST_INT},
    )
