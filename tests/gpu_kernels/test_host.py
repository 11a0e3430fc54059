"""The host kernels against the contiguous reference, and the reference against numpy."""

import numpy as np
import pytest

from kvsan.gpu_kernels.addressing import slots_of
from kvsan.gpu_kernels.host import HostKernels
from kvsan.gpu_kernels.host_attention import exp_not_positive
from kvsan.gpu_kernels.interface import OutsidePool, decode_bits, encode
from kvsan.gpu_kernels.jit import compiled
from kvsan.gpu_kernels.reference import attention, extend_prefix_sums, shared_query_attention

DTYPES = ("float32", "float16", "bfloat16")
BLOCK_SIZE, KV_HEADS, Q_HEADS, HEAD_DIM = 4, 2, 6, 8
LENGTH = 150
KERNELS = HostKernels()


class Pool:
    """A cache of 200 units, full of other numbers, with rows of known K and V in it."""

    def __init__(self, dtype: str = "float32", rows: int = 1) -> None:
        rng = np.random.default_rng(1)
        self.cache = KERNELS.allocate(200, BLOCK_SIZE, KV_HEADS, HEAD_DIM, dtype)
        self.cache.keys[:] = encode(5, dtype)
        self.cache.values[:] = encode(100, dtype)
        blocks = -(-LENGTH // BLOCK_SIZE)
        self.tables = rng.permutation(200)[: rows * blocks].reshape(rows, blocks)
        self.keys = rng.choice(np.array([-1, 1], np.int8), (rows, LENGTH, KV_HEADS, HEAD_DIM))
        self.values = rng.integers(-8, 8, self.keys.shape, np.int8)
        for row in range(rows):
            slots = slots_of(self.tables[row], 0, LENGTH, BLOCK_SIZE)
            KERNELS.write(self.cache, slots, encode(self.keys[row], dtype), encode(self.values[row], dtype))


def random_queries(tokens: int) -> np.ndarray:
    numerators = np.random.default_rng(2).integers(-31, 32, (tokens, Q_HEADS, HEAD_DIM))
    return (numerators / 16).astype(np.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 1, 7, 70, 1000])
def test_decode_equals_the_reference(dtype: str, window: int | None) -> None:
    pool = Pool(dtype, rows=3)
    queries = random_queries(3)
    lengths = np.array([LENGTH, 1, 65])

    output = KERNELS.decode(pool.cache, queries, pool.tables, lengths, window).output

    for row, length in enumerate(lengths):
        query = queries[row : row + 1].astype(np.float64)
        expected = attention(query, pool.keys[row], pool.values[row], int(length) - 1, window)
        np.testing.assert_allclose(output[row], expected[0], atol=2e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 7, 70])
def test_prefill_equals_the_reference(dtype: str, window: int | None) -> None:
    pool = Pool(dtype, rows=2)
    queries = random_queries(80)

    result = KERNELS.prefill(pool.cache, queries, np.array([0, 13, 80]), pool.tables, np.array([20, LENGTH]), window)

    for row, (tokens, length) in enumerate(((slice(0, 13), 20), (slice(13, 80), LENGTH))):
        query = queries[tokens].astype(np.float64)
        expected = attention(query, pool.keys[row], pool.values[row], length - len(query), window)
        np.testing.assert_allclose(result.output[tokens], expected, atol=2e-5)


def test_a_zero_query_sums_integers_exactly() -> None:
    pool = Pool()

    result = KERNELS.decode(pool.cache, np.zeros((1, Q_HEADS, HEAD_DIM), np.float32), pool.tables, np.array([150]), 100)

    sums = pool.values[0, 50:].sum(0, dtype=np.int64)
    assert np.array_equal(result.sums[0], np.repeat(sums, Q_HEADS // KV_HEADS, axis=0))
    assert (result.row_sums == 100).all()


def test_entries_before_the_window_are_not_read() -> None:
    pool = Pool()
    queries = random_queries(1)
    expected = KERNELS.decode(pool.cache, queries, pool.tables, np.array([LENGTH]), 20).output
    pool.tables[0, :32] = -1

    output = KERNELS.decode(pool.cache, queries, pool.tables, np.array([LENGTH]), 20).output

    assert np.array_equal(output, expected)


def test_nan_in_a_visible_slot_reaches_the_output() -> None:
    pool = Pool()
    pool.cache.values[slots_of(pool.tables[0], 70, 71, BLOCK_SIZE)[0], 0, 0] = encode_nan()

    output = KERNELS.decode(pool.cache, random_queries(1), pool.tables, np.array([LENGTH]), None).output

    assert np.isnan(output[0, 0, 0])


def encode_nan() -> np.uint32:
    return np.array([np.nan], np.float32).view(np.uint32)[0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_written_is_gathered_bit_for_bit(dtype: str) -> None:
    pool = Pool(dtype)
    keys = np.zeros((LENGTH, KV_HEADS, HEAD_DIM), pool.cache.keys.dtype)
    values = keys.copy()

    KERNELS.gather(pool.cache, pool.tables[0], 3, LENGTH, keys, values)

    assert np.array_equal(decode_bits(keys[: LENGTH - 3], dtype), pool.keys[0, 3:])
    assert np.array_equal(decode_bits(values[: LENGTH - 3], dtype), pool.values[0, 3:])


def test_padding_is_not_written() -> None:
    cache = KERNELS.allocate(4, BLOCK_SIZE, KV_HEADS, HEAD_DIM, "float32")
    ones = np.ones((3, KV_HEADS, HEAD_DIM), np.uint32)

    KERNELS.write(cache, np.array([-1, 2, -1]), ones, ones)

    assert np.flatnonzero(cache.keys.any((1, 2))).tolist() == [2]


@pytest.mark.parametrize("slot", [-2, 16])
def test_a_slot_outside_the_pool_is_refused_and_nothing_is_written(slot: int) -> None:
    cache = KERNELS.allocate(4, BLOCK_SIZE, KV_HEADS, HEAD_DIM, "float32")
    ones = np.ones((2, KV_HEADS, HEAD_DIM), np.uint32)

    with pytest.raises(OutsidePool, match=f"slot {slot}"):
        KERNELS.write(cache, np.array([0, slot]), ones, ones)

    assert not cache.keys.any()


@pytest.mark.parametrize("unit", [-1, 200])
def test_a_unit_outside_the_pool_is_refused(unit: int) -> None:
    pool = Pool()
    pool.tables[0, 3] = unit
    buffers = np.empty((2, LENGTH, KV_HEADS, HEAD_DIM), np.uint32)

    with pytest.raises(OutsidePool, match="row 0"):
        KERNELS.decode(pool.cache, random_queries(1), pool.tables, np.array([LENGTH]), None)
    with pytest.raises(OutsidePool, match="position 12"):
        KERNELS.gather(pool.cache, pool.tables[0], 0, LENGTH, *buffers)
    with pytest.raises(OutsidePool, match=f"unit {unit}"):
        KERNELS.copy(pool.cache, 0, unit, 0, 1)


def test_copy_and_zero_move_the_offsets_named() -> None:
    pool = Pool()
    before = pool.cache.keys.copy()

    KERNELS.copy(pool.cache, 3, 9, 1, 3)
    KERNELS.zero(pool.cache, 5, 2, 4)

    before[37:39] = before[13:15]
    before[22:24] = 0
    assert np.array_equal(pool.cache.keys, before)


def test_a_head_dim_that_the_kernels_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 4"):
        KERNELS.allocate(4, BLOCK_SIZE, KV_HEADS, 6, "float32")


def test_exp_is_within_two_ulp_and_exact_at_the_ends() -> None:
    x = -np.geomspace(1e-6, 86.9, 20_000).astype(np.float32)

    error = np.array([exp_not_positive(value) for value in x]) / np.exp(x.astype(np.float64)) - 1

    assert np.abs(error).max() < 2 * 2.0**-23
    ends = [exp_not_positive(np.float32(value)) for value in (0.0, -128.0, -np.inf, np.nan)]
    np.testing.assert_array_equal(ends, [1.0, 0.0, 0.0, np.nan])


@pytest.mark.parametrize("window", [None, 30])
def test_the_shared_query_reference_equals_numpy(window: int | None) -> None:
    pool = Pool()
    query = random_queries(1)[0].astype(np.float64)

    output = shared_query_attention(query, pool.keys[0], pool.values[0], 100, LENGTH, window)

    expected = attention(np.repeat(query[None], 50, axis=0), pool.keys[0], pool.values[0], 100, window)
    np.testing.assert_allclose(output, expected, rtol=0, atol=1e-12)


def test_prefix_sums_continue() -> None:
    values = Pool().values[0]
    sums = np.zeros((LENGTH + 1, KV_HEADS, HEAD_DIM), np.int32)

    extend_prefix_sums(values, sums, 0, 40)
    extend_prefix_sums(values, sums, 40, LENGTH)

    assert np.array_equal(sums[1:], values.cumsum(0, dtype=np.int32))


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_stand_for_the_numbers_they_were_made_from(dtype: str) -> None:
    numbers = np.array([-8, -1, 0, 0.5, 7, 64], np.float32)

    assert decode_bits(encode(numbers, dtype), dtype).tolist() == numbers.tolist()


@pytest.mark.parametrize(("number", "dtype"), [(257, "bfloat16"), (2049, "float16")])
def test_numbers_that_are_not_exact_are_refused(number: int, dtype: str) -> None:
    with pytest.raises(ValueError, match=dtype):
        encode(number, dtype)


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match="float8"):
        KERNELS.allocate(4, BLOCK_SIZE, KV_HEADS, HEAD_DIM, "float8")


def test_code_that_numba_cannot_cache_is_compiled_all_the_same() -> None:
    scope: dict[str, object] = {}
    exec(compile("def double(x):\n    return 2 * x", "nowhere.py", "exec"), scope)

    assert compiled(scope["double"])(21) == 42
