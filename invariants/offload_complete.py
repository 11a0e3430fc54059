"""What is offloaded is offloaded whole.

Statement (trait ``offloads_all``): after an offload to the host was granted, every full chunk of what the request has
computed is there or on its way.

Why: one chunk that is left out ends every later hit where it is missing.

Reports: vLLM 48596 (last block never stored), 47046.

Does not see: offloads that are refused, which may have no room.

Mutant: ``last_chunk_never_stored``.
"""

from __future__ import annotations

from kvsan.gpu_kernels.addressing import full_blocks
from kvsan.harness.invariant import Invariant
from kvsan.harness.step import Step
from kvsan.harness.tiers import HOST_TIER


class OffloadComplete(Invariant):
    """Checks the host's index after an offload to it."""

    id = "offload_complete"

    def applies(self) -> bool:
        """Only where it is promised."""
        return self.books.tiers is not None and self.traits.offloads_all

    def after_step(self, step: Step) -> None:
        """Judge the offload that the step began."""
        transfer, tiers = step.begun, self.books.tiers
        if transfer is None or transfer.kind != "offload" or transfer.tier != HOST_TIER:
            return
        assert tiers is not None
        request, blocks = transfer.request, self.traits.chunk_blocks
        for chunk in range(full_blocks(request.retired, self.traits.block_size) // blocks):
            if not any(tiers.view.entry(HOST_TIER, key) for key in tiers.keys_of(request, chunk * blocks)):
                raise self.violated(
                    "left out",
                    f"{transfer.t} offloads {request.r}, but not its chunk of blocks {chunk * blocks} and on",
                )
