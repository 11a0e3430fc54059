"""The index of every tier tells the truth.

Statement: chunks that the host's index would serve hold what their keys stand for; no two chunks share a host unit; free and
taken host units add up; what a store's index would serve was stored; a chunk is pinned as often as transfers in flight read it.

Why: the index is all that a later request looks at.

Reports: vLLM 44237, 4764 (buffer reused, entry kept), TensorRT-LLM 12834, LMCache 1756, 1130 (pins).

Does not see: what a store has lost since; it must say so when it is asked (``tier_integrity``).

Mutant: ``place_given_twice``, ``pin_never_returned``.
"""

from __future__ import annotations

from collections import Counter

from kvsan.harness.invariant import Invariant
from kvsan.harness.tiers import HOST_TIER, TierEntry


class TierIndexTruth(Invariant):
    """Looks at every entry of every tier."""

    id = "tier_index"

    def applies(self) -> bool:
        """Only with tiers."""
        return self.books.tiers is not None

    def sweep(self) -> None:
        """Judge all entries."""
        tiers = self.books.tiers
        assert tiers is not None
        reads = Counter(read for transfer in tiers.in_flight.values() for read in transfer.tier_reads())
        for tier in tiers.view.tiers():
            entries = tiers.view.entries(tier)
            if tier == HOST_TIER:
                self._check_places()
            for entry in entries:
                self._check_entry(tier, entry)
                wanted = reads[tier, entry.key]
                if entry.pins != wanted:
                    raise self.violated(
                        "pins",
                        f"chunk {entry.key[:12]} in {tier} has {entry.pins} pins; {wanted} transfers in flight read it",
                    )

    def _check_places(self) -> None:
        tiers, first = self.books.tiers, self.traits.num_units
        assert tiers is not None
        owner: dict[int, str] = {}
        for entry in tiers.view.entries(HOST_TIER):
            for unit in entry.units:
                if not first <= unit < first + self.traits.host_units:
                    raise self.violated(
                        "no such unit", f"chunk {entry.key[:12]} is in unit {unit}, which is no host unit"
                    )
                if unit in owner:
                    raise self.violated(
                        "two chunks", f"chunks {owner[unit][:12]} and {entry.key[:12]} are both in unit {unit}"
                    )
                owner[unit] = entry.key
        free = tiers.view.free_host_units()
        if free + len(owner) != self.traits.host_units:
            raise self.violated(
                "count", f"{free} host units are free and {len(owner)} taken, of {self.traits.host_units}"
            )

    def _check_entry(self, tier: str, entry: TierEntry) -> None:
        tiers = self.books.tiers
        assert tiers is not None
        if not entry.ready:
            return
        if tier != HOST_TIER:
            if (tier, entry.key) not in tiers.given:
                raise self.violated(
                    "never stored", f"{tier} would serve chunk {entry.key[:12]}, which was never stored"
                )
            return
        if entry.key not in tiers.meanings:
            raise self.violated("unknown key", f"the host would serve chunk {entry.key[:12]}, which nobody has stored")
        for place, unit in enumerate(entry.units):
            if self.shadow.blocks[unit].tobytes() != tiers.page(entry.key, place).tobytes():
                meaning = tiers.meanings[entry.key]
                raise self.violated(
                    "content",
                    f"the host would serve unit {unit} for {meaning.r} block {meaning.block + place}, which is not in it",
                    self.shadow.tell(unit * self.traits.block_size, 0),
                )
