"""The free queue is well formed.

Statement: walking the queue meets each unit once, as many as the target counts, and ends.

Why: a unit that is queued twice is given out twice: two requests own it and each overwrites the other.

Reports: ascend 14283 (duplicate free corrupts the list), vLLM 33775.

Does not see: the order (see ``free_order``); damage between two sweeps.

Mutant: ``double_free``.
"""

from __future__ import annotations

import numpy as np

from kvsan.harness.invariant import Invariant


class FreeQueue(Invariant):
    """Walks the queue on every sweep."""

    id = "free_queue"

    def sweep(self) -> None:
        """Walk the queue."""
        queue = self.books.queue
        counted = self.view.num_free()
        places = np.bincount(queue, minlength=self.traits.num_units)
        if places.max(initial=0) > 1:
            raise self.violated("twice", f"unit {int(places.argmax())} is in the free queue more than once")
        if len(queue) != counted:
            raise self.violated("length", f"the free queue has {len(queue)} units, the target counts {counted}")
