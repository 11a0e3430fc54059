"""Books: holders, parked tables, the order of freeing, and hashes, from what a target says about itself."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import cast

import pytest

from kvsan.harness.books import Books
from kvsan.harness.expectation import Expected, Life
from kvsan.harness.operations import (
    Abort,
    Finish,
    Fork,
    Launch,
    Operation,
    Preempt,
    ResetPrefixCache,
    Retire,
    Schedule,
    Submit,
)
from kvsan.harness.session import Session
from kvsan.harness.step import Added, Replaced, Step
from kvsan.harness.target import Delta, Group, Target, Traits
from kvsan.harness.verdict import Violation
from kvsan.models_under_test.paged import PagedManager

PREFILLED: tuple[Operation, ...] = (Submit("r1", ((0, 6),)), Schedule("r1", 6), Launch("b1"), Retire("b1"))


def after(*operations: Operation, **options: bool) -> Session:
    """Session without invariants over a pool of eight blocks of four tokens."""
    session = Session(PagedManager(8, 4, **options), ())
    for operation in operations:
        assert session.step(operation), operation
    return session


# -- holders


def test_each_table_entry_holds_its_unit_once() -> None:
    books = after(*PREFILLED, Fork("r1", "r2")).books
    assert books.holders.tolist() == [0, 2, 2, 0, 0, 0, 0, 0]
    assert books.held == 2


def test_a_finished_request_holds_nothing() -> None:
    books = after(*PREFILLED, Finish("r1")).books
    assert books.held == 0


def test_a_copy_on_write_holds_its_source_until_the_launch_retires() -> None:
    session = after(*PREFILLED, Fork("r1", "r2"), Schedule("r2", 1), Finish("r1"))
    shared = session.books.holders[2]
    session.step(Launch("b2"))
    session.step(Retire("b2"))
    assert (shared, session.books.holders[2]) == (1, 0)


@pytest.mark.parametrize(("deferred_free", "held"), [(True, [2, 0]), (False, [0, 0])])
def test_tables_of_an_aborted_request_are_parked_with_its_last_launch(deferred_free: bool, held: list[int]) -> None:
    session = after(*PREFILLED[:3], Abort("r1"), deferred_free=deferred_free)
    seen = [session.books.held]
    session.step(Retire("b1"))
    assert [*seen, session.books.held] == held
    assert session.books.parked == {}


def test_tables_are_parked_with_the_newest_of_two_launches() -> None:
    two = [Submit("r1", ((0, 8),)), Schedule("r1", 4), Launch("b1"), Schedule("r1", 4), Launch("b2")]
    session = after(*two, Preempt("r1"), Retire("b1"))
    assert session.books.parked == {"b2": [[[1, 2]]]}


# -- the order of freeing


def test_a_table_is_freed_from_its_end() -> None:
    books = after(*PREFILLED, Finish("r1")).books
    assert books.freed_at[2] < books.freed_at[1]


def test_units_that_were_never_given_out_come_first() -> None:
    books = after(*PREFILLED, Finish("r1")).books
    assert max(books.freed_at[unit] for unit in range(3, 8)) < min(books.freed_at[1], books.freed_at[2])


def test_the_order_of_freeing_is_the_order_of_the_reference_queue() -> None:
    others = [Submit("r2", ((1, 9),)), Schedule("r2", 9), Launch("b2"), Retire("b2")]
    session = after(*PREFILLED, *others, Finish("r2"), Finish("r1"))
    queue = session.target.view().free_queue()
    assert sorted(queue, key=session.books.freed_at.__getitem__) == list(queue)


# -- hashes


def test_a_publication_names_content_place_and_publisher() -> None:
    session = after(*PREFILLED)
    (publication,) = session.books.publications.values()
    identity = int(session.requests["r1"].life.chain[3])
    assert (publication.unit, publication.block, publication.identity) == (1, 0, identity)
    assert publication.publisher is session.requests["r1"]


def test_reset_withdraws_every_publication() -> None:
    books = after(*PREFILLED, ResetPrefixCache()).books
    assert (books.publications, books.contents) == ({}, {})


def test_two_units_with_one_content_are_both_known() -> None:
    twins = [*PREFILLED[:2], Submit("r2", ((0, 6),)), Schedule("r2", 6), Launch("b1"), Retire("b1")]
    books = after(*twins).books
    ((_, units),) = books.contents.items()
    assert units == [1, 3]


# -- a target of two groups, by hand


class TwoGroups:
    """View and target in one; a test writes tables and hashes, and says what changed."""

    def __init__(self) -> None:
        self.traits = Traits(8, 2, (Group(), Group("sliding", 4)), null_unit=0)
        self.now: tuple[list[int], list[int]] = ([], [])
        self.hashes: dict[int, str] = {}
        self.touched: list[int] = []

    def view(self) -> TwoGroups:
        return self

    def tables(self, _name: str) -> Sequence[list[int]]:
        return self.now

    def key(self, unit: int) -> Hashable | None:
        return self.hashes.get(unit)

    def delta(self) -> Delta:
        touched, self.touched = self.touched, []
        return Delta(("r1",), touched)


@pytest.fixture
def target() -> TwoGroups:
    return TwoGroups()


@pytest.fixture
def books(target: TwoGroups) -> Books:
    """Books in which ``r1`` is open, with eight tokens known."""
    books = Books(cast(Target, target))
    life = Life("r1", None, ())
    life.extend(list(range(8)))
    books.open(Expected("r1", "r1", life, "", None))
    return books


def absorbed(books: Books) -> Step:
    step = Step()
    books.absorb(step)
    return step


def test_a_unit_may_move_from_one_group_to_another_in_one_step(target: TwoGroups, books: Books) -> None:
    target.now = ([1, 2], [3, 4])
    absorbed(books)
    target.now = ([1, 2, 3], [0, 4])  # a window drops unit 3, and the other group gets it at once
    step = absorbed(books)
    request = books.requests["r1"]
    assert step.added == [Added(request, 0, 2, 3, 0)]
    assert step.replaced == [Replaced(request, 1, 0, 3, 0)]
    assert books.holders.tolist() == [0, 1, 1, 1, 1, 0, 0, 0]


def test_a_unit_published_again_under_its_old_key_was_withdrawn_in_between(target: TwoGroups, books: Books) -> None:
    target.now, target.hashes, target.touched = ([1], [2]), {1: "k"}, [1]
    absorbed(books)
    target.now, target.touched = ([], [2]), [1]
    absorbed(books)
    target.now, target.touched = ([1], [2]), [1, 1]
    step = absorbed(books)
    assert [publication.unit for publication in step.withdrawn] == [1]
    assert [publication.unit for publication in step.published] == [1]


def test_a_unit_that_is_hit_keeps_its_publication(target: TwoGroups, books: Books) -> None:
    target.now, target.hashes, target.touched = ([1], [2]), {1: "k"}, [1]
    absorbed(books)
    target.now, target.touched = ([], [2]), [1]
    absorbed(books)
    target.now, target.touched = ([1], [2]), [1]
    step = Step(shareable_blocks=1)
    books.absorb(step)
    assert (step.withdrawn, step.published) == ([], [])


def test_groups_have_identities_of_their_own(target: TwoGroups, books: Books) -> None:
    target.now, target.hashes, target.touched = ([1], [2]), {1: "full", 2: "window"}, [1, 2]
    absorbed(books)
    full, window = books.publications[1], books.publications[2]
    assert (full.group, window.group) == (0, 1)
    assert full.identity != window.identity


@pytest.mark.parametrize(
    ("tables", "hashes", "cause"),
    [
        (([1], []), {3: "k"}, "no holder"),
        (([1, 2, 3, 4, 5], []), {5: "k"}, "unknown tokens"),
    ],
)
def test_a_hash_must_be_about_known_tokens_of_a_holder(
    target: TwoGroups, books: Books, tables: tuple[list[int], list[int]], hashes: dict[int, str], cause: str
) -> None:
    target.now, target.hashes, target.touched = tables, hashes, list(hashes)
    with pytest.raises(Violation) as caught:
        absorbed(books)
    assert caught.value.kind == ("hash_content", cause)


@pytest.mark.parametrize("unit", [-1, 8])
@pytest.mark.parametrize("before", [[], [3]], ids=["new entry", "replaced entry"])
def test_a_unit_outside_of_the_pool_is_no_unit(target: TwoGroups, books: Books, before: list[int], unit: int) -> None:
    target.now = (before, [])
    absorbed(books)
    target.now = ([unit], [])
    with pytest.raises(Violation) as caught:
        absorbed(books)
    assert caught.value.kind == ("table_covers", "no such unit")


def test_tables_may_be_any_sequence() -> None:
    class Tuples(TwoGroups):
        def tables(self, _name: str) -> Sequence[tuple[int, ...]]:  # type: ignore[override]
            return tuple(tuple(table) for table in self.now)

    target = Tuples()
    target.now = ([1, 2], [3])
    books = Books(cast(Target, target))
    books.open(Expected("r1", "r1", Life("r1", None, ()), "", None))
    assert [added.unit for added in absorbed(books).added] == [1, 2, 3]
    assert absorbed(books).added == []


def test_a_copy_is_forgotten_before_the_next_step_even_if_no_table_was_told() -> None:
    step = Step(copied={2: 1})
    step.clear()
    assert step.copied == {}


# -- a target that keeps no track


class NoDelta(PagedManager):
    """Has no delta; the books must look at everything."""

    def delta(self) -> None:  # type: ignore[override]
        super().delta()


def test_without_a_delta_everything_is_compared() -> None:
    session = Session(NoDelta(8, 4), ())
    for operation in (*PREFILLED, Fork("r1", "r2")):
        session.step(operation)
    assert session.books.holders.tolist() == [0, 2, 2, 0, 0, 0, 0, 0]
    assert set(session.books.publications) == {1}
