"""A transfer: what moves pages between the device and its tiers, piece by piece, and how it can go wrong.

Each effect of a transfer is one piece, one work item of the device. Pieces run in the order of their streams; a transfer that
fails moves nothing more, and what it has moved stays where it is: the manager hears of the failure and must not count on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from kvsan.harness.expectation import Expected
from kvsan.harness.target import Chunk, Copy, Effect, Fill, Zero
from kvsan.harness.tiers import HOST_TIER, Put
from kvsan.harness.verdict import Violation

if TYPE_CHECKING:
    from kvsan.harness.device import Work
    from kvsan.harness.pull import Route

FAILED, TORN, REFUSED = "failed", "torn", "refused"
"""Why a transfer fails: a fault, a fault in the middle of a piece, or a store that would not take or give."""


@dataclass(slots=True)
class Transfer:
    """One transfer in flight, or told about.

    ``held`` are device units that it reads and therefore holds; ``written`` those that it writes. ``loading`` are the
    positions that a load brings, ``[start, stop)``. ``failure`` is empty while all is well; ``refused`` are tier and key of
    what a store would not take or give. ``route`` is that of a pull from another pool, unless it was refused.
    """

    t: str
    kind: Literal["offload", "load", "receive"]
    tier: str
    request: Expected
    chunks: Sequence[Chunk]
    held: list[int] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    loading: tuple[int, int] = (0, 0)
    works: list[Work] = field(default_factory=list)
    failure: str = ""
    refused: list[tuple[str, str]] = field(default_factory=list)
    left: int = 0
    route: Route | None = None

    @property
    def running(self) -> bool:
        """Whether some piece has not been moved yet and still will be."""
        return self.left > 0 and not self.failure

    def copies(self) -> list[Copy]:
        """Its pieces between the device and the host."""
        return [work.payload for work in self.works if isinstance(work.payload, Copy)]

    def host_units(self) -> list[int]:
        """Host units at its upper or lower end."""
        return [unit for chunk in self.chunks for unit in chunk.units]

    def host_writes(self) -> list[int]:
        """Host units that it writes: where an offload from the device arrives, or what a store gives."""
        if self.kind == "offload" and self.tier != HOST_TIER:
            return []
        return [
            unit for chunk in self.chunks if self.kind == "offload" or chunk.tier != HOST_TIER for unit in chunk.units
        ]

    def tier_reads(self) -> list[tuple[str, str]]:
        """Tier and key of every chunk that it reads."""
        if self.kind == "offload":
            return [(HOST_TIER, chunk.key) for chunk in self.chunks if self.tier != HOST_TIER]
        return [(chunk.tier, chunk.key) for chunk in self.chunks]

    def tier_writes(self) -> list[tuple[str, str]]:
        """Tier and key of every chunk that it writes."""
        if self.kind == "offload":
            return [(self.tier, chunk.key) for chunk in self.chunks]
        return [(HOST_TIER, chunk.key) for chunk in self.chunks if chunk.tier != HOST_TIER]

    def place_of(self, host_unit: int) -> tuple[Chunk, int]:
        """Chunk that a host unit belongs to, and which page of it the unit is; Violation if it is of none."""
        for chunk in self.chunks:
            if host_unit in chunk.units:
                return chunk, chunk.units.index(host_unit)
        raise Violation(
            "transfer_ends", "elsewhere", f"{self.t} moves host unit {host_unit}, which is of none of its chunks"
        )


def units_of(effect: Effect) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Units that an effect reads and units that it writes."""
    if isinstance(effect, Copy):
        return (effect.source,), (effect.destination,)
    if isinstance(effect, Zero):
        return (), (effect.unit,)
    if isinstance(effect, Fill):
        return (), ()
    return (effect.units, ()) if isinstance(effect, Put) else ((), effect.units)
