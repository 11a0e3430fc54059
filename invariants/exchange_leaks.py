"""At rest nothing waits for anybody.

Statement: when every request has ended and every offer was released or given up, neither end of the exchange holds anything
for a transfer.

Why: after an abort, a failure or a notice that came late, what nobody gives back is gone for ever.

Reports: vLLM 46283 (a remote that never reports), 25067, 46240, 43226 (completion of an aborted or doubly pending request).

Does not see: memory that neither end counts; ``quiescence`` does if it is in the pool.

Mutant: ``disagg-mutant:completion_lost``.
"""

from __future__ import annotations

from kvsan.harness.invariant import Invariant
from kvsan.harness.pair import PRODUCER


class ExchangeLeaks(Invariant):
    """Judges both ends at rest."""

    id = "exchange_leaks"

    def applies(self) -> bool:
        """Only for pools of a pair."""
        return self.books.exchange is not None

    def at_quiescence(self) -> None:
        """Ask this pool's end what it still waits for."""
        exchange = self.books.exchange
        assert exchange is not None
        sends = self.books.target is exchange.target.pools[PRODUCER]
        pending = (exchange.producer if sends else exchange.consumer).pending()
        if pending:
            who, what = ("producer", "offer") if sends else ("consumer", "pull")
            raise self.violated(
                what, f"everything has ended, and the {who} still waits for {', '.join(sorted(pending))}"
            )
