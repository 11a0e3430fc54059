"""Loads can not starve each other for ever.

Statement (trait ``loads_progress``): after a load was admitted, some request that is being loaded, or has been, can be
scheduled to the end of its prompt with the units that are free; and whoever gets units later does not change that.

Why: requests that wait for a load hold their blocks and cannot be preempted in most engines; if together they hold all, none
ever gets the last block that it needs.

Reports: vLLM 45388 (concurrent asynchronous loads take all blocks, none can finish), ascend 16315.

Does not see: fairness among requests that do get on.

Mutant: ``loads_starve``.
"""

from __future__ import annotations

from kvsan.gpu_kernels.addressing import blocks_for
from kvsan.harness.books import Books
from kvsan.harness.expectation import Expected
from kvsan.harness.invariant import Invariant
from kvsan.harness.operations import Load
from kvsan.harness.shadow import Shadow
from kvsan.harness.step import Step


def units_wanted(books: Books, besides: Expected | None = None) -> list[int]:
    """Units that each request that came by a load still wants for the rest of its prompt, ``besides`` one."""
    return [
        blocks_for(request.goal, books.block_size) - len(request.tables[0])
        for request in books.requests.values()
        if request.scheduled < request.goal and request is not besides
    ]


class LoadProgress(Invariant):
    """Checks after every step that gave units out."""

    id = "load_progress"
    every_step = True

    def __init__(self, books: Books, shadow: Shadow) -> None:
        super().__init__(books, shadow)
        self._could = True

    def applies(self) -> bool:
        """Only where it is promised."""
        return self.books.tiers is not None and self.traits.loads_progress

    def after_step(self, step: Step) -> None:
        """Judge the state after an admission against the state before."""
        wanted = units_wanted(self.books)
        free = self.view.num_free()
        could, self._could = self._could, not wanted or min(wanted) <= free
        given = any(added.holders == 0 for added in step.added)
        if given and not self._could and (could or isinstance(step.operation, Load)):
            raise self.violated(
                "starved",
                f"{len(wanted)} requests wait for loads and want {min(wanted)} units or more each; {free} are free",
            )
