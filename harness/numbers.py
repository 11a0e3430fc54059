"""The third oracle: what attention computes from the paged cache, against what it should have computed.

A launch writes K and V of its tokens through the slot mapping, then reads every row back in five ways. In the order in
which they are reported, the most telling first:

- ``key-bytes``, ``value-bytes``: all that the row sees, gathered through its block table, bit for bit.
- ``needle``: all weight on one visible token, another one at each step; the output is exactly its V.
- ``zero``: equal weights; sums and row sums are exact integers.
- ``random``: a softmax, within a bound derived in ``comparison``.

Kernels that give their output alone, without sums, are held to a derived bound by the zero query too. What a sanitizer
of kernels sees while one runs is a violation of ``kernel``, and an exception of a user's kernel one of ``target.crash``.

Any difference of what is stored is seen by the bytes. The queries are there for what happens after: a kernel that reads
another slot than the gather does, attends to too much or too little, or accumulates wrongly. What they do not see: a
kernel that fails only for queries or values other than these; and anything inside ``bound`` for the random query.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from kvsan.gpu_kernels.addressing import (
    block_of,
    blocks_for,
    first_visible,
    first_visible_block,
    last_of_each,
    offset_of,
    slot_of,
    slots_of,
)
from kvsan.gpu_kernels.host import HostKernels
from kvsan.gpu_kernels.interface import (
    Attention,
    Bits,
    CountsCalls,
    Float32Array,
    Kernels,
    OutsidePool,
    bits_dtype,
    decode_bits,
)
from kvsan.gpu_kernels.reference import Float64Array, shared_query_attention
from kvsan.harness.comparison import (
    QUERIES,
    build_queries,
    choose_needles,
    compare_outputs,
    first_difference,
    random_queries,
    score_range,
)
from kvsan.harness.execution import BoundRow
from kvsan.harness.kernel_faults import runs_kernels
from kvsan.harness.payload import Payload, PayloadShape, identity_of_keys, identity_of_values, payload_of
from kvsan.harness.target import IntArray
from kvsan.harness.verdict import NUMBERS, Violation

CAUSES = ("key-bytes", "value-bytes", "needle", "zero", "random")
"""Causes of a violation, the first reported first."""

_NO_WINDOW = 1 << 62
_SWEEP_ROWS = 64


class Mismatch(NamedTuple):
    """One way of reading a row that found it wrong: which, whose, from which position on, and what it saw."""

    cause: str
    row: str
    position: int
    message: str


class _Read(NamedTuple):
    """Queries to ask of one row: random query number ``random`` at each of ``positions``, and the needles."""

    row: BoundRow
    payload: Payload
    random: int
    positions: IntArray
    needles: IntArray


class Numbers:
    """The paged cache that a manager's decisions are carried out on, and the checks of all that is read from it.

    ``outputs_compared`` counts attention outputs (token x query x q head); ``tokens_read`` counts tokens whose bytes
    were compared.
    """

    def __init__(
        self,
        num_units: int,
        block_size: int,
        dtype: str = "float32",
        kernels: Kernels[Any] | None = None,
        kv_heads: int = 2,
        q_heads: int = 4,
        head_dim: int = 32,
    ) -> None:
        if q_heads % kv_heads:
            raise ValueError(f"q_heads {q_heads}: expected a multiple of kv_heads {kv_heads}")
        self.kernels: Kernels[Any] = kernels or HostKernels()
        self.cache = self.kernels.allocate(num_units, block_size, kv_heads, head_dim, dtype)
        self.block_size = block_size
        self.shape = PayloadShape(kv_heads, head_dim, dtype)
        self.outputs_compared = 0
        self.tokens_read = 0
        self._q_heads = q_heads
        grid = self.shape.grid
        self._largest = grid.largest_value(head_dim).astype(np.float64)
        self._random = random_queries(q_heads, head_dim, grid.markers(head_dim))
        self._random64 = self._random.astype(np.float64)
        self._ranges = [score_range(query, grid.largest_key(head_dim)) for query in self._random]
        self._gathered = self._gather_buffers(0)

    @property
    def calls(self) -> Counter[str]:
        """How often each kernel served what; empty if all kernels are of one maker."""
        return self.kernels.calls if isinstance(self.kernels, CountsCalls) else Counter()

    @runs_kernels
    def copy(self, source: int, destination: int, start: int, stop: int) -> None:
        """Copy offsets ``[start, stop)`` of a unit; IndexError outside the pool."""
        self.kernels.copy(self.cache, source, destination, start, stop)

    @runs_kernels
    def zero(self, unit: int, start: int, stop: int) -> None:
        """Zero offsets ``[start, stop)`` of a unit; IndexError outside the pool."""
        self.kernels.zero(self.cache, unit, start, stop)

    @runs_kernels
    def store_pages(self, units: Sequence[int]) -> bytes:
        """K and V of whole units, in order, as bytes; IndexError outside the pool."""
        count = len(units) * self.block_size
        keys, values = self._gather_buffers(count)
        self.kernels.gather(self.cache, np.asarray(units, np.int64), 0, count, keys, values)
        return keys.tobytes() + values.tobytes()

    @runs_kernels
    def restore_pages(self, units: Sequence[int], data: bytes, tokens: int) -> None:
        """Write the first ``tokens`` tokens of what ``store_pages`` gave; IndexError outside the pool."""
        shape = (2, len(units) * self.block_size, self.shape.num_kv_heads, self.shape.head_dim)
        keys, values = np.frombuffer(data, bits_dtype(self.shape.grid.element_dtype)).reshape(shape)[:, :tokens].copy()
        self.kernels.write(self.cache, slots_of(np.asarray(units, np.int64), 0, tokens, self.block_size), keys, values)

    @runs_kernels
    def write_external(self, slots: IntArray, identity: IntArray) -> None:
        """Write tokens that no launch computed: ``slots`` and ``identity`` int64 ``[num_tokens]``.

        OutsidePool, an IndexError, if a slot is not in the pool.
        """
        payload = Payload(self.shape)
        count = len(identity)
        payload.follow(identity, count)
        self.kernels.write(self.cache, slots, payload.key_bits[:count], payload.value_bits[:count])

    def launch(self, rows: Sequence[BoundRow], step: int) -> None:
        """Carry out one launch: all its writes, then all its reads; Violation if a read is wrong."""
        self.write(rows)
        _raise_first(self.mismatches(rows, step))

    @runs_kernels
    def write(self, rows: Sequence[BoundRow]) -> None:
        """Write positions ``[start, stop)`` of every row through the slot mapping."""
        rows = [row for row in rows if row.start < row.stop]
        if not rows:
            return
        slots, keys, values = [], [], []
        for row in rows:
            payload = payload_of(row, self.shape)
            if blocks_for(row.stop, self.block_size) > len(row.table):
                raise Violation(NUMBERS, CAUSES[0], f"the block table of {row.name} ends before {row.stop} tokens")
            slots.append(slots_of(row.table, row.start, row.stop, self.block_size))
            keys.append(payload.key_bits[row.start : row.stop])
            values.append(payload.value_bits[row.start : row.stop])
        data = [np.concatenate(one) for one in (slots, keys, values)]
        if len(rows) > 1:  # rows may share a block while it is filled, and then write the same into one slot
            kept = last_of_each(data[0])
            data = data if len(kept) == len(data[0]) else [np.ascontiguousarray(one[kept]) for one in data]
        try:
            self.kernels.write(self.cache, *data)
        except OutsidePool as error:
            names = ", ".join(row.name for row in rows)
            raise Violation(NUMBERS, CAUSES[0], f"one of {names} cannot be written: {error}") from error

    @runs_kernels
    def mismatches(self, rows: Sequence[BoundRow], step: int) -> list[Mismatch]:
        """Read every row in all five ways, without writing, and return all that is wrong, in reporting order."""
        rows = [row for row in rows if row.start < row.stop]
        found: list[Mismatch] = []
        for row in rows:
            try:
                found += self._read_bytes(row, rows)
            except OutsidePool as error:
                return [Mismatch(CAUSES[0], row.name, row.low, f"{row.name} cannot be read: {error}")]
        reads = [self._plan(row, step, index) for index, row in enumerate(rows)]
        for batch, attention in self._attend(reads):
            first = 0
            for read in batch:
                end = first + len(read.needles)
                part = attention.part(first, end)
                reference = shared_query_attention(
                    self._random64[read.random],
                    read.payload.key_codes,
                    read.payload.value_codes,
                    read.row.start,
                    read.row.stop,
                    read.row.window,
                )
                found += self._compare(read, part, reference, rows)
                first = end
        return sorted(found, key=lambda mismatch: CAUSES.index(mismatch.cause))

    def sweep(self, rows: Sequence[BoundRow], step: int) -> None:
        """Ask one needle for each unit that the last token of a row sees; Violation if an output is wrong."""
        _raise_first([mismatch for row in rows for mismatch in self.sweep_mismatches(row, step, rows)])

    @runs_kernels
    def sweep_mismatches(self, row: BoundRow, step: int, rows: Sequence[BoundRow] = ()) -> list[Mismatch]:
        """Return what a sweep over one row finds; ``rows`` are those whose tokens a message may name."""
        payload = payload_of(row, self.shape)
        last, size = row.stop - 1, self.block_size
        low = first_visible(last, row.window)
        first_block = first_visible_block(last, row.window, size)
        starts = np.arange(first_block, block_of(last, size) + 1, dtype=np.int64) * size
        ends = np.minimum(starts + size, row.stop)
        starts = np.maximum(starts, low)
        needles = starts + step % (ends - starts)
        random = step % len(self._random)
        query = self._random64[random]
        reference = shared_query_attention(query, payload.key_codes, payload.value_codes, last, row.stop, row.window)
        found: list[Mismatch] = []
        for first in range(0, len(needles), _SWEEP_ROWS):
            some = needles[first : first + _SWEEP_ROWS]
            read = _Read(row, payload, random, np.full(len(some), last, np.int64), some)
            attention = self.kernels.decode(
                self.cache,
                self._queries([read]),
                np.repeat(row.table[None], len(some), axis=0),
                read.positions + 1,
                row.window,
            )
            found += self._compare(read, attention, np.repeat(reference, len(some), axis=0), rows)
        return sorted(found, key=lambda mismatch: CAUSES.index(mismatch.cause))

    def _plan(self, row: BoundRow, step: int, index: int) -> _Read:
        positions = np.arange(row.start, row.stop, dtype=np.int64)
        needles = np.empty_like(positions)
        choose_needles(positions, _NO_WINDOW if row.window is None else row.window, step, needles)
        return _Read(row, payload_of(row, self.shape), (step + index) % len(self._random), positions, needles)

    def _queries(self, reads: Sequence[_Read]) -> Float32Array:
        """Return the queries of reads, one after the other: ``[num_tokens, 3 * num_q_heads, head_dim]``."""
        total = sum(len(read.needles) for read in reads)
        queries = np.empty((total, QUERIES * self._q_heads, self.shape.head_dim), np.float32)
        first = 0
        for read in reads:
            end = first + len(read.needles)
            build_queries(
                self._random[read.random],
                read.payload.key_codes,
                read.needles,
                self.shape.grid.group,
                queries[first:end],
            )
            first = end
        return queries

    def _attend(self, reads: Sequence[_Read]) -> Iterator[tuple[list[_Read], Attention]]:
        """Call decode for rows with one token and prefill for the others, once for each window."""
        batches: dict[tuple[int | None, bool], list[_Read]] = {}
        for read in reads:
            batches.setdefault((read.row.window, len(read.needles) == 1), []).append(read)
        for (window, single), batch in batches.items():
            tables = np.zeros((len(batch), max(len(read.row.table) for read in batch)), np.int64)
            for index, read in enumerate(batch):
                tables[index, : len(read.row.table)] = read.row.table
            lengths = np.array([read.row.stop for read in batch], np.int64)
            queries = self._queries(batch)
            if single:
                yield batch, self.kernels.decode(self.cache, queries, tables, lengths, window)
            else:
                query_starts = np.cumsum([0] + [len(read.needles) for read in batch])
                yield batch, self.kernels.prefill(self.cache, queries, query_starts, tables, lengths, window)

    def _compare(
        self, read: _Read, attention: Attention, reference: Float64Array, rows: Sequence[BoundRow]
    ) -> list[Mismatch]:
        """Compare the outputs of one read by the three queries; at most one mismatch a query, the first token's."""
        row, payload = read.row, read.payload
        output, sums, row_sums, output_roundoff = attention
        alone = sums is None or row_sums is None
        self.outputs_compared += output.shape[0] * output.shape[1]
        bad = np.empty(QUERIES, np.int64)
        compare_outputs(
            output,
            output if sums is None else sums,
            np.empty(output.shape[:2], np.float32) if row_sums is None else row_sums,
            reference,
            payload.key_codes,
            payload.value_codes,
            payload.value_sums,
            read.positions,
            read.needles,
            _NO_WINDOW if row.window is None else row.window,
            self._ranges[read.random],
            self.kernels.weight_roundoff(self.shape.dtype),
            output_roundoff,
            alone,
            self._largest,
            self.shape.grid.group,
            bad,
        )
        if (bad < 0).all():
            return []
        found = []
        for cause, index in zip(("random", "zero", "needle"), bad.tolist(), strict=True):
            if index >= 0:
                token, head = divmod(index, QUERIES * self._q_heads)
                story = self._story(cause, read, token, head, attention, rows)
                found.append(Mismatch(cause, row.name, int(read.positions[token]), story))
        return found

    def _story(
        self, cause: str, read: _Read, token: int, head: int, attention: Attention, rows: Sequence[BoundRow]
    ) -> str:
        """Tell what is wrong with one output."""
        name, row_sums = read.row.name, attention.row_sums
        row_sum = None if row_sums is None else row_sums[token, head]
        story = f"{cause} query of {name}@{read.positions[token]}, group {read.row.group}, head {head}"
        if cause == "needle":
            wanted = f"{name}@{read.needles[token]}"
            kv_head = head // (QUERIES * self._q_heads // self.shape.num_kv_heads)
            owner = identity_of_values(attention.output[token, head], kv_head * self.shape.head_dim, self.shape)
            seen = self._name(owner, rows)
            weight = f" with a row sum of {row_sum:g}, expected 1" if seen == wanted and row_sum is not None else ""
            return f"{story}: expected V of {wanted}, found {seen}{weight}"
        if cause == "random":
            return f"{story}: further from the reference than rounding explains"
        if row_sum is None:
            return f"{story}: further from the mean of V than rounding explains"
        return f"{story}: row sum {row_sum:g}, or the sum of V, is not that of the row"

    def _read_bytes(self, row: BoundRow, rows: Sequence[BoundRow]) -> list[Mismatch]:
        """Compare K and V of all that a row sees bit for bit."""
        payload = payload_of(row, self.shape)
        count = row.stop - row.low
        if count > len(self._gathered[0]):
            self._gathered = self._gather_buffers(max(count, 2 * len(self._gathered[0])))
        keys, values = self._gathered
        self.kernels.gather(self.cache, row.table, row.low, row.stop, keys, values)
        self.tokens_read += count
        found = []
        for cause, bits, expected in (
            ("key-bytes", keys, payload.key_bits),
            ("value-bytes", values, payload.value_bits),
        ):
            token = first_difference(bits, expected[row.low : row.stop], count)
            if token >= 0:
                position = row.low + token
                slot = slot_of(int(row.table[block_of(position, self.block_size)]), 0, self.block_size)
                slot += offset_of(position, self.block_size)
                elements = decode_bits(bits[token], self.shape.grid.element_dtype).ravel()
                owner = (
                    identity_of_keys(elements, self.shape)
                    if cause == "key-bytes"
                    else identity_of_values(elements, 0, self.shape)
                )
                holds = "zeros" if not bits[token].any() else self._name(owner, rows)
                wanted = f"{row.name}@{position}, group {row.group}"
                story = f"slot {slot} holds {cause[0].upper()} of {holds}; expected {wanted}"
                found.append(Mismatch(cause, row.name, position, story))
        return found

    def _name(self, identity: int | None, rows: Sequence[BoundRow]) -> str:
        """Name the token that has an identity, as far as the rows of this launch know it."""
        if identity is None:
            return "no token"
        for row in rows:
            position = payload_of(row, self.shape).position_of(identity)
            if position is not None:
                return f"{row.name}@{position}"
        return f"a token of no row of this launch (identity {identity})"

    def _gather_buffers(self, capacity: int) -> tuple[Bits, Bits]:
        shape = (capacity, self.shape.num_kv_heads, self.shape.head_dim)
        bits = bits_dtype(self.shape.grid.element_dtype)
        return np.empty(shape, bits), np.empty(shape, bits)


def _raise_first(mismatches: Sequence[Mismatch]) -> None:
    if mismatches:
        raise Violation(NUMBERS, mismatches[0].cause, mismatches[0].message)
