"""What arrives is what the key stands for.

Statement: every piece of a transfer, when it has moved, has put the content of its key's block where it went; into a store, too.

Why: a tier that was filled with the wrong page serves it for ever; the first bad copy is the place to look.

Reports: vLLM 45704 (store to host not ordered after compute), 48596, LMCache 1728, SGLang 28374, 30845.

Does not see: bytes behind the identities; ``numbers`` compares those when they are read.

Mutant: ``offload_before_compute``, ``copy_before_arrival``, ``copies_one_slot_short``.
"""

from __future__ import annotations

import numpy as np

from kvsan.gpu_kernels.addressing import slot_of
from kvsan.harness.invariant import Invariant
from kvsan.harness.target import Copy, Effect
from kvsan.harness.tiers import Get, Put
from kvsan.harness.transfer import Transfer


class TierContent(Invariant):
    """Checks each piece of a transfer when it has moved."""

    id = "tier_content"

    def applies(self) -> bool:
        """Only with tiers."""
        return self.books.tiers is not None

    def on_moved(self, transfer: Transfer, effect: Effect) -> None:
        """Look at what has arrived; in the host also at what leaves for a store, which keeps it for others."""
        if isinstance(effect, Copy):
            host_unit = effect.destination if transfer.kind == "offload" else effect.source
            self._check(transfer, host_unit, effect.destination)
        elif isinstance(effect, Put | Get):
            for unit in effect.units:
                self._check(transfer, unit, unit)

    def _check(self, transfer: Transfer, host_unit: int, arrived_in: int) -> None:
        tiers = self.books.tiers
        assert tiers is not None
        chunk, place = transfer.place_of(host_unit)
        expected = tiers.page(chunk.key, place)
        found = self.shadow.blocks[arrived_in]
        if found.tobytes() == expected.tobytes():
            return
        at = int(np.flatnonzero(found != expected)[0])
        cause = "nothing" if int(found[at]) == 0 else "foreign"
        slot = slot_of(arrived_in, at, self.traits.block_size)
        raise self.violated(
            cause,
            f"{transfer.t} has brought {self.shadow.namer(int(found[at]), 0)} into slot {slot} (unit {arrived_in}), where "
            f"{transfer.request.r}@{(chunk.block + place) * self.traits.block_size + at} belongs",
            self.shadow.tell(slot, 0),
        )
