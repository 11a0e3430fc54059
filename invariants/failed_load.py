"""A load that failed leaves nothing behind.

Statement: after the manager has heard that a load failed, no unit that it wrote has a hash, and a chunk that its store would
not give is not offered again.

Why: half a load is read as a whole one; or every later request fails on the same chunk, for ever.

Reports: vLLM 49250 (a load fails; a sharer decodes while the owner still recomputes), 25067.

Does not see: whether the recomputed output is exact: ``provenance`` and ``numbers`` do.

Mutant: ``failed_load_kept``, ``refused_chunk_offered_again``.
"""

from __future__ import annotations

from kvsan.harness.invariant import Invariant
from kvsan.harness.step import Step


class FailedLoad(Invariant):
    """Checks what a failed load leaves."""

    id = "failed_load"
    every_step = True

    def applies(self) -> bool:
        """Only with tiers."""
        return self.books.tiers is not None

    def after_step(self, step: Step) -> None:
        """Judge the load that the target just heard of."""
        transfer, tiers = step.completed, self.books.tiers
        if transfer is None or transfer.kind != "load" or not transfer.failure:
            return
        assert tiers is not None
        for unit in transfer.written:
            if self.view.key(unit) is not None:
                raise self.violated(
                    "published", f"unit {unit} has a hash although {transfer.t}, which wrote it, has failed"
                )
        for tier, key in transfer.refused:
            entry = tiers.view.entry(tier, key)
            if entry is not None and entry.ready and not entry.pins:
                raise self.violated("offered again", f"{tier} would not give chunk {key[:12]}, and it is still offered")
