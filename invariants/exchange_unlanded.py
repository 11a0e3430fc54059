"""What is being pulled is not there yet, and what failed never is.

Statement: until the consumer has heard that a pull is complete, and for ever if it failed, no unit that it writes has a hash
or a second holder.

Why: whoever counts on it reads what was there before, or half of what should be.

Reports: vLLM 42359 (ghost blocks), 49250 (a sharer decodes while the owner's load has failed), 25067.

Does not see: readers that take no reference and use no hash; ``provenance`` does if they read.

Mutant: ``disagg-mutant:published_before_landed``, ``disagg-mutant:failed_pull_kept``.
"""

from __future__ import annotations

from kvsan.harness.invariant import Invariant
from kvsan.harness.pair import CONSUMER
from kvsan.harness.step import Step
from kvsan.harness.transfer import Transfer


class ExchangeUnlanded(Invariant):
    """Checks the written end of everything in flight, and of what just failed."""

    id = "exchange_unlanded"
    every_step = True

    def applies(self) -> bool:
        """Only for pools of a pair."""
        return self.books.exchange is not None

    def after_step(self, step: Step) -> None:
        """Judge pulls in flight, and the one that the consumer just heard the end of."""
        done = step.completed
        if done is not None and done.failure:
            self._check(done, "has failed")
        exchange = self.books.exchange
        assert exchange is not None
        if self.books.target is exchange.target.pools[CONSUMER]:
            for transfer in exchange.in_flight.values():
                self._check(transfer, "has not landed")

    def _check(self, transfer: Transfer, how: str) -> None:
        for unit in transfer.written:
            if self.view.key(unit) is not None:
                raise self.violated("published", f"unit {unit} has a hash although {transfer.t} {how}")
            if self.books.holders[unit] > 1:
                raise self.violated("shared", f"unit {unit} has two holders although {transfer.t} {how}")
