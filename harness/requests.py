"""Operations on requests: arrival, look-up, scheduling, sharing, ending. Each returns False when it is skipped."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from kvsan.gpu_kernels.addressing import blocks_for, full_blocks
from kvsan.harness.books import LOAD
from kvsan.harness.device import LaunchWork, LoadWork
from kvsan.harness.effects import check_effects, drop_row, enqueue_effects, enqueue_load
from kvsan.harness.expectation import Expected, Life, Row
from kvsan.harness.operations import (
    FAMILY_STRIDE,
    Abort,
    Finish,
    Fork,
    Landed,
    Lookup,
    Operation,
    Preempt,
    Schedule,
    Submit,
)
from kvsan.harness.step import Ended
from kvsan.harness.target import Admission, Copy, Effects, Request, RequestState
from kvsan.harness.verdict import UsageError, Violation

if TYPE_CHECKING:
    from kvsan.harness.session import Handler, Session


def state_of(session: Session, request: Expected) -> RequestState:
    """What a contract rule may know about a request; rows that it was preempted with are in flight as well."""
    in_flight = sum(
        row.life.name == request.r
        for work in session.in_flight.values()
        if isinstance(work.payload, LaunchWork)
        for row in work.payload.rows
    )
    return RequestState(
        request.scheduled,
        request.retired,
        in_flight,
        request.name in session.batch,
        request.loading is not None,
        request.looked_up is not None,
    )


# -- arrival


def submit(session: Session, operation: Submit) -> bool:
    """A request arrives."""
    traits = session.traits
    name = operation.engine_id or operation.r
    if operation.r in session.ids or name in session.books.requests or name in session.loads:
        return False
    if (operation.salt and not traits.salts) or (operation.adapter and not traits.adapters):
        return False
    if (operation.media and not traits.media) or operation.at != session.pool:
        return False
    life = Life(operation.r, operation.adapter, operation.media)
    _expand_prompt(session, operation, life)
    if not life.tokens or len(life.tokens) >= traits.max_model_len or not session.allowed(None, operation):
        return False
    request = Expected(operation.r, name, life, operation.salt, operation.adapter)
    session.target.submit(Request(name, life.tokens[:], operation.salt, operation.adapter, operation.media))
    _open(session, request)
    return True


def _open(session: Session, request: Expected) -> None:
    session.ids.add(request.r)
    session.requests[request.r] = request
    session.known.appendleft(request)
    session.books.open(request)


def _expand_prompt(session: Session, operation: Submit, life: Life) -> None:
    for segment in operation.prompt:
        if segment[0] == "out":
            _, source, length = cast("tuple[str, str, int]", segment)
            for other in session.known:
                if other.r == source:
                    life.extend(other.life.tokens[other.prompt_length : other.prompt_length + length])
        else:
            family, length = segment
            tokens, chain = session.segments.expand(life.last_identity(), family, min(length, FAMILY_STRIDE))
            life.extend(tokens, chain)


# -- look-up and scheduling


def lookup(session: Session, operation: Lookup) -> bool:
    """Prefix look-up alone."""
    request = session.requests.get(operation.r)
    if request is None or request.scheduled or request.row or request.loading:
        return False
    if not session.allowed(request, operation):
        return False
    look_up(session, request)
    return True


def look_up(session: Session, request: Expected) -> int:
    """Ask the target for a request's prefix hit, in tokens, and judge the answer."""
    hit = session.target.lookup(request.name)
    if not isinstance(hit, int):
        raise UsageError(f"{type(session.target).__name__}.lookup returned {hit!r}; expected a number of tokens")
    request.looked_up = hit
    session.lookup_pending = request.r
    session.looked_up(request, hit)
    return hit


def schedule(session: Session, operation: Schedule) -> bool:
    """Blocks for more tokens."""
    request = session.requests.get(operation.r)
    if request is None or request.row is not None or request.loading is not None:
        return False
    if not session.allowed(request, operation):
        return False
    first = request.scheduled == 0
    hit = external = 0
    if first:
        hit = request.looked_up if request.looked_up is not None else look_up(session, request)
        external = _external_tokens(session, request, operation, hit)
    delayed = operation.delayed and external > 0
    n = 0 if delayed else _tokens_to_compute(session, request, operation.n, hit + external)
    if n == 0 and not delayed:
        return False
    lookahead = 0 if delayed else min(operation.lookahead, session.traits.max_lookahead)
    request.looked_up = None
    session.lookup_pending = None
    admission = session.target.schedule(request.name, n, lookahead, external, delayed)
    facts = session.step_facts
    facts.subject = request
    if admission is None:
        facts.refused = True
        session.counts["refusal"] += 1
        return True
    if not isinstance(admission, Admission):
        raise UsageError(f"{type(session.target).__name__}.schedule returned {admission!r}; expected Admission or None")
    if first:
        if not 0 <= admission.hit <= hit:
            raise Violation(
                "hit_bounds", "grew", f"{request.r}: the look-up gave {hit} tokens, scheduling {admission.hit}"
            )
        count_hit(session, request, admission.hit)
        facts.hit = request.retired = request.life.executed = admission.hit
    facts.shareable_blocks = blocks_for(admission.hit, session.traits.block_size)
    start = admission.hit + external if first else request.scheduled
    check_effects(session.traits, admission.effects)
    if delayed:  # what is zeroed is zeroed before the load writes it
        enqueue_effects(session, admission.effects)
    _admit(session, request, start, n, external, delayed)
    if request.row is not None:
        _expect_copies(session, request.row, admission.effects)
    return True


def _expect_copies(session: Session, row: Row, effects: Effects) -> None:
    """Effects go to the device with the row's launch; until then copies hold their sources."""
    row.effects = effects
    for effect in effects:
        if isinstance(effect, Copy):
            session.step_facts.copied[effect.destination] = effect.source
            session.counts["copy on write"] += 1
            session.books.add(effect.source)


def _external_tokens(session: Session, request: Expected, operation: Schedule, hit: int) -> int:
    """External tokens follow the hit, come in whole units, and leave at least one token to compute."""
    if Landed not in session.traits.operations:
        return 0
    unit = session.traits.external_unit
    return max(0, min(operation.external, len(request.life.tokens) - 1 - hit)) // unit * unit


def _tokens_to_compute(session: Session, request: Expected, n: int, done: int) -> int:
    """Clip a wish: to the prompt on a first chunk, to the planned tokens and the allowed drafts later."""
    if request.scheduled == 0:
        return min(n, request.planned - done)
    room = session.traits.max_model_len - request.scheduled
    return min(n, request.planned + session.traits.max_drafts - request.scheduled, room)


def count_hit(session: Session, request: Expected, hit: int) -> None:
    """Count a hit, in tokens, by what it is to the request."""
    size = session.traits.block_size
    full = full_blocks(len(request.life.tokens) - 1, size) * size
    session.counts["full hit" if hit and hit == full else "partial hit" if hit else "no hit"] += 1


def _admit(session: Session, request: Expected, start: int, n: int, external: int, delayed: bool) -> None:
    request.scheduled = start + n
    if external:
        session.counts["external load"] += 1
    if delayed:
        request.loading, request.load = (start - external, start), load_id(request)
        tables = [np.array(table, np.int64) for table in session.books.view.tables(request.name)]
        work = LoadWork(request.life, tables, start - external, start)
        session.loads[request.name] = (request, enqueue_load(session, work))
        return
    drafts = max(0, start + n - request.planned)
    samples = start + n >= request.planned
    if drafts:
        session.counts["draft"] += drafts
    if samples:
        request.planned += drafts + 1
    request.row = session.batch[request.name] = Row(request.life, start, start + n, drafts, samples, external)


def landed(session: Session, operation: Landed) -> bool:
    """Delayed external tokens are there; the request may be gone by now."""
    name = next((name for name, (request, _) in session.loads.items() if request.r == operation.r), None)
    if name is None:
        return False
    request, work = session.loads[name]
    if not session.allowed(request if request.loading else None, operation):
        return False
    if not session.device.complete(work):
        return False
    del session.loads[name]
    session.target.landed(name)
    if request.loading is not None:
        request.retired = request.life.executed = request.loading[1]
        request.loading, request.load = None, ""
    else:
        session.books.work_done(load_id(request))
        session.counts["landed after the end"] += 1
    session.step_facts.subject = request
    return True


def load_id(request: Expected) -> str:
    """Name of a request's load among the work that tables can be parked with."""
    return LOAD + request.r


# -- sharing and ending


def fork(session: Session, operation: Fork) -> bool:
    """The child shares what the parent has retired; engines fork between two batches, not while one is put together."""
    parent = session.requests.get(operation.r)
    child = operation.child
    if parent is None or child in session.ids or child in session.books.requests or child in session.loads:
        return False
    if parent.retired == 0 or parent.loading or parent.row or not session.allowed(parent, operation):
        return False
    effects = session.target.fork(parent.name, child)
    life = parent.life.copy(child)
    twin = Expected(child, child, life, parent.salt, parent.adapter)
    twin.prompt_length = min(parent.prompt_length, len(life.tokens))
    twin.scheduled = twin.retired = life.executed = parent.retired
    _open(session, twin)
    facts = session.step_facts
    facts.subject, facts.shareable_blocks = twin, blocks_for(parent.retired, session.traits.block_size)
    enqueue_effects(session, effects)
    return True


def finish(session: Session, operation: Finish) -> bool:
    """A request is complete."""
    request = session.requests.get(operation.r)
    if request is None or request.loading is not None or not session.allowed(request, operation):
        return False
    session.target.finish(request.name)
    _end(session, request)
    return True


def abort(session: Session, operation: Abort) -> bool:
    """A client went away."""
    request = session.requests.get(operation.r)
    if request is None or not session.allowed(request, operation):
        return False
    if request.loading is not None or request.life.rows:
        session.counts["abort in flight"] += 1
    if request.name not in session.loads and request.loading is not None:
        session.counts["abort while loading"] += 1
    session.target.abort(request.name)
    _end(session, request)
    return True


def _end(session: Session, request: Expected) -> None:
    _leave(session, request)
    del session.requests[request.r]
    del session.books.requests[request.name]


def preempt(session: Session, operation: Preempt) -> bool:
    """A request gives its blocks back and starts again."""
    request = session.requests.get(operation.r)
    if request is None or not request.scheduled or not session.allowed(request, operation):
        return False
    if request.loading is not None:  # what no transfer brings is known by its request's name alone
        if request.name in session.loads or not session.traits.preempts_loading:
            return False
        session.counts["preemption while loading"] += 1
    session.target.preempt(request.name)
    _leave(session, request)
    request.restart()
    session.counts["preemption"] += 1
    return True


def _leave(session: Session, request: Expected) -> None:
    """The request's tables go: now, or when the work in flight that uses them is done."""
    row = session.batch.pop(request.name, None)
    if row is not None:
        drop_row(session, request, row)
    if session.lookup_pending == request.r:
        session.lookup_pending = None
    work = None
    if request.loading is not None:
        work = request.load
        request.loading, request.load = None, ""
    elif session.traits.deferred_free:
        work = _last_launch(request)
    session.step_facts.ended.append(Ended(request, request.tables))
    session.books.give_back(request, work)


def _last_launch(request: Expected) -> str | None:
    """Return the newest launch in flight that has a row of the request."""
    rows = request.life.rows
    return rows[-1].launch if rows else None


HANDLERS: dict[type[Operation], Handler] = {
    Submit: submit,  # type: ignore[dict-item]
    Lookup: lookup,  # type: ignore[dict-item]
    Schedule: schedule,  # type: ignore[dict-item]
    Landed: landed,  # type: ignore[dict-item]
    Fork: fork,  # type: ignore[dict-item]
    Finish: finish,  # type: ignore[dict-item]
    Abort: abort,  # type: ignore[dict-item]
    Preempt: preempt,  # type: ignore[dict-item]
}
