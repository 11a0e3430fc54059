"""The numbers oracle: silent on correct launches, and each way of reading trips on a fault made for it."""

import numpy as np
import pytest

from kvsan.gpu_kernels.formats import FORMATS
from kvsan.gpu_kernels.host import HostCache, HostKernels
from kvsan.gpu_kernels.interface import KERNEL_BUGS, Attention, KernelBug
from kvsan.gpu_kernels.reference import shared_query_attention
from kvsan.gpu_kernels.triton_kernels import TritonKernels
from kvsan.harness.comparison import random_bound, random_queries, score_range
from kvsan.harness.execution import BoundRow
from kvsan.harness.numbers import Numbers
from kvsan.harness.verdict import Violation
from kvsan.invariants import ORACLES

DTYPES = ("float32", "float16", "bfloat16")
BLOCK_SIZE = 4


def make_row(name: str, units: list[int], start: int, stop: int, window: int | None = None) -> BoundRow:
    identity = np.arange(stop, dtype=np.int64) * 1000 + sum(map(ord, name))
    low = 0 if window is None else max(0, start - window + 1)
    return BoundRow(name, 0, np.array(units, np.int64), start, stop, window, low, identity, {})


def advance(row: BoundRow, stop: int) -> None:
    """Let a row compute the tokens from where it stopped."""
    fresh = make_row(row.name, row.table.tolist(), row.stop, stop, row.window)
    row.start, row.stop, row.low, row.identity = fresh.start, fresh.stop, fresh.low, fresh.identity


def two_rows(numbers: Numbers, window: int | None = None) -> list[BoundRow]:
    """Launch two prompts of 37 and 22 tokens in chunks of 9, the last token of each still to be read."""
    rows = [
        make_row("r1", [9, 3, 14, 7, 1, 30, 12, 8, 2, 25], 0, 9, window),
        make_row("r2", [0, 5, 11, 31, 4, 6], 0, 7, window),
    ]
    numbers.launch(rows, 0)
    for step, stops in enumerate(((18, 16), (27, 21), (36, 22), (37, 23)), start=1):
        for row, stop in zip(rows, stops, strict=True):
            advance(row, stop)
        numbers.launch(rows, step)
    return rows


def causes(numbers: Numbers, rows: list[BoundRow], step: int = 9) -> set[str]:
    return {mismatch.cause for mismatch in numbers.mismatches(rows, step)}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 1, 6, 100])
def test_correct_launches_are_silent(dtype: str, window: int | None) -> None:
    numbers = Numbers(32, BLOCK_SIZE, dtype)

    rows = two_rows(numbers, window)

    numbers.sweep(rows, 3)
    assert causes(numbers, rows) == set()


@pytest.mark.parametrize(("kv_heads", "q_heads", "head_dim"), [(1, 1, 64), (4, 4, 16), (1, 8, 32), (3, 6, 36)])
def test_head_counts_of_all_kinds_are_silent(kv_heads: int, q_heads: int, head_dim: int) -> None:
    numbers = Numbers(32, BLOCK_SIZE, kv_heads=kv_heads, q_heads=q_heads, head_dim=head_dim)

    numbers.sweep(two_rows(numbers), 1)


def test_tokens_that_share_a_code_are_no_violation() -> None:
    numbers = Numbers(32, BLOCK_SIZE, head_dim=4)  # 16 codes for 37 tokens
    rows = two_rows(numbers)

    for step in range(40):
        numbers.sweep(rows, step)


def test_a_shared_code_hides_nothing() -> None:
    numbers = Numbers(32, BLOCK_SIZE, head_dim=4)
    rows = two_rows(numbers)
    numbers.cache.values[9 * BLOCK_SIZE : 10 * BLOCK_SIZE] = 0

    found = {m.cause for step in range(4) for m in numbers.sweep_mismatches(rows[0], step)}

    assert "needle" in found


def test_rows_that_compute_nothing_are_skipped() -> None:
    numbers = Numbers(32, BLOCK_SIZE)

    numbers.launch([make_row("r1", [3], 2, 2)], 0)

    assert (numbers.outputs_compared, numbers.tokens_read) == (0, 0)


def test_counters_count_outputs_and_tokens() -> None:
    numbers = Numbers(32, BLOCK_SIZE)

    numbers.launch([make_row("r1", [3, 4], 0, 5), make_row("r2", [1], 0, 1)], 0)

    assert (numbers.outputs_compared, numbers.tokens_read) == (6 * 4 * 3, 6)


def test_rejected_drafts_are_replaced() -> None:
    numbers = Numbers(32, BLOCK_SIZE)
    rows = two_rows(numbers)
    row = rows[0]
    row.identity = row.identity.copy()
    row.start = 35
    row.identity[35:] = (77, 78)

    numbers.launch(rows, 9)

    assert causes(numbers, rows) == set()


def test_external_tokens_are_read_like_computed_ones() -> None:
    numbers = Numbers(32, BLOCK_SIZE)
    row = make_row("r1", [6, 2], 4, 6)

    numbers.write_external(np.arange(24, 28), row.identity[:4])

    numbers.launch([row], 0)


def test_copy_on_write_carries_the_bytes() -> None:
    numbers = Numbers(32, BLOCK_SIZE)
    row = make_row("r1", [6], 0, 3)
    numbers.launch([row], 0)

    numbers.copy(6, 20, 0, 3)

    row.table = np.array([20])
    assert causes(numbers, [row]) == set()


@pytest.mark.parametrize("dtype", FORMATS)
def test_pages_come_back_from_a_store_bit_for_bit(dtype: str) -> None:
    kernels = TritonKernels() if FORMATS[dtype].quantised else HostKernels()
    numbers = Numbers(8, BLOCK_SIZE, dtype, kernels, q_heads=2)
    row = make_row("r1", [6, 2], 0, 8)
    numbers.launch([row], 0)

    data = numbers.store_pages([6, 2])
    numbers.restore_pages([1, 7], data, 8)

    row.table = np.array([1, 7])
    assert causes(numbers, [row]) == set()
    assert numbers.store_pages([1, 7]) == data


def test_half_a_page_comes_back_as_half() -> None:
    numbers = Numbers(8, BLOCK_SIZE)
    row = make_row("r1", [6, 2], 0, 8)
    numbers.launch([row], 0)

    numbers.restore_pages([1, 7], numbers.store_pages([6, 2]), 3)

    row.table = np.array([1, 7])
    row.start, row.stop = 2, 3
    assert causes(numbers, [row]) == set()
    advance(row, 4)
    assert "key-bytes" in causes(numbers, [row])


def test_zeroed_slots_are_found_as_zeros() -> None:
    numbers = Numbers(32, BLOCK_SIZE)
    rows = two_rows(numbers)

    numbers.zero(14, 1, 2)

    with pytest.raises(Violation, match="slot 57 holds K of zeros; expected r1@9") as caught:
        numbers.launch(rows, 9)
    assert caught.value.kind == ("numbers", "key-bytes")


def test_another_requests_token_is_named() -> None:
    numbers = Numbers(32, BLOCK_SIZE)
    rows = two_rows(numbers)

    numbers.copy(5, 14, 1, 2)

    messages = [mismatch.message for mismatch in numbers.mismatches(rows, 9)]
    assert messages[:2] == [
        "slot 57 holds K of r2@5; expected r1@9, group 0",
        "slot 57 holds V of r2@5; expected r1@9, group 0",
    ]


def test_a_needle_names_the_token_that_it_found() -> None:
    numbers = Numbers(32, BLOCK_SIZE)
    rows = two_rows(numbers)
    numbers.cache.values[57] = numbers.cache.values[5 * BLOCK_SIZE + 1]

    found = [m.message for m in numbers.sweep_mismatches(rows[0], 1, rows) if m.cause == "needle"]

    assert len(found) == 1
    assert found[0].endswith("expected V of r1@9, found r2@5")


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_is_equal_to_nothing(dtype: str) -> None:
    numbers = Numbers(32, BLOCK_SIZE, dtype)
    rows = two_rows(numbers)
    numbers.cache.values[57] = 0x7FC00000 if dtype == "float32" else 0x7FC0 if dtype == "bfloat16" else 0x7E00

    assert causes(numbers, rows) == {"value-bytes", "needle", "zero", "random"}


def test_the_sign_of_zero_is_a_bit() -> None:
    numbers = Numbers(32, BLOCK_SIZE)
    rows = two_rows(numbers)
    zeros = np.argwhere(numbers.cache.values[57] == 0)
    numbers.cache.values[57, zeros[0][0], zeros[0][1]] = 0x80000000

    assert causes(numbers, rows) == {"value-bytes"}


@pytest.mark.parametrize("unit", [-1, 32, 1 << 40])
def test_a_table_that_leaves_the_pool_is_a_violation(unit: int) -> None:
    numbers = Numbers(32, BLOCK_SIZE)
    rows = two_rows(numbers)
    rows[0].table[2] = unit

    with pytest.raises(Violation, match="r1 cannot be read") as caught:
        numbers.launch(rows, 9)

    assert caught.value.cause == "key-bytes"


def test_a_write_that_leaves_the_pool_is_a_violation() -> None:
    with pytest.raises(Violation, match="r1 cannot be written"):
        Numbers(32, BLOCK_SIZE).launch([make_row("r1", [32], 0, 3)], 0)


def test_a_table_that_ends_too_early_is_a_violation() -> None:
    with pytest.raises(Violation, match="r1 ends before 5 tokens"):
        Numbers(32, BLOCK_SIZE).launch([make_row("r1", [3], 0, 5)], 0)


class FaultyKernels(HostKernels):
    """Host kernels that gather correctly and attend wrongly."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def decode(self, cache: HostCache, queries, tables, lengths, window) -> Attention:
        return self.prefill(cache, queries, np.arange(len(lengths) + 1), tables, lengths, window)

    def prefill(self, cache: HostCache, queries, query_starts, tables, lengths, window) -> Attention:
        if self.fault == "one token too few":
            lengths = lengths - 1
        elif self.fault == "no window":
            window = None
        elif self.fault == "another row's table":
            tables = np.ascontiguousarray(tables[::-1])
        elif self.fault == "queries swapped":
            queries = np.ascontiguousarray(queries[::-1])
        elif self.fault == "kv heads swapped":
            queries = np.roll(queries, queries.shape[1] // 2, axis=1)
        result = super().prefill(cache, queries, query_starts, tables, lengths, window)
        if self.fault == "row sum lost a token":
            return result._replace(row_sums=result.row_sums - np.float32(1e-5))
        if self.fault == "softmax too flat":
            softened = result.output * np.float32(1.001)
            return result._replace(output=np.where(result.row_sums[..., None] % 1 == 0, result.output, softened))
        return result


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("one token too few", {"zero", "random"}),
        ("no window", {"zero", "random"}),
        ("another row's table", {"zero", "random", "needle"}),
        ("queries swapped", {"needle", "random"}),
        ("kv heads swapped", {"needle", "random"}),
        ("row sum lost a token", {"zero", "needle"}),
        ("softmax too flat", {"random"}),
    ],
)
def test_faulty_kernels_are_seen_by_the_queries(fault: str, expected: set[str]) -> None:
    window = 6 if fault == "no window" else None
    rows = [make_row("r1", [9, 3, 14, 7, 1], 16, 17, window), make_row("r2", [0, 5, 11, 31, 4], 16, 17, window)]
    numbers = Numbers(32, BLOCK_SIZE, kernels=FaultyKernels(fault))
    for row in rows:
        numbers.write_external(np.repeat(row.table, BLOCK_SIZE)[:17] * 4 + np.arange(17) % 4, row.identity)

    found = set().union(*(causes(numbers, rows, step) for step in range(4)))

    assert expected <= found
    assert not found & {"key-bytes", "value-bytes"}


class BuggyKernels(HostKernels):
    """Host kernels under a sanitizer that has something to say about one of them."""

    def __init__(self, call: str) -> None:
        def buggy(*_args: object) -> None:
            raise KernelBug("race", "a_kernel", "kernels.py", 7, (0, 1, 0), 3, "two programs write one address")

        setattr(self, call, buggy)


@pytest.mark.parametrize("call", ["write", "decode", "prefill", "gather", "copy", "zero"])
def test_what_a_sanitizer_sees_is_a_violation(call: str) -> None:
    numbers = Numbers(32, BLOCK_SIZE, kernels=BuggyKernels(call))

    def use_every_kernel() -> None:
        numbers.launch([make_row("r1", [1], 0, 1), make_row("r2", [2], 0, 2)], 0)
        numbers.copy(1, 3, 0, 2)
        numbers.zero(3, 0, 2)

    with pytest.raises(Violation) as caught:
        use_every_kernel()

    assert caught.value.kind == ("kernel", "race")
    assert caught.value.message == (
        "race in a_kernel (kernels.py:7), program (0, 1, 0), lane 3: two programs write one address"
    )


def test_the_catalogue_names_all_that_a_sanitizer_can_see() -> None:
    assert next(oracle.causes for oracle in ORACLES if oracle.id == "kernel") == KERNEL_BUGS


def test_needles_differ_from_step_to_step_and_not_from_run_to_run() -> None:
    class Recorder(HostKernels):
        seen: list[bytes]

        def decode(self, cache: HostCache, queries, tables, lengths, window) -> Attention:
            self.seen.append(queries.tobytes())
            return super().decode(cache, queries, tables, lengths, window)

    def asked() -> list[bytes]:
        kernels = Recorder()
        kernels.seen = []
        numbers = Numbers(32, BLOCK_SIZE, kernels=kernels)
        rows = two_rows(numbers)
        kernels.seen.clear()
        for step in range(10):
            numbers.mismatches(rows, step)
        return kernels.seen

    first = asked()

    assert first == asked()
    assert len(set(first)) == 10


@pytest.mark.parametrize("length", [1, 16, 300, 8192])
def test_the_bound_holds_with_room_and_is_not_vain(length: int) -> None:
    numbers = Numbers(-(-length // 16), 16)
    row = make_row("r1", list(range(-(-length // 16))), length - 1, length)
    numbers.write_external(np.arange(length), row.identity)
    keys = numbers.cache.keys[:length].view(np.float32).astype(np.int8)
    values = numbers.cache.values[:length].view(np.float32).astype(np.int8)
    query = random_queries(4, 32)[0]
    bound = 8 * random_bound(length, score_range(query, np.ones(32, np.int64)), 0.0)

    output = HostKernels().decode(numbers.cache, query[None], row.table[None], np.array([length]), None).output

    error = np.abs(output[0] - shared_query_attention(query.astype(float), keys, values, length - 1, length)[0]).max()
    assert error < bound / 4
    assert bound < 0.02


def test_random_queries_make_exact_scores() -> None:
    queries = random_queries(4, 32).astype(np.float64)

    assert np.abs(queries).sum(axis=-1).max() * 16 < 256  # eight bits: bfloat16 holds every score
    assert np.array_equal(np.rint(queries * 16), queries * 16)
    assert len(np.unique(queries.reshape(64, -1), axis=0)) == 64


def test_a_pool_of_a_million_units_costs_what_is_touched() -> None:
    numbers = Numbers(1_000_000, BLOCK_SIZE)

    numbers.launch([make_row("r1", [999_999, 0], 0, 7)], 0)

    assert numbers.tokens_read == 7


def test_head_counts_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of kv_heads"):
        Numbers(4, BLOCK_SIZE, kv_heads=2, q_heads=3)
