"""Shadow memory: for each slot of the cache, what was written there, and by which operation.

The second oracle. A read that meets another identity than the request's own is a violation at that step and names the
writer. A write must be what everybody who already relies on the unit expects there: the requests that hold it and have that
position computed, and whoever finds it by its hash. An engine that shares a block while it is being filled is legal by
this rule; one that writes a foreign token is caught when the damage is done, not when it is hit.

What this does not see: slot mappings and positions that an engine computes itself, unless the harness drives that code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np

from kvsan.gpu_kernels.addressing import block_of, blocks_for, full_blocks, offset_of, slot_of, slots_of, unit_of
from kvsan.harness.books import Books
from kvsan.harness.execution import BoundRow
from kvsan.harness.expectation import Expected, Life
from kvsan.harness.step import Replaced
from kvsan.harness.target import Address, IntArray
from kvsan.harness.tiers import DEVICE_TIER, HOST_TIER
from kvsan.harness.verdict import Violation

Namer = Callable[[int, int], str]
"""Names an identity of a group for people, as ``r3@12``."""

Writer = Callable[[int], str]
"""Names, for people, the token that is ``at`` tokens behind the first one of a write."""


class Shadow:
    """Content and writer of every slot, of the pool's units and of the host units behind them.

    ``unwritten`` maps units that are published before they are computed to the life that will write them. Until then what
    is in them is nobody's: an earlier step of the stream may still write what was there before. The same holds for units
    that a copy on write will fill, ``awaited`` from its launch until the copy has executed. ``pool`` is named with each
    slot that is told of, where there is more than one.
    """

    def __init__(self, books: Books, namer: Namer, pool: str = "") -> None:
        traits = books.traits
        self.block_size = traits.block_size
        self.books = books
        self.namer = namer
        self._of_pool = pool and f" of {pool}"
        self.num_units = traits.num_units
        all_units = traits.num_units + traits.host_units
        self.content = np.zeros(all_units * traits.block_size, np.int64)
        self.blocks = self.content.reshape(all_units, traits.block_size)
        self.writer = np.zeros(all_units * traits.block_size, np.int32)
        self.writers = self.writer.reshape(all_units, traits.block_size)
        self.unwritten: dict[int, Life] = {}
        self.awaited: Counter[int] = Counter()
        self.tokens_read = 0

    # -- writes

    def write(self, row: BoundRow, start: int, stop: int, step: int) -> None:
        """Store identities of positions ``[start, stop)`` through the table, block by block."""
        size, table, identity = self.block_size, row.table, row.identity
        while start < stop:
            block = block_of(start, size)
            end = min(stop, (block + 1) * size)
            if block >= len(table):
                raise Violation(
                    "table_covers", "write", f"{row.name} writes position {start}; its table ends before it"
                )
            unit = int(table[block])
            if unit == self.books.null:
                raise Violation("provenance", "null write", f"{row.name}@{start} is written into the null unit {unit}")
            if self.relied_on(unit):
                who = partial(_position, row.name, start)
                self.check_write(unit, offset_of(start, size), identity[start:end], row.group, who)
            slot = unit * size + start - block * size
            self.content[slot : slot + end - start] = identity[start:end]
            self.writer[slot : slot + end - start] = step
            start = end

    def write_token(self, row: BoundRow, position: int, slot: int, step: int) -> None:
        """Store the identity of one position in a slot of the pool, whatever the table says."""
        unit, written = unit_of(slot, self.block_size), row.identity[position : position + 1]
        if self.relied_on(unit):
            who = partial(_position, row.name, position)
            self.check_write(unit, offset_of(slot, self.block_size), written, row.group, who)
        self.content[slot] = written[0]
        self.writer[slot] = step

    def relied_on(self, unit: int) -> bool:
        """Whether anybody but its one owner may count on what is in a unit."""
        books = self.books
        if unit >= self.num_units:  # a host unit: what is in it is judged by the tiers' invariants
            return False
        if unit in self.unwritten or unit in self.awaited:
            return False
        return books.holders[unit] > 1 or unit in books.publications

    def check_write(self, unit: int, offset: int, written: IntArray, group: int, who: Writer) -> None:
        """Compare what is about to be written from ``offset`` on with what holders and the hash of a unit stand for."""
        size = self.block_size
        for other in self.books.requests.values():
            for number, table in enumerate(other.tables):
                for block in [block for block, held in enumerate(table) if held == unit]:
                    relied = min(offset + len(written), other.life.executed - block * size) - offset
                    if relied > 0:
                        first = block * size + offset
                        expected = other.life.chain[first : first + relied] ^ self.books.masks[number]
                        whose = partial(_position, other.r, first)
                        self._compare_write(unit * size + offset, written[:relied], expected, group, who, whose)
        publication = self.books.publications.get(unit)
        if publication is not None:
            publisher = publication.publisher
            first = publication.block * size + offset
            expected = publisher.life.chain[first : first + len(written)] ^ self.books.masks[publication.group]
            whose = partial(_position, f"the hash of {publisher.r}", first)
            self._compare_write(unit * size + offset, written, expected, group, who, whose)

    def _compare_write(
        self, slot: int, written: IntArray, expected: IntArray, group: int, who: Writer, whose: Writer
    ) -> None:
        if written.tobytes() == expected.tobytes():
            return
        at = int(np.flatnonzero(written != expected)[0])
        cause = "published" if whose(0).startswith("the hash") else "shared"
        unit = unit_of(slot, self.block_size)
        raise Violation(
            "foreign_write",
            cause,
            f"{who(at)} is written into {self.name_slot(slot + at)} (unit {unit}), where {whose(at)} is relied on",
            (self.tell(slot + at, group), f"{self.name_slot(slot + at)} is {self.address(slot + at, group)}"),
        )

    def settle(self) -> None:
        """Strike published units off the list of unwritten ones as soon as their writer has executed."""
        for unit, life in list(self.unwritten.items()):
            publication = self.books.publications.get(unit)
            if publication is None or life.executed >= (publication.block + 1) * self.block_size:
                del self.unwritten[unit]

    def holds(self, unit: int, request: Expected, block: int, group: int) -> bool:
        """Whether a unit holds all of a request's block."""
        size = self.block_size
        expected = request.life.chain[block * size : (block + 1) * size] ^ self.books.masks[group]
        return bool(np.array_equal(self.blocks[unit], expected))

    def replaces(self, replaced: Replaced) -> bool:
        """Whether a table entry's new unit holds all that the old one stands for: a full block of known tokens."""
        request, block = replaced.request, replaced.block
        known = full_blocks(len(request.life.tokens), self.block_size)
        return block < known and self.holds(replaced.new, request, block, replaced.group)

    def copy(self, source: int, destination: int, start: int, stop: int) -> None:
        """Copy slots with their lineage."""
        self.arrive(destination)
        if self.relied_on(destination):
            who = partial(_slot_of_copy, source * self.block_size + start)
            self.check_write(destination, start, self.blocks[source, start:stop], 0, who)
        self.blocks[destination, start:stop] = self.blocks[source, start:stop]
        self.writers[destination, start:stop] = self.writers[source, start:stop]

    def arrive(self, unit: int) -> None:
        """Note that one copy that a unit awaited is there."""
        if unit in self.awaited:
            self.awaited[unit] -= 1
            if not self.awaited[unit]:
                del self.awaited[unit]

    def store_pages(self, units: Sequence[int]) -> bytes:
        """Identities of the tokens of host units, in order, as what a store keeps of them."""
        return self.blocks[list(units)].tobytes()

    def restore_pages(self, units: Sequence[int], data: bytes, tokens: int, step: int) -> None:
        """Put back the first ``tokens`` identities of what ``store_pages`` gave."""
        slots = slots_of(units, 0, tokens, self.block_size)
        self.content[slots] = np.frombuffer(data, np.int64)[:tokens]
        self.writer[slots] = step

    def zero(self, unit: int, start: int, stop: int, step: int) -> None:
        """Zero slots: nothing may be read from them."""
        if self.relied_on(unit):
            self.check_write(unit, start, np.zeros(stop - start, np.int64), 0, lambda _at: "zero")
        self.blocks[unit, start:stop] = 0
        self.writers[unit, start:stop] = step

    # -- reads

    def read(self, row: BoundRow) -> None:
        """Compare everything that the row's queries see with what the request expects."""
        size, stop = self.block_size, row.stop
        first = block_of(row.low, size)
        last = blocks_for(stop, size)
        if last > len(row.table):
            raise Violation(
                "table_covers", "read", f"{row.name} reads {stop} tokens; its table has {len(row.table)} units"
            )
        found = self.blocks.take(row.table[first:last], axis=0).reshape(-1)[
            row.low - first * size : stop - first * size
        ]
        self.tokens_read += stop - row.low
        if found.tobytes() != row.identity[row.low : stop].tobytes():
            self._blame(row, found)

    def _blame(self, row: BoundRow, found: IntArray) -> None:
        at = int(np.flatnonzero(found != row.identity[row.low : row.stop])[0])
        position = row.low + at
        unit = int(row.table[block_of(position, self.block_size)])
        slot = slot_of(unit, offset_of(position, self.block_size), self.block_size)
        identity = int(found[at])
        cause = "null unit" if unit == self.books.null else "unwritten" if identity == 0 else "foreign"
        raise Violation(
            "provenance",
            cause,
            f"{row.name} reads position {position} from {self.name_slot(slot)} (unit {unit}), which holds "
            f"{self.namer(identity, row.group)}; expected {row.name}@{position}",
            (self.tell(slot, row.group), f"{self.name_slot(slot)} is {self.address(slot, row.group)}"),
        )

    def address(self, slot: int, group: int) -> Address:
        """Return where a slot is."""
        unit = unit_of(slot, self.block_size)
        tier = HOST_TIER if unit >= self.num_units else DEVICE_TIER
        return Address(unit, offset_of(slot, self.block_size), group, tier=tier)

    def name_slot(self, slot: int) -> str:
        """Name a slot for people."""
        return f"slot {slot}{self._of_pool}"

    def tell(self, slot: int, group: int) -> str:
        """One line about who wrote a slot last."""
        identity, name = int(self.content[slot]), self.name_slot(slot)
        if identity == 0:
            # Operation 0 of a trace can zero nothing: no request has arrived before it.
            zeroed = int(self.writer[slot])
            return f"{name} was zeroed by operation {zeroed}" if zeroed else f"{name} was never written"
        return f"{name} was last written by operation {int(self.writer[slot])} with {self.namer(identity, group)}"


def _position(name: str, first: int, at: int) -> str:
    return f"{name}@{first + at}"


def _slot_of_copy(first: int, at: int) -> str:
    return f"a copy of slot {first + at}"


def name_identity_of(lives: Iterable[Expected], masks: list[int]) -> Namer:
    """Make a namer that searches the chains of known requests, newest first; slow, used only to tell a finding."""

    def name(identity: int, group: int) -> str:
        if identity == 0:
            return "nothing"
        for mask_group in [group, *range(len(masks))]:
            wanted = identity ^ masks[mask_group]
            for request in lives:
                places = np.flatnonzero(request.life.chain[: len(request.life.tokens)] == wanted)
                if len(places):
                    suffix = "" if mask_group == group else f" of group {mask_group}"
                    return f"{request.r}@{int(places[0])}{suffix}"
        return "a draft or an ended request's token"

    return name
