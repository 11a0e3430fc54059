"""Small traces over tiers, drawn to find a shorter way to a violation: they come to loads from a store, and are legal."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from random import Random

import pytest

from kvsan.fuzz.replay import open_session, run
from kvsan.fuzz.small_world import SmallWorld
from kvsan.harness.configuration import Configuration
from kvsan.harness.operations import Complete, Load, Offload, Operation, ResetPrefixCache
from kvsan.models_under_test.paged import make_target

LIKE: tuple[Operation, ...] = (
    Offload("t1", "r1"),
    Complete("t1"),
    Offload("t2", "r1", "remote"),
    Complete("t2"),
    Load("t3", "r2"),
    Complete("t3"),
)
OPTIONS = (("host_units", 2), ("reset_reaches", "stores"), ("stores", "remote"))


def drawn(target: str) -> list[tuple[Configuration, tuple[Operation, ...]]]:
    configuration = Configuration(target, 12, 2, options=OPTIONS)
    return list(islice(SmallWorld(configuration, LIKE, Random(1)).traces(), 100))


@pytest.mark.parametrize("target", ["paged", "mymodule:MyTarget"])
def test_chunks_come_back_from_the_store_that_alone_has_them(target: str) -> None:
    counts: Counter[str] = Counter()
    for configuration, operations in drawn(target):
        session = open_session(make_target, configuration, numbers=False)
        assert run(session, operations).violation is None
        counts += session.counts
    assert counts["load from remote"] > 5


def test_options_of_others_stay_and_what_their_resets_empty_is_evicted_instead() -> None:
    traces = drawn("mymodule:MyTarget")

    assert {configuration.options for configuration, _ in traces} == {OPTIONS}
    assert any(
        not any(isinstance(one, ResetPrefixCache) for one in operations[: operations.index(load)])
        for _, operations in traces
        for load in operations
        if load == Load("t4", "r1")
    )
