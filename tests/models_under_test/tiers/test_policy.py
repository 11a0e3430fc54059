"""Eviction policies: against naive models, against the paper, and what must stay stays."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsan.models_under_test.tiers.policy import Arc, EvictionPolicy, Lru

CAPACITY = 4
KEYS = st.sampled_from("0123456789ab")


class NaiveLru:
    """A list, least recently used first."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def admit(self, new: list[str], victims: int, pinned: set[str]) -> tuple[str, ...] | None:
        gone = [key for key in self.keys if key not in pinned][:victims]
        if len(gone) < victims:
            return None
        self.keys = [key for key in self.keys if key not in gone] + new
        return tuple(gone)


class PaperArc:
    """Figure 4 of the paper, one request a call, in lists with the most recently used last."""

    def __init__(self, c: int) -> None:
        self.c, self.p = c, 0.0
        self.t1: list[str] = []
        self.t2: list[str] = []
        self.b1: list[str] = []
        self.b2: list[str] = []

    def replace(self, x: str) -> None:
        if self.t1 and ((x in self.b2 and len(self.t1) == self.p) or len(self.t1) > self.p):
            self.b1.append(self.t1.pop(0))
        else:
            self.b2.append(self.t2.pop(0))

    def request(self, x: str) -> None:
        for hit in (self.t1, self.t2):
            if x in hit:
                hit.remove(x)
                self.t2.append(x)
                return
        if x in self.b1:
            self.p = min(float(self.c), self.p + max(1.0, len(self.b2) / len(self.b1)))
            self.replace(x)
            self.b1.remove(x)
            self.t2.append(x)
        elif x in self.b2:
            self.p = max(0.0, self.p - max(1.0, len(self.b1) / len(self.b2)))
            self.replace(x)
            self.b2.remove(x)
            self.t2.append(x)
        else:
            self.miss(x)

    def miss(self, x: str) -> None:
        total = len(self.t1) + len(self.t2) + len(self.b1) + len(self.b2)
        if len(self.t1) + len(self.b1) == self.c:
            if len(self.t1) < self.c:
                self.b1.pop(0)
                self.replace(x)
            else:
                self.t1.pop(0)
        elif total >= self.c:
            if total == 2 * self.c:
                self.b2.pop(0)
            self.replace(x)
        self.t1.append(x)


def request(policy: EvictionPolicy, capacity: int, key: str) -> bool:
    """One access of a cache: a hit is touched, a miss is admitted. Return whether it was a hit."""
    if key in policy.resident():
        policy.touch(key)
        return True
    full = len(policy.resident()) == capacity
    assert policy.admit([key], int(full), lambda _: True) is not None
    return False


@given(st.lists(st.tuples(st.lists(KEYS, min_size=1, max_size=5, unique=True), st.sets(KEYS)), max_size=30))
def test_lru_is_the_naive_one(batches: list[tuple[list[str], set[str]]]) -> None:
    policy, naive = Lru(), NaiveLru()
    for keys, pinned in batches:
        for key in (key for key in keys if key in naive.keys):
            policy.touch(key)
            naive.keys.remove(key)
            naive.keys.append(key)
        new = [key for key in keys if key not in naive.keys]
        victims = max(0, len(naive.keys) + len(new) - CAPACITY)

        assert policy.admit(new, victims, lambda key, pinned=pinned: key not in pinned) == naive.admit(
            new, victims, pinned
        )
        assert list(policy.resident()) == naive.keys


@pytest.mark.parametrize("capacity", [1, 2, 5, 16])
def test_arc_is_the_papers_where_nothing_is_pinned(capacity: int) -> None:
    """Long enough for the rare case, a ghost that comes back while the list of those seen once is as long as its target."""
    draw, policy, paper = random.Random(capacity), Arc(capacity), PaperArc(capacity)
    for _ in range(3000):
        key = str(min(draw.randrange(3 * capacity + 2), draw.randrange(3 * capacity + 2)))
        request(policy, capacity, key)
        paper.request(key)

        assert (list(policy.resident()), [list(ghosts) for ghosts in policy.remembered()]) == (
            [*paper.t1, *paper.t2], [paper.b1, paper.b2])  # fmt: skip


def state(policy: Lru | Arc) -> list[object]:
    return [repr(getattr(policy, name)) for name in policy.__slots__]


POLICIES = [pytest.param(Lru, id="lru"), pytest.param(lambda: Arc(CAPACITY), id="arc")]


@pytest.mark.parametrize("make", POLICIES)
@given(batches=st.lists(st.tuples(st.lists(KEYS, min_size=1, max_size=5, unique=True), st.sets(KEYS)), max_size=30))
def test_batches_are_all_or_nothing_and_spare_what_must_stay(
    make: Callable[[], Lru | Arc], batches: list[tuple[list[str], set[str]]]
) -> None:
    policy = make()
    for keys, pinned in batches:
        before, there = state(policy), set(policy.resident())
        new = [key for key in keys if key not in there]
        victims = max(0, len(there) + len(new) - CAPACITY)

        evicted = policy.admit(new, victims, lambda key, pinned=pinned: key not in pinned)

        if len(there - pinned) < victims:
            assert evicted is None
            assert state(policy) == before
        else:
            assert evicted is not None
            assert len(set(evicted)) == victims
            assert set(evicted) <= there - pinned
            assert sorted(policy.resident()) == sorted((there - set(evicted)) | set(new))


@given(st.lists(st.tuples(st.lists(KEYS, min_size=1, max_size=4, unique=True), st.booleans()), max_size=60))
def test_arc_remembers_at_most_as_much_again_as_fits(batches: list[tuple[list[str], bool]]) -> None:
    policy = Arc(CAPACITY)
    for keys, gone in batches:
        there = policy.resident()
        new = [key for key in keys if key not in there]
        policy.admit(new, max(0, len(there) + len(new) - CAPACITY), lambda _: True)
        if gone and policy.resident():
            policy.remove(next(iter(policy.resident())))
        ghosts = [key for remembered in policy.remembered() for key in remembered]

        assert len(policy.resident()) <= CAPACITY
        assert len(policy.resident()) + len(ghosts) <= 2 * CAPACITY
        assert len({*policy.resident(), *ghosts}) == len(policy.resident()) + len(ghosts)


def hit_ratio(policy: EvictionPolicy, capacity: int, accesses: list[str]) -> float:
    return sum(request(policy, capacity, key) for key in accesses) / len(accesses)


def test_arc_resists_scans_that_empty_an_lru() -> None:
    draw, accesses = random.Random(1), []
    for scan in range(50):
        accesses += [f"hot {draw.randrange(40)}" for _ in range(100)]
        accesses += [f"scan {scan} {item}" for item in range(100)]

    adaptive, recent = hit_ratio(Arc(64), 64, accesses), hit_ratio(Lru(), 64, accesses)

    print(f"hit ratio with scans: ARC {adaptive:.3f}, LRU {recent:.3f}")
    assert adaptive > recent + 0.1


def test_arc_takes_from_the_other_list_when_all_of_one_must_stay() -> None:
    policy = Arc(2)
    policy.admit(["a", "b"], 0, lambda _: True)
    policy.touch("a")

    assert policy.admit(["c"], 1, lambda key: key != "b") == ("a",)


def test_arc_adapts_when_a_ghost_comes_back() -> None:
    policy = Arc(2)
    policy.admit(["a", "b"], 0, lambda _: True)
    policy.touch("b")
    assert policy.admit(["c"], 1, lambda _: True) == ("a",)

    assert policy.admit(["a"], 1, lambda _: True) == ("b",)  # seen once is worth more now, so what was seen twice goes


@pytest.mark.parametrize("make", POLICIES)
def test_a_cleared_policy_is_as_new(make: Callable[[], Lru | Arc]) -> None:
    policy = make()
    for number in range(9):
        request(policy, CAPACITY, "0123014"[number % 7])
    policy.clear()

    assert state(policy) == state(make())


@pytest.mark.parametrize("make", POLICIES)
def test_what_is_not_there_cannot_be_removed(make: Callable[[], Lru | Arc]) -> None:
    with pytest.raises(KeyError):
        make().remove("a")
