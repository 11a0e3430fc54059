"""Both ends of an exchange between two reference managers: what is offered, and what is pulled.

::

    send(t, r)    blocks of r --held for t----------------> released(t): given back
                                 claim(t): which they are
                                 expire(t): given back, if nobody has claimed them
    receive(t)    hits | fresh blocks, not published until complete(t); an abort leaves them to t

Every decision is a small method, so that a seeded bug is a small override.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from kvsan.gpu_kernels.addressing import blocks_for, full_blocks
from kvsan.harness.pair import Receiving, Sending
from kvsan.harness.target import COMPUTE_STREAM
from kvsan.models_under_test.paged.manager import PagedManager
from kvsan.models_under_test.paged.request import PagedRequest


@dataclass(slots=True)
class Offered:
    """Blocks that are held for a reader; ``request`` is whose they are."""

    request: PagedRequest
    units: list[int]
    claimed: bool = False


class PagedProducer:
    """Implements ``kvsan.harness.pair.Producer``."""

    def __init__(self, manager: PagedManager) -> None:
        self.manager = manager
        self.offers: dict[str, Offered] = {}

    def send(self, t: str, name: str) -> Sending | None:
        """Offer what a request has retired, and hold its blocks."""
        request = self.manager.requests[name]
        tokens = self._sendable(request)
        if not tokens:
            return None
        units = request.table[: blocks_for(tokens, self.manager.block_size)]
        self._hold(units)
        self.offers[t] = Offered(request, units)
        return Sending(tokens, tuple(units))

    def _sendable(self, request: PagedRequest) -> int:
        """Only what has retired is known to be computed, and to stay; a partial block may be a copy that is yet to be made."""
        if request.launches or request.name in self.manager.batch:
            return full_blocks(request.retired, self.manager.block_size) * self.manager.block_size
        return request.retired

    def _hold(self, units: Sequence[int]) -> None:
        for unit in units:
            self.manager.pool.touch(unit)

    def claim(self, t: str) -> Sequence[int] | None:
        """A reader begins; from now on the offer stays until it is released."""
        offered = self.offers.get(t)
        if offered is None:
            return None
        offered.claimed = True
        return self._served(offered)

    def _served(self, offered: Offered) -> Sequence[int]:
        """The blocks as they were sent; the request may have others by now, or none."""
        return offered.units

    def released(self, t: str) -> None:
        """Nobody reads any more; a notice that comes twice, or of a transfer that is unknown, means nothing."""
        offered = self.offers.pop(t, None)
        if offered is not None:
            self._give_back(offered)

    def expire(self, t: str) -> bool:
        """Give up, unless somebody is reading."""
        if self.offers[t].claimed:
            return False
        self._give_back(self.offers.pop(t))
        return True

    def _give_back(self, offered: Offered) -> None:
        self.manager.release(offered.units)

    def pending(self) -> Collection[str]:
        """Offers that are held."""
        return self.offers.keys()


@dataclass(slots=True)
class Incoming:
    """A pull in flight: behind ``hit_blocks`` blocks of its request; ``parked`` is the table of one that left meanwhile."""

    request: PagedRequest
    hit_blocks: int
    parked: list[int] | None = None


class PagedConsumer:
    """Implements ``kvsan.harness.pair.Consumer``."""

    def __init__(self, manager: PagedManager) -> None:
        self.manager = manager
        self.incoming: dict[str, Incoming] = {}
        manager.consumer = self

    def receive(self, t: str, name: str, tokens: int) -> Receiving | None:
        """Get blocks behind the prefix hit, or refuse and change nothing."""
        manager, size = self.manager, self.manager.block_size
        request = manager.requests[name]
        manager.lookup(name)
        hits, request.hits = request.hits, []
        fresh = tokens // size - len(hits)
        if fresh <= 0 or not manager.fits(request, hits, fresh):
            return None
        manager.take_hits(request, hits)
        manager.extend(request, fresh)
        request.scheduled, request.loading, request.load = tokens, True, t
        manager.changed.append(name)
        self.incoming[t] = Incoming(request, len(hits))
        return Receiving(len(hits) * size, fresh * size, self._after())

    def _after(self) -> tuple[str, ...]:
        """Without deferred free only the order of the compute stream protects the blocks' last user."""
        return () if self.manager.deferred_free else (COMPUTE_STREAM,)

    def complete(self, t: str, success: bool) -> None:
        """A pull has ended; a notice that comes twice, or of one that is unknown, means nothing."""
        incoming = self.incoming.pop(t, None)
        if incoming is None:
            return
        if incoming.parked is not None:
            self.manager.release(incoming.parked)
        else:
            self._resume(incoming, success)

    def _resume(self, incoming: Incoming, success: bool) -> None:
        """The request goes on: with what was pulled, or with what it had before."""
        manager, request = self.manager, incoming.request
        request.loading, request.load = False, ""
        if success:
            request.retired = request.scheduled
        else:
            self._take_back(incoming)
        manager.publish(request)
        manager.changed.append(request.name)

    def _take_back(self, incoming: Incoming) -> None:
        request, blocks = incoming.request, incoming.hit_blocks
        self.manager.trim(request, blocks)
        request.scheduled = blocks * self.manager.block_size
        if not blocks:
            request.forget_blocks()

    def park(self, request: PagedRequest) -> None:
        """The request leaves while it is being received: its blocks stay until that is over."""
        self.incoming[request.load].parked = request.table

    def pending(self) -> Collection[str]:
        """Pulls whose end was not heard."""
        return self.incoming.keys()
