"""Operations on captured graphs. Each returns False when it is skipped."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from kvsan.harness.device import LaunchWork
from kvsan.harness.effects import enqueue_effects
from kvsan.harness.expectation import Row
from kvsan.harness.granted import INTEGERS, check_effect_kinds
from kvsan.harness.graphs import Buffer, Captured, Graph, GraphRow, GraphTarget, Replaying
from kvsan.harness.launches import may_launch, start, take_batch
from kvsan.harness.operations import Capture, Launch, Operation, Replay
from kvsan.harness.verdict import UsageError

if TYPE_CHECKING:
    from kvsan.harness.session import Handler, Session


def runner(session: Session) -> GraphTarget:
    """Return the target as one that replays graphs; whoever names ``graph_rows`` in its traits is one."""
    return cast(GraphTarget, session.target)


def capture(session: Session, operation: Capture) -> bool:
    """A graph is captured."""
    g = operation.g
    if g in session.ids or operation.rows > session.traits.graph_rows:
        return False
    captured = runner(session).capture(g, operation.rows)
    if not isinstance(captured, Captured):
        raise UsageError(f"{type(session.target).__name__}.capture returned {captured!r}; expected Captured")
    _check_buffers(session, captured)
    session.executor.graphs.capture(g, operation.rows, captured)
    session.ids.add(g)
    return True


def _check_buffers(session: Session, captured: Captured) -> None:
    returned = f"{type(session.target).__name__}.capture returned"
    if not isinstance(captured.tables, tuple) or not isinstance(captured.slots, tuple):
        raise UsageError(f"{returned} {captured}; expected tuples of buffers as tables and as slots")
    for buffer in captured.buffers():
        if not isinstance(buffer, Buffer) or not isinstance(buffer.name, str):
            raise UsageError(f"{returned} {buffer!r}; expected a kvsan.harness.graphs.Buffer with a name")
        if not isinstance(buffer.rows, INTEGERS) or not isinstance(buffer.columns, INTEGERS):
            raise UsageError(f"{returned} {buffer}; expected integers of rows and columns")


def fits(session: Session, graph: Graph) -> bool:
    """Whether the scheduled batch can go through a graph: few enough rows, of one token each, at positions that are known."""
    rows = session.batch.values()
    return 0 < len(rows) <= graph.rows and all(row.stop - row.start == 1 and not _moves(row) for row in rows)


def _moves(row: Row) -> bool:
    """Whether a row begins where drafts in flight may still be rejected."""
    return any(earlier.drafts and earlier.samples for earlier in row.life.rows)


def replay(session: Session, operation: Replay) -> bool:
    """Snapshot the tables of the batch, let the runner fill the buffers, and give the graph to the compute stream."""
    graph = session.executor.graphs.captured.get(operation.g)
    b, device = operation.b, session.device
    # To the manager, and to its contract, this is a launch like any other.
    if graph is None or not fits(session, graph) or not may_launch(session, Launch(b)):
        return False
    told = [GraphRow(name, row.stop) for name, row in session.batch.items()]
    session.target.launch(b)
    rows, events = take_batch(session, b)
    needs = runner(session).replay(b, graph.g, told)
    if not isinstance(needs, Replaying):
        raise UsageError(f"{type(session.target).__name__}.replay returned {needs!r}; expected Replaying")
    check_effect_kinds(f"{type(session.target).__name__}.replay returned", needs.effects)
    enqueue_effects(session, needs.effects)
    for name in needs.after:
        if name not in device.streams:
            raise UsageError(f"replay {b} waits for stream {name!r}; expected some of {', '.join(device.streams)}")
        events.append(device.event(device.streams.index(name)))
    _count(session, graph, told)
    start(session, LaunchWork(b, rows, graph), events)
    return True


def _count(session: Session, graph: Graph, rows: list[GraphRow]) -> None:
    """Count what makes a replay different from the graph's last one."""
    counts = session.counts
    counts["padded replay"] += len(rows) < graph.rows
    counts["two replays in flight"] += any(
        isinstance(work.payload, LaunchWork) and work.payload.graph is not None for work in session.in_flight.values()
    )
    requests = [session.books.requests[row.name] for row in rows]
    names = tuple(request.r for request in requests)
    counts["replay with other rows"] += graph.last not in ((), names)
    restarts = graph.restarts
    counts["replay after preemption"] += any(
        restarts.get(request.r, request.restarts) < request.restarts for request in requests
    )
    graph.last = names
    restarts.update((request.r, request.restarts) for request in requests)


HANDLERS: dict[type[Operation], Handler] = {
    Capture: capture,  # type: ignore[dict-item]
    Replay: replay,  # type: ignore[dict-item]
}
