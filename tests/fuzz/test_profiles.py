"""Profiles: what they promise must be something that the generator can draw."""

from __future__ import annotations

import pytest

from kvsan.fuzz.profiles import DEFAULT, PROFILES, Profile, profile_named, small_scope, tiny_scope
from kvsan.harness.operations import OPERATIONS
from kvsan.harness.verdict import UsageError

NAMES = {kind.__name__ for kind in OPERATIONS}


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_every_operation_has_a_weight(profile: Profile) -> None:
    assert set(profile.weights) == NAMES


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_a_pool_holds_a_block_for_two_requests(profile: Profile) -> None:
    for scope in (profile, small_scope(profile), tiny_scope(profile)):
        assert min(scope.num_units) >= 3
        assert min(scope.live_requests) >= 2


def test_a_small_scope_keeps_weights_and_floors() -> None:
    small = small_scope(DEFAULT)
    assert (small.weights, small.floors) == (DEFAULT.weights, DEFAULT.floors)
    assert max(small.num_units) <= min(DEFAULT.num_units)


def test_a_tiny_scope_is_smaller_still_and_its_blocks_are_powers_of_two() -> None:
    small, tiny = small_scope(DEFAULT), tiny_scope(DEFAULT)
    assert max(tiny.num_units) < max(small.num_units)
    assert max(tiny.run_steps) < max(small.run_steps)
    assert max(tiny.segment_tokens) < max(small.segment_tokens)
    assert all(size & (size - 1) == 0 for size in tiny.block_sizes)


def test_a_profile_is_found_by_its_name() -> None:
    assert profile_named("default") is DEFAULT


def test_a_profile_that_is_not_there_says_which_are() -> None:
    with pytest.raises(UsageError, match="expected one of default, heavy"):
        profile_named("fast")
