"""What is on its way is not there yet.

Statement: until the manager has heard that a transfer is complete, no unit that a load writes has a hash or a second holder,
and no other transfer reads a chunk that is being written.

Why: whoever counts on it reads what was there before.

Reports: vLLM 42359 (ghost blocks), 49250 (a sharer decodes while the owner's load has failed), 29387, 41838.

Does not see: readers that take no reference and use no hash; ``provenance`` does if they read.

Mutant: ``published_before_landed``, ``served_before_stored``.
"""

from __future__ import annotations

from kvsan.harness.invariant import Invariant
from kvsan.harness.step import Step
from kvsan.harness.transfer import Transfer


class Unlanded(Invariant):
    """Checks the written end of everything in flight."""

    id = "unlanded"
    every_step = True

    def applies(self) -> bool:
        """Only with tiers."""
        return self.books.tiers is not None

    def on_transfer(self, transfer: Transfer) -> None:
        """What a transfer reads in a tier, no other may still be writing there."""
        tiers = self.books.tiers
        assert tiers is not None
        reads = set(transfer.tier_reads())
        for other in tiers.in_flight.values():
            early = reads.intersection(other.tier_writes()) if other is not transfer else ()
            if early:
                tier, key = min(early)
                raise self.violated(
                    "served early",
                    f"{transfer.t} reads chunk {key[:12]} in {tier}, which {other.t} has not finished writing",
                )

    def after_step(self, step: Step) -> None:
        """Units that a load writes are neither published nor shared."""
        tiers = self.books.tiers
        assert tiers is not None
        for transfer in tiers.in_flight.values():
            for unit in transfer.written:
                if self.view.key(unit) is not None:
                    raise self.violated("published", f"unit {unit} has a hash although {transfer.t} has not landed")
                if self.books.holders[unit] > 1:
                    raise self.violated("shared", f"unit {unit} has two holders although {transfer.t} has not landed")
