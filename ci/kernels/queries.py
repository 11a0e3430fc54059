"""Queries of a problem: random ones, and with exact K and V also those whose answer is known to the bit.

    kind      query                         what it gets
    RANDOM    normal                        within the bound of ``expected``
    ZERO      0                             sums of V and the number of positions, exactly, where sums are asked for
    NEEDLE    2**k * K of one position      V of that position, exactly: all other weights are 0 in float32

2**k is chosen so that every other score is lower by 128 at least; where none is good enough, the query is random.
"""

from __future__ import annotations

import numpy as np
import torch

from kvsan.ci.kernels.contents import Float64Array
from kvsan.gpu_kernels.addressing import IntArray

RANDOM, ZERO, NEEDLE = 0, 1, 2

_GAP = 128.0
_LARGEST_FACTOR = 4096.0


class Queries:
    """Queries ``[num_tokens, num_q_heads, dim]`` of a problem, filled sequence by sequence.

    ``kinds`` ``[num_tokens, num_q_heads]``; ``needles`` likewise: the position that a needle points at.
    """

    def __init__(self, tokens: int, heads: int, dim: int, rng: np.random.Generator) -> None:
        self.numbers: Float64Array = rng.standard_normal((tokens, heads, dim))
        self.kinds: IntArray = np.full((tokens, heads), RANDOM)
        self.needles: IntArray = np.full((tokens, heads), -1)
        self._first = int(rng.integers(3))
        self._rng = rng

    def choose_kinds(self, token: int, keys: Float64Array, first: int, scale: float, capped: bool) -> None:
        """Make some of a token's queries zero or needles; ``keys`` of the positions that it sees, from ``first`` on."""
        heads = self.kinds.shape[1]
        group = heads // keys.shape[1]
        for head in range(heads):
            kind = (self._first + token + head) % 3
            if kind == ZERO:
                self.numbers[token, head] = 0.0
                self.kinds[token, head] = ZERO
            elif kind == NEEDLE and not capped:
                self._point(token, head, keys[:, head // group], first, scale)

    def _point(self, token: int, head: int, keys: Float64Array, first: int, scale: float) -> None:
        for candidate in self._rng.integers(len(keys), size=4):
            scores = keys @ keys[candidate] * scale
            margin = scores[candidate] - np.delete(scores, candidate).max(initial=scores[candidate] - 2 * scale)
            if margin > 0:
                factor = float(np.exp2(np.ceil(np.log2(_GAP / margin))))
                if factor <= _LARGEST_FACTOR:
                    self.numbers[token, head] = factor * keys[candidate]
                    self.kinds[token, head] = NEEDLE
                    self.needles[token, head] = first + candidate
                    return

    def tensor(self, dtype: torch.dtype, fused: bool, padded: int, device: str | torch.device) -> torch.Tensor:
        """Return the queries and ``padded`` more of NaN; as a slice of a wider tensor if ``fused``."""
        tokens, heads, dim = self.numbers.shape
        base = torch.full((tokens + padded, heads + (3 if fused else 0), dim), float("nan"), dtype=dtype, device=device)
        query = base[:, 1 : 1 + heads] if fused else base
        query[:tokens] = torch.from_numpy(self.numbers).to(dtype).to(device)
        return query

    def rounded(self, *dtypes: torch.dtype) -> Float64Array:
        """Return the queries as rounded to one type after the other."""
        tensor = torch.from_numpy(self.numbers)
        for dtype in dtypes:
            tensor = tensor.to(dtype)
        result: Float64Array = tensor.double().numpy()
        return result
