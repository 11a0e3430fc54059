"""Reference counts equal references.

Statement: for a target that counts, a unit's reference count is the number of table entries that name it, plus the tables
that work in flight still holds.

Why: a count too low frees a unit that somebody reads; a count too high leaks it.

Reports: vLLM 11562 (references leaked by a refused allocation), SGLang 16067, LMCache 1756.

Does not see: a wrong count that the target has not reported, until the next sweep.

Mutant: ``refusal_leaks``, ``fork_without_count``.
"""

from __future__ import annotations

import numpy as np

from kvsan.harness.invariant import Invariant
from kvsan.harness.step import Step


class RefCounts(Invariant):
    """Compares the target's counts with the books' holders."""

    id = "ref_counts"

    def applies(self) -> bool:
        """Only where a target counts references."""
        return self.traits.counts_references

    def after_step(self, step: Step) -> None:
        """Check every unit that was touched."""
        holders, count, null = self.books.holders, self.view.ref_count, self.books.null
        for unit in step.units:
            if count(unit) != holders[unit] and unit != null:
                self._tell(unit, count(unit))

    def sweep(self) -> None:
        """Check every unit."""
        counts = np.asarray(self.view.ref_counts())
        wrong = counts != np.frombuffer(self.books.holders, np.int32)
        if self.books.null is not None:
            wrong[self.books.null] = False
        if wrong.any():
            unit = int(np.flatnonzero(wrong)[0])
            self._tell(unit, int(counts[unit]))

    def _tell(self, unit: int, counted: int) -> None:
        held = self.books.holders[unit]
        owners = [
            request.r for request in self.books.requests.values() if any(unit in table for table in request.tables)
        ]
        cause = "too high" if counted > held else "too low"
        raise self.violated(
            cause, f"unit {unit} counts {counted} references, {held} exist (held by {owners or 'nobody'})"
        )
