"""A reset of the prefix cache empties the tiers too.

Statement (trait ``resets_tiers``): after a reset that was answered with True no tier serves anything.

Why: operators reset the cache because its content has become wrong, for instance after new weights.

Reports: vLLM 57727 (reset of the prefix cache leaves a lower tier serving).

Does not see: what a store's medium still holds; nobody asks for it.

Mutant: ``reset_leaves_tiers``.
"""

from __future__ import annotations

from kvsan.harness.invariant import Invariant
from kvsan.harness.step import Step


class TierReset(Invariant):
    """Checks the indexes after a reset."""

    id = "tier_reset"
    every_step = True

    def applies(self) -> bool:
        """Only where it is promised."""
        return self.books.tiers is not None and self.traits.resets_tiers

    def after_step(self, step: Step) -> None:
        """Judge a granted reset."""
        if not step.reset:
            return
        tiers = self.books.tiers
        assert tiers is not None
        for tier in tiers.view.tiers():
            served = [entry.key for entry in tiers.view.entries(tier) if entry.ready]
            if served:
                raise self.violated(
                    "serving", f"the prefix cache was reset, and {tier} still serves {len(served)} chunks"
                )
