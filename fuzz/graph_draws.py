"""Draws operations on captured graphs: graphs of a few sizes, and batches that fit one of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random

from kvsan.harness.graph_launches import fits
from kvsan.harness.operations import Capture, Launch, Operation, Replay, Schedule
from kvsan.harness.session import Session


class GraphDraws:
    """Draws for one run of one session, whose habit is how many graphs there are and how full their batches.

    ``following`` are operations that are drawn already and come next. ``retire`` draws what ends the oldest launch, and
    ``advance_requests`` what gets requests to where they can decode.
    """

    def __init__(
        self,
        session: Session,
        random: Random,
        fresh: Callable[[str], str],
        retire: Callable[[], Operation],
        advance_requests: Callable[[], Operation],
    ) -> None:
        self._session = session
        self._draw = random.random
        self._fresh = fresh
        self._retire = retire
        self._advance_requests = advance_requests
        self.following: deque[Operation] = deque()
        if session.traits.graph_rows:
            self._most = random.choice((1, 2, 3))
            self._sizes = random.choice(((1, 2), (2, 4), (1, 2, 4, 8)))
            self._all_rows = random.choice((0.0, 0.5, 0.9))

    def builders(self) -> dict[str, Callable[[], Operation]]:
        """What to call for an operation of each kind; nothing where no graphs are replayed."""
        return {"Capture": self._capture, "Replay": self._replay} if self._session.traits.graph_rows else {}

    def _below(self, bound: int) -> int:
        return int(self._draw() * bound)

    def _capture(self) -> Operation:
        if len(self._session.executor.graphs.captured) >= self._most:
            return self._replay()
        rows = self._sizes[self._below(len(self._sizes))]
        return Capture(self._fresh("g"), min(rows, self._session.traits.graph_rows))

    def _replay(self) -> Operation:
        """Replay the batch, launch it where it fits no graph, or put together one that fits."""
        session = self._session
        graphs = list(session.executor.graphs.captured.values())
        if not graphs:
            return self._capture()
        if len(session.in_flight) >= session.traits.max_in_flight:
            return self._retire()
        if session.batch:
            fitting = [graph for graph in graphs if fits(session, graph)]
            if not fitting:
                return Launch(self._fresh("b"))
            return Replay(self._fresh("b"), fitting[self._below(len(fitting))].g)
        graph = graphs[self._below(len(graphs))]
        ready = [
            one.r
            for one in session.requests.values()
            if one.row is None and one.loading is None and 0 < one.scheduled < one.planned
        ]
        if not ready:
            return self._retire() if session.in_flight else self._advance_requests()
        most = min(graph.rows, len(ready))
        first = self._below(len(ready))
        rows = most if self._draw() < self._all_rows else 1 + self._below(most)
        self.following.extend(Schedule((ready + ready)[first + row], 1) for row in range(rows))
        self.following.append(Replay(self._fresh("b"), graph.g))
        return self.following.popleft()
