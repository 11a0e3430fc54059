"""At rest the tiers hold what they serve, and nothing else.

Statement: when no transfer is in flight, no chunk is pinned or waits to be written, and every key in a store's medium is
known to the store's index.

Why: after an abort, a failure or a crash, what nobody gives back is gone for ever; so is the room of files nobody knows.

Reports: vLLM 46283 (a remote that never reports), LMCache 1756, 1130, SGLang 16067.

Does not see: memory of the process besides host units.

Mutant: ``failed_store_never_ends``, ``reset_leaves_files``.
"""

from __future__ import annotations

from kvsan.harness.invariant import Invariant


class TransferLeaks(Invariant):
    """Judges the tiers at rest."""

    id = "transfer_leaks"

    def applies(self) -> bool:
        """Only with tiers."""
        return self.books.tiers is not None

    def at_quiescence(self) -> None:
        """Look at every entry, and at every key of every store."""
        tiers = self.books.tiers
        assert tiers is not None
        for tier in tiers.view.tiers():
            entries = tiers.view.entries(tier)
            for entry in entries:
                if not entry.ready or entry.pins:
                    what = f"has {entry.pins} pins" if entry.pins else "waits to be written"
                    cause = "pinned" if entry.pins else "unfinished"
                    raise self.violated(cause, f"nothing is in flight, and chunk {entry.key[:12]} in {tier} {what}")
            if tier in tiers.stores:
                orphans = set(tiers.stores[tier].keys()) - {entry.key for entry in entries}
                if orphans:
                    raise self.violated("orphan", f"{tier} keeps {len(orphans)} chunks that its index does not know")
