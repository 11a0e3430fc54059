"""What kernels are compared with: the contiguous reference, its bounds, small floats, sequences and queries."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from kvsan.ci.kernels.contents import code_content, content_of, real_content
from kvsan.ci.kernels.draws import LARGE, QUANTISED, TINY, Seeded, draw_decode, draw_write
from kvsan.ci.kernels.expected import Context, Expected, Rounding, attend
from kvsan.ci.kernels.problems import CacheSpec
from kvsan.ci.kernels.queries import NEEDLE, ZERO, Queries
from kvsan.ci.kernels.sequences import place_sequences
from kvsan.ci.kernels.small_floats import (
    E2M1_NUMBERS,
    decode,
    dequantise,
    encode,
    pack,
    quantise,
    unpack,
    vector_scales,
)
from kvsan.gpu_kernels import formats
from kvsan.gpu_kernels.formats import format_named
from kvsan.gpu_kernels.launching import Masking
from kvsan.gpu_kernels.reference import attention

TOKENS, KV_HEADS, HEADS, DIM = 50, 2, 6, 32
FLOAT32 = Rounding("float32", "float32")


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def random_context(tokens: int = TOKENS) -> Context:
    keys, values = rng(1).standard_normal((2, tokens, KV_HEADS, DIM)).astype(np.float32).astype(np.float64)
    return Context(keys, values, np.ones((tokens, KV_HEADS, 1)))


def random_queries(tokens: int) -> np.ndarray:
    return rng(2).standard_normal((tokens, HEADS, DIM)).astype(np.float32).astype(np.float64)


def in_torch(queries: np.ndarray, context: Context, scale: float, dtype: torch.dtype) -> torch.Tensor:
    """Causal attention of the last tokens by torch, ``[num_tokens, num_q_heads, head_dim]``."""
    q, k, v = (torch.from_numpy(one).to(dtype).transpose(0, 1)[None] for one in (queries, context.keys, context.values))
    mask = torch.ones((len(queries), len(context.keys)), dtype=torch.bool).tril(len(context.keys) - len(queries))
    found = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=True)
    return found[0].transpose(0, 1)


def test_the_reference_is_what_torch_computes_in_float64() -> None:
    queries, context = random_queries(20), random_context()

    expected = attend(queries, TOKENS - 20, context, 0.3, Masking(), FLOAT32)

    assert np.allclose(expected.output, in_torch(queries, context, 0.3, torch.float64).numpy(), atol=1e-12)


@pytest.mark.parametrize("window", [1, 7, 100])
def test_windows_are_those_of_the_other_reference(window: int) -> None:
    queries = random_queries(20)
    keys, values = rng(5).integers(-8, 8, (2, TOKENS, KV_HEADS, DIM), np.int8)
    context = Context(keys.astype(float), values.astype(float), np.ones((TOKENS, KV_HEADS, 1)))

    expected = attend(queries, TOKENS - 20, context, 1.0, Masking(window=window), FLOAT32)

    assert np.allclose(expected.output, attention(queries, keys, values, TOKENS - 20, window), atol=1e-9)


def test_a_chunk_is_a_sequence_of_its_own() -> None:
    queries, context = random_queries(TOKENS), random_context()
    part = Context(*(one[32:48] for one in (context.keys, context.values, context.value_units)))

    expected = attend(queries, 0, context, 0.3, Masking(chunk=16), FLOAT32)

    alone = attend(queries[32:48], 0, part, 0.3, Masking(), FLOAT32)
    assert np.array_equal(expected.output[32:48], alone.output)
    assert np.array_equal(expected.lse[32:48], alone.lse)


def test_scores_are_capped_and_their_sum_is_logged() -> None:
    queries, context = random_queries(1), random_context(3)

    expected = attend(queries, 2, context, 2.0, Masking(softcap=5.0), FLOAT32)

    scores = 5.0 * np.tanh(context.keys[:, 0] @ queries[0, 1] * 2.0 / 5.0)
    assert expected.lse[0, 1] == pytest.approx(np.log(np.exp(scores).sum()), abs=1e-12)


def test_who_sees_nothing_gets_zeros_and_minus_infinity() -> None:
    expected = attend(random_queries(1), -1, random_context(0), 1.0, Masking(), FLOAT32)

    assert not expected.output.any()
    assert not expected.output_bound.any()
    assert np.isneginf(expected.lse).all()


def used(expected: Expected, found: np.ndarray) -> float:
    """Largest share of the bound that an error takes."""
    return float((np.abs(found - expected.output) / expected.output_bound).max())


@pytest.mark.parametrize("tokens", [2, 17, 300])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_rounding_stays_within_the_bound_and_not_far(dtype: str, tokens: int) -> None:
    context, kind = random_context(tokens), getattr(torch, dtype)
    numbers = (random_queries(1), context.keys, context.values)
    queries, keys, values = (torch.from_numpy(one).to(kind).double().numpy() for one in numbers)
    context = Context(keys, values, context.value_units)
    expected = attend(queries, tokens - 1, context, 0.2, Masking(), Rounding(dtype, dtype))

    output = np.empty_like(queries)
    for head in range(HEADS):
        q, k, v = (
            torch.from_numpy(one[:, at]).float()
            for one, at in ((queries, head), (keys, head // 3), (values, head // 3))
        )
        scores = q @ k.T * 0.2
        weights = torch.exp2((scores - scores.max()) * 1.4426950408889634)
        sums = weights.to(kind).float() @ v
        output[:, head] = (sums / weights.sum()).to(kind).double().numpy()

    assert 0.001 < used(expected, output) <= 1.0


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_token_of_many_that_is_lost_exceeds_the_bound(dtype: str) -> None:
    queries, context = random_queries(1), random_context(64)
    expected = attend(queries, 63, context, 0.2, Masking(), Rounding(dtype, dtype))

    without = attend(queries, 63, context, 0.2, Masking(window=63), Rounding(dtype, dtype))

    assert used(expected, without.output) > 1.0
    assert (np.abs(expected.lse - without.lse) > expected.lse_bound).all()


def nearest(number: float, grid: np.ndarray) -> set[int]:
    distances = np.abs(grid - number)
    return set(np.flatnonzero(distances == distances.min()).tolist())


@pytest.mark.parametrize("elements", [formats.E4M3, formats.E5M2, formats.E2M1, formats.INT8])
def test_a_code_is_one_of_the_nearest_and_even_in_a_tie(elements: int) -> None:
    codes = np.arange(16 if elements == formats.E2M1 else 256, dtype=np.uint8)
    grid = decode(codes, elements)
    legal = np.isfinite(grid) & ((elements != formats.INT8) | (codes != 0x80))
    positive = np.unique(np.abs(grid[legal])).astype(np.float32)
    ties = (positive[1:] + positive[:-1]) / 2
    numbers = np.concatenate(
        (positive, ties, np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.float32(np.inf)))
    )

    found = encode(numbers, elements)

    for number, code in zip(numbers.tolist(), found.tolist(), strict=True):
        candidates = nearest(number, np.where(legal & (grid >= 0), grid, np.inf))
        assert code in candidates
        assert len(candidates) == 1 or code % 2 == 0 or code == 0x00


def test_signs_zeros_and_saturation() -> None:
    numbers = np.array([-0.0, -1e-30, 1e30, -np.inf, np.nan], np.float32)

    assert encode(numbers, formats.E4M3).tolist() == [0x00, 0x80, 0x7E, 0xFE, 0x7E]
    assert encode(numbers, formats.E5M2).tolist() == [0x00, 0x80, 0x7B, 0xFB, 0x7B]
    assert encode(numbers, formats.E2M1).tolist() == [0x0, 0x8, 0x7, 0xF, 0x7]
    assert encode(numbers, formats.INT8).view(np.int8).tolist() == [0, 0, 127, -127, 127]


@pytest.mark.parametrize(("elements", "limit"), [(formats.INT8, 128.0), (formats.E4M3, 256.0)])
def test_scales_of_vectors_put_the_largest_element_below_a_limit(elements: int, limit: float) -> None:
    largest = np.array([1.0, np.nextafter(np.float32(2), np.float32(0)), 2.0, 3.7e30, 5.5e-30], np.float32)

    scaled = largest / vector_scales(largest[:, None], elements)[:, 0]

    assert ((scaled >= limit / 2) & (scaled < limit)).all()
    assert vector_scales(np.array([[0.0], [1e-40]], np.float32), elements).tolist() == [[2.0**-120]] * 2


def test_packing_puts_the_first_code_into_the_lower_half() -> None:
    nibbles = np.array([[0x1, 0x2, 0xF, 0x0]], np.uint8)

    assert pack(nibbles).tolist() == [[0x21, 0x0F]]
    assert np.array_equal(unpack(pack(nibbles)), nibbles)
    assert [decode(np.array([code], np.uint8), formats.E2M1)[0] for code in range(8)] == list(E2M1_NUMBERS)


@pytest.mark.parametrize("dtype", QUANTISED)
def test_what_is_quantised_is_near_the_original(dtype: str) -> None:
    form = format_named(dtype)
    numbers = rng(5).standard_normal((20, 2, 32)).astype(np.float32)

    elements, scales = quantise(numbers, form, 0.25)

    found = dequantise(elements, scales, form)
    if form.format != formats.PER_TOKEN_HEAD:
        found *= 0.25
    assert np.abs(found - numbers).max() < (0.6 if dtype == "nvfp4" else 0.3)


@pytest.mark.parametrize("dtype", QUANTISED)
def test_codes_are_of_many_scales_and_exact(dtype: str) -> None:
    content = code_content(CacheSpec(dtype, 4, 2, 32), 30, rng(5))

    assert np.array_equal(np.rint(content.values * 4), content.values * 4)
    assert len(np.unique(np.abs(content.keys))) == (3 if format_named(dtype).scale_bytes else 1)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8_per_token_head", "nvfp4"])
def test_a_common_prefix_has_one_content(dtype: str) -> None:
    first, second = (real_content(CacheSpec(dtype, 4, 2, 32), tokens, rng(tokens)) for tokens in (9, 12))

    joined = second.after(first, 5)

    assert np.array_equal(joined.keys[:5], first.keys[:5])
    assert np.array_equal(joined.values[5:], second.values[5:])
    assert all(
        torch.equal(a[:5].view(torch.uint8), b[:5].view(torch.uint8))
        for a, b in zip(joined.parts, first.parts, strict=True)
    )


def test_content_is_what_the_cache_holds() -> None:
    numbers = np.full((1, 1, 32), 1 / 3, np.float32)

    content = content_of(CacheSpec("bfloat16", 4, 1, 32), numbers, numbers)

    assert np.unique(content.keys).tolist() == [0.333984375]


def test_sequences_share_whole_blocks_and_leave_holes_and_garbage() -> None:
    placed = place_sequences((11, 9, 4), (0, 0, 2), 4, 2, 3, 2, rng(1))

    needed = [placed.tables[row, : -(-length // 4)].tolist() for row, length in enumerate((11, 9, 4))]
    assert placed.shared == (0, 8, 4)
    assert needed[0][:2] == needed[1][:2]
    assert needed[2] == needed[0][:1]
    assert placed.num_blocks == 4 + 3
    assert placed.tables.shape == (3, 3 + 2)
    assert len({block for row in needed for block in row}) == 4
    assert needed[0] != sorted(needed[0]) or any(b - a > 1 for a, b in pairwise(needed[0]))


def test_entries_before_a_window_are_garbage() -> None:
    placed = place_sequences((40,), (30,), 4, 0, 1, 1, rng(1))

    assert np.unique(placed.tables[0, :7]).tolist() != sorted(placed.tables[0, :7].tolist())
    assert placed.slots(0)[0].tolist() == [placed.tables[0, position // 4] for position in range(30, 40)]


def test_needles_leave_no_weight_to_others() -> None:
    keys = code_content(CacheSpec("nvfp4", 4, 2, 64), 40, rng(5)).keys
    queries = Queries(6, 4, 64, rng(6))
    for token in range(6):
        queries.choose_kinds(token, keys, 0, 0.2, False)

    places = np.argwhere(queries.kinds == NEEDLE)
    assert len(places)
    assert not queries.numbers[queries.kinds == ZERO].any()
    for token, head in places:
        scores = keys[:, head // 2] @ queries.numbers[token, head] * 0.2
        needle = queries.needles[token, head]
        assert scores[needle] - np.delete(scores, needle).max() >= 128


def test_queries_of_capped_scores_are_no_needles() -> None:
    queries = Queries(6, 4, 32, rng(6))
    for token in range(6):
        queries.choose_kinds(token, np.ones((3, 2, 32)), 0, 1.0, True)

    assert NEEDLE not in queries.kinds


def test_a_seed_draws_the_same_problem() -> None:
    assert draw_decode(Seeded(3)) == draw_decode(Seeded(3))
    assert draw_decode(Seeded(3)) != draw_decode(Seeded(4))


@pytest.mark.parametrize("limits", [TINY, LARGE])
def test_limits_hold(limits) -> None:
    lengths = [length for seed in range(200) for length in draw_decode(Seeded(seed), limits).lengths]
    tokens = [draw_write(Seeded(seed), limits).tokens for seed in range(200)]

    assert limits.length / 2 < max(lengths) <= limits.length
    assert limits.tokens / 2 < max(tokens) <= limits.tokens
    assert min(lengths) == 0
