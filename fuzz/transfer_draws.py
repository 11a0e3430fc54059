"""Draws operations on transfers: what goes down and up, how it ends, and what goes wrong with it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random

from kvsan.harness.operations import Complete, Fail, Load, Offload, Operation, Restart, Schedule, Spoil, Submit, Tear
from kvsan.harness.session import Session
from kvsan.harness.tier_books import Meaning
from kvsan.harness.tiers import HOST_TIER
from kvsan.harness.transfer import Transfer

_TOLD_KEPT = 8
_REMEMBERED = 256
_NOT_IN_VAIN = 0.7


class TransferDraws:
    """Draws for one run of one session. Each run has a habit: which tiers it stores into, how late it hears of an end.

    ``then`` is an operation that must follow the one just drawn, if there is one. ``submit_again`` makes a request
    whose prompt begins as that of another and is longer than a number of tokens, or None where that is not possible.
    """

    def __init__(
        self,
        session: Session,
        random: Random,
        fresh: Callable[[str], str],
        submit_again: Callable[[str, int], Submit | None],
    ) -> None:
        self._session = session
        self._draw = random.random
        self._fresh = fresh
        self._submit_again = submit_again
        self.then: Operation | None = None
        self._stores = session.traits.tiers[1:]
        self._to_store = random.choice((0.2, 0.5, 0.7)) if self._stores else 0.0
        self._again = random.choice((0.0, 0.05, 0.3)) if session.traits.late_notices else 0.0
        self._most = random.choice((1, 2, 4, 8))
        self._oldest_first = random.choice((0.0, 0.5, 0.9))
        self._come_back = random.choice((0.5, 0.8, 0.95))
        self._told: deque[str] = deque(maxlen=_TOLD_KEPT)
        self._offloaded: dict[tuple[str, str], int] = {}

    def builders(self) -> dict[str, Callable[[], Operation]]:
        """What to call for an operation of each kind."""
        return {
            "Offload": self._offload,
            "Load": self._load,
            "Complete": self._complete,
            "Fail": self._fail,
            "Tear": self._tear,
            "Spoil": self._spoil,
            "Restart": lambda: Restart(self._store()),
        }

    def _below(self, bound: int) -> int:
        return int(self._draw() * bound)

    def _store(self) -> str:
        return self._stores[self._below(len(self._stores))] if self._stores else HOST_TIER

    def _offload(self) -> Operation:
        """Mostly a request that has something to offer; that of a transfer that goes down already is fine too."""
        session = self._session
        if len(session.transfers) >= self._most:
            return self._complete()
        requests = list(session.requests.values())
        size = session.traits.block_size * session.traits.chunk_blocks
        for _ in range(4):
            request = requests[self._below(len(requests))]
            chunks = request.retired // size
            tier = self._store() if self._draw() < self._to_store else HOST_TIER
            if chunks > self._offloaded.get((request.r, tier), 0) and request.loading is None:
                break
        else:
            if self._draw() < _NOT_IN_VAIN:
                return self._complete()
        if len(self._offloaded) > _REMEMBERED:
            self._offloaded.clear()
        self._offloaded[request.r, tier] = chunks
        return Offload(self._fresh("t"), request.r, tier)

    def _load(self) -> Operation:
        session = self._session
        if len(session.transfers) >= self._most:
            return self._complete()
        new = [one for one in session.requests.values() if not one.scheduled and one.loading is None and not one.row]
        if self._draw() < self._come_back and (wanted := self._only_in_a_tier()) is not None:
            submit = self._submit_again(
                wanted.r, (wanted.block + session.traits.chunk_blocks) * session.traits.block_size
            )
            if submit is not None:
                self.then = Load(self._fresh("t"), submit.r)
                return submit
        if not new or self._draw() < _NOT_IN_VAIN:
            return self._complete()
        request = new[self._below(len(new))]
        return Load(self._fresh("t"), request.r)

    def _only_in_a_tier(self) -> Meaning | None:
        """A chunk that a tier has and the device has not, if three tries find one."""
        tiers, books = self._session.books.tiers, self._session.books
        assert tiers is not None
        keys = tiers.keys_in(self._store() if self._stores and self._draw() < 0.5 else HOST_TIER)
        for _ in range(3 if keys else 0):
            meaning = tiers.meanings.get(keys[self._below(len(keys))])
            if meaning is not None and (0, int(meaning.identity[-1]), meaning.salt) not in books.contents:
                return meaning
        return None

    def _in_flight(self) -> Transfer | None:
        transfers = list(self._session.transfers.values())
        if not transfers:
            return None
        return transfers[0 if self._draw() < self._oldest_first else self._below(len(transfers))]

    def _complete(self) -> Operation:
        transfer = self._in_flight()
        if self._told and self._draw() < self._again:
            return Complete(self._told[self._below(len(self._told))])
        if transfer is None:
            return self._some_progress()
        self._told.append(transfer.t)
        return Complete(transfer.t)

    def _some_progress(self) -> Operation:
        requests = list(self._session.requests.values())
        return Schedule(requests[self._below(len(requests))].r, 1 + self._below(8))

    def _running(self) -> Transfer | None:
        running = [transfer for transfer in self._session.transfers.values() if transfer.running]
        return running[self._below(len(running))] if running else None

    def _fail(self) -> Operation:
        transfer = self._running()
        return self._complete() if transfer is None else Fail(transfer.t)

    def _tear(self) -> Operation:
        transfer = self._running()
        return self._complete() if transfer is None else Tear(transfer.t)

    def _spoil(self) -> Operation:
        return Spoil(self._store(), self._below(16), "flip" if self._draw() < 0.5 else "truncate")
