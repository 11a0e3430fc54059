"""The ledger: which blocks and requests vLLM's calls have touched since it was last read.

Every change of a block's count or hash goes through five methods of ``BlockPool``; each is wrapped on the one instance,
so that the ledger is what those calls were given and gave back. It is testimony: a change that goes around them is
missing here and shows in a sweep.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvsan.harness.target import Delta


class Ledger:
    """Notes block ids and request names."""

    def __init__(self, pool: Any, num_units: int) -> None:
        self._units: set[int] = set()
        self._requests: dict[str, None] = {}  # in the order of the calls, whatever the process hashes strings to
        self._all_units = range(num_units)
        self._get, self._touch, self._free = pool.get_new_blocks, pool.touch, pool.free_blocks
        self._cache, self._reset = pool.cache_full_blocks, pool.reset_prefix_cache
        pool.get_new_blocks = self._noted_get
        pool.touch = self._noted_touch
        pool.free_blocks = self._noted_free
        pool.cache_full_blocks = self._noted_cache
        pool.reset_prefix_cache = self._noted_reset

    def request(self, name: str) -> None:
        """Note that a call was about this request."""
        self._requests[name] = None

    def read(self) -> Delta:
        """Return what was noted, and begin anew."""
        delta = Delta(self._requests.keys(), self._units)
        self._requests, self._units = {}, set()
        return delta

    def _noted_get(self, num_blocks: int) -> Any:
        blocks = self._get(num_blocks)
        self._note(blocks)
        return blocks

    def _noted_touch(self, blocks: Any) -> None:
        self._note(blocks)
        self._touch(blocks)

    def _noted_free(self, ordered_blocks: Iterable[Any], *rest: Any, **options: Any) -> None:
        blocks = list(ordered_blocks)
        self._note(blocks)
        self._free(blocks, *rest, **options)

    def _noted_cache(self, request: Any, blocks: Any, *rest: Any, **options: Any) -> None:
        self._cache(request, blocks, *rest, **options)
        self._note(blocks)

    def _noted_reset(self) -> bool:
        self._units.update(self._all_units)
        return bool(self._reset())

    def _note(self, blocks: Any) -> None:
        """Note blocks: a flat sequence, or one sequence a group (``touch`` up to 0.12)."""
        units = self._units
        for block in blocks:
            if hasattr(block, "block_id"):
                units.add(block.block_id)
            else:
                units.update(inner.block_id for inner in block)
