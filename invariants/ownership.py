"""A unit has one owner unless it is shared on purpose.

Statement: a unit that enters a table comes from the free queue, unless it is a prefix hit, a fork's, or the equal of the
full block whose place it takes; and within one request no unit stands in two places, of one cache group or of two.

Why: two owners write one page, and each reads the other's keys and values.

Reports: vLLM 33775, 43884, 44409 (an external allocation for one group takes hit blocks of the other).

Does not see: owners outside of the tables that a target shows.

Mutant: ``double_free`` (the second owner), ``two_places``.
"""

from __future__ import annotations

from kvsan.harness.expectation import Expected
from kvsan.harness.invariant import Invariant
from kvsan.harness.step import Added, Step


class Ownership(Invariant):
    """Checks every unit that entered a table."""

    id = "ownership"

    def after_step(self, step: Step) -> None:
        """Check new table entries."""
        for added in step.added:
            if added.holders > 0:
                self._check(added, step.shareable_blocks)
        for replaced in step.replaced:
            unit = replaced.new
            if unit != self.books.null and self.books.holders[unit] > 1 and not self.shadow.replaces(replaced):
                raise self.violated("replaced", f"{self._places(unit)} after a table entry was replaced")

    def _check(self, added: Added, shareable: int) -> None:
        tables, unit = added.request.tables, added.unit
        if sum(table.count(unit) for table in tables) > 1:
            within = [group for group, table in enumerate(tables) if unit in table]
            kinds = "+".join(sorted({self.traits.groups[group].kind for group in within}))
            cause = f"two groups: {kinds}" if len(within) > 1 else "two blocks"
            raise self.violated(cause, f"unit {unit} stands at {self._places(unit)}")
        if added.block >= shareable:
            raise self.violated("two requests", f"unit {unit}, newly allocated, stands at {self._places(unit)}")

    def _all_places(self, unit: int) -> list[tuple[Expected, int, int]]:
        return [
            (request, group, block)
            for request in self.books.requests.values()
            for group, table in enumerate(request.tables)
            for block, held in enumerate(table)
            if held == unit
        ]

    def _places(self, unit: int) -> str:
        return " and ".join(
            f"{request.r} block {block} of group {group} ({self.traits.groups[group].kind})"
            for request, group, block in self._all_places(unit)
        )
