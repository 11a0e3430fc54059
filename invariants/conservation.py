"""Units are conserved.

Statement: free units, held units and the null unit add up to the pool, after every step.

Why: the cheapest sign that a unit was lost or counted twice; needs no list of what changed.

Reports: TensorRT-LLM 12834 (free counters after claim and swap), SGLang 35270.

Does not see: two mistakes that cancel.

Mutant: ``double_free``.
"""

from __future__ import annotations

from kvsan.harness.invariant import Invariant
from kvsan.harness.step import Step


class Conservation(Invariant):
    """Adds up in O(1) a step."""

    id = "conservation"
    every_step = True

    def after_step(self, step: Step) -> None:
        """Add free and held units."""
        expected = self.traits.num_units - (self.books.null is not None)
        free = self.view.num_free()
        if free + self.books.held != expected:
            total = free + self.books.held
            cause = "too many" if total > expected else "too few"
            raise self.violated(
                cause, f"{free} free units and {self.books.held} held ones make {total}, not {expected}"
            )
