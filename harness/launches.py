"""Operations on batches and on the device: cancel, launch, retire, advance; and how a session ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvsan.harness.device import COMPUTE, Clock, LaunchWork, LoadWork
from kvsan.harness.effects import copy_sources, drop_row, enqueue_effects, enqueue_load
from kvsan.harness.expectation import Expected, Row
from kvsan.harness.operations import (
    Advance,
    Cancel,
    Complete,
    Expire,
    Finish,
    Landed,
    Launch,
    Operation,
    Outcome,
    Release,
    ResetPrefixCache,
    Retire,
    token_id,
)
from kvsan.harness.pair import PRODUCER
from kvsan.harness.target import Result
from kvsan.harness.verdict import Violation

if TYPE_CHECKING:
    from kvsan.harness.session import Handler, Session


def cancel(session: Session, operation: Cancel) -> bool:
    """Drop the scheduled batch."""
    if not session.batch or operation.at != session.pool or not session.allowed(None, operation):
        return False
    enqueue_effects(session, session.target.cancel())
    for name, row in session.batch.items():
        request = session.books.requests[name]
        drop_row(session, request, row)
        request.row = None
        request.scheduled = row.start - row.external
        if row.samples:
            request.planned -= row.drafts + 1
        if not session.books.view.tables(name)[0]:
            request.scheduled = request.retired = request.life.executed = 0
    session.batch.clear()
    return True


def launch(session: Session, operation: Launch) -> bool:
    """Snapshot the tables of the batch and give it to the compute stream."""
    if operation.at != session.pool or not may_launch(session, operation):
        return False
    b = operation.b
    session.target.launch(b)
    rows, loads = take_batch(session, b)
    start(session, LaunchWork(b, rows), loads)
    return True


def may_launch(session: Session, operation: Launch) -> bool:
    """Whether there is a batch, and it may be launched now under a name that is new."""
    b = operation.b
    if not session.batch or b in session.in_flight or b in session.ids:
        return False
    return len(session.in_flight) < session.traits.max_in_flight and session.allowed(None, operation)


def take_batch(session: Session, b: str) -> tuple[list[Row], list[Clock]]:
    """Turn the scheduled batch into rows of launch ``b`` with frozen tables, and give what they wait for to the device."""
    session.ids.add(b)
    rows, loads = [], []
    for name, row in session.batch.items():
        request = session.books.requests[name]
        request.row = None
        row.launch = b
        _snapshot(session, request, row)
        if row.effects:
            enqueue_effects(session, row.effects)
            if session.traits.deferred_free:
                session.books.parked.setdefault(b, []).append([copy_sources(row.effects)])
            else:
                session.books.remove(copy_sources(row.effects))
        if row.external:
            load = LoadWork(row.life, row.tables, row.start - row.external, row.start)
            loads.append(enqueue_load(session, load).clock)
        row.life.rows.append(row)
        rows.append(row)
    session.batch = {}
    return rows, loads


def start(session: Session, work: LaunchWork, events: list[Clock]) -> None:
    """Put a launch on the compute stream, behind some events."""
    session.in_flight[work.b] = session.device.enqueue(COMPUTE, work, session.position, events)
    if len(session.in_flight) > 1:
        session.counts["two launches in flight"] += 1
    if len(work.rows) >= 4:
        session.counts["launch of 4 rows"] += 1


def _snapshot(session: Session, request: Expected, row: Row) -> None:
    """Freeze the tables as the engine would send them, which must be the tables it has told us about."""
    for group, table in enumerate(session.books.view.tables(request.name)):
        if list(table) != request.tables[group]:
            raise Violation(
                "testimony",
                "table",
                f"{request.r} is launched with a table of group {group} that differs from what the target reported",
            )
        row.tables.append(request.array(group))


def retire(session: Session, operation: Retire) -> bool:
    """The oldest launch's result reaches the manager."""
    work = session.in_flight.get(operation.b)
    if work is None or next(iter(session.in_flight)) != operation.b or not session.allowed(None, operation):
        return False
    if not session.device.complete(work):
        return False
    assert isinstance(work.payload, LaunchWork)
    del session.in_flight[operation.b]
    outcomes = {outcome.r: outcome for outcome in operation.outcome}
    results = []
    for row in work.payload.rows:
        row.life.rows.remove(row)
        result = _settle(session, row, outcomes.get(row.life.name))
        if result is not None:
            results.append(result)
    enqueue_effects(session, session.target.retire(operation.b, results))
    session.books.work_done(operation.b)
    return True


def _settle(session: Session, row: Row, outcome: Outcome | None) -> Result | None:
    """Bind a row's outcome: what its request knows now, and where the rows behind it start."""
    life = row.life
    request = session.requests.get(life.name)
    accepted = row.drafts if outcome is None else min(outcome.accepted, row.drafts)
    rejected = row.drafts - accepted if row.samples else 0
    sampled: list[int] = []
    if row.samples:
        known = len(life.tokens)
        sampled = [token_id(0, known + index) for index in range(accepted)]
        sampled.append(token_id(0 if outcome is None else outcome.family, known + accepted))
        life.extend(sampled)
    if rejected:
        session.counts["rejected draft"] += rejected
        for later in life.rows:
            later.start -= rejected
            later.stop -= rejected
    if request is None or request.life is not life:
        return None
    if rejected:
        _roll_back(request, rejected)
    request.retired = row.stop - rejected
    life.executed = min(life.executed, request.retired) if rejected else life.executed
    return Result(request.name, request.retired, rejected, sampled)


def _roll_back(request: Expected, rejected: int) -> None:
    request.scheduled -= rejected
    request.planned -= rejected
    if request.row is not None:
        request.row.start -= rejected
        request.row.stop -= rejected


def advance(session: Session, operation: Advance) -> bool:
    """One stream of the device makes progress."""
    streams = session.device.streams
    return operation.stream in streams and session.device.advance(streams.index(operation.stream))


def reset_prefix_cache(session: Session, operation: ResetPrefixCache) -> bool:
    """The operator empties the prefix cache."""
    if operation.at != session.pool or not session.allowed(None, operation):
        return False
    if session.target.reset_prefix_cache():
        session.step_facts.reset = True
        # A target need not list every block of its cache; whatever was published is looked at again.
        session.step_facts.units.extend(list(session.books.publications))
    return True


def closing_operations(session: Session) -> Iterator[Operation]:
    """Return what brings a session to rest: nothing scheduled, in flight or moving, and no request left."""
    for b in list(session.in_flight):
        yield Retire(b)
    if session.batch:
        b = "closing"
        while b in session.ids:
            b += "+"
        yield Launch(b, session.pool)
        yield Retire(b)
    for t in list(session.transfers):
        yield Complete(t)
    for request, _ in list(session.loads.values()):
        yield Landed(request.r)
    for r in list(session.requests):
        yield Finish(r)
    if session.exchange is not None and session.pool == PRODUCER:
        for offer in list(session.exchange.held()):
            yield Release(offer.t) if offer.claimed else Expire(offer.t)


HANDLERS: dict[type[Operation], Handler] = {
    Cancel: cancel,  # type: ignore[dict-item]
    Launch: launch,  # type: ignore[dict-item]
    Retire: retire,  # type: ignore[dict-item]
    Advance: advance,  # type: ignore[dict-item]
    ResetPrefixCache: reset_prefix_cache,  # type: ignore[dict-item]
}
