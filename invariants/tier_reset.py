"""A reset of the prefix cache empties the tiers too.

Statement (trait ``resets_tiers``): after a reset that was answered with True no tier serves anything; what was on its way
then is not served when it has arrived.

Why: operators reset the cache because its content has become wrong, for instance after new weights.

Reports: vLLM 57727 (reset of the prefix cache leaves a lower tier serving).

Does not see: what a store's medium still holds; nobody asks for it.

Mutant: ``reset_leaves_tiers``, ``reset_misses_transfers``.
"""

from __future__ import annotations

from kvsan.harness.books import Books
from kvsan.harness.invariant import Invariant
from kvsan.harness.shadow import Shadow
from kvsan.harness.step import Step
from kvsan.harness.transfer import Transfer


class TierReset(Invariant):
    """Checks the indexes after a reset."""

    id = "tier_reset"
    every_step = True

    def __init__(self, books: Books, shadow: Shadow) -> None:
        super().__init__(books, shadow)
        self._on_their_way: dict[str, Transfer] = {}
        self._anew: set[tuple[str, str]] = set()

    def applies(self) -> bool:
        """Only where it is promised."""
        return self.books.tiers is not None and self.traits.resets_tiers

    def after_step(self, step: Step) -> None:
        """Judge a granted reset, and the end of what was in flight then."""
        tiers = self.books.tiers
        assert tiers is not None
        if self._on_their_way and step.completed is not None:
            self._check_arrival(step.completed)
        if not step.reset:
            return
        self._on_their_way = dict(tiers.in_flight)
        self._anew.clear()
        for tier in tiers.view.tiers():
            served = [entry.key for entry in tiers.view.entries(tier) if entry.ready]
            if served:
                raise self.violated(
                    "serving", f"the prefix cache was reset, and {tier} still serves {len(served)} chunks"
                )

    def _check_arrival(self, transfer: Transfer) -> None:
        """What a transfer began to write before the reset is not served, unless somebody has written it anew since."""
        tiers = self.books.tiers
        assert tiers is not None
        if self._on_their_way.pop(transfer.t, None) is None:
            if not transfer.failure:
                self._anew.update(transfer.tier_writes())
            return
        for tier, key in set(transfer.tier_writes()) - self._anew:
            entry = tiers.view.entry(tier, key)
            if entry is not None and entry.ready:
                raise self.violated(
                    "arrived later", f"{transfer.t} began before the cache was reset, and {tier} serves what it brought"
                )
