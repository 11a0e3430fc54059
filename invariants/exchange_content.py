"""What is pulled is what was sent.

Statement: an offer is of tokens that have retired, in the units of its request's table; and while it stands, each piece of a
pull reads, at the addresses that the consumer computes, the heads that it wants of the tokens that the offer was made with. A
claim of an offer that has ended is refused, and no other.

Why: the consumer cannot see whose KV it gets. One head in the wrong order, one block of somebody else's, and every token that
it generates is subtly wrong.

Reports: vLLM 37703, 46204 (HND pages read as NHD between tensor-parallel layouts), 52234 (the decode side keeps a reference
to blocks that the producer has given to others), 45704 (a store not ordered after compute), SGLang 38941.

Does not see: bytes; ``numbers`` does. Where they are written follows from the consumer's own layout, which is not in doubt.

Mutant: ``disagg-mutant:source_taken_for_nhd``, ``disagg-mutant:interleave_forgotten``, ``disagg-mutant:replicas_dealt``,
``disagg-mutant:tp_forgotten``, ``disagg-mutant:offers_the_scheduled``, ``disagg-mutant:table_of_the_moment``,
``disagg-mutant:serves_what_has_ended``.
"""

from __future__ import annotations

import numpy as np

from kvsan.gpu_kernels.addressing import blocks_for
from kvsan.harness.invariant import Invariant
from kvsan.harness.pull import Pulled
from kvsan.harness.step import Step
from kvsan.harness.transfer import Transfer


class ExchangeContent(Invariant):
    """Judges an offer as it is made, a claim as it is answered, and each piece as it is read."""

    id = "exchange_content"
    every_step = True

    def applies(self) -> bool:
        """Only for pools of a pair."""
        return self.books.exchange is not None

    def after_step(self, step: Step) -> None:
        """Judge what the step offered."""
        offer = step.offered
        if offer is None:
            return
        request, tokens = offer.request, offer.tokens
        own = request.tables[0][: blocks_for(tokens, self.books.block_size)]
        if list(offer.units) != own:
            raise self.violated(
                "other units", f"{offer.t} offers units {list(offer.units)}; {request.r} has them in {own}"
            )

    def on_transfer(self, transfer: Transfer) -> None:
        """Judge whether a pull is served, and with what."""
        exchange = self.books.exchange
        assert exchange is not None
        offer = exchange.offers[transfer.t]
        if transfer.route is None:
            if not offer.ended:
                raise self.violated("refused", f"{transfer.t} is still offered, and a reader is refused")
            return
        if offer.ended:
            raise self.violated("ended", f"{transfer.t} was {offer.ended} and is served all the same")
        served = transfer.route.source_table.tolist()
        if served != list(offer.units):
            raise self.violated(
                "other units", f"{transfer.t} is served units {served}, and {list(offer.units)} were sent"
            )

    def on_pulled(self, transfer: Transfer, pulled: Pulled) -> None:
        """Judge what one piece reads; the producer's session is asked, whose shadow it is read from."""
        foreign = pulled.found != pulled.expected[:, None]
        if foreign.any():
            self._tell(pulled, *np.argwhere(foreign)[0].tolist())
        heads = pulled.at.heads != pulled.at.wanted
        if heads.any():
            token, head = np.argwhere(np.broadcast_to(heads, pulled.found.shape))[0].tolist()
            there = np.broadcast_to(pulled.at.heads, pulled.found.shape)[token, head]
            position = pulled.work.piece.positions[token]
            raise self.violated(
                "head",
                f"{transfer.t} wants head {pulled.at.wanted[head]} of position {position} and reads head {there} of it",
            )

    def _tell(self, pulled: Pulled, token: int, head: int) -> None:
        exchange = self.books.exchange
        assert exchange is not None
        t, position = pulled.work.t, int(pulled.work.piece.positions[token])
        slot, identity = int(pulled.at.slots[token, head]), int(pulled.found[token, head])
        offer = exchange.offers[t]
        raise self.violated(
            "foreign" if identity else "unwritten",
            f"{t} reads position {position} from {self.shadow.name_slot(slot)}, which holds {self.shadow.namer(identity, 0)}; "
            f"expected {offer.request.r}@{position}",
            *([f"{t} was {offer.ended}"] if offer.ended else []),
            self.shadow.tell(slot, 0),
        )
