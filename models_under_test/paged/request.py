"""A request as the reference manager keeps it."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvsan.harness.operations import Adapter, Media


@dataclass(slots=True)
class PagedRequest:
    """Counts are tokens: ``retired <= scheduled``; ``table[i]`` holds positions ``[i * block_size, (i + 1) * block_size)``.

    - ``keys``: prefix-cache keys of the full blocks, as far as they were needed.
    - ``published``: blocks of the table that were considered for publishing.
    - ``hits``: blocks that a look-up found and no allocation has used yet.
    - ``launches``: launches in flight that use the table, oldest first.
    - ``loading``: delayed external tokens are on their way, by transfer ``load`` if it has a name.
    - ``goal``: tokens up to which a request that came by a load must be able to get; 0 for others.
    """

    name: str
    tokens: list[int]
    salt: str = ""
    adapter: Adapter | None = None
    media: tuple[Media, ...] = ()
    scheduled: int = 0
    retired: int = 0
    published: int = 0
    loading: bool = False
    load: str = ""
    goal: int = 0
    table: list[int] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    hits: list[int] = field(default_factory=list)
    launches: list[str] = field(default_factory=list)

    def forget_blocks(self) -> None:
        """Start from the first token again; tokens and keys stay."""
        self.scheduled = self.retired = self.published = 0
        self.goal = 0
        self.loading, self.load = False, ""
        self.table, self.hits, self.launches = [], [], []
