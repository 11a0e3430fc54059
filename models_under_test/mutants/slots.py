"""Bugs at the edges of blocks and tables."""

from __future__ import annotations

from kvsan.gpu_kernels.addressing import full_blocks
from kvsan.harness.target import Admission, Copy, Effects, Zero
from kvsan.models_under_test.mutants.base import Mutant
from kvsan.models_under_test.paged.batch import Row
from kvsan.models_under_test.paged.request import PagedRequest


class OffByOneSlot(Mutant):
    """A copy on write copies one slot too few.

    Reports: FlashInfer 527, 320 (append stride, last page length).
    """

    name = "off_by_one_slot"
    killed_by = ("provenance",)

    def _copy_on_write(self, row: Row, block: int, start: int) -> Effects:
        return [
            effect._replace(stop=effect.stop - 1)
            for effect in super()._copy_on_write(row, block, start)
            if isinstance(effect, Copy)
        ]


class OneBlockShort(Mutant):
    """The first token behind a block boundary does not get a block.

    Reports: vLLM 56469, 54296 (block table read past its columns), SGLang 22819.
    """

    name = "one_block_short"
    killed_by = ("table_covers",)

    def blocks_needed(self, slots: int) -> int:
        """One slot too few."""
        return super().blocks_needed(slots - 1)


class TrimsTooMuch(Mutant):
    """Rolling drafts back takes the partial block too, with tokens that were accepted.

    Reports: vLLM 47282 (blocks freed by the wrong count when drafts are rejected).
    """

    name = "trims_too_much"
    killed_by = ("append_only",)

    def _roll_back(self, request: PagedRequest, rejected: int) -> None:
        super()._roll_back(request, rejected)
        if request.name not in self.batch and not request.launches:
            self.trim(request, full_blocks(request.scheduled, self.block_size))


class TwoPlaces(Mutant):
    """New blocks are taken before the hits are touched or counted: a hit block that nobody holds is given out as new.

    Reports: vLLM 33775, 43884, 44409 (real: one allocation takes hit blocks of another that are not yet touched).
    """

    name = "two_places"
    killed_by = ("ownership",)

    def fits(self, request: PagedRequest, hits: list[int], fresh: int) -> bool:
        """Forget the hits."""
        return super().fits(request, [], fresh)

    def take_hits(self, request: PagedRequest, hits: list[int]) -> None:
        """Hold nothing yet."""
        super().take_hits(request, [])
        self._untouched = hits

    def extend(self, request: PagedRequest, fresh: int) -> None:
        """Allocate before the hits are held."""
        hits, behind = self._untouched, len(request.table)
        super().extend(request, fresh)
        new = request.table[behind:]
        del request.table[behind:]
        super().take_hits(request, hits)
        request.table.extend(new)


class ZeroesTheNeighbour(Mutant):
    """Fresh blocks are zeroed, and with each the one behind it.

    Reports: vLLM 43990 (zeroing a page also zeroes its neighbour in another layout).
    """

    name = "zeroes_the_neighbour"
    killed_by = ("foreign_write", "provenance", "order")

    def schedule(self, name: str, n: int, lookahead: int, external: int, delayed: bool) -> Admission | None:
        """Get blocks, and zero the last of them, two pages long."""
        before = len(self.requests[name].table)
        admission = super().schedule(name, n, lookahead, external, delayed)
        if admission is None or external or len(self.requests[name].table) == before or admission.hit:
            return admission
        last = self.requests[name].table[-1]
        pages = range(last, min(last + 2, self.traits.num_units))
        return Admission(admission.hit, [*admission.effects, *(Zero(unit, 0, self.block_size) for unit in pages)])
