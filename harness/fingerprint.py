"""The hash of every intermediate state: equal in any process for the same trace and target.

Covers tables, references, hashes (renumbered by first appearance, since an engine's own hashes may differ by process), the
free queue and shadow memory. Each step's hash continues the one before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable

from kvsan.harness.session import Session


class Fingerprint:
    """Chains one session's states."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._numbers: dict[Hashable, int] = {}
        self._digest = b""

    def update(self) -> str:
        """Take in the present state; hexadecimal, 16 characters."""
        books, shadow = self._session.books, self._session.shadow
        view, units = books.view, range(books.traits.num_units)
        numbers = self._numbers
        hashes = []
        for unit in units:
            key = view.key(unit)
            hashes.append(0 if key is None else numbers.setdefault(key, len(numbers) + 1))
        tables = [(name, [list(table) for table in view.tables(name)]) for name in sorted(books.requests)]
        references = [view.ref_count(unit) for unit in units] if books.traits.counts_references else []
        state = repr((tables, references, hashes, list(view.free_queue()), dict(self._session.counts))).encode()
        digest = hashlib.blake2b(self._digest + state + shadow.content.tobytes(), digest_size=16)
        self._digest = digest.digest()
        return digest.hexdigest()[:16]
