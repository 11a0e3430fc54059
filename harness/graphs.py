"""CUDA graphs: what a runner that replays captured graphs owns, and what it says when it is about to replay one.

A captured graph reads *static buffers*, at addresses that were fixed when it was captured. Row i of a replay is row i of each::

    buffer             rows x columns
    table of group k   [rows, blocks]   units of the row's blocks; what no query sees may be anything
    lengths            [rows, 1]        tokens that the row's query sees, its own with them
    slots of group k   [rows, 1]        slot that the row's token is written to; padding: -1, or a slot of the null unit

A replay reads them *when the device executes it*, not when it is enqueued, and always all the rows that were captured: a smaller
batch is padded, and rows of padding may write to the sink alone. So what a runner writes into the buffers must be ordered before
the replay that needs it and behind the earlier replays that still have to read what it overwrites.

What fits a graph: at most as many rows as were captured, each of one token whose position the host knows. A row behind drafts
whose outcome is not known waits for no graph: its slot could not have been computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from kvsan.harness.target import Effects, Target


class Buffer(NamedTuple):
    """A static buffer of int64 ``[rows, columns]``; buffers of one name are one buffer, which starts as zeros."""

    name: str
    rows: int
    columns: int = 1


class Captured(NamedTuple):
    """The buffers that a graph reads: a table and a slot mapping for each cache group, and the lengths."""

    tables: tuple[Buffer, ...]
    lengths: Buffer
    slots: tuple[Buffer, ...]

    def buffers(self) -> tuple[Buffer, ...]:
        """All of them."""
        return (*self.tables, self.lengths, *self.slots)


class GraphRow(NamedTuple):
    """A row of a batch that is about to be replayed: a request's name, and its tokens with the one that is computed."""

    name: str
    length: int


class Replaying(NamedTuple):
    """What a replay needs: effects that fill the buffers, and the streams whose work so far the graph waits for."""

    effects: Effects
    after: tuple[str, ...] = ()


class GraphTarget(Target, Protocol):
    """A manager together with the runner that launches its batches; its traits name ``graph_rows``."""

    def capture(self, g: str, rows: int) -> Captured:
        """Capture a graph for ``rows`` rows as ``g``; its buffers have at least so many."""

    def replay(self, b: str, g: str, rows: Sequence[GraphRow]) -> Replaying:
        """Prepare to launch a batch, as ``b``, through graph ``g``; the manager has heard of the launch already."""


@dataclass(slots=True)
class Graph:
    """A captured graph, and what it was last replayed with: requests in order, and how often each had been preempted."""

    g: str
    rows: int
    captured: Captured
    last: tuple[str, ...] = ()
    restarts: dict[str, int] = field(default_factory=dict)
