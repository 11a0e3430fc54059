"""The free queue is in the order that its trait promises.

Statement (trait ``free_order="lru"``): the queue is sorted by the time at which its units became free; a request's last
block is freed first; allocation takes the front.

Why: eviction in another order throws away the head of a prefix while its useless tail stays: hits are lost silently.

Reports: vLLM 55461, SGLang 29860 (eviction frontier).

Does not see: targets with another policy (their trait says ``any``); the order between tables that one step freed.

Mutant: ``free_order_reversed``.
"""

from __future__ import annotations

import numpy as np

from kvsan.harness.invariant import Invariant
from kvsan.harness.step import Step
from kvsan.harness.target import IntArray


class FreeOrder(Invariant):
    """O(1) a step: nothing given out was freed later than what is first in the queue now; sorted on sweeps."""

    id = "free_order"

    def applies(self) -> bool:
        """Only where the order is promised."""
        return self.traits.free_order == "lru"

    def after_step(self, step: Step) -> None:
        """Check the units that left the queue by allocation."""
        if not step.added and not step.replaced:
            return
        shareable = step.shareable_blocks
        taken = [added.unit for added in step.added if added.holders == 0 and added.block >= shareable]
        taken += [replaced.new for replaced in step.replaced if replaced.new in step.copied]
        front = self.view.free_front()
        if front is None:
            return
        for unit in taken:
            if self._later(unit, front):
                raise self.violated(
                    "order", f"unit {unit} was given out although unit {front} had been free for longer"
                )

    def _later(self, unit: int, other: int) -> bool:
        """Whether a unit became free after another. Two pieces that one step freed are in no promised order."""
        books = self.books
        if books.freed_in[unit] != books.freed_in[other]:
            return books.freed_in[unit] > books.freed_in[other]
        return books.freed_by[unit] == books.freed_by[other] and books.freed_at[unit] > books.freed_at[other]

    def sweep(self) -> None:
        """Check that the whole queue is sorted: by step, and within a step each piece for itself."""
        books, queue = self.books, self.books.queue
        times = np.frombuffer(books.freed_at, np.int64)[queue]
        if (times[1:] > times[:-1]).all():
            return
        steps, pieces = np.frombuffer(books.freed_in, np.int64)[queue], np.frombuffer(books.freed_by, np.int64)[queue]
        self._tell(queue, np.flatnonzero(steps[1:] < steps[:-1]))
        by_piece = np.lexsort((np.arange(len(queue)), pieces, steps))
        together = np.diff(pieces[by_piece]) == 0
        self._tell(queue[by_piece], np.flatnonzero(together & (np.diff(times[by_piece]) < 0)))

    def _tell(self, queue: IntArray, unsorted: IntArray) -> None:
        if len(unsorted):
            first, second = (int(unit) for unit in queue[unsorted[0] : unsorted[0] + 2])
            raise self.violated("order", f"unit {first} stands before unit {second}, which was freed earlier")
