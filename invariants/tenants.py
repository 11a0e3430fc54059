"""Tenants never share.

Statement: a request never reuses a unit that was published under another salt, even if its content is equal.

Why: a salt separates tenants; timing of a hit tells one what another has asked.

Reports: vLLM 44701 (salt and adapter name untagged in one tuple).

Does not see: side channels other than sharing.

Mutant: ``salt_missing``.
"""

from __future__ import annotations

from kvsan.gpu_kernels.addressing import full_blocks
from kvsan.harness.invariant import Invariant
from kvsan.harness.step import Step


class Tenants(Invariant):
    """Compares the salts of a hit's two sides."""

    id = "tenants"

    def after_step(self, step: Step) -> None:
        """Judge the hits of a first chunk."""
        request = step.subject
        if not step.hit or request is None:
            return
        for table in request.tables:
            for block, unit in enumerate(table[: full_blocks(step.hit, self.traits.block_size)]):
                publication = self.books.publications.get(unit)
                if publication is not None and unit != self.books.null and publication.salt != request.salt:
                    raise self.violated(
                        "salt",
                        f"{request.r} (salt {request.salt!r}) block {block} hits unit {unit} of {publication.publisher.r} "
                        f"(salt {publication.salt!r})",
                    )
