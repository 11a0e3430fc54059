"""Operations on transfers: offload, load, completion; and what goes wrong with them. Each returns False when it is skipped."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from kvsan.gpu_kernels.addressing import blocks_for
from kvsan.harness.books import LOAD
from kvsan.harness.device import Work
from kvsan.harness.effects import enqueue_effects
from kvsan.harness.expectation import Expected
from kvsan.harness.granted import check_granted
from kvsan.harness.operations import Complete, Fail, Load, Offload, Operation, Restart, Spoil, Tear
from kvsan.harness.requests import count_hit, look_up
from kvsan.harness.target import Effects, Loading, Offloading, TieredTarget
from kvsan.harness.tiers import HOST_TIER, Put, Store
from kvsan.harness.transfer import FAILED, TORN, Transfer, units_of
from kvsan.harness.verdict import Violation

if TYPE_CHECKING:
    from kvsan.harness.session import Handler, Session


def tiered(session: Session) -> TieredTarget:
    """Return the target as one that has tiers; whoever lists these operations in its traits is one."""
    return cast(TieredTarget, session.target)


# -- beginning


def offload(session: Session, operation: Offload) -> bool:
    """What a request has computed goes down to a tier."""
    request = session.requests.get(operation.r)
    if request is None or operation.t in session.ids or operation.tier not in session.traits.tiers:
        return False
    if not request.retired or request.loading is not None or not session.allowed(request, operation):
        return False
    granted = tiered(session).offload(operation.t, request.name, operation.tier)
    if granted is None:
        session.counts["offload of nothing"] += 1
        return True
    check_granted(tiered(session), "offload", granted, Offloading)
    transfer = Transfer(operation.t, "offload", operation.tier, request, granted.chunks)
    _begin(session, transfer, granted.effects)
    for unit in transfer.held:
        session.books.add(unit)
    _count(session, "offload to", {operation.tier})
    return True


def load(session: Session, operation: Load) -> bool:
    """A new request's prefix comes up from the tiers."""
    request = session.requests.get(operation.r)
    if request is None or operation.t in session.ids or request.scheduled or request.row or request.loading:
        return False
    if not session.traits.tiers or not session.allowed(request, operation):
        return False
    hit = look_up(session, request)
    request.looked_up = None
    session.lookup_pending = None
    granted = tiered(session).load(operation.t, request.name)
    facts = session.step_facts
    facts.subject, facts.looked_up = request, hit
    if granted is None:
        facts.refused = True
        session.counts["load refused"] += 1
        return True
    check_granted(tiered(session), "load", granted, Loading)
    if not 0 <= granted.hit <= hit:
        raise Violation(
            "hit_bounds", "grew", f"{request.r}: the look-up gave {hit} tokens, loading begins behind {granted.hit}"
        )
    facts.hit = request.retired = request.life.executed = granted.hit
    facts.shareable_blocks = blocks_for(granted.hit, session.traits.block_size)
    count_hit(session, request, granted.hit)
    stop = granted.hit + granted.tokens
    transfer = Transfer(operation.t, "load", "", request, granted.chunks)
    transfer.loading = request.loading = (granted.hit, stop)
    request.load, request.goal = load_of(transfer), len(request.life.tokens)
    request.scheduled = stop
    _begin(session, transfer, granted.effects)
    _count(session, "load from", {chunk.tier for chunk in granted.chunks})
    return True


def _count(session: Session, way: str, tiers: set[str]) -> None:
    """Count a transfer by the tiers at its lower end; every one but the host is a store."""
    for tier in tiers:
        session.counts[f"{way} {tier}"] += 1
    if tiers - {HOST_TIER}:
        session.counts[f"{way} a store"] += 1


def load_of(transfer: Transfer) -> str:
    """Name of a load among the work that tables can be parked with."""
    return LOAD + transfer.t


def _begin(session: Session, transfer: Transfer, effects: Effects) -> None:
    """Give the device a transfer's pieces, and judge what it claims before the first of them moves."""
    session.ids.add(transfer.t)
    num_units = session.traits.num_units
    for effect in effects:
        reads, writes = units_of(effect)
        transfer.held += [unit for unit in reads if unit < num_units]
        transfer.written += [unit for unit in writes if unit < num_units]
    transfer.left = len(effects)
    session.transfers[transfer.t] = transfer
    session.step_facts.begun = transfer
    transfer.works = enqueue_effects(session, effects, transfer)
    if len(session.transfers) > 1:
        session.counts["two transfers in flight"] += 1
    assert session.books.tiers is not None
    for chunk in transfer.chunks:
        session.books.tiers.claim(transfer.request, chunk)
    session.transfer_began(transfer)


# -- going on, and going wrong


def fail(session: Session, operation: Fail) -> bool:
    """What a transfer has not moved yet is never moved."""
    transfer = session.transfers.get(operation.t)
    if transfer is None or not transfer.running or not session.allowed(transfer.request, operation):
        return False
    transfer.failure = FAILED
    return True


def tear(session: Session, operation: Tear) -> bool:
    """Half of a transfer's next piece is moved, and nothing behind it."""
    transfer = session.transfers.get(operation.t)
    if transfer is None or not transfer.running or not session.allowed(transfer.request, operation):
        return False
    if not session.device.tear(transfer):
        return False
    transfer.failure = TORN
    return True


def spoil(session: Session, operation: Spoil) -> bool:
    """Stored bytes are damaged."""
    store = _store(session, operation.tier)
    if store is None or not session.allowed(None, operation):
        return False
    keys = sorted(store.keys())
    return bool(keys) and store.damage(keys[operation.index % len(keys)], operation.how)


def restart(session: Session, operation: Restart) -> bool:
    """A store dies and comes back; what is being stored into it fails, perhaps in the middle of a piece."""
    store = _store(session, operation.tier)
    if store is None or not session.allowed(None, operation):
        return False
    for transfer in session.transfers.values():
        if transfer.running and any(_puts_into(work, operation.tier) for work in transfer.works):
            transfer.failure = TORN if session.device.tear(transfer) else FAILED
            session.counts["restart while storing"] += 1
    store.restart()
    return True


def _store(session: Session, tier: str) -> Store | None:
    return None if session.books.tiers is None else session.books.tiers.stores.get(tier)


def _puts_into(work: Work, store: str) -> bool:
    return isinstance(work.payload, Put) and work.payload.store == store


# -- ending


def complete(session: Session, operation: Complete) -> bool:
    """The manager hears how a transfer ended, once or, where it survives that, again."""
    transfer = session.transfers.get(operation.t)
    if transfer is None:
        return _again(session, operation)
    request = transfer.request
    alive = session.requests.get(request.r) is request
    if not session.allowed(request if alive else None, operation):
        return False
    was_done = not transfer.left
    for work in transfer.works:
        if not session.device.complete(work):
            return False
    _count_completion(session, transfer, was_done)
    del session.transfers[operation.t]
    session.told[operation.t] = not transfer.failure
    _tell(session, operation.t)
    session.step_facts.completed = transfer
    session.step_facts.subject = request
    if transfer.kind == "offload":
        for unit in transfer.held:  # each by itself: nobody promised an order among them
            session.books.remove((unit,))
    else:
        _end_load(session, transfer, request)
    return True


def _tell(session: Session, t: str) -> None:
    """Tell whoever began a transfer how it ended."""
    exchange = session.exchange
    (tiered(session) if exchange is None else exchange.consumer).complete(t, session.told[t])


def _again(session: Session, operation: Complete) -> bool:
    """A notice that was delivered before comes once more; nothing may come of it."""
    if operation.t not in session.told or not session.traits.late_notices or not session.allowed(None, operation):
        return False
    _tell(session, operation.t)
    session.counts["completion told twice"] += 1
    return True


def _end_load(session: Session, transfer: Transfer, request: Expected) -> None:
    """What was loaded is the request's now; or it goes on from what it had before, and computes the rest itself."""
    if request.load != load_of(transfer):  # aborted, or preempted, while it was loading
        session.books.work_done(load_of(transfer))
        session.counts["completion after the end"] += 1
        return
    start, stop = transfer.loading
    request.loading, request.load = None, ""
    if transfer.failure:
        request.scheduled, request.goal = start, 0
        session.counts["recompute after a failed load"] += 1
    else:
        request.retired = request.life.executed = stop


def _count_completion(session: Session, transfer: Transfer, was_done: bool) -> None:
    counts = session.counts
    if transfer.failure:
        counts[f"transfer {transfer.failure}"] += 1
    if was_done:
        counts["late completion"] += 1
    if next(iter(session.transfers)) != transfer.t:
        counts["reordered completion"] += 1


HANDLERS: dict[type[Operation], Handler] = {
    Offload: offload,  # type: ignore[dict-item]
    Load: load,  # type: ignore[dict-item]
    Complete: complete,  # type: ignore[dict-item]
    Fail: fail,  # type: ignore[dict-item]
    Tear: tear,  # type: ignore[dict-item]
    Spoil: spoil,  # type: ignore[dict-item]
    Restart: restart,  # type: ignore[dict-item]
}
