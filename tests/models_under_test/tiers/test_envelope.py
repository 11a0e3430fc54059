"""Envelopes: what was sealed comes back, everything else is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsan.harness.tiers import Damage
from kvsan.harness.verdict import UsageError
from kvsan.models_under_test.tiers.envelope import damaged, header_bytes, open_sealed, seal

KEYS = st.text("0123456789abcdef", min_size=1, max_size=64)
SMALL = seal("c0ffee", b"sixteen bytes ..")


@given(KEYS, st.binary(max_size=300))
def test_what_was_sealed_comes_back(key: str, data: bytes) -> None:
    assert open_sealed(key, seal(key, data)) == data


def test_no_bit_can_flip_unseen() -> None:
    flips = (
        SMALL[:at] + bytes((SMALL[at] ^ 1 << bit,)) + SMALL[at + 1 :] for at in range(len(SMALL)) for bit in range(8)
    )

    assert [raw for raw in flips if open_sealed("c0ffee", raw) is not None] == []


def test_no_end_can_be_missing() -> None:
    assert [size for size in range(len(SMALL)) if open_sealed("c0ffee", SMALL[:size]) is not None] == []


@pytest.mark.parametrize("more", [b"\0", b"x", SMALL])
def test_nothing_may_follow(more: bytes) -> None:
    assert open_sealed("c0ffee", SMALL + more) is None


@given(KEYS, KEYS, st.binary(max_size=40))
def test_another_key_does_not_open_it(key: str, other: str, data: bytes) -> None:
    assert (open_sealed(other, seal(key, data)) is None) == (key != other)


@given(KEYS, KEYS, st.binary(max_size=40), st.binary(max_size=40))
def test_an_envelope_says_where_its_key_ends(key: str, other: str, data: bytes, more: bytes) -> None:
    assert (seal(key, data) == seal(other, more)) == ((key, data) == (other, more))


@pytest.mark.parametrize("key", ["", "A0", "../x", "a" * 65, "a\n", "é"])
def test_what_is_no_key_is_refused(key: str) -> None:
    with pytest.raises(UsageError, match="expected 1 to 64 characters of 0-9a-f"):
        seal(key, b"")


@given(KEYS, st.binary(max_size=100), st.sampled_from(["flip", "truncate"]))
def test_damage_is_always_seen_and_always_the_same(key: str, data: bytes, how: Damage) -> None:
    raw = seal(key, data)

    assert open_sealed(key, damaged(key, raw, how)) is None
    assert damaged(key, raw, how) == damaged(key, raw, how)


@pytest.mark.parametrize("how", ["flip", "truncate"])
def test_damage_befalls_header_and_payload(how: Damage) -> None:
    places = set()
    for number in range(100):
        key, data = f"{number:04x}", bytes(4096)
        raw, after = seal(key, data), damaged(f"{number:04x}", seal(key, data), how)
        first = next((at for at in range(len(after)) if after[at] != raw[at]), len(after))
        places.add("header" if first < header_bytes(key) else "payload")

    assert places == {"header", "payload"}


def test_a_second_accident_does_not_undo_the_first() -> None:
    for number in range(100):
        raw = seal("ab", bytes((number,)) * 4096)  # with 29 both draw the same bit

        assert open_sealed("ab", damaged("ab", damaged("ab", raw, "flip"), "flip")) is None
