"""A load that is possible is granted.

Statement (trait ``loads_hits``): where the host has the chunk behind the blocks that the device has, the last token need
not come from it, and the whole prompt fits into what is free, a load is not refused.

Why: lost hits corrupt nothing and cost everything that the tier was built for.

Reports: vLLM 48435, 57610 (retained one short: never a hit), 43559.

Does not see: hits in stores, for which the host must have room; hits that are shorter than they could be.

Mutant: ``first_chunk_never_found``.
"""

from __future__ import annotations

from kvsan.gpu_kernels.addressing import blocks_for, full_blocks
from kvsan.harness.invariant import Invariant
from kvsan.harness.operations import Load
from kvsan.harness.step import Step
from kvsan.harness.tiers import HOST_TIER
from kvsan.invariants.load_progress import units_wanted


class LostTierHits(Invariant):
    """Checks refused loads."""

    id = "lost_tier_hits"

    def applies(self) -> bool:
        """Only where it is promised."""
        return self.books.tiers is not None and self.traits.loads_hits

    def after_step(self, step: Step) -> None:
        """Judge a refused load."""
        request, tiers = step.subject, self.books.tiers
        if not step.refused or not isinstance(step.operation, Load) or request is None:
            return
        assert tiers is not None
        size, blocks = self.traits.block_size, self.traits.chunk_blocks
        free = self.view.num_free() - self.traits.watermark
        if blocks_for(len(request.life.tokens), size) > free or units_wanted(self.books):
            return
        first = step.looked_up // size // blocks * blocks
        if first + blocks > full_blocks(len(request.life.tokens) - 1, size):
            return
        for key in tiers.keys_of(request, first):
            entry = tiers.view.entry(HOST_TIER, key)
            if entry is not None and entry.ready:
                raise self.violated(
                    "refused",
                    f"{request.r} was refused a load although the host has its chunk of blocks {first} and on",
                )
