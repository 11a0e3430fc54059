"""The three queries of the numbers oracle, compiled: how they are built, and how their outputs are compared.

Every token asks ``3 * num_q_heads`` queries at once, laid out so that each kv head's share of them is one group::

    kv head             0                                       1
    q heads             random x G | zero x G | needle x G      random x G | zero x G | needle x G

**Error bound of the random query.** Elements of q are multiples of 1/16 below 1/2 and K is +1 or -1 (a marker 16 at
most), so scores are exact in float32 in any order of summation, and those of 32 elements in bfloat16 too. Let u = 2**-24,
n the visible tokens, S = 2 * max sum|q||K|: no two scores differ by more.

- A weight exp(x) has relative error at most 2uS (two roundings of |x| <= S where x is scaled to base 2) + 8u (exp
  within 4 ulp).
- Online softmax rescales by exp(m - m'). The differences of the maxima add up to S at most, so their arguments cost 2uS
  together; each of at most n/16 + 1 rescalings (tiles of 16 or more) costs 8u for exp and u for the product.
- n - 1 additions in any order and one product with V: nu to first order; w: weights rounded to another dtype.

So numerator (against the sum of p|V|, |V| <= L) and denominator are each within
e = (4S + 17 + n + 9(n // 16 + 1))u + w, and the quotient is within L (2e + u) / (1 - e). L is 8 where elements are
floats, up to 64 for markers. With L = 8 that is at 256 tokens about 5e-4, at 8,192 about 1.2e-2: no order of summation
is assumed, so the bound grows with n where the error hardly does.

**Outputs alone.** A kernel that gives no sums is judged by its normalised output. All weights of a zero query are
equal: exactly 1 where they are normalised last, so that the sum of V and n are exact and only the quotient is rounded;
1/n where they are normalised first. A needle of which there is one has weight 1 and all others weight 0, so its output
is exactly V, merged or not: the other parts' weights are exp of less than -100. With R the largest |score| + ln n, no
logarithm of a sum of weights is larger than R, and:

- A context may be split, and its parts normalised and merged by float32 logarithms: the log within 4 ulp, 2**-22 near
  1: (8R + 4)u; the maximum added: uR; changes of base: 2uR; the difference of two: 2uR; scaled for exp2: 4uR; exp
  within 4 ulp: 8u. What all parts have in common cancels.
- A quotient, of the whole, of each part or of each weight: division within 2 ulp, or a product with a reciprocal within
  1 ulp: 4u. Products and additions, of normalised weights or of parts: (n + 1)u. Together m = (17R + 17 + n)u.
- Normalised weights may be rounded to another dtype (w), and so is the output, last: u'. Equal weights have an equal
  error, so for them both are relative to the output itself. Half a subnormal of float16 is 2**-25.

So the zero query's output is within B + (u' + w)(|quotient| + B) + 2**-25 of the exact quotient, with R = ln n and
B = L (2m + 4u) / (1 - m); so is a needle that several tokens share, with R = 64 head_dim + ln n. The random query has
e + m in place of m, R = S / 2 + ln n, and u' alone behind it. One V that is wrong by 1 moves the mean by 1/n, which B
passes beyond 958 tokens: the needle and the bytes are exact at any length. Not covered: scores of heads of
more than 32 elements and partial results that are rounded below float32, and parts that are merged in more than one step.
"""

from __future__ import annotations

import math

import numpy as np

from kvsan.gpu_kernels.interface import Bits, Float32Array
from kvsan.gpu_kernels.jit import compiled
from kvsan.gpu_kernels.reference import Codes, Float64Array, SumArray
from kvsan.harness.payload import mix
from kvsan.harness.target import IntArray

QUERIES = 3
NEEDLE_SCALE = np.float32(64.0)
"""Two different codes differ by 2 at least in q . k / 64, and exp(-128) is exactly 0 in float32."""

_ROUNDOFF = 2.0**-24
_HALF_SUBNORMAL = 2.0**-25
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_NUM_RANDOM = 64


def random_queries(num_q_heads: int, head_dim: int, markers: IntArray | None = None) -> Float32Array:
    """Return the random queries, float32 ``[64, num_q_heads, head_dim]``: multiples of 1/16 in [-7/16, 7/16].

    Where K has markers, queries are 1/16 in size: markers are large, and a query that weighed them would see them alone.
    For a head of 32 elements scores are multiples of 1/16 below 16: exact in bfloat16 too, to which eager kernels round.
    """
    shape = (_NUM_RANDOM, num_q_heads, head_dim)
    words = np.arange(1, np.prod(shape) + 1, dtype=np.uint64) * _GOLDEN
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numerators = ((words >> np.uint64(33)) % np.uint64(15)).astype(np.int64) - 7
    queries: Float32Array = (numerators / 16).astype(np.float32).reshape(shape)
    if markers is not None:
        queries[..., markers] = np.where(queries[..., markers] < 0, -1 / 16, 1 / 16)
    return queries


def score_range(query: Float32Array, largest_key: IntArray) -> float:
    """Twice the largest sum of |q| |K| over heads, ``largest_key`` ``[head_dim]``: no two scores differ by more."""
    return 2.0 * float((np.abs(query) * largest_key).sum(axis=-1).max())


@compiled
def random_bound(visible: int, score_range: float, weight_roundoff: float) -> float:
    """Largest error of one output element of a random query, where |V| <= 1; derived at the head of this module."""
    error = _random_error(visible, score_range, weight_roundoff)
    return (2.0 * error + _ROUNDOFF) / (1.0 - error)


@compiled
def quotient_bound(visible: int, largest_score: float, error: float) -> float:
    """Largest error of an output element, where |V| <= 1, that its kernel normalised, and perhaps merged, in float32.

    ``error`` is that of the weights' sums themselves; the derivation is at the head of this module.
    """
    error += (17.0 * (largest_score + math.log(visible)) + 17.0 + visible) * _ROUNDOFF
    return (2.0 * error + 4.0 * _ROUNDOFF) / (1.0 - error)


@compiled
def _random_error(visible: int, score_range: float, weight_roundoff: float) -> float:
    terms = 4.0 * score_range + 17.0 + visible + 9.0 * (visible // 16 + 1)
    return terms * _ROUNDOFF + weight_roundoff


@compiled
def _close(output: float, expected: float, bound: float, roundoff: float) -> bool:
    """Whether an output is within a bound of what is expected, and then rounded."""
    if roundoff > 0.0:
        bound += roundoff * (abs(expected) + bound) + _HALF_SUBNORMAL
    return abs(output - expected) <= bound


@compiled
def _low(position: int, window: int) -> int:
    return max(0, position - window + 1)


@compiled
def choose_needles(positions: IntArray, window: int, step: int, needles: IntArray) -> None:
    """Choose one position that each query sees, another one at each step."""
    for token in range(len(positions)):
        low = _low(positions[token], window)
        draw = mix(np.uint64(step) * _GOLDEN + np.uint64(positions[token]))
        needles[token] = low + np.int64(draw % np.uint64(positions[token] - low + 1))


@compiled
def build_queries(
    random_query: Float32Array, key_codes: Codes, needles: IntArray, marked: int, queries: Float32Array
) -> None:
    """Fill the queries of one row.

    ``random_query`` ``[num_q_heads, head_dim]``; ``needles`` ``[num_tokens]``, the position that each token's needle
    points at; ``marked``: every ``marked``-th element of K is a marker, which needles leave out, 0 if there are none;
    ``queries`` ``[num_tokens, 3 * num_q_heads, head_dim]``.
    """
    num_kv_heads, head_dim = key_codes.shape[1:]
    group = random_query.shape[0] // num_kv_heads
    for token in range(len(queries)):
        for head in range(num_kv_heads):
            key = key_codes[needles[token], head]
            for g in range(group):
                first = QUERIES * group * head + g
                for d in range(head_dim):
                    queries[token, first, d] = random_query[head * group + g, d]
                    queries[token, first + group, d] = 0.0
                    weight = np.float32(0.0) if marked > 0 and d % marked == 0 else NEEDLE_SCALE
                    queries[token, first + 2 * group, d] = weight * np.float32(key[d])


@compiled
def _same_code(one: Codes, other: Codes, marked: int) -> bool:
    """Whether a needle that points at one key points at another."""
    same = True
    for d in range(len(one)):
        same &= one[d] == other[d] or (marked > 0 and d % marked == 0)
    return same


@compiled
def _needle_holds(
    output: Float32Array,
    sums: Float32Array,
    row_sum: float,
    key_codes: Codes,
    value_codes: Codes,
    low: int,
    position: int,
    needle: int,
    head: int,
    alone: bool,
    roundoff: float,
    largest: Float64Array,
    marked: int,
) -> bool:
    """Whether one needle's output is V at the needle, or the exact sum over all visible tokens with the needle's code.

    Two tokens share the code of one head once in 2**head_dim pairs; that is no violation.
    """
    head_dim = len(output)
    holds = alone or row_sum == 1.0
    for d in range(head_dim):
        if output[d] != value_codes[needle, head, d]:
            holds = False
    if holds:
        return True
    total = np.zeros(head_dim, np.int64)
    count = 0
    for other in range(low, position + 1):
        if _same_code(key_codes[other, head], key_codes[needle, head], marked):
            count += 1
            for d in range(head_dim):
                total[d] += value_codes[other, head, d]
    if not alone:
        return count > 1 and row_sum == count and bool((sums == total).all())
    bound = quotient_bound(position + 1 - low, np.float64(NEEDLE_SCALE) * head_dim, 0.0)
    for d in range(head_dim):
        if not _close(output[d], total[d] / count, largest[d] * bound, roundoff):
            return False
    return count > 1


@compiled
def _zero_holds(
    output: Float32Array,
    sums: Float32Array,
    row_sum: float,
    value_sums: SumArray,
    low: int,
    position: int,
    head: int,
    alone: bool,
    bound: float,
    roundoff: float,
    largest: Float64Array,
) -> bool:
    """Whether one zero query's sums are those of the visible tokens, or its output alone is their mean."""
    visible = position + 1 - low
    holds = alone or row_sum == visible
    for d in range(len(output)):
        expected = value_sums[position + 1, head, d] - value_sums[low, head, d]
        if alone:
            holds &= _close(output[d], expected / visible, largest[d] * bound, roundoff)
        else:
            holds &= sums[d] == expected
    return holds


@compiled
def compare_outputs(
    output: Float32Array,
    sums: Float32Array,
    row_sums: Float32Array,
    reference: Float64Array,
    key_codes: Codes,
    value_codes: Codes,
    value_sums: SumArray,
    positions: IntArray,
    needles: IntArray,
    window: int,
    score_range: float,
    weight_roundoff: float,
    output_roundoff: float,
    alone: bool,
    largest: Float64Array,
    marked: int,
    bad: IntArray,
) -> None:
    """Compare the outputs of one row; ``bad`` int64 ``[3]`` gets the first failing ``token * heads + head``, or -1.

    ``output, sums, row_sums`` as the kernel returned them, heads laid out as at the head of this module; ``reference``
    ``[num_tokens, num_q_heads, head_dim]``; ``positions`` and ``needles`` ``[num_tokens]``; ``largest`` ``[head_dim]``,
    the largest |V|; ``marked`` as in ``build_queries``. With ``alone`` the outputs are judged without sums, which are
    not looked at. Comparisons are written so that NaN fails them.
    """
    num_kv_heads, head_dim = key_codes.shape[1:]
    num_heads = output.shape[1]
    group = num_heads // (QUERIES * num_kv_heads)
    roundoff = output_roundoff + weight_roundoff  # equal weights are rounded equally
    bad[:] = -1
    for token in range(len(output) - 1, -1, -1):
        position = positions[token]
        low = _low(position, window)
        visible = position + 1 - low
        bound, zero_bound = random_bound(visible, score_range, weight_roundoff), 0.0
        if alone:
            error = _random_error(visible, score_range, weight_roundoff)
            bound = quotient_bound(visible, score_range / 2.0, error)
            zero_bound = quotient_bound(visible, 0.0, 0.0)
        for index in range(num_kv_heads * group):
            head = index // group
            at = QUERIES * group * head + index % group
            zero_at, needle_at = at + group, at + 2 * group
            random_holds = True
            for d in range(head_dim):
                random_holds &= _close(
                    output[token, at, d], reference[token, index, d], largest[d] * bound, output_roundoff
                )
            if not random_holds:
                bad[0] = token * num_heads + at
            one = output[token, zero_at], sums[token, zero_at], row_sums[token, zero_at]
            if not _zero_holds(*one, value_sums, low, position, head, alone, zero_bound, roundoff, largest):
                bad[1] = token * num_heads + zero_at
            one = output[token, needle_at], sums[token, needle_at], row_sums[token, needle_at]
            needle = needles[token]
            if not _needle_holds(
                *one, key_codes, value_codes, low, position, needle, head, alone, roundoff, largest, marked
            ):
                bad[2] = token * num_heads + needle_at


@compiled
def first_difference(found: Bits, expected: Bits, length: int) -> int:
    """First of ``length`` tokens whose bits ``[num_kv_heads, head_dim]`` differ, or -1."""
    for token in range(length):
        difference = found[token, 0, 0] ^ expected[token, 0, 0]
        for head in range(found.shape[1]):
            for d in range(found.shape[2]):
                difference |= found[token, head, d] ^ expected[token, head, d]
        if difference != 0:
            return token
    return -1
