"""The specification of ``prefill.py``: a tile of a sequence's queries and the q heads of one kv head a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
    Tensor,
    Theorem,
)
from kvsan.invariants.proofs.term import Condition, Number, both, either, implies, minimum, within

_NOTE = "query_start_loc ascends from 0 or more to num_tokens at most; no sequence has more queries than tokens."


class _Prefill:
    """Formulas of the kernel: which token, head and position a row of a tile is, and what it sees."""

    def __init__(self, k: Any) -> None:
        self.k = k
        self.rows = k.size("num_rows", most=LARGEST_GRID)
        self.kv_heads = k.size("num_kv_heads", most=LARGEST_GRID)
        self.tokens = k.size("num_tokens", most=POSITIONS)
        self.tiles = k.size("num_tiles", most=POSITIONS // k.QUERIES)
        self.heads = self.kv_heads * k.GROUP

    def begin(self, at: At) -> Number:
        return self.k.read("query_start_loc", at.program[1])

    def queries(self, at: At) -> Number:
        return self.k.read("query_start_loc", at.program[1] + 1) - self.begin(at)

    def length(self, at: At) -> Number:
        return self.k.read("seq_lens", at.program[1])

    def tile(self, at: At) -> Number:
        return at.program[0] * self.k.QUERIES

    def index(self, at: At) -> Number:
        return self.tile(at) + at.lane[0] // self.k.GROUP

    def some(self, at: At) -> Condition:
        return self.tile(at) < self.queries(at)

    def by_head(self, at: At) -> Condition:
        return both(self.some(at), self.index(at) < self.queries(at), at.lane[0] < self.k.QUERIES * self.k.GROUP)

    def whole(self, at: At) -> Condition:
        return both(self.by_head(at), at.lane[1] < self.k.HEAD_DIM)

    def token(self, at: At) -> Number:
        return self.begin(at) + self.index(at)

    def head(self, at: At) -> Number:
        return at.program[2] * self.k.GROUP + at.lane[0] % self.k.GROUP

    def position(self, at: At) -> Number:
        return self.length(at) - self.queries(at) + self.index(at)

    def start(self, at: At) -> Number:
        return first_seen(self.k, self.length(at) - self.queries(at) + self.tile(at))

    def stop(self, at: At) -> Number:
        last = minimum(self.tile(at) + self.k.QUERIES, self.queries(at))
        return self.length(at) - self.queries(at) + last

    def visible(self, at: At) -> Condition:
        seen, position = at.loop + at.lane[1], self.position(at)
        return both(seen < self.stop(at), seen <= position, seen >= first_seen(self.k, position))

    def covered(self, tile: Number, row: Number, lane: Number, seen: Number) -> Condition:
        """What a query sees is in the loop of its tile."""
        at = At((tile, row, 0), (lane, 0))
        here = both(within(0, tile, self.tiles), within(0, row, self.rows), within(0, lane, self.k.ROWS))
        sees = within(first_seen(self.k, self.position(at)), seen, self.position(at) + 1)
        return implies(both(here, self.by_head(at), sees), within(self.start(at), seen, self.stop(at)))

    def first_of_row(self, row: Number) -> Number:
        """First position that any query of a row looks at; a row without queries looks at nothing."""
        at = At((0, row, 0))
        return either(self.queries(at) > 0, self.start(at), self.length(at))

    def accesses(self) -> list[Access]:
        tile = tile_accesses(self.k, lambda at: at.program[1], lambda at: at.program[2], self.stop)
        return [
            Load("query_start_loc", lambda at: (at.program[1],)),
            Load("query_start_loc", lambda at: (at.program[1] + 1,)),
            Load("seq_lens", lambda at: (at.program[1],)),
            Load("query", lambda at: (self.token(at), self.head(at), at.lane[1]), self.whole),
            *(self._if_some(one) for one in tile),
            *output_accesses(self.k, self.token, self.head, self.whole, self.by_head),
        ]

    def _if_some(self, access: Access) -> Access:
        return Access(access.kind, access.tensor, access.index, lambda at: both(self.some(at), access.where(at)))

    def complete(self, accesses: Sequence[Access]) -> list[Complete]:
        def given(row: Number, number: Number, head: Number, d: Number) -> Condition:
            there = both(within(0, row, self.rows), within(0, number, self.queries(At((0, row, 0)))))
            return both(
                there, number < self.tiles * self.k.QUERIES, within(0, head, self.heads), within(0, d, self.k.HEAD_DIM)
            )

        def place(row: Number, number: Number, head: Number, d: Number) -> At:
            lane = number % self.k.QUERIES * self.k.GROUP + head % self.k.GROUP
            return At((number // self.k.QUERIES, row, head // self.k.GROUP), (lane, d))

        return complete_outputs(
            accesses,
            ("row", "query_number", "head"),
            given,
            lambda row, number, head, d: (self.k.read("query_start_loc", row) + number, head, d),
            place,
        )

    def tensors(self) -> dict[str, Tensor]:
        k = self.k
        found = paged_tensors(k, self.rows, self.kv_heads, k.size("num_blocks"), self.first_of_row)
        found |= output_tensors(k, self.tokens, self.heads, k.HEAD_DIM)
        found["query"] = Tensor((self.tokens, self.heads, k.HEAD_DIM), (k.stride_qt, k.stride_qh, 1))
        found["query_start_loc"] = Tensor(
            (self.rows + 1,),
            (1,),
            contents=lambda start, _: within(0, start, self.tokens + 1),
            pairs=lambda row, start, other, later: implies(row[0] <= other[0], start <= later),
        )
        found["seq_lens"] = Tensor(
            (self.rows,),
            (1,),
            contents=lambda length, row: both(
                within(0, length, lengths(k) + 1), self.queries(At((0, row, 0))) <= length
            ),
        )
        return found


def paged_prefill(k: Any) -> Specification:
    """One tile of a sequence's queries and the q heads of one kv head a program."""
    prefill = _Prefill(k)
    accesses = prefill.accesses()
    seen = Theorem("what a query sees is in its tile's loop", ("tile", "row", "lane", "seen"), prefill.covered)
    return Specification(
        grid=(prefill.tiles, prefill.rows, prefill.kv_heads),
        tensors=prefill.tensors(),
        accesses=accesses,
        assume=common(k, "stride_ot stride_oh stride_lt"),
        loops=(Loop(prefill.start, prefill.stop, k.TILE),),
        guards=(Guard(prefill.visible, MASKED),),
        theorems=(*prefill.complete(accesses), seen),
        notes=(*ATTENTION_NOTES, _NOTE),
        limits={"longest sequence": POSITIONS, "largest num_blocks": LARGEST_INT},
    )
