"""A unit is free if and only if nobody references it.

Statement: a unit is in the free queue exactly when no table and no work in flight holds it. The null unit is neither.

Why: a held unit in the queue will be given to somebody else; an unheld one outside it is lost.

Reports: ascend 14283 and UCM 1053 (duplicate free), SGLang 31486, vLLM 45357.

Does not see: a free list that a target does not show.

Mutant: ``freed_while_shared``, ``freed_while_launched``.
"""

from __future__ import annotations

import numpy as np

from kvsan.harness.invariant import Invariant
from kvsan.harness.step import Step


class FreeIffUnreferenced(Invariant):
    """Compares membership in the free queue with the books' holders."""

    id = "free_iff_unreferenced"

    def after_step(self, step: Step) -> None:
        """Check every unit that was touched."""
        holders, is_free, null = self.books.holders, self.view.is_free, self.books.null
        for unit in step.units:
            if is_free(unit) == (holders[unit] > 0) and unit != null:
                self._tell(unit)

    def sweep(self) -> None:
        """Check every unit."""
        queued = np.zeros(self.traits.num_units, bool)
        queued[self.books.queue] = True
        wrong = queued == (np.frombuffer(self.books.holders, np.int32) > 0)
        if self.books.null is not None:
            wrong[self.books.null] = queued[self.books.null]
        if wrong.any():
            self._tell(int(np.flatnonzero(wrong)[0]))

    def _tell(self, unit: int) -> None:
        held = self.books.holders[unit]
        if held == 0:
            raise self.violated("lost", f"unit {unit} is held by nobody and is not in the free queue")
        owners = [
            request.r for request in self.books.requests.values() if any(unit in table for table in request.tables)
        ]
        work = [
            name for name, tables in self.books.parked.items() if any(unit in table for one in tables for table in one)
        ]
        cause = "held by a request" if owners else "held by work in flight"
        raise self.violated(cause, f"unit {unit} is in the free queue but held by {', '.join(owners + work)}")
