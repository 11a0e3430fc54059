"""What a pull reads or writes stays where it is until both ends have heard the end of it.

Statement: a unit of an offer that has neither been released nor given up is not free, nor is one that a pull in flight reads or
writes; and an offer that nobody has claimed can be given up.

Why: the pull in flight reads or writes somebody else's memory; one-sided reads ask nobody.

Reports: vLLM 52234 (the producer reuses blocks that the decode side still refers to), 32255 (an abort frees the blocks that a
load is writing), 45357 (freed at finish, while still in use), SGLang 35769.

Does not see: ends that a target does not name.

Mutant: ``disagg-mutant:freed_unread``, ``disagg-mutant:expires_while_read``, ``disagg-mutant:abort_frees_the_received``.
"""

from __future__ import annotations

from kvsan.harness.invariant import Invariant
from kvsan.harness.pair import PRODUCER
from kvsan.harness.step import Step


class ExchangePins(Invariant):
    """Checks one pool's end of everything that was offered, or is in flight."""

    id = "exchange_pins"
    every_step = True

    def applies(self) -> bool:
        """Only for pools of a pair."""
        return self.books.exchange is not None

    def after_step(self, step: Step) -> None:
        """Units at either end are nobody else's to take."""
        exchange = self.books.exchange
        assert exchange is not None
        is_free = self.view.is_free
        if self.books.target is not exchange.target.pools[PRODUCER]:
            for transfer in exchange.in_flight.values():
                for unit in transfer.written:
                    if is_free(unit):
                        raise self.violated("written", f"unit {unit} is free although {transfer.t} still writes it")
            return
        for _, transfer in exchange.pulls():
            assert transfer.route is not None
            for unit in transfer.route.source_units():
                if is_free(unit):
                    raise self.violated("read", f"unit {unit} is free although {transfer.t} still reads it")
        for offer in exchange.held():
            for unit in offer.units:
                if is_free(unit):
                    raise self.violated("offered", f"unit {unit} is free although {offer.t} offers it")
        if step.kept is not None and not step.kept.claimed:
            raise self.violated("kept", f"{step.kept.t} cannot be given up, although nobody reads it")
