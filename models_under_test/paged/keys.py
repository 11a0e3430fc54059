"""Prefix-cache keys: exact, because the whole key is kept and interned instead of hashed.

A key names (parent key, the block's tokens, its media); the first parent names (salt, adapter name, adapter id). Two
requests get the same integer if and only if everything that decides the KV of the block, and who may see it, is equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable

from kvsan.models_under_test.paged.request import PagedRequest


class KeyChain:
    """Interns keys for one manager; never forgets, since an integer must not come back with another meaning."""

    __slots__ = ("_block_size", "_digests", "_interned", "_names")

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._interned: dict[Hashable, int] = {}
        self._names: list[Hashable] = [None]
        self._digests: dict[int, str] = {}

    def _intern(self, key: Hashable) -> int:
        known = self._interned.get(key)
        if known is None:
            known = self._interned[key] = len(self._names)
            self._names.append(key)
        return known

    def digest(self, key: int) -> str:
        """Name a key for whoever outlives this process: 32 characters of ``0-9a-f``, of all that the key stands for."""
        known = self._digests.get(key)
        if known is None:
            name = self._names[key]
            assert isinstance(name, tuple)
            parts = (self.digest(name[0]), *name[1:]) if isinstance(name[0], int) else name
            known = self._digests[key] = hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()
        return known

    def root(self, request: PagedRequest) -> Hashable:
        """What the first block's key starts from; its parts carry their names, so that equal strings do not collide."""
        return ("salt", request.salt), ("adapter", request.adapter and tuple(request.adapter))

    def parent(self, request: PagedRequest) -> int:
        """What the next block's key continues: the key of the block before, which stands for the whole prefix."""
        return request.keys[-1] if request.keys else self._intern(self.root(request))

    def media_of(self, request: PagedRequest, start: int, stop: int) -> Hashable:
        """Media items that reach into positions ``[start, stop)``, with where they lie relative to ``start``."""
        return tuple(
            (item.id, item.length, item.offset - start)
            for item in request.media
            if item.offset < stop and start < item.offset + item.length
        )

    def upto(self, request: PagedRequest, blocks: int) -> list[int]:
        """Keys of the request's first ``blocks`` full blocks."""
        keys, size, tokens = request.keys, self._block_size, request.tokens
        while len(keys) < blocks:
            start = len(keys) * size
            key: tuple[Hashable, ...] = (self.parent(request), *tokens[start : start + size])
            if media := self.media_of(request, start, start + size):
                key = (*key, media)
            keys.append(self._intern(key))
        return keys if len(keys) == blocks else keys[:blocks]
