"""Draws operations for a pair: what each pool does by itself, and what goes from one to the other, and how it goes wrong."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from random import Random

from kvsan.fuzz.generate import Generator, Names
from kvsan.fuzz.profiles import Profile
from kvsan.harness.exchange import Offer
from kvsan.harness.expectation import Expected
from kvsan.harness.operations import (
    Abort,
    Cancel,
    Expire,
    Finish,
    Launch,
    Operation,
    Preempt,
    Receive,
    Release,
    ResetPrefixCache,
    Send,
    Submit,
)
from kvsan.harness.pair import CONSUMER, PRODUCER
from kvsan.harness.pair_session import PairSession

_OFFERS_KEPT = 16
_OTHER_FAMILIES = 64  # of prompts that the producer never sees: what both have, the consumer need not pull
_AFTER_SEND = (Finish, Finish, Abort, Preempt)


class PairGenerator:
    """Draws operations for one run of a pair. Each run has habits: which pool is busier, how late who hears of what."""

    def __init__(self, session: PairSession, profile: Profile, random: Random, features: frozenset[str]) -> None:
        self._session = session
        self._draw = random.random
        self._names = Names()
        self._pools = {
            pool: Generator(one, profile, random, features, self._names.fresh) for pool, one in session.sessions.items()
        }
        self._producer, self._consumer = session.sessions[PRODUCER], session.sessions[CONSUMER]
        self._share = random.choice((0.3, 0.5, 0.6))
        self._own_prompts = random.random() < 0.7
        self._makes_room = random.choice((0.3, 0.6, 0.9))
        self._exchanges = random.choice((0.1, 0.2, 0.3))
        self._most = random.choice((1, 2, 4, 8))
        self._leaves = random.choice((0.2, 0.5, 0.9))
        self._again = random.choice((0.0, 0.1, 0.3))
        self._too_late = random.choice((0.05, 0.1, 0.3))
        self._gives_up = random.choice((0.0, 0.1, 0.3))
        self._following: deque[Operation] = deque()
        self._offers: deque[Offer] = deque(maxlen=_OFFERS_KEPT)
        self._asked: dict[str, str] = {}

    def next(self) -> Operation:
        """Draw the next operation; now and then one that will be skipped."""
        if self._following:
            return self._following.popleft()
        if self._draw() < self._exchanges and (drawn := self._exchange()) is not None:
            return drawn
        pool = PRODUCER if self._draw() < self._share else CONSUMER
        return self._placed(self._pools[pool].next(), pool)

    def _placed(self, operation: Operation, pool: str) -> Operation:
        """Say in which pool, where an operation has to say it."""
        if pool == PRODUCER or not isinstance(operation, Submit | Launch | Cancel | ResetPrefixCache):
            return operation
        if isinstance(operation, Submit) and self._own_prompts:
            shifted = tuple((s[0] + _OTHER_FAMILIES, s[1]) if s[0] != "out" else s for s in operation.prompt)
            operation = replace(operation, prompt=shifted)
        return replace(operation, at=pool)

    def _below(self, bound: int) -> int:
        return int(self._draw() * bound)

    # -- the exchange

    def _exchange(self) -> Operation | None:
        """Send, receive, release or expire, whichever a draw says and the state allows."""
        held = list(self._session.exchange.held())
        self._offers.extend(offer for offer in held if offer not in self._offers)
        choice = self._draw()
        if choice < 0.3 or not held:
            return self._send() if len(held) < self._most else self._release(held)
        if choice < 0.7:
            return self._receive(held)
        if choice < 0.97:
            return self._release(held)
        return Expire(held[self._below(len(held))].t)

    def _send(self) -> Operation | None:
        """Mostly a request whose prompt is done; then, as often as not, it ends: that is what a prefill pool does."""
        requests = [one for one in self._producer.requests.values() if one.retired and one.loading is None]
        done = [one for one in requests if one.retired >= one.prompt_length] or requests
        if not done:
            return None
        request = done[self._below(len(done))]
        if self._draw() < self._leaves:
            self._following.append(_AFTER_SEND[self._below(len(_AFTER_SEND))](request.r))
        return Send(self._names.fresh("t"), request.r)

    def _receive(self, held: list[Offer]) -> Operation | None:
        """Somebody with the same prompt asks, perhaps not for the first time; for an offer that ended, too late."""
        late = [offer for offer in self._offers if offer.ended]
        offers = late if late and self._draw() < self._too_late else [offer for offer in held if not offer.claimed]
        if not offers:
            return None
        offer = offers[self._below(len(offers))]
        waiting = self._consumer.requests.get(self._asked.get(offer.t, ""))
        if waiting is not None and not waiting.scheduled and not waiting.row and self._draw() < 0.5:
            return Receive(offer.t, waiting.r)
        if len(self._consumer.requests) >= self._pools[CONSUMER].max_live:
            live = list(self._consumer.requests)
            return Finish(live[self._below(len(live))])
        submit = self._submit_like(offer.request)
        if submit is None:
            return None
        self._asked[offer.t] = submit.r
        if self._needs_room(offer) and self._draw() < self._makes_room:
            self._following.extend(Finish(r) for r in self._some(list(self._consumer.requests)))
        self._following.append(Receive(offer.t, submit.r))
        if self._draw() < 0.1:
            self._following.append((Abort, Preempt)[self._below(2)](submit.r))
        return submit

    def _submit_like(self, request: Expected) -> Submit | None:
        """The prompt of a request, and, as often as not, what it generated first, at the other pool."""
        producer = self._pools[PRODUCER]
        earlier = producer.prompts.get(request.r)
        if earlier is None:  # of a fork, or forgotten
            return None
        prompt = earlier.prompt
        if self._draw() < 0.7 and len(prompt) < 6:
            prompt = (*prompt, ("out", request.r, 1 + self._below(3)))
        if self._draw() < 0.3:
            prompt = (*prompt, producer.new_segment())
        return replace(earlier, r=self._names.fresh("r"), prompt=prompt, engine_id=producer.engine_id(), at=CONSUMER)

    def _needs_room(self, offer: Offer) -> bool:
        return self._consumer.books.view.num_free() * self._consumer.traits.block_size < offer.tokens

    def _some(self, requests: list[str]) -> list[str]:
        """About half of them."""
        return [r for r in requests if self._draw() < 0.5]

    def _release(self, held: list[Offer]) -> Operation | None:
        """When the pull is over; early, if nobody wants it; again; or of a transfer that nobody knows."""
        if self._draw() < self._again:
            if self._draw() < 0.2:
                return Release(self._names.fresh("t"))
            ended = [offer for offer in self._offers if offer.ended]
            return Release(ended[self._below(len(ended))].t) if ended else None
        in_flight = self._session.exchange.in_flight
        over = [offer for offer in held if offer.claimed and offer.t not in in_flight]
        if not over and self._draw() < self._gives_up:
            over = [offer for offer in held if not offer.claimed]
        return Release(over[self._below(len(over))].t) if over else None
