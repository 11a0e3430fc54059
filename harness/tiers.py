"""Tiers below the device's memory: what a target keeps there, and how bytes get there and back.

::

    device units  0 .. num_units-1            pages that kernels read and write
    host units    num_units .. + host_units   buffers in (pinned) host memory, one page each: copies reach them
    stores        "disk", "remote"            keep a chunk of pages as bytes under a key; only host units talk to them

A *chunk* is ``chunk_blocks`` consecutive full blocks of a prefix, aligned to their number; its key stands for all that is in
it and before it. What travels to a store is opaque to it: content identities, and the pages' own bytes where the numbers
oracle runs. A store may refuse what it was given, lose it, or find it damaged; it may never give out anything else.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple, Protocol

DEVICE_TIER, HOST_TIER = "device", "host"
"""Where addresses can be: the pool itself, and the tier whose pages are host units."""

Damage = Literal["flip", "truncate"]
"""What happens to stored bytes: one bit changes, or the end is gone."""


class Put(NamedTuple):
    """Effect: the pages of host ``units``, in order, are stored under ``key``."""

    store: str
    key: str
    units: tuple[int, ...]
    stream: str
    after: tuple[str, ...] = ()


class Get(NamedTuple):
    """Effect: what is stored under ``key`` goes to the pages of host ``units``, in order."""

    store: str
    key: str
    units: tuple[int, ...]
    stream: str
    after: tuple[str, ...] = ()


class TierEntry(NamedTuple):
    """A chunk that a tier's index knows.

    ``units`` are its host units, empty in a store. ``ready`` says that it may be served: what was to be written has been.
    ``pins`` counts the transfers in flight that read it.
    """

    key: str
    units: tuple[int, ...]
    ready: bool
    pins: int = 0


class Store(Protocol):
    """A place outside the process's own memory that keeps bytes under keys. Keys are 1 to 64 characters of ``0-9a-f``.

    ``put``, ``get``, ``delete`` and ``keys`` are the target's own; the rest are faults that the harness injects below them.
    A new target's store is empty: a finding that needs what an earlier session left behind could not be replayed.
    """

    def put(self, key: str, data: bytes) -> bool:
        """Store ``data``, replacing what was there; False if it cannot be stored, and then nothing new is served."""

    def get(self, key: str) -> bytes | None:
        """Return exactly what was put last under ``key``, or None: not there, or not intact any more."""

    def delete(self, key: str) -> None:
        """Forget a key, if it is there."""

    def keys(self) -> Collection[str]:
        """Keys that the medium holds, found again from nothing but the medium, intact or not."""

    def tear(self, key: str, data: bytes, length: int) -> None:
        """Fault: do what ``put`` does, and die after ``length`` bytes of ``data`` have been written."""

    def damage(self, key: str, how: Damage) -> bool:
        """Fault: damage the stored bytes of a key, below all checks; False if there are none."""

    def restart(self) -> None:
        """Fault: the service dies and comes back with what its medium kept; connections are made anew."""


class TierView(Protocol):
    """What a target with tiers shows of them, besides ``kvsan.harness.target.View``."""

    def tiers(self) -> Sequence[str]:
        """Names of the tiers, ``host`` first."""

    def entry(self, tier: str, key: str) -> TierEntry | None:
        """What the index of a tier knows of one chunk, in any state; None if it does not know it."""

    def entries(self, tier: str) -> Collection[TierEntry]:
        """Every chunk that the index of a tier knows, in any state."""

    def free_host_units(self) -> int:
        """Host units that belong to no entry."""
