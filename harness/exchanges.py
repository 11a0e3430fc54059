"""Operations on the exchange between two pools: send, receive, release, expire. Each returns False when it is skipped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kvsan.gpu_kernels.addressing import blocks_for
from kvsan.gpu_kernels.conversion import plan
from kvsan.harness.exchange import EXPIRED, RELEASED, Exchange, Offer
from kvsan.harness.expectation import Expected
from kvsan.harness.operations import Expire, Operation, Receive, Release, Send
from kvsan.harness.pair import CONSUMER, NET_STREAM, PRODUCER, Receiving
from kvsan.harness.pair_checks import check_claimed, check_receiving, check_sending, check_source_layout
from kvsan.harness.pull import PullWork, Route
from kvsan.harness.requests import count_hit, look_up
from kvsan.harness.transfer import REFUSED, Transfer
from kvsan.harness.transfers import load_of
from kvsan.harness.verdict import Violation

if TYPE_CHECKING:
    from kvsan.harness.session import Handler, Session


# -- the producer's side


def send(session: Session, operation: Send) -> bool:
    """What a request has retired is offered to the other pool."""
    exchange, request = session.exchange, session.requests.get(operation.r)
    if exchange is None or request is None or operation.t in session.ids or not request.retired:
        return False
    if request.loading is not None or not session.allowed(request, operation):
        return False
    sending = exchange.producer.send(operation.t, request.name)
    session.step_facts.subject = request
    if sending is None:
        session.counts["send of nothing"] += 1
        return True
    sending = check_sending(exchange.producer, sending)
    if sending.tokens > request.retired:
        raise Violation(
            "exchange_content",
            "not retired",
            f"{operation.t} offers {sending.tokens} tokens of {request.r}, of which {request.retired} have retired",
        )
    _must_exist(session.traits.num_units, sending.units, f"{operation.t} offers")
    session.ids.add(operation.t)
    identity = request.life.identities(sending.tokens).copy()
    offer = Offer(operation.t, request, identity, tuple(sending.units))
    exchange.offers[operation.t] = session.step_facts.offered = offer
    for unit in offer.units:
        session.books.add(unit)
    if request.row is not None or request.life.rows:
        session.counts["send while computing"] += 1
    return True


def _must_exist(num_units: int, units: Sequence[int], what: str) -> None:
    if not all(0 <= unit < num_units for unit in units):
        raise Violation("exchange_content", "outside", f"{what} units {list(units)}; {PRODUCER} has {num_units}")


def release(session: Session, operation: Release) -> bool:
    """The producer hears that nobody reads a transfer any more; a pull in flight is never told to be over."""
    exchange = session.exchange
    if exchange is None or operation.t in exchange.in_flight or not session.allowed(None, operation):
        return False
    offer = exchange.offers.get(operation.t)
    if (offer is None or offer.ended) and not session.traits.late_notices:
        return False
    exchange.producer.released(operation.t)
    if offer is None:
        session.counts["release of the unknown"] += 1
    elif offer.ended:
        session.counts[f"release of the {offer.ended}"] += 1
    else:
        _end(session, offer, RELEASED)
        session.counts["release unread"] += not offer.claimed
    return True


def expire(session: Session, operation: Expire) -> bool:
    """The producer has waited too long."""
    exchange = session.exchange
    offer = None if exchange is None else exchange.offers.get(operation.t)
    if exchange is None or offer is None or offer.ended or not session.allowed(None, operation):
        return False
    if exchange.producer.expire(operation.t):
        _end(session, offer, EXPIRED)
        session.counts["expired"] += 1
    else:
        session.step_facts.kept = offer
        session.counts["expiry refused"] += 1
    return True


def _end(session: Session, offer: Offer, how: str) -> None:
    offer.ended = how
    session.books.remove(reversed(offer.units))


# -- the consumer's side


def receive(session: Session, operation: Receive) -> bool:
    """A new request's prefix is pulled from the other pool."""
    exchange, request = session.exchange, session.requests.get(operation.r)
    if exchange is None or request is None or operation.t in session.ids:
        return False
    offer = exchange.offers.get(operation.t)
    if offer is None or request.scheduled or request.row or request.loading:
        return False
    tokens = exchange.usable(offer, request, session.traits.block_size)
    if not tokens or not session.allowed(request, operation):
        return False
    facts, counts = session.step_facts, session.counts
    facts.looked_up = look_up(session, request)
    request.looked_up = None
    session.lookup_pending = None
    facts.subject = request
    granted = exchange.consumer.receive(operation.t, request.name, tokens)
    if granted is None:
        facts.refused = True
        counts["receive refused"] += 1
        return True
    granted = check_receiving(exchange.consumer, granted, session.traits.streams)
    if not 0 <= granted.hit < granted.hit + granted.tokens <= tokens:
        raise Violation(
            "exchange_content", "too much", f"{operation.t}: {granted}, of {tokens} tokens that both begin with"
        )
    facts.hit = request.retired = request.life.executed = granted.hit
    facts.shareable_blocks = blocks_for(granted.hit, session.traits.block_size)
    count_hit(session, request, granted.hit)
    _begin(session, exchange, offer, request, granted)
    return True


def _begin(session: Session, exchange: Exchange, offer: Offer, request: Expected, granted: Receiving) -> None:
    """Claim the offer, and give the network the pieces; a claim that comes too late is a pull that has failed."""
    start, stop = granted.hit, granted.hit + granted.tokens
    transfer = Transfer(offer.t, "receive", "", request, ())
    transfer.loading = request.loading = (start, stop)
    request.load, request.scheduled = load_of(transfer), stop
    session.ids.add(offer.t)
    table = list(session.books.view.tables(request.name)[0])
    size = session.traits.block_size
    transfer.written = table[start // size : blocks_for(stop, size)]
    session.transfers[offer.t] = transfer
    if len(session.transfers) > 1:
        session.counts["two pulls in flight"] += 1
    units = exchange.producer.claim(offer.t)
    if units is None:
        transfer.failure = REFUSED
        session.counts["claim refused"] += 1
        session.transfer_began(transfer)
        return
    offer.claimed = True
    served = check_claimed(exchange.producer, units)
    _must_exist(exchange.target.pools[PRODUCER].traits.num_units, served.tolist(), f"{offer.t} is served")
    layouts = exchange.target.layouts
    source = check_source_layout(exchange.target, exchange.target.source_layout())
    planned = plan(source, layouts[CONSUMER], start, stop)
    transfer.route = Route(planned, served, np.array(table, np.int64), start, stop)
    _enqueue(session, transfer, transfer.route, granted)
    session.counts["pull"] += 1
    if layouts[PRODUCER] != layouts[CONSUMER]:
        session.counts["pull between layouts"] += 1
    session.transfer_began(transfer)


def _enqueue(session: Session, transfer: Transfer, route: Route, granted: Receiving) -> None:
    device, names = session.device, session.traits.streams
    after = [device.event(names.index(name)) for name in granted.after]
    net = device.streams.index(NET_STREAM)
    transfer.left = len(route.plan.pieces)
    transfer.works = [
        device.enqueue(net, PullWork(transfer.t, route, piece), session.position, after, transfer)
        for piece in route.plan.pieces
    ]


HANDLERS: dict[type[Operation], Handler] = {
    Send: send,  # type: ignore[dict-item]
    Receive: receive,  # type: ignore[dict-item]
    Release: release,  # type: ignore[dict-item]
    Expire: expire,  # type: ignore[dict-item]
}
