"""The generator: deterministic, and no feature that is switched off shows in what it draws."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from kvsan.fuzz.generate import Generator, draw_features
from kvsan.fuzz.profiles import DEFAULT, FEATURES, small_scope
from kvsan.harness.operations import Advance, Cancel, Fork, Lookup, Operation, Schedule, Submit
from kvsan.harness.session import Session
from kvsan.invariants import INVARIANTS
from kvsan.models_under_test.paged import PagedManager

ALL = frozenset(FEATURES)


def drawn(
    seed: int, features: frozenset[str] = ALL, length: int = 400, target: PagedManager | None = None
) -> list[Operation]:
    """Draw operations for a reference manager, and run them."""
    session = Session(target or PagedManager(33, 4), INVARIANTS)
    generator = Generator(session, DEFAULT, Random(seed), features)
    operations = []
    for _ in range(length):
        operations.append(generator.next())
        session.step(operations[-1])
    return operations


def test_a_seed_draws_the_same_operations() -> None:
    assert drawn(3) == drawn(3)


def test_another_seed_draws_others() -> None:
    assert drawn(3) != drawn(4)


SHOWS = {
    "salts": lambda one: isinstance(one, Submit) and one.salt,
    "adapters": lambda one: isinstance(one, Submit) and one.adapter,
    "adapter ids": lambda one: isinstance(one, Submit) and one.adapter and one.adapter.id > 1,
    "one name for all": lambda one: isinstance(one, Submit) and one.adapter and one.adapter.name in "xy",
    "media": lambda one: isinstance(one, Submit) and one.media,
    "reused ids": lambda one: isinstance(one, Submit) and one.engine_id,
    "later turns": lambda one: isinstance(one, Submit) and any(part[0] == "out" for part in one.prompt),
    "external": lambda one: isinstance(one, Schedule) and one.external,
    "delayed": lambda one: isinstance(one, Schedule) and one.delayed,
    "lookahead": lambda one: isinstance(one, Schedule) and one.lookahead,
    "fork": lambda one: isinstance(one, Fork),
    "cancel": lambda one: isinstance(one, Cancel),
    "own lookups": lambda one: isinstance(one, Lookup),
}


@pytest.mark.parametrize("feature", SHOWS)
def test_a_feature_shows_if_and_only_if_it_is_on(feature: str) -> None:
    shows = SHOWS[feature]
    assert any(shows(one) for seed in range(12) for one in drawn(seed, ALL))
    assert not any(shows(one) for seed in range(12) for one in drawn(seed, ALL - {feature}))


@pytest.mark.parametrize(("feature", "event"), [("drafts", "draft"), ("two in flight", "two launches in flight")])
def test_a_feature_has_its_effect_if_and_only_if_it_is_on(feature: str, event: str) -> None:
    counts = []
    for features in (ALL, ALL - {feature}):
        session = Session(PagedManager(33, 4), INVARIANTS)
        generator = Generator(session, DEFAULT, Random(3), features)
        for _ in range(1500):
            session.step(generator.next())
        counts.append(session.counts[event] > 0)
    assert counts == [True, False]


def test_every_feature_is_tested() -> None:
    assert {*SHOWS, "drafts", "two in flight"} == ALL


def test_nothing_is_drawn_that_a_target_does_not_have() -> None:
    target = PagedManager(33, 4)
    target.traits = replace(target.traits, operations=target.traits.operations - {Fork, Advance, Cancel})
    assert not {type(one) for one in drawn(5, target=target)} & {Fork, Advance, Cancel}


def test_features_are_left_out_at_random_and_on_request() -> None:
    counted: Counter[str] = Counter()
    for seed in range(400):
        counted.update(draw_features(Random(seed), DEFAULT, frozenset({"fork"})))
    assert "fork" not in counted
    assert all(180 < counted[feature] < 300 for feature in ALL - {"fork"})


def test_no_more_requests_live_than_a_run_has_drawn() -> None:
    profile = replace(small_scope(DEFAULT), live_requests=(3,))
    session = Session(PagedManager(33, 4), INVARIANTS)
    generator = Generator(session, profile, Random(2), ALL)
    most = 0
    for _ in range(600):
        session.step(generator.next())
        most = max(most, len(session.requests))
    assert most == 3


def test_most_of_what_is_drawn_is_executed() -> None:
    session = Session(PagedManager(33, 4), INVARIANTS)
    generator = Generator(session, DEFAULT, Random(2), ALL)
    executed = [session.step(generator.next()) for _ in range(2000)]
    assert sum(executed) > 1000
