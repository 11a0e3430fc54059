"""What the device's work means: which slots a launch, a load and a copy read and write, also behind a window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest

from kvsan.harness.books import Books
from kvsan.harness.device import COMPUTE, COPY, LaunchWork, LoadWork, Payload, Work
from kvsan.harness.executor import MemoryExecutor
from kvsan.harness.expectation import Life, Row
from kvsan.harness.numbers import Numbers
from kvsan.harness.operations import Finish, Fork, Launch, Outcome, Retire, Schedule, Submit
from kvsan.harness.session import Session
from kvsan.harness.shadow import Shadow
from kvsan.harness.target import Copy, Group, Target, Traits, Zero
from kvsan.harness.verdict import Violation
from kvsan.invariants import INVARIANTS
from kvsan.models_under_test.paged import PagedManager

FULL = [1, 2, 3]
WINDOWED = [0, 4, 5]


class Nothing:
    """Target of two groups that holds nothing; its tables are given with the work."""

    traits = Traits(8, 2, (Group(), Group("sliding", 3)), null_unit=0)

    def view(self) -> Nothing:
        return self


@pytest.fixture
def executor() -> MemoryExecutor:
    books = Books(cast(Target, Nothing()))
    return MemoryExecutor(books, Shadow(books, lambda identity, group: f"{identity} of {group}"), None)


def work(payload: Payload, stream: int = COMPUTE) -> Work:
    return Work(stream, payload, 1, (1, 0))


def life_of(length: int) -> Life:
    life = Life("r1", None, ())
    life.extend(list(range(length)))
    return life


def row(life: Life, start: int, stop: int, tables: Sequence[list[int]] = (FULL, WINDOWED)) -> Row:
    row = Row(life, start, stop, 0, False)
    row.tables = [np.array(table) for table in tables]
    life.rows.append(row)
    return row


def test_a_row_reads_what_its_first_query_sees_and_writes_its_own_tokens(executor: MemoryExecutor) -> None:
    reads, writes = executor.accesses(work(LaunchWork("b1", [row(life_of(6), 4, 6)])))
    full, window = [2, 3, 4, 5, 6, 7], [8, 9, 10, 11]  # the query at 4 sees positions 2, 3 and 4
    assert reads.tolist() == [*full, *window]
    assert writes.tolist() == [6, 7, 10, 11]


def test_a_load_writes_no_block_that_a_window_has_dropped(executor: MemoryExecutor) -> None:
    load = LoadWork(life_of(6), [np.array(FULL), np.array(WINDOWED)], 1, 5)
    reads, writes = executor.accesses(work(load, COPY))
    assert reads.tolist() == []
    assert writes.tolist() == [3, 4, 5, 6, 8, 9, 10]


@pytest.mark.parametrize(
    ("effect", "reads", "writes"), [(Copy(1, 2, 0, 2), [2, 3], [4, 5]), (Zero(3, 1, 2), [], [7])], ids=["copy", "zero"]
)
def test_effects_touch_the_slots_that_they_name(
    executor: MemoryExecutor, effect: Copy | Zero, reads: list[int], writes: list[int]
) -> None:
    found = executor.accesses(work(effect))
    assert [slots.tolist() for slots in found] == [reads, writes]


def test_each_group_is_written_with_its_own_identities(executor: MemoryExecutor) -> None:
    life = life_of(6)
    tables = (FULL, [6, 4, 5])
    executor.execute(work(LaunchWork("b1", [row(life, 0, 6, tables)])))
    content = executor.shadow.content
    chain = life.identities(6)
    assert content[2:8].tolist() == chain.tolist()
    assert content[[12, 13, 8, 9, 10, 11]].tolist() == (chain ^ executor.books.masks[1]).tolist()


def test_a_window_does_not_read_what_it_has_passed(executor: MemoryExecutor) -> None:
    life = life_of(6)
    executor.execute(work(LaunchWork("b1", [row(life, 0, 4, (FULL, [6, 4]))])))
    executor.shadow.zero(6, 0, 2, 9)
    executor.execute(work(LaunchWork("b2", [row(life, 4, 6)])))
    assert life.executed == 6


def test_a_window_reads_what_it_still_sees(executor: MemoryExecutor) -> None:
    life = life_of(6)
    executor.execute(work(LaunchWork("b1", [row(life, 0, 4, (FULL, [6, 4]))])))
    executor.shadow.zero(4, 0, 1, 9)  # position 2, which the query at 4 sees
    with pytest.raises(Violation, match="r1 reads position 2 from slot 8"):
        executor.execute(work(LaunchWork("b2", [row(life, 4, 6)])))


def test_a_row_is_ready_when_the_rows_before_it_have_their_outcome(executor: MemoryExecutor) -> None:
    life = life_of(6)
    first, second = row(life, 0, 6), row(life, 6, 7)
    first.samples = True
    later = work(LaunchWork("b2", [second]))
    assert not executor.ready(later)
    life.rows.remove(first)
    assert executor.ready(later)


def test_rows_of_one_launch_write_before_any_of_them_reads() -> None:
    session = Session(PagedManager(8, 4), INVARIANTS, sweep_every=1)
    prefilled = [Submit("r1", ((0, 6),)), Schedule("r1", 6), Launch("b1"), Retire("b1")]
    forked = [
        Fork("r1", "r2"),
        Schedule("r1", 1),
        Schedule("r2", 1),
        Launch("b2"),
        Retire("b2", (Outcome("r2", 0, 1),)),
    ]
    assert all([session.step(operation) for operation in (*prefilled, *forked)])
    assert session.executor.rows_read == 3


def test_the_numbers_oracle_sees_every_kind_of_work() -> None:
    numbers = Numbers(8, 4)
    session = Session(PagedManager(8, 4), INVARIANTS, numbers, sweep_every=1)
    prefilled = [Submit("r1", ((0, 9),)), Schedule("r1", 9, external=4), Launch("b1"), Retire("b1")]
    forked = [Fork("r1", "r2"), Schedule("r2", 1), Launch("b2"), Retire("b2"), Finish("r1")]
    assert all([session.step(operation) for operation in (*prefilled, *forked)])
    assert numbers.tokens_read == 9 + 10
    assert numbers.outputs_compared > 0
