"""A key of the tiers means one content, of one tenant.

Statement: whenever a chunk is stored or loaded under a key, the request has there exactly the tokens, adapter and media that
the key was first given to, and the salt too.

Why: the tier serves the keys and values of another prompt, or of another tenant; nothing crashes.

Reports: vLLM 3263, 8240, 30931, 44701, 12621, 56655, SGLang 24638, LMCache 1728 (the key for exists is not the key for put).

Does not see: two keys for one content, which only costs hits.

Mutant: ``tier_key_without_prefix``, ``tier_key_without_salt``, ``tier_key_of_first_block``.
"""

from __future__ import annotations

from kvsan.harness.invariant import Invariant
from kvsan.harness.transfer import Transfer


class TierKey(Invariant):
    """Checks the claims of every transfer as it begins."""

    id = "tier_key"

    def applies(self) -> bool:
        """Only with tiers."""
        return self.books.tiers is not None

    def on_transfer(self, transfer: Transfer) -> None:
        """Hold each chunk against what its key stands for."""
        tiers = self.books.tiers
        assert tiers is not None
        for chunk in transfer.chunks:
            own, known = tiers.claim(transfer.request, chunk)
            what = f"key {chunk.key[:12]} stands for {known.r} block {known.block} and for {own.r} block {own.block}"
            if own.identity.tobytes() != known.identity.tobytes():
                raise self.violated("content", f"{what}, whose content differs")
            if own.salt != known.salt:
                raise self.violated("tenant", f"{what}, of salts {known.salt!r} and {own.salt!r}")
