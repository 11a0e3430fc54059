"""A promised hit is given.

Statement: a look-up finds at least what the target's trait promises for the blocks that are published now (the longest
prefix of full attention; what an engine subtracts, its trait says).

Why: nothing is corrupted, but every request is computed again, and nobody notices.

Reports: vLLM 33270, 32802 (the drop for eagle is repeated in every round: hit 0), 48435, 57610.

Does not see: targets that promise nothing.

Mutant: ``hits_lost``.
"""

from __future__ import annotations

from kvsan.harness.blocks import RequestIndex
from kvsan.harness.expectation import Expected
from kvsan.harness.invariant import Invariant


class LostHits(Invariant):
    """Compares a look-up with the shadow index."""

    id = "lost_hits"

    def applies(self) -> bool:
        """Only where a hit is promised."""
        return self.traits.promised_hit is not None

    def on_lookup(self, request: Expected, hit: int) -> None:
        """Judge a look-up."""
        assert self.traits.promised_hit is not None
        promised = self.traits.promised_hit(RequestIndex(self.books, request), len(request.life.tokens))
        if hit < promised:
            cause = "nothing" if hit == 0 else "too little"
            raise self.violated(cause, f"{request.r} hits {hit} tokens; {promised} are cached and promised")
