"""What moves between host units and stores: content identities, and the pages' own bytes where the numbers oracle runs.

A store gets both as one blob that it knows nothing of. So what comes back from a real file or a real server is what shadow
memory and attention go on with, and a store that gives out anything but what it was given is caught here (``tier_integrity``).
"""

from __future__ import annotations

from kvsan.harness.books import Books
from kvsan.harness.device import Work
from kvsan.harness.numbers_oracle import NumbersOracle
from kvsan.harness.shadow import Shadow
from kvsan.harness.tier_books import TierBooks
from kvsan.harness.tiers import Get, Put
from kvsan.harness.transfer import REFUSED
from kvsan.harness.verdict import Violation

_IDENTITY_BYTES = 8


class StoreExecutor:
    """Carries out ``Put`` and ``Get``."""

    def __init__(self, books: Books, shadow: Shadow, numbers: NumbersOracle | None) -> None:
        self.books = books
        self.shadow = shadow
        self.numbers = numbers
        self.block_size = books.block_size

    @property
    def _tiers(self) -> TierBooks:
        assert self.books.tiers is not None, "only a target with tiers names stores"
        return self.books.tiers

    def execute(self, work: Work) -> None:
        """Store or fetch; the transfer fails if the store refuses."""
        payload, transfer = work.payload, work.transfer
        assert isinstance(payload, Put | Get)
        if isinstance(payload, Put):
            data = self._blob(payload)
            taken = self._tiers.stores[payload.store].put(payload.key, data)
            if taken:
                self._tiers.given[payload.store, payload.key] = data
        else:
            fetched = self._fetch(payload)
            taken = fetched is not None
            if fetched is not None:
                self._restore(payload, fetched, len(payload.units) * self.block_size, work.step)
        if not taken and transfer is not None:
            transfer.failure = REFUSED
            transfer.refused.append((payload.store, payload.key))

    def tear(self, work: Work) -> None:
        """Die in the middle: half of the bytes are written where they go to."""
        payload = work.payload
        assert isinstance(payload, Put | Get)
        if isinstance(payload, Put):
            data = self._blob(payload)
            self._tiers.stores[payload.store].tear(payload.key, data, len(data) // 2)
        elif (fetched := self._fetch(payload)) is not None:
            self._restore(payload, fetched, len(payload.units) * self.block_size // 2, work.step)

    def _blob(self, put: Put) -> bytes:
        data = self.shadow.store_pages(put.units)
        return data if self.numbers is None else data + self.numbers.store_pages(put.units)

    def _fetch(self, get: Get) -> bytes | None:
        data = self._tiers.stores[get.store].get(get.key)
        given = self._tiers.given.get((get.store, get.key))
        if data is not None and data != given:
            what = "never given" if given is None else "other bytes"
            raise Violation(
                "tier_integrity",
                what,
                f"{get.store} serves {len(data)} bytes under key {get.key[:12]}, "
                + ("which it was never given" if given is None else "not what it was given last"),
            )
        return data

    def _restore(self, get: Get, data: bytes, tokens: int, step: int) -> None:
        identities = len(get.units) * self.block_size * _IDENTITY_BYTES
        self.shadow.restore_pages(get.units, data[:identities], tokens, step)
        if self.numbers is not None:
            self.numbers.restore_pages(get.units, data[identities:], tokens)
