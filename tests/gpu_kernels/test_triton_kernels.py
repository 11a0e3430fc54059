"""``TritonKernels`` against ``HostKernels``: the same calls, the same answers, the same refusals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from drawn_problems import examples, problems
from hypothesis import given

from kvsan.ci.kernels.draws import Source
from kvsan.ci.kernels.expected import Context, Rounding, attend
from kvsan.gpu_kernels.host import HostKernels
from kvsan.gpu_kernels.interface import Attention, OutsidePool, bits_dtype, decode_bits, encode
from kvsan.gpu_kernels.launching import Masking
from kvsan.gpu_kernels.triton_kernels import TritonKernels
from kvsan.harness.execution import BoundRow
from kvsan.harness.numbers import Numbers

HOST = HostKernels()
UNITS = 12


@dataclass(frozen=True)
class Call:
    """Sizes of one call; the rest follows from the seed."""

    dtype: str
    units: int
    block_size: int
    kv_heads: int
    group: int
    head_dim: int
    rows: tuple[tuple[int, int], ...]
    window: int | None
    seed: int


def draw_call(source: Source) -> Call:
    block_size = source.choice((1, 2, 5, 16))
    longest = UNITS * block_size // 2
    lengths = [source.integer(1, longest) for _ in range(source.integer(1, 3))]
    return Call(
        dtype=source.choice(("float32", "float16", "bfloat16")),
        units=UNITS + source.integer(0, 1),
        block_size=block_size,
        kv_heads=source.choice((1, 2, 3)),
        group=source.choice((1, 2, 3)),
        head_dim=source.choice((32, 64)),
        rows=tuple((source.integer(0, min(length, 20)), length) for length in lengths),
        window=source.choice((None, None, 1, 7, 20)),
        seed=source.integer(0, 999_999),
    )


class Both:
    """The same cache in the memory of both, K of +1 and -1 and V of small integers in all slots."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.rng = np.random.default_rng(call.seed)
        self.triton = TritonKernels()
        sizes = (call.units, call.block_size, call.kv_heads, call.head_dim, call.dtype)
        self.caches = HOST.allocate(*sizes), self.triton.allocate(*sizes)
        slots = np.arange(call.units * call.block_size)
        self.shape = (len(slots), call.kv_heads, call.head_dim)
        self.keys = self.rng.choice((-1, 1), self.shape)
        self.values = self.rng.integers(-8, 8, self.shape)
        for kernels, cache in self.pairs():
            kernels.write(cache, slots, encode(self.keys, call.dtype), encode(self.values, call.dtype))

    def pairs(self) -> list[tuple[Any, Any]]:
        return list(zip((HOST, self.triton), self.caches, strict=True))

    def contents(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """K and V of all slots of both."""
        found = []
        for kernels, cache in self.pairs():
            buffers = [np.empty(self.shape, bits_dtype(self.call.dtype)) for _ in range(2)]
            kernels.gather(cache, np.arange(self.call.units), 0, self.shape[0], *buffers)
            found.append(tuple(buffers))
        return found

    def same(self) -> bool:
        host, triton = self.contents()
        return all(np.array_equal(a, b) for a, b in zip(host, triton, strict=True))

    def tables(self) -> np.ndarray:
        """Block tables whose entries behind a sequence, and before what its queries see, are garbage."""
        size = self.call.block_size
        tables = np.array([self.rng.permutation(UNITS) for _ in self.call.rows])
        for table, (count, length) in zip(tables, self.call.rows, strict=True):
            table[-(-length // size) :] = self.rng.choice((-1, 1 << 40))
            first = length - max(count, 1) + 1 - (self.call.window or 1 << 40)
            table[: max(0, first) // size] = -5
        return tables

    def queries(self, tokens: int) -> np.ndarray:
        """Multiples of 1/64 below 1/2, which every type holds."""
        shape = (tokens, self.call.kv_heads * self.call.group, self.call.head_dim)
        return (self.rng.integers(-31, 32, shape) / 64).astype(np.float32)

    def bounds(self, queries: np.ndarray, tables: np.ndarray, counts: list[int]) -> np.ndarray:
        """How far each output of ours may be from the host's."""
        bounds = np.zeros(queries.shape)
        start = 0
        for table, count, (_, length) in zip(tables, counts, self.call.rows, strict=True):
            positions = np.arange(length)
            units = np.clip(table[positions // self.call.block_size], 0, UNITS - 1)
            slots = units * self.call.block_size + positions % self.call.block_size
            numbers = (self.keys[slots].astype(float), self.values[slots].astype(float))
            context = Context(*numbers, np.ones((length, self.call.kv_heads, 1)))
            part = queries[start : start + count].astype(float)
            for dtype in (self.call.dtype, "float32"):
                rounding = Rounding(dtype, "float32", splits=8)
                found = attend(part, length - count, context, 1.0, Masking(self.call.window), rounding)
                bounds[start : start + count] += found.output_bound
            start += count
        return bounds


def assert_near(found: list[Attention], bounds: np.ndarray) -> None:
    host, triton = found
    assert (np.abs(host.output - triton.output) <= bounds).all()
    assert np.allclose(triton.sums / triton.row_sums[..., None], triton.output, atol=1e-5)


@given(problems(draw_call))
@examples(20)
def test_decode_agrees(call: Call) -> None:
    both = Both(call)
    queries, lengths = both.queries(len(call.rows)), np.array([length for _, length in call.rows])
    tables = both.tables()

    found = [kernels.decode(cache, queries, tables, lengths, call.window) for kernels, cache in both.pairs()]

    assert_near(found, both.bounds(queries, tables, [1] * len(call.rows)))


@given(problems(draw_call))
@examples(20)
def test_prefill_agrees(call: Call) -> None:
    both = Both(call)
    counts = [count for count, _ in call.rows]
    queries, starts = both.queries(sum(counts)), np.cumsum([0, *counts])
    lengths, tables = np.array([length for _, length in call.rows]), both.tables()

    found = [kernels.prefill(cache, queries, starts, tables, lengths, call.window) for kernels, cache in both.pairs()]

    assert_near(found, both.bounds(queries, tables, counts))


@given(problems(draw_call))
@examples(15)
def test_zero_queries_sum_the_same_integers(call: Call) -> None:
    both = Both(call)
    queries, lengths = np.zeros_like(both.queries(len(call.rows))), np.array([length for _, length in call.rows])
    tables = both.tables()

    host, triton = (kernels.decode(cache, queries, tables, lengths, call.window) for kernels, cache in both.pairs())

    assert np.array_equal(host.sums, triton.sums)
    assert np.array_equal(host.row_sums, triton.row_sums)


@given(problems(draw_call))
@examples(15)
def test_writing_copying_and_zeroing_agree(call: Call) -> None:
    both = Both(call)
    slots = both.rng.permutation(both.shape[0])[: 2 * call.block_size]
    slots[both.rng.random(len(slots)) < 0.3] = -1
    bits = both.rng.integers(0, 1 << 15, (2, len(slots), *both.shape[1:])).astype(bits_dtype(call.dtype))
    source, target, cleared = both.rng.permutation(UNITS)[:3].tolist()
    start, stop = np.sort(both.rng.integers(0, call.block_size + 1, 2)).tolist()

    for kernels, cache in both.pairs():
        kernels.write(cache, slots, *bits)
        kernels.copy(cache, source, target, start, stop)
        kernels.copy(cache, source, source, start, stop)
        kernels.zero(cache, cleared, start, stop)

    assert both.same()


@given(problems(draw_call))
@examples(15)
def test_reading_agrees(call: Call) -> None:
    both = Both(call)
    (_, length), table = call.rows[0], both.rng.permutation(UNITS)
    start = int(both.rng.integers(0, length + 1))
    found = []

    for kernels, cache in both.pairs():
        buffers = np.zeros((2, length, *both.shape[1:]), bits_dtype(call.dtype))
        kernels.gather(cache, table, start, length, *buffers)
        found.append(buffers)

    assert np.array_equal(*found)


CALL = Call("float16", UNITS, 4, 2, 2, 32, ((3, 20), (1, 9)), None, 1)
BITS = np.zeros((2, 2, 2, 32), np.uint16)
ROWS = (np.array([20, 9]), None)


def bad_table(both: Both, entry: int) -> np.ndarray:
    tables = np.array([both.rng.permutation(UNITS) for _ in CALL.rows])
    tables[1, 2] = entry
    return tables


REFUSED = {
    "slot -2": lambda both, kernels, cache: kernels.write(cache, np.array([3, -2]), *BITS),
    "slot 48": lambda both, kernels, cache: kernels.write(cache, np.array([3, 48]), *BITS),
    "decode, unit -1": lambda both, kernels, cache: kernels.decode(cache, both.queries(2), bad_table(both, -1), *ROWS),
    "decode, unit 12": lambda both, kernels, cache: kernels.decode(cache, both.queries(2), bad_table(both, 12), *ROWS),
    "decode, short table": lambda both, kernels, cache: kernels.decode(
        cache, both.queries(2), bad_table(both, 0)[:, :4], *ROWS
    ),
    "prefill, unit 1 << 40": lambda both, kernels, cache: kernels.prefill(
        cache, both.queries(4), np.array([0, 3, 4]), bad_table(both, 1 << 40), *ROWS
    ),
    "gather, unit -1": lambda both, kernels, cache: kernels.gather(cache, np.array([0, -1]), 1, 6, *BITS.repeat(4, 1)),
    "gather, short table": lambda both, kernels, cache: kernels.gather(cache, np.array([0]), 1, 6, *BITS.repeat(4, 1)),
    "copy from unit 12": lambda both, kernels, cache: kernels.copy(cache, 12, 0, 0, 1),
    "copy to unit -1": lambda both, kernels, cache: kernels.copy(cache, 0, -1, 0, 1),
    "copy of 5 slots": lambda both, kernels, cache: kernels.copy(cache, 0, 1, 0, 5),
    "zero from slot -1": lambda both, kernels, cache: kernels.zero(cache, 0, -1, 1),
    "zero of unit 12": lambda both, kernels, cache: kernels.zero(cache, 12, 0, 1),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_outside_the_pool_is_refused_and_nothing_is_written(call: Any) -> None:
    both = Both(CALL)
    before = both.contents()

    for kernels, cache in both.pairs():
        with pytest.raises(OutsidePool):
            call(both, kernels, cache)

    assert all(np.array_equal(now, then) for now, then in zip(both.contents(), before, strict=True))


@pytest.mark.parametrize("dtype", ["fp8_e4m3", "fp8_e5m2", "int8_per_token_head", "fp8_per_token_head", "nvfp4"])
def test_a_quantised_cache_takes_and_gives_float32(dtype: str) -> None:
    kernels = TritonKernels()
    cache = kernels.allocate(3, 4, 2, 32, dtype)
    numbers = np.random.default_rng(1).choice((-6.0, 0.0, 3.0, 6.0), (2, 5, 2, 32)).astype(np.float32)
    found = np.zeros_like(numbers).view(np.uint32)

    kernels.write(cache, np.array([8, 9, 10, 11, 0]), *numbers.view(np.uint32))
    kernels.gather(cache, np.array([2, 0]), 0, 5, *found)

    assert np.array_equal(decode_bits(found, "float32"), numbers)


def test_both_layouts_and_splits_are_met_by_small_pools() -> None:
    kernels = TritonKernels()
    caches = [kernels.allocate(units, 4, 2, 32, "float32") for units in (4, 5)]

    assert [cache.keys.stride()[1:3] for cache in caches] == [(64, 32), (32, 128)]
    assert kernels.splits(7) == 1
    assert kernels.splits(17) == 2


def test_rows_that_share_a_block_while_it_is_filled_do_not_race() -> None:
    """Legal for engines that share unfinished blocks; two stores to one slot would be a race of KVSan's making."""
    numbers = Numbers(4, 4, kernels=TritonKernels())
    identity = np.array([11, 12, 13], np.int64)
    rows = [BoundRow(name, 0, np.array([2]), 0, 3, None, 0, identity, {}) for name in ("r1", "r2")]

    numbers.launch(rows, 0)

    assert numbers.tokens_read == 6
