"""The index of one tier: places are conserved, what is read or written stays, errors change nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvsan.harness.tiers import TierEntry
from kvsan.harness.verdict import UsageError
from kvsan.models_under_test.tiers.index import ChunkIndex
from kvsan.models_under_test.tiers.interface import Prepared, TierIndex
from kvsan.models_under_test.tiers.policy import Arc, Lru

CAPACITY, FIRST_UNIT, CHUNK_BLOCKS = 4, 100, 2


def host_index(capacity: int = CAPACITY) -> ChunkIndex:
    return ChunkIndex(capacity, Lru(), FIRST_UNIT, CHUNK_BLOCKS)


def filled(*keys: str, capacity: int = CAPACITY) -> ChunkIndex:
    index = host_index(capacity)
    index.prepare_store(keys)
    index.complete_store(keys, True)
    return index


def test_a_stored_chunk_is_served_when_it_is_written_and_not_before() -> None:
    index: TierIndex = host_index()
    assert index.prepare_store(["a", "b"]) == Prepared(("a", "b"), ((100, 101), (102, 103)), ())
    assert not index.lookup("a")

    index.complete_store(["a", "b"], True)

    assert index.lookup("a")
    assert index.prepare_load(["b"]) == ((102, 103),)
    assert index.entries() == [TierEntry("a", (100, 101), True), TierEntry("b", (102, 103), True, 1)]


def test_chunks_of_a_store_have_no_units() -> None:
    index = ChunkIndex(2, Lru())

    assert index.prepare_store(["a"]) == Prepared(("a",), ((),), ())


def test_the_least_recently_used_chunk_makes_room() -> None:
    index = filled("a", "b", "c", "d")
    index.touch(["a", "unknown"])

    assert index.prepare_store(["e"]) == Prepared(("e",), ((102, 103),), ("b",))
    assert not index.lookup("b")


def test_chunks_that_are_there_are_passed_over_and_stay() -> None:
    index = filled("a", "b", "c", "d")

    assert index.prepare_store(["a", "e", "e"]) == Prepared(("e",), ((102, 103),), ("b",))
    assert index.prepare_store(["e", "a"]) == Prepared((), (), ())


@pytest.mark.parametrize("busy", ["pinned", "being written", "protected", "in the batch"])
def test_a_chunk_that_must_stay_is_not_evicted(busy: str) -> None:
    index = host_index(1)
    index.prepare_store(["a"])
    if busy != "being written":
        index.complete_store(["a"], True)
    if busy == "pinned":
        index.prepare_load(["a"])
    before = index.entries()

    assert (
        index.prepare_store(["a", "b"] if busy == "in the batch" else ["b"], {"a"} if busy == "protected" else ())
        is None
    )
    assert (index.entries(), index.free_places()) == (before, 0)


def test_a_pin_lasts_until_every_load_has_given_its_own_back() -> None:
    index = filled("a", capacity=1)
    index.prepare_load(["a"])
    index.prepare_load(["a"])
    index.complete_load(["a"])
    assert index.prepare_store(["b"]) is None

    index.complete_load(["a"])

    assert index.prepare_store(["b"]) == Prepared(("b",), ((100, 101),), ("a",))


def test_a_failed_store_leaves_nothing() -> None:
    index = host_index()
    index.prepare_store(["a"])
    index.complete_store(["a"], False)

    assert (index.lookup("a"), index.entries(), index.free_places()) == (False, [], CAPACITY)


def test_a_dropped_chunk_is_forgotten() -> None:
    index = filled("a", "b")
    index.drop("a")

    assert ([entry.key for entry in index.entries()], index.free_places()) == (["b"], CAPACITY - 1)


@pytest.mark.parametrize("busy", [None, "pinned", "being written"])
def test_reset_is_refused_while_a_transfer_is_under_way(busy: str | None) -> None:
    index = filled("a", "b")
    if busy == "pinned":
        index.prepare_load(["a"])
    elif busy == "being written":
        index.prepare_store(["c"])
    before = list(index.entries())

    assert index.reset() == (busy is None)
    assert index.entries() == ([] if busy is None else before)
    assert busy is not None or (index.free_places(), index.prepare_store(["a"])) == (
        CAPACITY,
        (("a",), ((102, 103),), ()),
    )


ERRORS: list[tuple[Callable[[ChunkIndex], object], type[Exception], str]] = [
    (lambda index: index.prepare_load(["a", "x"]), KeyError, "chunk x cannot be served: the index does not know it"),
    (lambda index: index.prepare_load(["a", "w"]), KeyError, "chunk w cannot be served: it is being written"),
    (lambda index: index.complete_load(["p", "x"]), KeyError, "load of chunk x: the index does not know it"),
    (lambda index: index.complete_load(["p", "a"]), RuntimeError, "load of chunk a completed 1 times: .* 0 pins"),
    (lambda index: index.complete_load(["p", "p"]), RuntimeError, "load of chunk p completed 2 times: .* 1 pins"),
    (lambda index: index.complete_store(["w", "x"], True), KeyError, "store of chunk x: the index does not know it"),
    (
        lambda index: index.complete_store(["w", "a"], True),
        RuntimeError,
        "store of chunk a completed again: it is written",
    ),
    (lambda index: index.complete_store(["w", "w"], False), RuntimeError, "store of chunk w completed again"),
    (lambda index: index.drop("x"), KeyError, "drop of chunk x: the index does not know it"),
    (lambda index: index.drop("p"), RuntimeError, "chunk p is to be dropped: it is written and has 1 pins"),
    (lambda index: index.drop("w"), RuntimeError, "chunk w is to be dropped: it is being written"),
]


@pytest.mark.parametrize(("call", "error", "message"), ERRORS)
def test_calls_that_nothing_was_prepared_for_are_errors_and_change_nothing(
    call: Callable[[ChunkIndex], object], error: type[Exception], message: str
) -> None:
    index = filled("a", "p")  # a is at rest, p is pinned, w is being written
    index.prepare_load(["p"])
    index.prepare_store(["w"])
    before = index.entries()

    with pytest.raises(error, match=message):
        call(index)
    assert index.entries() == before


def test_a_tier_without_places_is_refused() -> None:
    with pytest.raises(UsageError, match="capacity 0 of a tier: expected at least 1 chunk"):
        ChunkIndex(0, Lru())


KEYS = st.sampled_from("abcdefgh")
BATCH = st.lists(KEYS, min_size=1, max_size=3)


class IndexMachine(RuleBasedStateMachine):
    """Random transfers, completed in any order; the machine keeps its own account of what is under way."""

    policy: Callable[[], Lru | Arc] = Lru

    def __init__(self) -> None:
        super().__init__()
        self.index = ChunkIndex(CAPACITY, self.policy(), FIRST_UNIT, CHUNK_BLOCKS)
        self.writing: list[tuple[str, ...]] = []
        self.loading: list[tuple[str, ...]] = []
        self.ready: dict[str, tuple[int, ...]] = {}

    @rule(keys=BATCH, protected=st.sets(KEYS, max_size=2))
    def prepare_store(self, keys: list[str], protected: set[str]) -> None:
        before, free = self.index.entries(), self.index.free_places()
        busy = {key for batch in (*self.writing, *self.loading) for key in batch}
        new = set(keys) - {entry.key for entry in before}
        prepared = self.index.prepare_store(keys, protected)
        if prepared is None:
            assert (self.index.entries(), self.index.free_places()) == (before, free)
            assert len(new) > free + len(set(self.ready) - busy - protected - set(keys))
            return
        assert set(prepared.keys) == new
        assert set(prepared.evicted) <= set(self.ready) - busy - protected - set(keys)
        assert len(prepared.evicted) == max(0, len(new) - free)
        for key in prepared.evicted:
            del self.ready[key]
        self.writing += [prepared.keys] if prepared.keys else []

    @rule(data=st.data(), success=st.booleans())
    def complete_store(self, data: st.DataObject, success: bool) -> None:
        if self.writing:
            batch = self.writing.pop(data.draw(st.integers(0, len(self.writing) - 1)))
            units = {entry.key: entry.units for entry in self.index.entries()}
            self.index.complete_store(batch, success)
            self.ready.update({key: units[key] for key in batch} if success else {})

    @rule(keys=BATCH)
    def prepare_load(self, keys: list[str]) -> None:
        found = tuple(key for key in keys if self.index.lookup(key))
        assert set(found) == set(keys) & self.ready.keys()
        assert self.index.prepare_load(found) == tuple(self.ready[key] for key in found)
        self.loading += [found] if found else []

    @rule(data=st.data())
    def complete_load(self, data: st.DataObject) -> None:
        if self.loading:
            self.index.complete_load(self.loading.pop(data.draw(st.integers(0, len(self.loading) - 1))))

    @rule(key=KEYS)
    def drop(self, key: str) -> None:
        if key in self.ready and not any(key in batch for batch in self.loading):
            self.index.drop(key)
            del self.ready[key]

    @rule(keys=BATCH)
    def touch(self, keys: list[str]) -> None:
        before = self.index.entries()
        self.index.touch(keys)
        assert self.index.entries() == before

    @rule()
    def reset(self) -> None:
        assert self.index.reset() == (not self.writing and not self.loading)
        if not self.writing and not self.loading:
            self.ready.clear()

    @invariant()
    def the_index_agrees_with_the_account(self) -> None:
        entries = self.index.entries()
        pinned = [key for batch in self.loading for key in batch]
        assert {entry.key: entry.units for entry in entries if entry.ready} == self.ready
        assert sorted(entry.key for entry in entries if not entry.ready) == sorted(
            key for batch in self.writing for key in batch
        )
        assert {entry.key: entry.pins for entry in entries if entry.pins} == {key: pinned.count(key) for key in pinned}

    @invariant()
    def places_are_conserved(self) -> None:
        entries = self.index.entries()
        units = [unit for entry in entries for unit in entry.units]
        assert len(entries) + self.index.free_places() == CAPACITY
        assert len(set(units)) == len(units) == CHUNK_BLOCKS * len(entries)
        assert set(units) <= set(range(FIRST_UNIT, FIRST_UNIT + CAPACITY * CHUNK_BLOCKS))


class ArcIndexMachine(IndexMachine):
    """The same with the other policy."""

    policy = staticmethod(lambda: Arc(CAPACITY))


LruIndexTest = IndexMachine.TestCase
ArcIndexTest = ArcIndexMachine.TestCase
LruIndexTest.settings = ArcIndexTest.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
