"""A target's delta tells everything.

Statement: what the books have been told, step by step, is what the target holds: tables, hashes and counts.

Why: all cheap checks look only at what changed, by the word of the accused.

Reports: none; this guards the other invariants.

Does not see: a change and its reversal between two sweeps.

Mutant: ``delta_under_reports``.
"""

from __future__ import annotations

from kvsan.harness.invariant import Invariant


class Testimony(Invariant):
    """Compares the books with the whole view on every sweep."""

    id = "testimony"

    def sweep(self) -> None:
        """Compare tables and hashes."""
        for name, request in self.books.requests.items():
            for group, table in enumerate(self.view.tables(name)):
                if list(table) != request.tables[group]:
                    raise self.violated(
                        "table", f"{request.r}'s table of group {group} is not what the target reported step by step"
                    )
        for unit, publication in self.books.publications.items():
            if self.view.key(unit) != publication.key:
                raise self.violated("hash", f"the hash of unit {unit} changed and the target did not report it")
