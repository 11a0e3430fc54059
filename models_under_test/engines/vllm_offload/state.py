"""What a vLLM offload manager keeps, read back from it: its chunks, with places and counts, and its free places.

vLLM shows none of it, so this reads private names; where they are:

- managers up to 0.17.1: ``blocks`` (LRU) or ``t1`` and ``t2`` (ARC) of the manager, places in its ``backend``;
- from 0.19.0 on: the same of its ``_policy`` (``chunks`` in 0.32.0), places in the manager.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_TABLES = ("blocks", "chunks", "t1", "t2")
_COUNTERS = ("get_num_free_blocks", "_get_num_free_blocks", "_get_num_free_chunks")


def chunks(manager: Any) -> Iterator[tuple[bytes, int, int]]:
    """Every chunk of a manager: key, place, and ``ref_cnt``, which is -1 while it is being written."""
    for table in _tables(manager):
        for key, status in table.items():
            yield key, _place(status), int(status.ref_cnt)


def find(manager: Any, key: bytes) -> tuple[int, int] | None:
    """Place and ``ref_cnt`` of one chunk; None if it is not there."""
    for table in _tables(manager):
        if key in table:
            return _place(table[key]), int(table[key].ref_cnt)
    return None


def num_free(manager: Any) -> int:
    """Count the places that belong to no chunk, as the manager does before it evicts."""
    owner = getattr(manager, "backend", manager)
    return int(next(getattr(owner, name) for name in _COUNTERS if hasattr(owner, name))())


def forget(manager: Any, key: bytes) -> None:
    """Take a chunk that nobody reads or writes out of a manager, as ``complete_store`` does with one that failed."""
    table = next(table for table in _tables(manager) if key in table)
    status = table[key]
    assert status.ref_cnt == 0
    policy = getattr(manager, "_policy", None)
    if policy is None:
        del table[key]
        manager.backend.free(status)
        return
    policy.remove(key)
    for unit in ("block", "chunk"):
        if hasattr(manager, f"_free_{unit}"):
            getattr(manager, f"_free_{unit}")(status)
        evictable = f"_num_evictable_cache_{unit}s"
        if hasattr(manager, evictable):
            setattr(manager, evictable, getattr(manager, evictable) - 1)


def _tables(manager: Any) -> list[Any]:
    owner = getattr(manager, "_policy", manager)
    return [getattr(owner, name) for name in _TABLES if hasattr(owner, name)]


def _place(status: Any) -> int:
    return int(status.chunk_id if hasattr(status, "chunk_id") else status.block_id)
