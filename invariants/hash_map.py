"""Hash map and block hashes agree.

Statement: a unit that carries a hash is in the map under it, and a unit that the map names carries that hash.

Why: an entry whose block was reused serves another request's content; a block missing from the map is never hit.

Reports: vLLM 44237, 4764 (block reused, entry kept), 53498 (hash set on the block, never put into the map), kvcached 362.

Does not see: whether the hash is of the right content; that is ``hash_content``.

Mutant: ``hash_kept_on_reuse``.
"""

from __future__ import annotations

from kvsan.harness.invariant import Invariant
from kvsan.harness.step import Step

_WINDOW = 4096


class HashMap(Invariant):
    """Checks touched units each step, and a window of the map that moves on with every sweep."""

    id = "hash_map"
    _from = 0

    def after_step(self, step: Step) -> None:
        """Check the units that were published or withdrawn."""
        published, key_of = self.view.published, self.view.key
        for publication in step.published:
            if publication.unit not in published(publication.key):
                raise self.violated(
                    "not in the map", f"unit {publication.unit} carries a hash that the map does not have"
                )
        for publication in step.withdrawn:
            unit = publication.unit
            if unit in published(publication.key) and key_of(unit) != publication.key:
                raise self.violated("stale entry", f"the map still names unit {unit} under the hash that it lost")

    def sweep(self) -> None:
        """Check the map's keys, and that the books know of every hash."""
        keys = self.view.keys()
        if len(keys) <= _WINDOW:
            for key in keys:
                for unit in self.view.published(key):
                    if self.view.key(unit) != key:
                        raise self.violated("stale entry", f"the map names unit {unit}, which does not carry that hash")
        first = self._from % self.traits.num_units
        self._from += _WINDOW
        for unit in range(first, min(first + _WINDOW, self.traits.num_units)):
            key = self.view.key(unit)
            if key is not None and unit not in self.view.published(key):
                raise self.violated("not in the map", f"unit {unit} carries a hash that the map does not have")
