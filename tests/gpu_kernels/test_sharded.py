"""``ShardedKernels`` against the inner kernels over one cache that nobody shards, and wrong layouts against the bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sharded_problems import HEAD_DIM, Row, random_bits, row_in, same, small_integers
from wrong_layouts import wrong

from kvsan.gpu_kernels.host import HostKernels
from kvsan.gpu_kernels.interface import Attention, Kernels, OutsidePool, bits_dtype
from kvsan.gpu_kernels.sharded import RanksDisagree, ShardedKernels
from kvsan.gpu_kernels.sharding import Layout
from kvsan.gpu_kernels.triton_kernels import TritonKernels
from kvsan.harness.execution import BoundRow
from kvsan.harness.numbers import Numbers

HOST = HostKernels()
SHARDED = Layout(tp=4, dcp=2, pcp=2, interleave=2, block_size=4, num_kv_heads=2)


@st.composite
def layouts(draw: st.DrawFn, num_kv_heads: int = 4) -> Layout:
    interleave = draw(st.sampled_from((1, 2, 4)))
    return Layout(
        draw(st.sampled_from((1, 2, 4, 8))),
        draw(st.sampled_from((1, 2, 4))),
        draw(st.sampled_from((1, 2))),
        interleave,
        interleave * draw(st.integers(1, 3)),
        num_kv_heads,
    )


def filled(layout: Layout, tokens: int, inner: Kernels[Any] = HOST, dtype: str = "float32", seed: int = 0) -> Row:
    row = row_in(layout, tokens, inner, dtype, seed=seed)
    row.write(*(small_integers(seed + side, tokens, layout.num_kv_heads, dtype) for side in (1, 2)))
    return row


class Pair:
    """The same calls to a sharded cache and to one that is not; both caches have the same units."""

    def __init__(self, layout: Layout, units: int, inner: Kernels[Any] = HOST, dtype: str = "float32") -> None:
        sizes = (units, layout.unit_tokens, layout.num_kv_heads, HEAD_DIM, dtype)
        self.units, self.layout, self.dtype = units, layout, dtype
        self.kernels: list[Any] = [ShardedKernels(inner, layout), inner]
        self.caches = [kernels.allocate(*sizes) for kernels in self.kernels]

    def call(self, name: str, *arguments: Any) -> list[Any]:
        return [
            getattr(kernels, name)(cache, *arguments) for kernels, cache in zip(self.kernels, self.caches, strict=True)
        ]

    def fill(self, seed: int) -> None:
        tokens = self.units * self.layout.unit_tokens
        bits = (random_bits(seed + side, tokens, self.layout.num_kv_heads, self.dtype) for side in (0, 1))
        self.call("write", np.arange(tokens), *bits)

    def same(self) -> bool:
        """Whether all slots hold the same."""
        tokens, found = self.units * self.layout.unit_tokens, []
        for kernels, cache in zip(self.kernels, self.caches, strict=True):
            buffers = [np.empty((tokens, self.layout.num_kv_heads, HEAD_DIM), bits_dtype(self.dtype)) for _ in "KV"]
            kernels.gather(cache, np.arange(self.units), 0, tokens, *buffers)
            found.append((buffers[0], buffers[1]))
        return same(*found)


@given(layouts(), st.integers(0, 99), st.data())
@settings(max_examples=40, deadline=None)
def test_writes_copies_and_zeroing_reach_the_same_elements(layout: Layout, seed: int, data: st.DataObject) -> None:
    pair = Pair(layout, 4)
    pair.fill(seed)
    unit, offset = st.integers(0, 3), st.integers(0, layout.unit_tokens)

    for _ in range(3):
        start, stop = sorted((data.draw(offset), data.draw(offset)))
        pair.call("copy", data.draw(unit), data.draw(unit), start, stop)
        pair.call("zero", data.draw(unit), *sorted((data.draw(offset), data.draw(offset))))
    slots = np.array(data.draw(st.lists(st.integers(0, 4 * layout.unit_tokens - 1), unique=True, max_size=9)), np.int64)
    slots[1::3] = -1
    pair.call("write", slots, *(random_bits(seed + side, len(slots), layout.num_kv_heads) for side in (5, 6)))

    assert pair.same()


def attentions(layout: Layout, dtype: str, window: int | None, seed: int, prefill: bool) -> list[Attention]:
    """Attention over the sharded and the whole cache: two rows, of 5 and of all tokens, 3 q heads a kv head."""
    pair = Pair(layout, 5, dtype=dtype)
    tokens = pair.units * layout.unit_tokens
    rng = np.random.default_rng(seed)
    pair.call(
        "write",
        np.arange(tokens),
        *(small_integers(seed + side, tokens, layout.num_kv_heads, dtype) for side in (1, 2)),
    )
    lengths = np.array([min(5, tokens), tokens - rng.integers(0, layout.block_size)])
    tables = np.array([rng.permutation(5), rng.permutation(5)])
    starts = np.array([0, 2, 6]) if prefill else np.array([0, 1, 2])
    starts = np.minimum(starts, [0, lengths[0], lengths[0] + lengths[1]])
    queries = rng.standard_normal((starts[-1], layout.num_kv_heads * 3, HEAD_DIM)).astype(np.float32)
    if prefill:
        return pair.call("prefill", queries, starts, tables, lengths, window)
    return pair.call("decode", queries, tables, lengths, window)


@given(
    layouts(), st.sampled_from(("float32", "float16", "bfloat16")), st.sampled_from((None, 1, 7)), st.integers(0, 99),
    st.booleans(),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_attention_over_ranks_gives_the_same_bits(
    layout: Layout, dtype: str, window: int | None, seed: int, prefill: bool
) -> None:
    sharded, whole = attentions(layout, dtype, window, seed, prefill)

    assert np.array_equal(sharded.output, whole.output)
    assert np.array_equal(sharded.sums, whole.sums)
    assert np.array_equal(sharded.row_sums, whole.row_sums)


def test_tokens_outside_the_window_are_not_looked_up() -> None:
    row = filled(SHARDED, 48)
    table = np.array([[-1, *row.table[1:]]])
    queries = np.zeros((1, 4, HEAD_DIM), np.float32)

    found = row.kernels.decode(row.cache, queries, table, np.array([48]), 20)

    assert (found.row_sums == 20).all()


class Outputs:
    """Kernels that give their output alone, rounded."""

    def __getattr__(self, name: str) -> Any:
        return getattr(HOST, name)

    def decode(self, *arguments: Any) -> Attention:
        return Attention(HOST.decode(*arguments).output, None, None, 0.5)


def test_kernels_that_have_no_sums_give_none() -> None:
    row = filled(SHARDED, 5, Outputs())
    queries = np.zeros((1, 4, HEAD_DIM), np.float32)

    found = row.kernels.decode(row.cache, queries, row.table[None], np.array([5]), None)

    assert (found.output.shape, found.sums, found.row_sums, found.output_roundoff) == (
        (1, 4, HEAD_DIM),
        None,
        None,
        0.5,
    )


@pytest.mark.parametrize("part", ["K", "V"])
def test_replicas_that_differ_are_named(part: str) -> None:
    row = filled(SHARDED, 20)
    position = 14  # run 7: the last of four context-parallel ranks
    cache = row.cache.ranks[SHARDED.rank(3, 3)]  # the second replica of head 1
    bits = cache.keys if part == "K" else cache.values
    bits[SHARDED.slots(row.table, np.array([position]))[0], 0, 5] ^= 1

    with pytest.raises(RanksDisagree) as raised:
        row.read()

    error = raised.value
    assert (error.part, error.head, error.position, error.rank, error.other) == (part, 1, 14, 15, 13)
    assert str(error) == f"{part} of head 1 at position 14: rank 15 holds other bits than rank 13"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("write", (np.array([0, 64]), *(np.zeros((2, 2, HEAD_DIM), np.uint32) for _ in "KV"))),
        ("write", (np.array([0, -2]), *(np.zeros((2, 2, HEAD_DIM), np.uint32) for _ in "KV"))),
        ("copy", (0, 4, 0, 3)),
        ("copy", (-1, 0, 0, 3)),
        ("copy", (0, 1, 0, 17)),
        ("zero", (0, 3, 2)),
        ("gather", (np.array([0, 4]), 0, 17, *(np.zeros((17, 2, HEAD_DIM), np.uint32) for _ in "KV"))),
        ("gather", (np.array([0]), 0, 17, *(np.zeros((17, 2, HEAD_DIM), np.uint32) for _ in "KV"))),
        ("decode", (np.zeros((1, 2, HEAD_DIM), np.float32), np.array([[0, -1]]), np.array([17]), None)),
    ],
)
def test_what_is_outside_the_pool_is_refused_and_nothing_written(name: str, arguments: tuple[Any, ...]) -> None:
    pair = Pair(SHARDED, 4)
    pair.fill(3)

    with pytest.raises(OutsidePool):
        getattr(pair.kernels[0], name)(pair.caches[0], *arguments)

    assert pair.same()


def test_sizes_other_than_the_layouts_are_refused() -> None:
    kernels = ShardedKernels(HOST, SHARDED)

    with pytest.raises(ValueError, match="block_size 4: expected 16, 4 on each of 4 ranks"):
        kernels.allocate(4, 4, 2, HEAD_DIM, "float32")
    with pytest.raises(ValueError, match="num_kv_heads 4: expected the layout's 2"):
        kernels.allocate(4, 16, 4, HEAD_DIM, "float32")


WIDE = Layout(tp=4, dcp=4, pcp=2, interleave=2, block_size=4, num_kv_heads=2)
WRITERS = ("InterleaveIgnored", "ReplicasDealt", "LocalPageTimesDcp", "CpRanksSwapped")
READERS = ("InterleaveIgnored", "ReplicasDealt", "LengthOneShort", "RunInPartForgotten", "CpRanksSwapped")


def test_a_row_is_read_as_it_was_written() -> None:
    row = row_in(WIDE, 45, HOST, spare=30)
    written = tuple(random_bits(side, 45, 2) for side in (1, 2))
    row.write(*written)

    assert same(row.read(), written)


@pytest.mark.parametrize("variant", WRITERS)
def test_a_variant_is_caught_when_it_writes(variant: str) -> None:
    row = row_in(WIDE, 45, HOST, spare=30)
    row = Row(row.kernels, row.cache, np.array([1, 2, 3]), 45)
    written = tuple(random_bits(side, 45, 2) for side in (1, 2))
    Row(ShardedKernels(HOST, wrong(variant, WIDE)), row.cache, row.table, row.tokens).write(*written)

    assert caught(row, written)


@pytest.mark.parametrize("variant", READERS)
def test_a_variant_is_caught_when_it_reads(variant: str) -> None:
    row = row_in(WIDE, 45, HOST, spare=30)
    written = tuple(random_bits(side, 45, 2) for side in (1, 2))
    row.write(*written)

    assert caught(Row(ShardedKernels(HOST, wrong(variant, WIDE)), row.cache, row.table, row.tokens), written)


def caught(row: Row, expected: tuple[Any, ...]) -> bool:
    """Whether a comparison of bytes, or of replicas, finds something wrong."""
    try:
        return not same(row.read(), (expected[0], expected[1]))
    except RanksDisagree:
        return True


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8_per_token_head", "fp8_e4m3"])
def test_triton_kernels_over_ranks(dtype: str) -> None:
    """Interpreted, hence small: 2 shares of heads, 2 of tokens, 6 tokens."""
    layout = Layout(tp=2, dcp=2, block_size=2, num_kv_heads=2)
    plain = dtype if dtype in ("float32", "float16", "bfloat16") else "float32"
    inner = TritonKernels()
    row = row_in(layout, 6, inner, dtype, head_dim=16)
    written = tuple(small_integers(side, 6, 2, plain, 16) for side in (1, 2))
    row.write(*written)
    whole = inner.allocate(2, 4, 2, 16, dtype)
    inner.write(whole, np.arange(6), *written)
    queries = (np.random.default_rng(3).integers(-8, 9, (1, 4, 16)) / 16).astype(np.float32)

    found = row.kernels.decode(row.cache, queries, row.table[None], np.array([6]), None)

    expected = inner.decode(whole, queries, np.array([[0, 1]]), np.array([6]), None)
    assert np.array_equal(found.output, expected.output)
    assert same(row.read(), (written[0], written[1]))


def test_the_numbers_oracle_runs_over_ranks() -> None:
    numbers = Numbers(6, SHARDED.unit_tokens, kernels=ShardedKernels(HOST, SHARDED))
    identity = np.arange(1, 46, dtype=np.int64)

    for step, (start, stop) in enumerate([(0, 30), (30, 44), (44, 45)]):
        rows = [
            BoundRow("r1", 0, np.array([4, 2, 5]), start, stop, None, 0, identity, {}),
            BoundRow("r2", 0, np.array([0, 3, 1]), start, stop, 7, 0, identity, {}),
        ]
        numbers.launch(rows, step)
    numbers.sweep(rows, 3)

    assert numbers.tokens_read == 2 * (30 + 44 + 45)
