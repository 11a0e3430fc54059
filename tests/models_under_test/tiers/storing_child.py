"""The process that ``test_sigkill.py`` kills: it stores chunks as fast as it can and says what it does on a pipe.

Lines on standard output, each written in one piece: ``S key version`` before a put, ``P key version`` after one that said
True and ``F key version`` after another, ``D key`` before a deletion, ``R`` when the store is open and its index filled.
What a version of a key holds follows from the two alone, so that anybody can tell whether bytes are those of some version.
"""

from __future__ import annotations

import os
import random
import sys

from kvsan.harness.tiers import Store
from kvsan.models_under_test.tiers.disk import DiskStore
from kvsan.models_under_test.tiers.envelope import header_bytes
from kvsan.models_under_test.tiers.index import ChunkIndex
from kvsan.models_under_test.tiers.policy import Arc, Lru

CAPACITY = 12
NUM_KEYS = 36
MAX_BYTES = 1 << 20
_STREAM = random.Random(4).randbytes(2 * MAX_BYTES)


def key_of(number: int) -> str:
    return f"{number:06x}"


def content(key: str, version: int) -> bytes:
    """Version number, and a piece of a fixed random stream: place and length are drawn from key and version."""
    draw = random.Random(f"{key} {version}")
    start = draw.randrange(MAX_BYTES)
    return version.to_bytes(8, "big") + _STREAM[start : start + draw.randrange(MAX_BYTES // 8, MAX_BYTES)]


def version_of(data: bytes) -> int:
    return int.from_bytes(data[:8], "big")


class WritesInPlace(DiskStore):
    """What the files would be without a rename and without a checksum."""

    def _temporary(self, key: str) -> str:
        return self._final(key)

    def _open(self, key: str, raw: bytes) -> bytes | None:
        return raw[header_bytes(key) :]


def open_store(kind: str, place: str) -> Store:
    if kind == "redis":
        from kvsan.models_under_test.tiers.redis_client import RedisClient
        from kvsan.models_under_test.tiers.remote import RemoteStore

        return RemoteStore(RedisClient("127.0.0.1", int(place), prefix="sigkill:", timeout_s=5))
    if kind == "in place":
        return WritesInPlace(place)
    return DiskStore(place, durable=kind == "durable")


def fill(index: ChunkIndex, store: Store) -> None:
    """Take over what an earlier process has left, as far as it is intact."""
    left = store.keys()
    for key in left:
        if store.get(key) is not None and index.prepare_store([key]) is not None:
            index.complete_store([key], True)
        else:
            say("D", key)
            store.delete(key)


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def main(kind: str, place: str, first_version: int) -> None:
    draw = random.Random(first_version)
    store = open_store(kind, place)
    index = ChunkIndex(CAPACITY, Arc(CAPACITY) if draw.random() < 0.5 else Lru())
    fill(index, store)
    say("R")
    version = first_version
    while True:
        key = key_of(draw.randrange(NUM_KEYS))
        prepared = index.prepare_store([key])
        assert prepared is not None
        for evicted in prepared.evicted:
            say("D", evicted)
            store.delete(evicted)
        say("S", key, version)
        stored = store.put(key, content(key, version))
        say("P" if stored else "F", key, version)
        if prepared.keys:
            index.complete_store([key], stored)
        version += 1


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
