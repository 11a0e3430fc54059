"""The sceptic: whatever single thing is wrong with the memory of a correct manager is found as soon as it matters.

A correct manager and a trace that it runs clean are given; then one cell of shadow memory is flipped, one copy is skipped, or
two entries of one table change places. What attention reads later must be found in every case; what is never read need not.
"""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvsan.fuzz.generate import Generator
from kvsan.fuzz.profiles import DEFAULT, FEATURES, small_scope
from kvsan.gpu_kernels.addressing import blocks_for
from kvsan.harness.device import LaunchWork, LoadWork, Work
from kvsan.harness.operations import Abort, Finish, Operation, Preempt
from kvsan.harness.session import Session
from kvsan.harness.target import Copy, Delta, Effects
from kvsan.harness.verdict import Violation
from kvsan.invariants import INVARIANTS
from kvsan.models_under_test.paged import PagedManager
from kvsan.models_under_test.paged.batch import Row

NUM_UNITS, BLOCK_SIZE, LENGTH = 17, 2, 160

seeds = st.integers(0, 19)
places = st.integers(0, 10_000)
examples = settings(max_examples=150, deadline=None, derandomize=True)


@cache
def trace(seed: int) -> tuple[Operation, ...]:
    """Operations that the generator drew for the reference manager."""
    session = Session(PagedManager(NUM_UNITS, BLOCK_SIZE), INVARIANTS)
    generator = Generator(session, small_scope(DEFAULT), Random(seed), frozenset(FEATURES) - {"delayed"})
    operations = []
    for _ in range(LENGTH):
        operations.append(generator.next())
        session.step(operations[-1])
    return tuple(operations)


def found(session: Session, operations: tuple[Operation, ...]) -> bool:
    """Whether the rest of a trace, or the end of the session, violates anything."""
    try:
        for operation in operations:
            session.step(operation)
        session.close()
    except Violation:
        return True
    return False


class Taint:
    """Follows damaged slots through all later work; ``read`` says that a launch has read one."""

    def __init__(self, session: Session, slot: int) -> None:
        self.slots = {slot}
        self.read = False
        self._executor = session.executor
        self._execute = session.executor.execute
        session.executor.execute = self.execute  # type: ignore[method-assign]

    def execute(self, work: Work) -> None:
        payload = work.payload
        reads, writes = (slots.tolist() for slots in self._executor.accesses(work))
        if isinstance(payload, LaunchWork | LoadWork):
            self.slots.difference_update(writes)
            self.read = self.read or not self.slots.isdisjoint(reads)
        elif isinstance(payload, Copy):
            for source, destination in zip(reads, writes, strict=True):
                (self.slots.add if source in self.slots else self.slots.discard)(destination)
        self._execute(work)


@examples
@given(seed=seeds, at=st.integers(5, LENGTH - 20), place=places)
def test_a_flipped_cell_is_found_when_it_is_read(seed: int, at: int, place: int) -> None:
    session = Session(PagedManager(NUM_UNITS, BLOCK_SIZE), ())
    for operation in trace(seed)[:at]:
        session.step(operation)
    cells = [
        request.tables[0][position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
        for request in session.requests.values()
        for position in range(request.life.executed)
    ]
    assume(cells)
    cell = cells[place % len(cells)]
    session.shadow.content[cell] ^= 1
    taint = Taint(session, cell)

    caught = found(session, trace(seed)[at:])

    assume(taint.read)
    assert caught


class SkipsOneCopy(PagedManager):
    """Makes no copy on write number ``skipped``."""

    skipped = -1
    copies = 0

    def _copy_on_write(self, row: Row, block: int, start: int) -> Effects:
        effects = super()._copy_on_write(row, block, start)
        self.copies += 1
        return () if self.copies - 1 == self.skipped else effects


@cache
def copies_in(seed: int) -> int:
    target = SkipsOneCopy(NUM_UNITS, BLOCK_SIZE)
    assert not found(Session(target, INVARIANTS), trace(seed))
    return target.copies


@examples
@given(seed=st.integers(0, 59), place=places)
def test_a_skipped_copy_is_always_found(seed: int, place: int) -> None:
    assume(copies_in(seed))
    target = SkipsOneCopy(NUM_UNITS, BLOCK_SIZE)
    target.skipped = place % copies_in(seed)
    assert found(Session(target, INVARIANTS), trace(seed))


class _Swapped:
    """A view in which two entries of one request's table have changed places."""

    def __init__(self, view: Any) -> None:
        self._view = view
        self.swap: tuple[str, int, int] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)

    def tables(self, name: str) -> list[list[int]]:
        (table,) = self._view.tables(name)
        table = list(table)
        if self.swap is not None and self.swap[0] == name:
            _, one, other = self.swap
            table[one], table[other] = table[other], table[one]
        return [table]


class TellsSwappedTables(PagedManager):
    """Tells of a swap of table entries as if it had decided on it."""

    def __init__(self) -> None:
        super().__init__(NUM_UNITS, BLOCK_SIZE)
        self._view = _Swapped(self._view)  # type: ignore[assignment]

    def delta(self) -> Delta:
        self.changed.extend(self.requests)
        return super().delta()


@examples
@given(seed=seeds, at=st.integers(20, LENGTH - 20), place=places, told=st.booleans())
def test_two_swapped_table_entries_are_always_found(seed: int, at: int, place: int, told: bool) -> None:
    target = TellsSwappedTables()
    session = Session(target, INVARIANTS, sweep_every=1)
    swap = _swap_at(session, trace(seed)[:at], place)
    target._view.swap = swap  # type: ignore[attr-defined]
    if not told:
        target.delta = lambda: PagedManager.delta(target)  # type: ignore[method-assign]
    assert found(session, _until_it_ends(session, swap[0], trace(seed)[at:]))


@examples
@given(seed=seeds, at=st.integers(20, LENGTH - 20), place=places)
def test_two_swapped_table_entries_are_found_by_reading_alone(seed: int, at: int, place: int) -> None:
    target = TellsSwappedTables()
    session = Session(target, ())
    name, one, other = _swap_at(session, trace(seed)[:at], place)
    life = session.books.requests[name].life
    launched: list[str] = []
    execute = session.executor.execute

    def noting(work: Work) -> None:
        if isinstance(work.payload, LaunchWork) and session.position > at:
            rows = [row for row in work.payload.rows if row.life is life and len(row.tables[0]) > other]
            launched.extend(row.launch for row in rows if np.array_equal(row.tables[0][[one, other]], swapped))
        execute(work)

    target._view.swap = name, one, other  # type: ignore[attr-defined]
    swapped = np.array(target._view.tables(name)[0])[[one, other]]
    session.executor.execute = noting  # type: ignore[method-assign]

    caught = found(session, _until_it_ends(session, name, trace(seed)[at:]))

    assume(launched)
    assert caught


def _swap_at(session: Session, operations: tuple[Operation, ...], place: int) -> tuple[str, int, int]:
    """Run operations; choose a request and two blocks whose tokens are all computed."""
    for operation in operations:
        session.step(operation)
    pairs = [
        (request.name, one, other)
        for request in session.requests.values()
        for other in range(blocks_for(request.life.executed, BLOCK_SIZE))
        for one in range(other)
    ]
    assume(pairs)
    return pairs[place % len(pairs)]


def _until_it_ends(session: Session, name: str, operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """Operations up to the end of a request, since nothing is wrong with a table that is gone."""
    r = session.books.requests[name].r
    ends = (n for n, one in enumerate(operations) if isinstance(one, Finish | Abort | Preempt) and one.r == r)
    return operations[: next(ends, None)]
