"""What the reference manager remembers of a batch, until it is launched and until it has retired."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvsan.models_under_test.paged.request import PagedRequest


@dataclass(slots=True)
class Row:
    """A request in the scheduled batch, with what cancelling it must restore.

    ``copied`` is (block number, unit) of a shared block that is being copied: the reference to it is kept until the copy
    is done.
    """

    request: PagedRequest
    start: int
    table_length: int
    copied: tuple[int, int] | None = None


@dataclass(slots=True)
class InFlight:
    """A launch in flight: who is in it, and the blocks that nobody but it still uses."""

    requests: list[PagedRequest]
    parked: list[list[int]] = field(default_factory=list)
