"""Contiguous float64 attention, and how far from it a kernel's rounding can lead.

**Error bound.** u = 2**-24; additions count 2u each, because tensor cores truncate. For one query and the positions j
that it sees, n of them in T <= n / 16 + 2 tiles: exact scores t_j (natural units, after scale and soft cap), weights
p_j = exp(t_j - max t), S = sum p_j, P = sum p_j |V_j| / S, R = max t - min t. K, V and Q are exact: they are what the
cache holds, and the query as rounded to the type of dot products.

- Score: a dot product of D terms costs u for each product and 2u for each addition of A_j = sum |q_d k_d|; then three
  scales (each rounded itself, 2u), their products, the factor log2 e: (2D + 12) u |scale| A_j, and 2u |t_j|.
- Soft cap c tanh(s / c) = c (1 - 2 / (x + 1)), x = exp2(s (2 log2 e) / c): the argument is within 8u, exp2 within 2 ulp = 4u,
  and c tanh changes by c / 2 at most for each unit of ln x; the quotient (division within 2 ulp), the difference and the
  product are of numbers below 2c: u (8 |s| + 16 c) in all. Errors of s pass through with a slope of 1 or less.
- E = the largest of these errors over j. A weight exp2(t_j - m) costs uR for the difference and 4u for exp2. The running
  maximum cancels in the quotient; each of T rescalings costs 4u for exp2, u for the product and, with all others, uR for
  the differences. Row sums: 2u for each of n + T additions. Merging k splits: uR + 6u + 2uk once more. In all
  e_D = exp(E + 2uR + 4u + 7uT + 2un + [uR + 6u + 2uk]) - 1.
- Numerator: the same, and w for the weights' own rounding (to the type of dot products), u for the product with V, 2u
  for the scale of V: e_N. Weights below 2**-14 in float16 are rounded to multiples of 2**-24, those below 2**-126 may be
  flushed: an absolute h |V_j| each, where V_j is counted in the units in which it meets its weight, and what comes of it
  in the largest unit of a tile, which a kernel takes out of the product: M at most.

The quotient is within B = (e_N P + e_D |o|) / (1 - e_D) + h M (sum |V_j|) (1 + e_D) / S + 2u |o|, and rounded last: u' (|o| + B)
and half a subnormal of the output's type. The logarithm of S exp(max t) is within ln(1 + e_D), 4u (1 + ln n) for log2, and
4u (max |t| + ln n) for a sum, a constant and a product.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvsan.ci.kernels.contents import Float64Array
from kvsan.gpu_kernels.launching import Masking

ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
_HALF_SUBNORMAL = {"float32": 2.0**-126, "float16": 2.0**-25, "bfloat16": 2.0**-126}
_SCORES_AT_ONCE = 1 << 22
_U = ROUNDOFF["float32"]


@dataclass(frozen=True, slots=True)
class Rounding:
    """Types that a kernel rounds to: ``compute`` that of dot products, ``output`` that of outputs; how many splits."""

    compute: str
    output: str
    splits: int = 1


@dataclass(frozen=True, slots=True)
class Expected:
    """What ``num_tokens`` queries get, and how far a kernel may be from it.

    ``output`` and ``output_bound`` ``[num_tokens, num_q_heads, value_dim]``, ``quotient_bound`` likewise before the
    output is rounded; ``lse`` and ``lse_bound`` ``[num_tokens, num_q_heads]``.
    """

    output: Float64Array
    output_bound: Float64Array
    quotient_bound: Float64Array
    lse: Float64Array
    lse_bound: Float64Array


@dataclass(frozen=True, slots=True)
class Context:
    """K and V of one sequence, ``[num_tokens, num_kv_heads, dim]``; ``value_units`` as in ``contents.Content``."""

    keys: Float64Array
    values: Float64Array
    value_units: Float64Array


def attend(
    queries: Float64Array, start: int, context: Context, scale: float, masking: Masking, rounding: Rounding
) -> Expected:
    """Attend with queries ``[num_tokens, num_q_heads, dim]`` at positions from ``start`` on, -1 for one that sees nothing."""
    tokens, heads = queries.shape[:2]
    length, kv_heads, value_dim = context.values.shape
    group = heads // kv_heads
    shape = (tokens, heads, value_dim)
    result = Expected(
        np.zeros(shape), np.zeros(shape), np.zeros(shape), np.full(shape[:2], -np.inf), np.zeros(shape[:2])
    )
    positions = start + np.arange(tokens)[:, None]
    firsts = np.array([masking.first(position) for position in positions[:, 0].tolist()])[:, None]
    seen = (np.arange(length) <= positions) & (np.arange(length) >= firsts)
    for some in np.array_split(np.flatnonzero(seen.any(1)), 1 + tokens * group * length // _SCORES_AT_ONCE):
        for kv_head in range(kv_heads if len(some) else 0):
            rows = slice(kv_head * group, (kv_head + 1) * group)
            part = Context(*(one[:, kv_head] for one in (context.keys, context.values, context.value_units)))
            found = _attend(queries[some, rows], part, seen[some], scale, masking.softcap, rounding)
            for name in ("output", "output_bound", "quotient_bound", "lse", "lse_bound"):
                getattr(result, name)[some, rows] = getattr(found, name)
    return result


def _attend(
    query: Float64Array,
    context: Context,
    seen: npt.NDArray[np.bool_],
    scale: float,
    softcap: float | None,
    rounding: Rounding,
) -> Expected:
    """Attend with the q heads of one kv head, ``[num_tokens, group, dim]``; arrays of ``context`` are ``[length, dim]``.

    ``seen`` ``[num_tokens, length]``, something in each row.
    """
    dim = context.keys.shape[1]
    seen = seen[:, None]
    visible = seen.sum(-1, keepdims=True)
    scores = query @ context.keys.T * scale
    errors = (2 * dim + 12) * _U * abs(scale) * (np.abs(query) @ np.abs(context.keys).T)
    if softcap is not None:
        errors += _U * (8 * np.abs(scores) + 16 * softcap)
        scores = softcap * np.tanh(scores / softcap)
    errors += 2 * _U * np.abs(scores)
    highest = scores.max(-1, keepdims=True, where=seen, initial=-np.inf)
    lowest = scores.min(-1, keepdims=True, where=seen, initial=np.inf)
    weights = np.exp(np.where(seen, scores - highest, -np.inf))
    total = weights.sum(-1, keepdims=True)
    output = weights @ context.values / total
    size = weights @ np.abs(context.values) / total

    spread, tiles = highest - lowest, visible // 16 + 2
    terms = errors.max(-1, keepdims=True, where=seen, initial=0.0)
    terms = terms + _U * (2 * spread + 4 + 7 * tiles + 2 * visible)
    if rounding.splits > 1:
        terms += _U * (spread + 6 + 2 * rounding.splits)
    below = np.expm1(terms)
    above = np.expm1(terms + 3 * _U + (ROUNDOFF[rounding.compute] if rounding.compute != "float32" else 0.0))
    loaded = seen.astype(np.float64) @ np.abs(context.values / context.value_units) * context.value_units.max()
    bound = (above * size + below * np.abs(output)) / (1 - below) + 2 * _U * np.abs(output)
    bound += _HALF_SUBNORMAL[rounding.compute] * loaded * (1 + below) / total
    rounded = bound + ROUNDOFF[rounding.output] * (np.abs(output) + bound) + _HALF_SUBNORMAL[rounding.output]
    largest = np.maximum(np.abs(highest), np.abs(lowest))
    logarithm = np.log1p(below) + 4 * _U * (1 + 2 * np.log(visible) + largest)
    return Expected(output, rounded, bound, (highest + np.log(total))[..., 0], logarithm[..., 0])
