"""The bounds for outputs without sums: legal ways to compute an output stay inside, and one wrong V does not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kvsan.gpu_kernels.reference import shared_query_attention
from kvsan.harness.comparison import (
    NEEDLE_SCALE,
    QUERIES,
    build_queries,
    compare_outputs,
    quotient_bound,
    random_queries,
    score_range,
)

KV_HEADS, HEAD_DIM, Q_HEADS = 2, 32, 2
ROUNDOFF = {np.float32: 0.0, np.float16: 2.0**-11}
LENGTHS = (1, 2, 5, 31, 300, 2000)

Array = np.ndarray


class Row:
    """One row's last token: its codes, its queries, and what compares an output with them."""

    def __init__(self, length: int, seed: int = 0, head_dim: int = HEAD_DIM) -> None:
        rng = np.random.default_rng(seed)
        self.length = length
        self.keys = rng.choice(np.array([-1, 1], np.int8), (length, KV_HEADS, head_dim))
        self.values = rng.integers(-8, 8, (length, KV_HEADS, head_dim)).astype(np.int8)
        self.random = random_queries(Q_HEADS, head_dim)[seed]
        self.needles = np.array([int(rng.integers(length))])
        self.queries = np.empty((1, QUERIES * Q_HEADS, head_dim), np.float32)
        build_queries(self.random, self.keys, self.needles, 0, self.queries)

    def bad(self, output: Array, weight_roundoff: float = 0.0, output_roundoff: float = 0.0) -> set[str]:
        """Queries whose outputs are not accepted."""
        sums = np.zeros((self.length + 1, *self.values.shape[1:]), np.int32)
        sums[1:] = np.cumsum(self.values, axis=0)
        reference = shared_query_attention(
            self.random.astype(np.float64), self.keys, self.values, self.length - 1, self.length
        )
        bad = np.empty(3, np.int64)
        positions = np.array([self.length - 1])
        given = np.ascontiguousarray(output[None], dtype=np.float32)
        compare_outputs(
            given, given, np.zeros(given.shape[:2], np.float32), reference, self.keys, self.values, sums, positions,
            self.needles, 1 << 62, score_range(self.random, np.ones_like(self.keys[0, 0])), weight_roundoff,
            output_roundoff, True, np.full(self.keys.shape[2], 8.0), 0, bad,
        )  # fmt: skip
        return {name for name, index in zip(("random", "zero", "needle"), bad.tolist(), strict=True) if index >= 0}

    def each_head(self) -> list[tuple[Array, Array, Array]]:
        """Query, K and V in float32 of each q head."""
        group = len(self.queries[0]) // KV_HEADS
        floats = [codes.astype(np.float32) for codes in (self.keys, self.values)]
        return [(q, *(codes[:, head // group] for codes in floats)) for head, q in enumerate(self.queries[0])]


def normalised_last(q: Array, keys: Array, values: Array) -> Array:
    weights = np.exp(keys @ q - (keys @ q).max())
    return weights @ values / weights.sum(dtype=np.float32)


def by_a_reciprocal(q: Array, keys: Array, values: Array) -> Array:
    weights = np.exp(keys @ q - (keys @ q).max())
    return weights @ values * (np.float32(1) / weights.sum(dtype=np.float32))


def normalised_first(q: Array, keys: Array, values: Array) -> Array:
    weights = np.exp(keys @ q - (keys @ q).max())
    weights = weights / weights.sum(dtype=np.float32)
    total = np.zeros(values.shape[1], np.float32)
    for weight, value in zip(weights, values, strict=True):
        total += weight * value
    return total


def split_and_merged(q: Array, keys: Array, values: Array) -> Array:
    """Seven parts, merged by logarithms to base 2."""
    log2_e = np.float32(math.log2(math.e))
    parts = []
    for k, v in zip(np.array_split(keys, 7), np.array_split(values, 7), strict=True):
        if len(k):
            scores = (k @ q) * log2_e
            weights = np.exp2(scores - scores.max())
            row_sum = weights.sum(dtype=np.float32)
            parts.append((scores.max() + np.log2(row_sum), weights @ v / row_sum))
    lse = np.array([part[0] for part in parts], np.float32)
    weights = np.exp2(lse - lse.max())
    return sum(w * part[1] for w, part in zip(weights, parts, strict=True)) / weights.sum(dtype=np.float32)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("way", [normalised_last, by_a_reciprocal, normalised_first, split_and_merged])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_legal_ways_to_an_output_are_accepted(way, length: int, dtype) -> None:
    for seed in range(5):
        row = Row(length, seed)
        output = np.stack([way(*head) for head in row.each_head()])
        assert row.bad(output.astype(dtype), 0.0, ROUNDOFF[dtype]) == set()


def test_weights_rounded_after_they_were_normalised_are_accepted() -> None:
    def rounded_first(q: Array, keys: Array, values: Array) -> Array:
        weights = np.exp(keys @ q - (keys @ q).max())
        weights /= weights.sum(dtype=np.float32)
        to_bfloat16 = (weights.view(np.uint32) + np.uint32(0x8000)) & np.uint32(0xFFFF0000)
        return to_bfloat16.view(np.float32) @ values

    row = Row(300)
    output = np.stack([rounded_first(*head) for head in row.each_head()])
    assert row.bad(output, weight_roundoff=2.0**-8) == set()
    assert row.bad(output) >= {"zero"}


@pytest.mark.parametrize("length", LENGTHS)
def test_eager_attention_with_scores_and_weights_in_bfloat16_is_accepted(length: int) -> None:
    def in_bfloat16(numbers: Array) -> Array:
        bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
        return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)).view(
            np.float32
        )

    def eager(q: Array, keys: Array, values: Array) -> Array:
        scores = in_bfloat16(keys @ q)
        weights = np.exp(scores - scores.max())
        return in_bfloat16(in_bfloat16(weights / weights.sum(dtype=np.float32)) @ values)

    for seed in range(5):
        row = Row(length, seed)
        output = np.stack([eager(*head) for head in row.each_head()])
        assert row.bad(output, 2.0**-8, 2.0**-8) == set()


@pytest.mark.parametrize("length", LENGTHS)
def test_one_wrong_token_is_not_accepted(length: int) -> None:
    row = Row(length)
    output = np.stack([normalised_last(*head) for head in row.each_head()])
    row.values[row.needles[0]] = -1 - row.values[row.needles[0]]
    assert row.bad(output) >= {"zero", "needle"}


def test_tokens_that_share_a_code_are_judged_by_their_mean() -> None:
    shared = 0
    for seed in range(20):
        row = Row(60, seed, head_dim=4)
        output = np.stack([normalised_last(*head) for head in row.each_head()])
        shared += not np.array_equal(output, np.rint(output))
        assert row.bad(output) == set()
        output[2] += np.float32(0.02)
        assert row.bad(output) == {"needle"}
    assert shared == 20
    assert NEEDLE_SCALE == 64


@pytest.mark.parametrize("query", range(QUERIES))
def test_nan_is_not_accepted(query: int) -> None:
    row = Row(5)
    output = np.stack([normalised_last(*head) for head in row.each_head()])
    output[query, 3] = np.nan
    assert row.bad(output, 2.0**-8, 2.0**-8) == {("random", "zero", "needle")[query]}


def test_the_zero_query_sees_a_single_step_of_v_up_to_958_tokens() -> None:
    assert max(n for n in range(1, 4000) if 8 * quotient_bound(n, 0.0, 0.0) < 1 / n) == 958


@pytest.mark.parametrize("length", [5, 300, 2000])
def test_the_bound_of_the_mean_holds_with_room(length: int) -> None:
    row = Row(length)
    error = 0.0
    for q, keys, values in row.each_head():
        if not q.any():
            mean = values.astype(np.float64).mean(axis=0)
            for way in (normalised_first, split_and_merged):
                error = max(error, float(np.abs(way(q, keys, values) - mean).max()))
    assert 0 < error < 8 * quotient_bound(length, 0.0, 0.0) / 4
