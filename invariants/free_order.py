"""The free queue is in the order that its trait promises.

Statement (trait ``free_order="lru"``): the queue is sorted by the time at which its units became free; a request's last
block is freed first; allocation takes the front.

Why: eviction in another order throws away the head of a prefix while its useless tail stays: hits are lost silently.

Reports: vLLM 55461, SGLang 29860 (eviction frontier).

Does not see: targets with another policy (their trait says ``any``).

Mutant: ``free_order_reversed``.
"""

from __future__ import annotations

import numpy as np

from kvsan.harness.invariant import Invariant
from kvsan.harness.step import Step


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
        freed_at, shareable = self.books.freed_at, step.shareable_blocks
        taken = [added.unit for added in step.added if added.holders == 0 and added.block >= shareable]
        taken += [replaced.new for replaced in step.replaced]
        front = self.view.free_front()
        if front is None:
            return
        for unit in taken:
            if freed_at[unit] > freed_at[front]:
                raise self.violated(
                    "order", f"unit {unit} was given out although unit {front} had been free for longer"
                )

    def sweep(self) -> None:
        """Check that the whole queue is sorted."""
        queue = self.books.queue
        times = np.frombuffer(self.books.freed_at, np.int64)[queue]
        unsorted = np.flatnonzero(times[1:] < times[:-1])
        if len(unsorted):
            first = int(unsorted[0])
            raise self.violated(
                "order", f"unit {int(queue[first])} stands before unit {int(queue[first + 1])}, which was freed earlier"
            )
