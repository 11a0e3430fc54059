"""A hit leaves something to compute.

Statement: a look-up promises whole blocks, and fewer tokens than the request has: a full hit recomputes.

Why: with every token cached there is no query, no logits, and nothing to sample from; with a part of a block, slots that
another request owns are written.

Reports: SGLang 22819 (prefix length equal to the block size), vLLM's own full-hit rule.

Does not see: hits that are too short; that is ``lost_hits``.

Mutant: ``full_hit_recomputes_nothing``.
"""

from __future__ import annotations

from kvsan.gpu_kernels.addressing import offset_of
from kvsan.harness.expectation import Expected
from kvsan.harness.invariant import Invariant


class HitBounds(Invariant):
    """Checks the number that a look-up returns."""

    id = "hit_bounds"

    def on_lookup(self, request: Expected, hit: int) -> None:
        """Judge a look-up."""
        known = len(request.life.tokens)
        if hit < 0 or hit >= known:
            raise self.violated(
                "nothing left", f"{request.r} has {known} tokens and hits {hit}: none is left to compute"
            )
        if offset_of(hit, self.traits.block_size):
            raise self.violated("partial block", f"{request.r} hits {hit} tokens, which are not whole blocks")
