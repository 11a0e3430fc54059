"""The books of an exchange between two pools: what was offered, as which tokens, and who reads it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsan.harness.expectation import Expected
from kvsan.harness.pair import PairTarget
from kvsan.harness.target import IntArray

if TYPE_CHECKING:
    from kvsan.harness.transfer import Transfer

RELEASED, EXPIRED = "released", "expired"
"""How an offer ends."""


@dataclass(slots=True)
class Offer:
    """What transfer ``t`` offers: ``identity`` int64 ``[tokens]`` of the request's first tokens when it was sent.

    ``units`` are the producer's, held until the offer has ended; ``claimed`` says that the producer has served a pull.
    """

    t: str
    request: Expected
    identity: IntArray
    units: tuple[int, ...]
    claimed: bool = False
    ended: str = ""

    @property
    def tokens(self) -> int:
        """Tokens that are offered."""
        return len(self.identity)


class Exchange:
    """Account of one pair. ``in_flight`` are the pulls by id, the consumer's session's own."""

    def __init__(self, target: PairTarget) -> None:
        self.target = target
        self.producer = target.producer
        self.consumer = target.consumer
        self.offers: dict[str, Offer] = {}
        self.in_flight: dict[str, Transfer] = {}

    def held(self) -> Iterator[Offer]:
        """Offers whose units the producer owes to readers."""
        return (offer for offer in self.offers.values() if not offer.ended)

    def pulls(self) -> Iterator[tuple[Offer, Transfer]]:
        """Pulls in flight, each with the offer that it reads."""
        for transfer in self.in_flight.values():
            if transfer.route is not None:
                yield self.offers[transfer.t], transfer

    def usable(self, offer: Offer, request: Expected, unit: int) -> int:
        """Tokens that an offer and a new request begin with alike, in whole units; the last one must be computed."""
        if request.salt != offer.request.salt:
            return 0
        most = min(offer.tokens, len(request.life.tokens) - 1)
        equal = request.life.chain[:most] == offer.identity[:most]
        alike = most if equal.all() else int(np.argmin(equal))
        return alike // unit * unit
