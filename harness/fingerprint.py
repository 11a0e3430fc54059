"""The hash of every intermediate state: equal in any process for the same trace and target.

Covers tables, references, hashes (renumbered by first appearance, since an engine's own hashes may differ by process), the
free queue, shadow memory and what the indexes of tiers know. Each step's hash continues the one before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable

from kvsan.harness.pair_session import PairSession
from kvsan.harness.session import Session


class Fingerprint:
    """Chains one session's states; those of a pair are its pools', one after the other."""

    def __init__(self, session: Session | PairSession) -> None:
        self._parts: list[tuple[Session, dict[Hashable, int]]] = [(part, {}) for part in session.parts]
        self._digest = b""

    def update(self) -> str:
        """Take in the present state; hexadecimal, 16 characters."""
        for part, numbers in self._parts:
            self._take_in(part, numbers)
        return self._digest.hex()[:16]

    def _take_in(self, session: Session, numbers: dict[Hashable, int]) -> None:
        books, shadow = session.books, session.shadow
        view, units = books.view, range(books.traits.num_units)
        hashes = []
        for unit in units:
            key = view.key(unit)
            hashes.append(0 if key is None else numbers.setdefault(key, len(numbers) + 1))
        tables = [(name, [list(table) for table in view.tables(name)]) for name in sorted(books.requests)]
        references = [view.ref_count(unit) for unit in units] if books.traits.counts_references else []
        tiers = books.tiers
        entries = [] if tiers is None else [sorted(tiers.view.entries(tier)) for tier in tiers.view.tiers()]
        state = repr((tables, references, hashes, list(view.free_queue()), dict(session.counts), entries)).encode()
        digest = hashlib.blake2b(self._digest + state + shadow.content.tobytes(), digest_size=16)
        self._digest = digest.digest()
