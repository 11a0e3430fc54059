"""A pair of targets: a prefill pool ``p0`` whose KV a decode pool ``p1`` pulls, and the two ends of that exchange.

Each pool is a target of its own, with its own units, block size and layout over its ranks. What they say to each other::

    producer (p0)                                          consumer (p1)
    send(t, r)      holds what r has retired  --offer-->   receive(t, r2, tokens)   blocks behind its own prefix hit
    claim(t)        <--handshake, when the pull begins--   ... pieces on stream ``net`` ...
    released(t)     <--notice, late or twice ------------  complete(t, success)

**Who may free what, and when.** The producer holds an offer until it hears ``released`` or, if nobody has claimed it, until
it loses patience (``expire``). Engines free after a time and leave the reader with a reference to blocks that are somebody
else's by then (vLLM 52234); so a pull begins with a claim, a claimed offer does not expire, and a claim that comes too late is
refused: the pull then fails at once, without reading anything. The notice of a claimed offer may be late, doubled, or come
for a transfer that the producer does not know (any more), but it is not lost; a consumer that dies is not simulated.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from kvsan.gpu_kernels.sharding import Layout
from kvsan.harness.target import Target

PRODUCER, CONSUMER = "p0", "p1"
"""Names of the two pools, by their parts."""

POOLS = (PRODUCER, CONSUMER)
"""Both, in the order in which their streams and slots are counted."""

NET_STREAM = "net"
"""Name of the stream that pulls run on; a pool's own streams are named with the pool before them: ``p1.compute``."""


class Sending(NamedTuple):
    """``Send`` was granted: the first ``tokens`` tokens of the request are offered, and ``units`` that hold them are held.

    Until the offer has ended it counts as one reference of each unit, besides those of tables, where the target counts
    references: a producer that lets the request's own reference stand for it, and frees late, must count one more.
    """

    tokens: int
    units: Sequence[int]


class Receiving(NamedTuple):
    """``Receive`` was granted: ``tokens`` tokens behind the ``hit`` tokens that the pool has are to be pulled.

    The blocks that they go to are in the request's table. The pull waits for all that the streams ``after`` of its pool
    have been given so far.
    """

    hit: int
    tokens: int
    after: tuple[str, ...] = ()


class Producer(Protocol):
    """The prefill pool's end."""

    def send(self, t: str, name: str) -> Sending | None:
        """Offer what a request has retired; None if that is nothing."""

    def claim(self, t: str) -> Sequence[int] | None:
        """Say which units hold the offer, block by block, as the pull begins; None if, and only if, it is no longer
        offered: it was released, or has expired.
        """

    def released(self, t: str) -> None:
        """Note that nobody will read the transfer any more; it may be unknown, or have been released before."""

    def expire(self, t: str) -> bool:
        """Give an offer up that nobody has claimed; False if somebody has."""

    def pending(self) -> Collection[str]:
        """Transfers for which something is still held."""


class Consumer(Protocol):
    """The decode pool's end."""

    def receive(self, t: str, name: str, tokens: int) -> Receiving | None:
        """Prepare to pull at most the first ``tokens`` tokens of a new request, whole units; None, with nothing changed,
        if there is no room or nothing that the pool does not have.
        """

    def complete(self, t: str, success: bool) -> None:
        """Note that a pull has moved everything, or never will; the request may be gone."""

    def pending(self) -> Collection[str]:
        """Transfers whose end has not been heard."""


class PairTarget(Protocol):
    """Two pools with the exchange between them, named as ``POOLS``. ``layouts`` are what each pool's kernels really do.

    Pools have one cache group each, no tiers and no graphs, and the block size of a unit of their layout; both have as
    many kv heads.
    """

    pools: Mapping[str, Target]
    layouts: Mapping[str, Layout]
    producer: Producer
    consumer: Consumer

    def source_layout(self) -> Layout:
        """Say what the consumer, which addresses the producer's pages itself, takes their layout for."""
