"""The books of the tiers: which content every key stands for, what is on its way, and what every store was given.

A key means the content of the first chunk that it was given to: identities of that request's positions, of one tenant. What
a tier holds, gives or takes under the key later is held against it.
"""

from __future__ import annotations

from typing import NamedTuple

from kvsan.harness.expectation import Expected
from kvsan.harness.granted import stores_of_tiers, view_of_tiers
from kvsan.harness.identity import group_mask
from kvsan.harness.target import Chunk, IntArray, TieredTarget, Traits
from kvsan.harness.transfer import Transfer


class Meaning(NamedTuple):
    """What a key stands for: identities of its tokens, int64 ``[chunk_blocks * block_size]``, and whose they are."""

    identity: IntArray
    salt: str
    r: str
    block: int


class TierBooks:
    """Account of one session's tiers.

    ``in_flight`` are transfers by id; ``given`` is what the last successful put of (store, key) stored.
    """

    def __init__(self, target: TieredTarget, traits: Traits) -> None:
        self.view = view_of_tiers(target)
        self.stores = stores_of_tiers(target, traits)
        self.block_size = traits.block_size
        self.chunk_tokens = traits.chunk_blocks * traits.block_size
        self.in_flight: dict[str, Transfer] = {}
        self.meanings: dict[str, Meaning] = {}
        self.given: dict[tuple[str, str], bytes] = {}
        self._keys: dict[tuple[bytes, str], list[str]] = {}
        self._mask = group_mask(0)

    def content(self, request: Expected, block: int) -> IntArray:
        """Identities of a request's chunk that begins at a block, as far as its tokens go."""
        start = block * self.block_size
        return request.life.identities(start + self.chunk_tokens)[start:].copy() ^ self._mask

    def claim(self, request: Expected, chunk: Chunk) -> tuple[Meaning, Meaning]:
        """Give what a request has in a chunk, and what the chunk's key stands for."""
        own = Meaning(self.content(request, chunk.block), request.salt, request.r, chunk.block)
        known = self.meanings.get(chunk.key)
        if known is None:
            known = self.meanings[chunk.key] = own
            self._keys.setdefault((own.identity.tobytes(), own.salt), []).append(chunk.key)
        return own, known

    def keys_of(self, request: Expected, block: int) -> list[str]:
        """Keys that stand for what a request has in the chunk that begins at a block, for its tenant."""
        return self._keys.get((self.content(request, block).tobytes(), request.salt), [])

    def keys_in(self, tier: str) -> list[str]:
        """Keys that a tier's index knows, in any state."""
        return [entry.key for entry in self.view.entries(tier)]

    def page(self, key: str, place: int) -> IntArray:
        """Identities that the page number ``place`` of a chunk must hold."""
        return self.meanings[key].identity[place * self.block_size : (place + 1) * self.block_size]
