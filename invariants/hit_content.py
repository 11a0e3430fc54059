"""A hit names the request's own content.

Statement: every unit that a first chunk takes over from the cache holds, or is about to hold, the block that the request's
own tokens, adapter and media would produce.

Why: this is the moment at which one request starts to read another's memory.

Reports: vLLM 44701 (an adapter named like a salt), 30931 (adapters of one name and different ids), SGLang 24638, LMCache 1728.

Does not see: a wrong hit whose content is equal by accident of the test; ``tenants`` judges salts.

Mutant: ``adapter_id_missing``, ``parent_missing``.
"""

from __future__ import annotations

from kvsan.gpu_kernels.addressing import full_blocks
from kvsan.harness.blocks import difference
from kvsan.harness.expectation import Expected
from kvsan.harness.invariant import Invariant
from kvsan.harness.step import Step


class HitContent(Invariant):
    """Compares hit units with the books' publications."""

    id = "hit_content"

    def after_step(self, step: Step) -> None:
        """Judge the hits of a first chunk."""
        if step.hit and step.subject is not None:
            for group, table in enumerate(step.subject.tables):
                self._judge(step.subject, group, table[: full_blocks(step.hit, self.traits.block_size)])

    def _judge(self, request: Expected, group: int, units: list[int]) -> None:
        size, publications = self.traits.block_size, self.books.publications
        chain, mask = request.life.chain, self.books.masks[group]
        for block, unit in enumerate(units):
            if unit == self.books.null:
                continue
            publication = publications.get(unit)
            if publication is None:
                raise self.violated("not published", f"{request.r} hits unit {unit}, which carries no hash")
            if publication.identity != int(chain[(block + 1) * size - 1]) ^ mask:
                publisher = publication.publisher
                raise self.violated(
                    difference(publication, request, size),
                    f"{request.r} block {block} hits unit {unit}, which holds {publisher.r} block {publication.block} "
                    f"(adapter {publication.adapter}, salt {publication.salt!r}); {request.r} has adapter "
                    f"{request.adapter}, salt {request.salt!r}",
                    self._whose(unit, group),
                )

    def _whose(self, unit: int, group: int) -> str:
        if unit in self.shadow.unwritten:
            return f"unit {unit} is published before it is computed; its publisher is about to write it"
        size = self.traits.block_size
        return self.shadow.tell(unit * size + size - 1, group)
