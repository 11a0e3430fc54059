"""What the simulated device executes: rows of a launch whose start, length and tokens are bound."""

from __future__ import annotations

from dataclasses import dataclass

from kvsan.harness.target import IntArray


@dataclass(slots=True)
class BoundRow:
    """One request's part of a launch in one cache group.

    - ``table``: units by block number, int64 ``[num_blocks]``; entries for blocks that end at or before ``low`` may be null.
    - ``start, stop``: token positions that are computed (written, then queried): ``[start, stop)``.
    - ``window``: the query at position p sees ``(p - window, p]``; None: all of ``[0, p]``.
    - ``low``: first position that any query of the row sees.
    - ``identity``: content identity of positions ``[0, stop)`` in this group, int64, expected by the request.
    - ``cache``: a slot where an oracle keeps what it derived from ``identity``, for as long as the request lives.
    """

    name: str
    group: int
    table: IntArray
    start: int
    stop: int
    window: int | None
    low: int
    identity: IntArray
    cache: dict[int, object]
