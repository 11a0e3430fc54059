"""Freed means done.

Statement (trait ``deferred_free``): a unit that a launch or load in flight uses does not enter the free queue.

Why: the next owner's data and the old launch's write race; the stream's order protects only what runs on that stream.

Reports: vLLM 45357, 32255 (an abort frees blocks that a load is writing), 52360, ascend 16315.

Does not see: targets that rely on stream order; ``order`` decides there.

Mutant: ``freed_while_launched``.
"""

from __future__ import annotations

from kvsan.harness.books import LOAD
from kvsan.harness.invariant import Invariant
from kvsan.harness.step import Step


class DeferredFree(Invariant):
    """Checks the tables of requests that ended in this step while work was in flight."""

    id = "deferred_free"

    def applies(self) -> bool:
        """Only where it is promised."""
        return self.traits.deferred_free

    def after_step(self, step: Step) -> None:
        """Judge what ended requests left parked."""
        if not step.ended:
            return
        for work, parked in self.books.parked.items():
            for tables in parked:
                for table in tables:
                    for unit in table:
                        if self.view.is_free(unit):
                            cause = "load" if work.startswith(LOAD) else "launch"
                            raise self.violated(cause, f"unit {unit} is free although {work} still uses it")
