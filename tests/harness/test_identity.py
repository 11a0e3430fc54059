"""Content identity: equal if and only if everything that decides the KV of a position is equal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsan.harness.identity import (
    SegmentCache,
    chain_over,
    group_mask,
    media_token,
    mix,
    name_identity,
    root_identity,
)
from kvsan.harness.operations import Adapter, Media, token_id

tokens = st.lists(st.integers(0, 1 << 20), max_size=12)


@given(tokens, tokens)
def test_equal_prefixes_have_equal_chains_and_others_have_not(ours: list[int], theirs: list[int]) -> None:
    root = root_identity(None)
    mine, other = chain_over(root, ours), chain_over(root, theirs)
    equal = [ours[: position + 1] == theirs[: position + 1] for position in range(min(len(ours), len(theirs)))]
    assert [one == another for one, another in zip(mine, other, strict=False)] == equal


@given(st.integers(1, (1 << 63) - 1), st.integers(0, 1 << 40))
def test_an_identity_is_never_zero_and_fits_a_signed_word(identity: int, token: int) -> None:
    assert 1 <= mix(identity, token) < 1 << 63


def test_a_chain_can_be_continued_from_its_last_identity() -> None:
    whole = chain_over(5, [1, 2, 3, 4])
    assert whole == [*chain_over(5, [1, 2]), *chain_over(chain_over(5, [1, 2])[-1], [3, 4])]


def test_a_repeated_token_has_another_identity_at_each_position() -> None:
    assert len(set(chain_over(root_identity(None), [7] * 100))) == 100


def test_adapters_differ_by_name_and_by_id() -> None:
    roots = [root_identity(adapter) for adapter in (None, Adapter("a", 1), Adapter("a", 2), Adapter("b", 1))]
    assert len(set(roots)) == 4


def test_an_identity_is_the_same_in_every_process() -> None:
    assert (name_identity("root", None), mix(1, 2)) == (2017401579233450895, 6532028356717452636)


def test_groups_have_masks_of_their_own_and_the_first_has_none() -> None:
    assert group_mask(0) == 0
    assert len({group_mask(group) for group in range(8)}) == 8


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Media("x", 2, 4), Media("y", 2, 4)),
        (Media("x", 2, 4), Media("x", 3, 4)),
        (Media("x", 2, 4), Media("x", 2, 5)),
    ],
    ids=["id", "offset", "length"],
)
def test_media_differ_by_id_offset_and_length(one: Media, other: Media) -> None:
    assert media_token(9, 4, (one,)) != media_token(9, 4, (other,))


@pytest.mark.parametrize(("position", "covered"), [(1, False), (2, True), (5, True), (6, False)])
def test_a_media_item_covers_its_own_tokens_only(position: int, covered: bool) -> None:
    assert (media_token(9, position, (Media("x", 2, 4),)) != 9) is covered


def test_segments_are_the_familys_tokens_and_their_chain() -> None:
    cache = SegmentCache()
    family = [token_id(3, index) for index in range(5)]
    assert cache.expand(11, 3, 5) == (family, chain_over(11, family))
    assert cache.expand(11, 3, 5) is cache.expand(11, 3, 5)
