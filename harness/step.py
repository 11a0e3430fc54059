"""What one step changed, by the target's own testimony: the facts that invariants look at."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from kvsan.harness.exchange import Offer
from kvsan.harness.expectation import Expected
from kvsan.harness.operations import Adapter, Operation
from kvsan.harness.transfer import Transfer


class Added(NamedTuple):
    """A unit is new in a table; ``holders`` counts who held it before (0: it came from the free queue)."""

    request: Expected
    group: int
    block: int
    unit: int
    holders: int


class Replaced(NamedTuple):
    """A table entry names another unit than before."""

    request: Expected
    group: int
    block: int
    old: int
    new: int


class Trimmed(NamedTuple):
    """A table became shorter: entries from ``blocks`` on are gone."""

    request: Expected
    group: int
    blocks: int
    length_before: int


class Ended(NamedTuple):
    """A request finished, was aborted or preempted; ``tables`` are those that it had."""

    request: Expected
    tables: list[list[int]]


@dataclass(frozen=True, slots=True)
class Publication:
    """A hash on a unit: the key, and the content and tenant that its publisher gave it.

    ``identity`` is that of the block's last position, which stands for the whole prefix; ``block`` its number there.
    """

    unit: int
    key: Hashable
    group: int
    block: int
    identity: int
    salt: str
    adapter: Adapter | None
    publisher: Expected


@dataclass(slots=True)
class Step:
    """Facts of the current step; one object, cleared before each.

    ``units`` are those that the target says it touched, or all, if it keeps no track. ``begun`` and ``completed`` are the
    transfer that the step began, or told the target the end of. ``reset`` says that the prefix cache was; ``looked_up`` is
    what a load found on the device, in tokens. ``offered`` is what the step offered to another pool, ``kept`` an offer that
    was to expire and did not.
    """

    index: int = 0
    operation: Operation | None = None
    subject: Expected | None = None
    refused: bool = False
    hit: int = 0
    shareable_blocks: int = 0
    ended: list[Ended] = field(default_factory=list)
    units: list[int] = field(default_factory=list)
    added: list[Added] = field(default_factory=list)
    replaced: list[Replaced] = field(default_factory=list)
    trimmed: list[Trimmed] = field(default_factory=list)
    published: list[Publication] = field(default_factory=list)
    withdrawn: list[Publication] = field(default_factory=list)
    copied: dict[int, int] = field(default_factory=dict)
    reset: bool = False
    looked_up: int = 0
    begun: Transfer | None = None
    completed: Transfer | None = None
    offered: Offer | None = None
    kept: Offer | None = None

    def changed(self) -> bool:
        """Whether anything was touched, refused, reused or ended."""
        return bool(self.units or self.added or self.replaced or self.trimmed or self.refused or self.hit or self.ended)

    def clear(self) -> None:
        """Forget the last step's facts."""
        if self.changed():
            self.refused = False
            self.ended.clear()
            self.units.clear()
            self.added.clear()
            self.replaced.clear()
            self.trimmed.clear()
            self.published.clear()
            self.withdrawn.clear()
        if self.copied:  # also if the target did not tell of the table that changed
            self.copied.clear()
        self.subject = self.begun = self.completed = self.offered = self.kept = None
        self.hit = self.shareable_blocks = self.looked_up = 0
        self.reset = False
