"""The books: an independent account of tables, holders and hashes, kept from what the target says has changed.

Every table entry counts as one reference of its unit; tables of ended requests that work in flight still uses stay counted
as *parked* where the target promises deferred free. Each step the books take in the target's delta, compute the facts of
the step, and keep their own copy, so that a later sweep can hold the target to its testimony.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Sequence
from typing import cast

import numpy as np

from kvsan.gpu_kernels.addressing import full_blocks
from kvsan.harness.exchange import Exchange
from kvsan.harness.expectation import Expected
from kvsan.harness.identity import group_mask
from kvsan.harness.step import Added, Publication, Replaced, Step, Trimmed
from kvsan.harness.target import IntArray, Target, TieredTarget
from kvsan.harness.tier_books import TierBooks
from kvsan.harness.verdict import Violation

Tables = list[list[int]]

LOAD = "load of "
"""Begins the name of a load among the work that tables can be parked with; other names are those of launches."""


class Books:
    """Account of one session.

    ``freed_at`` numbers units in the order in which they became free, by these books; ``freed_in`` is the step in which
    they did, and ``freed_by`` numbers what was freed in one piece, a table or the end of one: only within a piece does
    the order of one step count. ``queue`` is the target's free queue as the last sweep found it, int64 in eviction order.
    ``exchange`` is that with another pool, if there is one.
    """

    def __init__(self, target: Target) -> None:
        traits = target.traits
        self.target = target
        self.traits = traits
        self.view = target.view()
        self.block_size = traits.block_size
        self.null = traits.null_unit
        self.num_units = traits.num_units
        self.holders = array("i", bytes(4 * traits.num_units))
        self.held = 0
        self.requests: dict[str, Expected] = {}
        self.parked: dict[str, list[Tables]] = {}
        self.publications: dict[int, Publication] = {}
        self.contents: dict[tuple[int, int, str], list[int]] = {}
        self.freed_at = array("q", self._first_order().tobytes())
        self.freed_in, self.freed_by = array("q", bytes(8 * traits.num_units)), array("q", bytes(8 * traits.num_units))
        self.clock = traits.num_units
        self.step = self.pieces = 0
        self.tiers = TierBooks(cast(TieredTarget, target), traits) if traits.tiers else None
        self.exchange: Exchange | None = None
        self.masks = [group_mask(group) for group in range(len(traits.groups))]
        self.queue = np.empty(0, np.int64)
        self.all_units = range(traits.num_units)

    def _first_order(self) -> IntArray:
        """Order of the units before the first of them is used: that of the free queue, where an order is promised."""
        order = np.arange(self.num_units, dtype=np.int64)
        if self.traits.free_order == "lru":
            queue = np.asarray(self.view.free_queue(), np.int64)
            order[queue] = np.arange(len(queue))
        return order

    # -- a step

    def absorb(self, step: Step) -> None:
        """Take in what the target says has changed."""
        delta = self.target.delta()
        if delta is None:
            for request in self.requests.values():
                self._compare(step, request)
            units: Iterable[int] = self.all_units
        else:
            for name in delta.requests:
                known = self.requests.get(name)
                if known is not None:
                    self._compare(step, known)
            units = delta.units
        step.units.extend(units)
        self.step += 1
        self._mirror_keys(step)

    def _compare(self, step: Step, request: Expected) -> None:
        """Take in a request's tables: what left them first, as a legal engine reuses it for another group at once."""
        tables = self.view.tables(request.name)
        changed = [group for group, now in enumerate(tables) if now != request.tables[group]]
        for group in changed:
            before, now = request.tables[group], tables[group]
            if len(now) < len(before) or now[: len(before)] != before:
                self._take_out(step, request, group, now)
        for group in changed:
            self._put_in(step, request, group, tables[group])
            request.tables[group] = list(tables[group])
            request.arrays[group] = None

    def _take_out(self, step: Step, request: Expected, group: int, now: Sequence[int]) -> None:
        """Entries were trimmed or replaced."""
        before = request.tables[group]
        if len(now) < len(before):
            step.trimmed.append(Trimmed(request, group, len(now), len(before)))
            self.remove(reversed(before[len(now) :]))
        for block, (old, new) in enumerate(zip(before, now, strict=False)):
            if old != new:
                step.replaced.append(Replaced(request, group, block, old, new))
                self.remove((old,))

    def _put_in(self, step: Step, request: Expected, group: int, now: Sequence[int]) -> None:
        """Entries are new, or replace others."""
        before = request.tables[group]
        for replaced in step.replaced:
            if replaced.request is request and replaced.group == group and replaced.new != self.null:
                self._must_exist(replaced.new, request, group, replaced.block)
                self.add(replaced.new)
        for block in range(len(before), len(now)):
            unit = now[block]
            if unit != self.null:
                self._must_exist(unit, request, group, block)
                step.added.append(Added(request, group, block, unit, self.holders[unit]))
                self.add(unit)

    def _must_exist(self, unit: int, request: Expected, group: int, block: int) -> None:
        if not 0 <= unit < self.num_units:
            raise Violation(
                "table_covers",
                "no such unit",
                f"{request.r} block {block} of group {group} is unit {unit}; the pool has units 0 to {self.num_units - 1}",
            )

    def add(self, unit: int) -> None:
        """Count one more holder."""
        if self.holders[unit] == 0:
            self.held += 1
        self.holders[unit] += 1

    def remove(self, units: Iterable[int]) -> None:
        """Count one holder less for each unit, in the order in which they are given back."""
        holders, null = self.holders, self.null
        self.pieces += 1
        for unit in units:
            if unit == null:
                continue
            left = holders[unit] - 1
            holders[unit] = left
            if left == 0:
                self.held -= 1
                self.clock += 1
                self.freed_at[unit], self.freed_in[unit], self.freed_by[unit] = self.clock, self.step, self.pieces

    def release(self, tables: Tables) -> None:
        """Give whole tables back, each from its end."""
        for table in tables:
            self.remove(reversed(table))

    def walk_queue(self) -> None:
        """Walk the free queue once for all invariants of a sweep."""
        self.queue = np.asarray(self.view.free_queue(), np.int64)

    # -- requests

    def open(self, request: Expected) -> None:
        """Start an account for a request."""
        request.tables = [[] for _ in self.traits.groups]
        request.arrays = [None for _ in self.traits.groups]
        self.requests[request.name] = request

    def give_back(self, request: Expected, work: str | None) -> None:
        """Close the request's tables; with ``work`` (a launch or load in flight) they stay counted until it is done."""
        tables = request.tables
        request.tables = [[] for _ in tables]
        request.arrays = [None for _ in tables]
        if work is None:
            self.release(tables)
        else:
            self.parked.setdefault(work, []).append(tables)

    def work_done(self, work: str) -> None:
        """Release what was parked with a launch or load."""
        for tables in self.parked.pop(work, ()):
            self.release(tables)

    # -- hashes

    def _mirror_keys(self, step: Step) -> None:
        publications, key_of = self.publications, self.view.key
        # A unit that was given out again lost its hash, even if it has got an equal one since.
        fresh = {added.unit for added in step.added if added.block >= step.shareable_blocks}
        for unit in step.units:
            key = key_of(unit)
            known = publications.get(unit)
            if known is None:
                if key is None:
                    continue
            elif key == known.key and unit not in fresh:
                continue
            else:
                self._withdraw(step, known)
            fresh.discard(unit)  # a target may name a unit twice
            if key is not None:
                self._publish(step, unit, key)

    def _withdraw(self, step: Step, publication: Publication) -> None:
        del self.publications[publication.unit]
        content = (publication.group, publication.identity, publication.salt)
        units = self.contents[content]
        units.remove(publication.unit)
        if not units:
            del self.contents[content]
        step.withdrawn.append(publication)

    def _publish(self, step: Step, unit: int, key: Hashable) -> None:
        request, group, block = self._place(step, unit)
        size = self.block_size
        if full_blocks(len(request.life.tokens), size) <= block:
            raise Violation(
                "hash_content",
                "unknown tokens",
                f"unit {unit} is published for {request.r}'s block {block}, whose tokens are not all known",
            )
        identity = int(request.life.chain[(block + 1) * size - 1]) ^ self.masks[group]
        publication = Publication(unit, key, group, block, identity, request.salt, request.adapter, request)
        self.publications[unit] = publication
        self.contents.setdefault((group, identity, request.salt), []).append(unit)
        step.published.append(publication)

    def _place(self, step: Step, unit: int) -> tuple[Expected, int, int]:
        """Who holds a unit and where; the hash that was put on it must be about that place.

        Several may hold a block while it is being filled: the publisher is one who has computed all of it, or else one
        who knows all its tokens. A request may publish its blocks as it ends (SGLang's cache_finished_req).
        """
        holders = [(request, request.tables) for request in self.requests.values()]
        places = [
            (request, group, table.index(unit))
            for request, tables in (*holders, *step.ended)
            for group, table in enumerate(tables)
            if unit in table
        ]
        if not places:
            raise Violation("hash_content", "no holder", f"unit {unit} was published although no request holds it")
        return max(places, key=self._claim)

    def _claim(self, place: tuple[Expected, int, int]) -> int:
        request, _, block = place
        computed, known = request.life.executed, len(request.life.tokens)
        return sum(full_blocks(tokens, self.block_size) > block for tokens in (computed, known))
