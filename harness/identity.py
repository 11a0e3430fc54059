"""Content identity: a 63-bit name for what the KV of one position must be.

The identity of position p is a chain over everything that decides its KV: the adapter, every token up to p and the media
that lie under them. Two positions have equal KV if and only if their identities are equal (up to a chance of 2^-63 a pair).
Salt is tenancy and not part of it; a cache group's layers are another page, so each group masks the chain with its own
constant. Plain integer arithmetic: the same in every process. 0 is no identity: it marks memory that nobody wrote.
"""

from __future__ import annotations

import hashlib

import numpy as np

from kvsan.harness.operations import Adapter, Media, token_id
from kvsan.harness.target import IntArray

_MASK = (1 << 63) - 1
_MULTIPLIER = 0x9E3779B97F4A7C15
_SEGMENTS_KEPT = 4096


def mix(identity: int, token: int) -> int:
    """Identity of the next position, 1 <= result < 2^63."""
    mixed = ((identity ^ token) * _MULTIPLIER) & _MASK
    return (mixed ^ (mixed >> 29)) or 1


def name_identity(*parts: object) -> int:
    """Identity of a name: adapters, media and groups enter the arithmetic through this."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") & _MASK) or 1


def root_identity(adapter: Adapter | None) -> int:
    """Where a request's chain starts."""
    return name_identity("root", adapter and tuple(adapter))


def group_mask(group: int) -> int:
    """Return the constant that a group's identities are masked with; 0 for the first group."""
    return name_identity("group", group) if group else 0


def media_token(token: int, position: int, media: tuple[Media, ...]) -> int:
    """Return what the chain sees in place of a token under a media item: the item and where in it we are."""
    for item in media:
        if item.offset <= position < item.offset + item.length:
            return name_identity("media", item.id, item.length, position - item.offset) ^ token
    return token


class SegmentCache:
    """Tokens and chains of the prompt segments met before; prompts share prefixes, so most are."""

    __slots__ = ("_chains",)

    def __init__(self) -> None:
        self._chains: dict[tuple[int, int, int], tuple[list[int], list[int]]] = {}

    def expand(self, identity: int, family: int, length: int) -> tuple[list[int], list[int]]:
        """Tokens of a family's segment and the chain over them, continuing from ``identity``; not to be changed."""
        key = (identity, family, length)
        known = self._chains.get(key)
        if known is None:
            tokens = [token_id(family, index) for index in range(length)]
            if len(self._chains) >= _SEGMENTS_KEPT:
                self._chains.clear()
            known = self._chains[key] = (tokens, chain_over(identity, tokens))
        return known


def chain_over(identity: int, tokens: list[int]) -> list[int]:
    """Chain over tokens, continuing from ``identity``."""
    chain = []
    for token in tokens:
        identity = mix(identity, token)
        chain.append(identity)
    return chain


def empty_chain(capacity: int) -> IntArray:
    """Room for ``capacity`` identities."""
    return np.zeros(capacity, np.int64)
