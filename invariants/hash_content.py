"""A published hash names its content.

Statement: what is published is a block of the publisher's known tokens; it is computed, or (where publishing at allocation
is the trait) its writer comes before every possible reader; one key never names two contents; and a hash whose writer is
gone is withdrawn.

Why: whoever finds the hash reads what is there, and nobody checks again.

Reports: vLLM 42359 (published at schedule time, hit and read before it is written), 49449 (tokens replaced in a hashed
block), 3263 and 8240 (adapter missing from the key), 56655, TGI 2489 (blocks never prefilled stay in the cache).

Does not see: hashes that a target computes but does not show.

Mutant: ``published_then_cancelled``, ``publishes_early``, ``adapter_id_missing``, ``media_missing``.
"""

from __future__ import annotations

from collections.abc import Hashable

from kvsan.harness.blocks import difference
from kvsan.harness.books import Books
from kvsan.harness.invariant import Invariant
from kvsan.harness.shadow import Shadow
from kvsan.harness.step import Publication, Step


class HashContent(Invariant):
    """Judges each publication, and that unwritten ones still have a writer."""

    id = "hash_content"

    def __init__(self, books: Books, shadow: Shadow) -> None:
        super().__init__(books, shadow)
        self._by_key: dict[Hashable, list[Publication]] = {}

    def after_step(self, step: Step) -> None:
        """Judge what was published and withdrawn."""
        for publication in step.withdrawn:
            self._forget(publication)
        for publication in step.published:
            self._judge(publication, any(ended.request is publication.publisher for ended in step.ended))
        if self.shadow.unwritten:
            self._writers_left()

    def _forget(self, publication: Publication) -> None:
        self.shadow.unwritten.pop(publication.unit, None)
        same = self._by_key[publication.key]
        same.remove(publication)
        if not same:
            del self._by_key[publication.key]

    def _judge(self, publication: Publication, ended: bool) -> None:
        same = self._by_key.setdefault(publication.key, [])
        same.append(publication)
        other = same[0]
        if other.identity != publication.identity:
            raise self.violated(
                "one key, two contents: " + difference(other, publication.publisher, self.traits.block_size),
                f"units {other.unit} and {publication.unit} have one key, for {other.publisher.r} block {other.block} and "
                f"{publication.publisher.r} block {publication.block}, whose content differs",
            )
        unit, request = publication.unit, publication.publisher
        computed = request.life.executed >= (publication.block + 1) * self.traits.block_size
        holds = self.shadow.holds(unit, request, publication.block, publication.group)
        if not computed and self.traits.publish != "retire" and not (ended and holds):
            self.shadow.unwritten[unit] = request.life
        elif not holds:
            raise self.violated(
                "not computed",
                f"unit {unit} is published for {request.r} block {publication.block}, which is not computed",
                self.shadow.tell(unit * self.traits.block_size + self.traits.block_size - 1, publication.group),
            )

    def _writers_left(self) -> None:
        """Every published unit that is not computed yet has a writer: a row scheduled or in flight, or a load."""
        size = self.traits.block_size
        for unit, life in self.shadow.unwritten.items():
            publication = self.books.publications[unit]
            request, start = publication.publisher, publication.block * size
            rows = life.rows[:]
            if request.life is life and request.row is not None:
                rows.append(request.row)
            loading = request.life is life and request.loading is not None
            if not (loading or any(row.start - row.external < start + size and start < row.stop for row in rows)):
                raise self.violated(
                    "no writer left",
                    f"unit {unit} is published for {request.r} block {publication.block}; nothing in flight will write it",
                )
