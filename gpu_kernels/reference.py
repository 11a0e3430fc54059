"""Contiguous reference attention: no blocks, no tables, no tiles, float64 or exact integers.

The three queries of the numbers oracle each get the cheapest reference that is still exact enough. A zero query weighs
all visible tokens alike, so its sums are differences of integer prefix sums of V; a needle is one row of V; only the
random query needs a softmax. K and V are given as the small integers they are made of, int8 ``[num_tokens,
num_kv_heads, head_dim]``, so that nothing here depends on a cache dtype.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from kvsan.gpu_kernels.addressing import first_visible
from kvsan.gpu_kernels.jit import compiled, compiled_any_order

Codes = npt.NDArray[np.int8]
Float64Array = npt.NDArray[np.float64]
SumArray = npt.NDArray[np.int32]


@compiled
def extend_prefix_sums(values: Codes, sums: SumArray, start: int, stop: int) -> None:
    """Let ``sums[p]`` be the sum of V over ``[0, p)`` for p in ``(start, stop]``; ``sums[start]`` is right already.

    int32 ``[num_tokens + 1, num_kv_heads, head_dim]``: 2**24 tokens of V below 128 fit.
    """
    for position in range(start, stop):
        for head in range(values.shape[1]):
            for d in range(values.shape[2]):
                sums[position + 1, head, d] = sums[position, head, d] + values[position, head, d]


def attention(queries: Float64Array, keys: Codes, values: Codes, start: int, window: int | None = None) -> Float64Array:
    """Softmax attention of queries at positions ``start, start + 1, ...``, each with its own query.

    ``queries`` float64 ``[num_tokens, num_q_heads, head_dim]``, the result likewise; scores are ``q . k``.
    """
    output = np.empty_like(queries)
    group = queries.shape[1] // keys.shape[1]
    for token in range(len(queries)):
        position = start + token
        visible = slice(first_visible(position, window), position + 1)
        for head in range(queries.shape[1]):
            scores = keys[visible, head // group].astype(np.float64) @ queries[token, head]
            weights = np.exp(scores - scores.max())
            output[token, head] = weights @ values[visible, head // group].astype(np.float64) / weights.sum()
    return output


def shared_query_attention(
    query: Float64Array, keys: Codes, values: Codes, start: int, stop: int, window: int | None = None
) -> Float64Array:
    """Softmax attention of one query vector asked at each position of ``[start, stop)``.

    ``query`` float64 ``[num_q_heads, head_dim]``; the result ``[stop - start, num_q_heads, head_dim]``. With full
    attention the sums at one position continue those at the last, so a chunk costs what its last token costs; with a
    window each position is summed afresh, because differences of sums would cancel.
    """
    output = np.empty((stop - start, *query.shape), np.float64)
    if window is None:
        _accumulate(query, keys, values, 0, start, stop, output)
    else:
        for position in range(start, stop):
            low = first_visible(position, window)
            _accumulate(query, keys, values, low, position, position + 1, output[position - start :])
    return output


@compiled_any_order
def _accumulate(
    query: Float64Array, keys: Codes, values: Codes, low: int, start: int, stop: int, output: Float64Array
) -> None:
    """Sum over ``[low, stop)`` and leave the running quotient at each position of ``[start, stop)``."""
    num_q_heads, head_dim = query.shape
    group = num_q_heads // keys.shape[1]
    weights = np.empty(stop, np.float64)
    sums = np.empty(head_dim, np.float64)
    for head in range(num_q_heads):
        maximum = -np.inf
        for position in range(low, stop):
            key = keys[position, head // group]
            score = 0.0
            for d in range(head_dim):
                score += query[head, d] * key[d]
            weights[position] = score
            maximum = max(maximum, score)
        row_sum = 0.0
        sums[:] = 0.0
        for position in range(low, stop):
            weight = math.exp(weights[position] - maximum)
            row_sum += weight
            value = values[position, head // group]
            for d in range(head_dim):
                sums[d] += weight * value[d]
            if position >= start:
                for d in range(head_dim):
                    output[position - start, head, d] = sums[d] / row_sum
