"""What a correct engine owes each request: its tokens, their identities, its counts, its rows in flight.

Counts of a request, in tokens (``planned`` is what will be known if every draft in flight is accepted)::

    0 ......... retired ......... executed ......... scheduled ... planned
    [ result known ][ KV written   ][ in a batch or   ]
                                    [ in flight       ]
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kvsan.harness.identity import chain_over, empty_chain, media_token, mix, root_identity
from kvsan.harness.operations import Adapter, Media, token_id
from kvsan.harness.target import Effects, IntArray


class Life:
    """Tokens of a request and their identities, shared with the rows that compute them.

    ``executed`` counts the positions whose KV the device has written, or a hit has supplied. A preempted or aborted
    request's rows in flight keep the life they were launched with; the request goes on with a copy. ``cache`` belongs to
    the numbers oracle, one dict a group.
    """

    __slots__ = ("cache", "chain", "executed", "media", "name", "root", "rows", "tokens")

    def __init__(self, name: str, adapter: Adapter | None, media: tuple[Media, ...]) -> None:
        self.name = name
        self.media = media
        self.root = root_identity(adapter)
        self.tokens: list[int] = []
        self.chain = empty_chain(64)
        self.rows: list[Row] = []
        self.executed = 0
        self.cache: dict[int, dict[int, object]] = {}

    def copy(self, name: str) -> Life:
        """Make a life of its own with the same past."""
        twin = Life(name, None, self.media)
        twin.root, twin.tokens, twin.chain = self.root, self.tokens[:], self.chain.copy()
        return twin

    def reserve(self, capacity: int) -> IntArray:
        """Return the chain, with room for ``capacity`` positions."""
        if capacity > len(self.chain):
            larger = empty_chain(max(capacity, 2 * len(self.chain)))
            larger[: len(self.chain)] = self.chain
            self.chain = larger
        return self.chain

    def last_identity(self) -> int:
        """Identity that the next token continues from."""
        return int(self.chain[len(self.tokens) - 1]) if self.tokens else self.root

    def extend(self, tokens: list[int], chain: list[int] | None = None) -> None:
        """Append known tokens; ``chain`` is given when it is known already."""
        start = len(self.tokens)
        if self.media:
            seen = [media_token(token, start + index, self.media) for index, token in enumerate(tokens)]
            chain = chain_over(self.last_identity(), seen)
        elif chain is None:
            chain = chain_over(self.last_identity(), tokens)
        self.reserve(start + len(tokens))[start : start + len(tokens)] = chain
        self.tokens.extend(tokens)

    def identities(self, stop: int) -> IntArray:
        """Chain of positions ``[0, stop)``; positions past the known tokens hold drafts of family 0."""
        known = len(self.tokens)
        chain = self.reserve(stop)
        if stop > known:
            identity = self.last_identity()
            for position in range(known, stop):
                identity = mix(identity, media_token(token_id(0, position), position, self.media))
                chain[position] = identity
        return chain[:stop]


@dataclass(slots=True)
class Row:
    """One request in a batch; ``[start, stop)`` moves back when an earlier row's drafts are rejected.

    ``drafts`` of the tokens are guesses; ``samples`` says that the row reaches the end of the known tokens.
    ``external`` tokens before ``start`` are written by a connector before the launch, and ``effects`` move bytes before
    it; both are dropped with the row. ``tables`` is set at launch.
    """

    life: Life
    start: int
    stop: int
    drafts: int
    samples: bool
    external: int = 0
    effects: Effects = ()
    launch: str = ""
    tables: list[IntArray] = field(default_factory=list)
    executed: bool = False


class Expected:
    """A live request as a correct engine must treat it.

    ``loading`` are the positions ``[start, stop)`` that it waits for, and ``load`` is the name of the work that brings them.
    ``goal`` are the tokens up to which a request that came by a load must be able to get, 0 for others. ``restarts`` counts
    its preemptions.
    """

    __slots__ = (
        "adapter",
        "arrays",
        "goal",
        "life",
        "load",
        "loading",
        "looked_up",
        "media",
        "name",
        "planned",
        "prompt_length",
        "r",
        "restarts",
        "retired",
        "row",
        "salt",
        "scheduled",
        "tables",
    )

    def __init__(self, r: str, name: str, life: Life, salt: str, adapter: Adapter | None) -> None:
        self.r = r
        self.name = name
        self.life = life
        self.salt = salt
        self.adapter = adapter
        self.media = life.media
        self.prompt_length = self.planned = len(life.tokens)
        self.scheduled = self.retired = 0
        self.looked_up: int | None = None
        self.loading: tuple[int, int] | None = None
        self.load = ""
        self.goal = self.restarts = 0
        self.row: Row | None = None
        self.tables: list[list[int]] = []
        self.arrays: list[IntArray | None] = []

    def array(self, group: int) -> IntArray:
        """Return the table of a group as int64, kept until the table changes."""
        known = self.arrays[group]
        if known is None:
            known = self.arrays[group] = np.array(self.tables[group], np.int64)
        return known

    def restart(self) -> None:
        """Preempted: rows in flight keep the old life, the request starts from its first token."""
        if self.life.rows:
            self.life = self.life.copy(self.life.name)
        self.scheduled = self.retired = self.life.executed = 0
        self.planned = len(self.life.tokens)
        self.looked_up = self.loading = self.row = None
        self.load, self.goal = "", 0
        self.restarts += 1
