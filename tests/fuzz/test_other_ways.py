"""Exchanges that removal alone does not find."""

from __future__ import annotations

from kvsan.fuzz.other_ways import without_stores
from kvsan.harness.configuration import Configuration
from kvsan.harness.operations import (
    Complete,
    Fail,
    Load,
    Offload,
    Operation,
    Preempt,
    ResetPrefixCache,
    Restart,
    Schedule,
    Submit,
)

BEFORE: tuple[Operation, ...] = (Submit("r1", ((0, 1),)), Schedule("r1", 1), Offload("t1", "r1"), Complete("t1"))
AGAIN: tuple[Operation, ...] = (ResetPrefixCache(), Preempt("r1"), Load("t3", "r1"))
OVER_A_STORE = (*BEFORE, Offload("t2", "r1", "disk"), Complete("t2"), *AGAIN, Restart("disk"), Complete("t3"))


def test_a_load_that_failed_because_of_its_store_fails_from_the_host() -> None:
    configuration = Configuration("paged", options=(("reset_reaches", "host"), ("stores", "disk")))
    device = Configuration("paged", options=(("reset_reaches", "device"), ("stores", "disk")))

    ways = list(without_stores(configuration, OVER_A_STORE))

    assert (configuration, (*BEFORE, *AGAIN, Complete("t3"))) in ways
    assert (device, (*BEFORE, *AGAIN, Fail("t3"), Complete("t3"))) in ways


def test_nothing_is_exchanged_where_no_store_is_used() -> None:
    assert not list(without_stores(Configuration("paged"), (*BEFORE, *AGAIN, Complete("t3"))))


def test_options_of_others_are_not_touched() -> None:
    configuration = Configuration("mymodule:MyTarget")
    assert {other for other, _ in without_stores(configuration, OVER_A_STORE)} == {configuration}
