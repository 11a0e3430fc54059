"""Payload: what an identity becomes, and that no more is derived than has changed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsan.gpu_kernels.interface import decode_bits
from kvsan.harness.execution import BoundRow
from kvsan.harness.payload import Payload, PayloadShape, identity_of_keys, identity_of_values, mix, payload_of

SHAPE = PayloadShape(2, 32, "float32")
WORD = (1 << 64) - 1
identities = st.integers(-(1 << 63), (1 << 63) - 1)


def payload_for(identity: list[int], shape: PayloadShape = SHAPE) -> Payload:
    payload = Payload(shape)
    payload.follow(np.array(identity, np.int64), len(identity))
    return payload


def row_for(identity: np.ndarray, group: int = 0) -> BoundRow:
    return BoundRow("r1", group, np.zeros(9, np.int64), 0, len(identity), None, 0, identity, {})


def mixed(x: int) -> int:
    x &= WORD
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & WORD
    x = (x ^ x >> 27) * 0x94D049BB133111EB & WORD
    return x ^ x >> 31


@given(identities)
def test_elements_are_cut_from_mixed_words(identity: int) -> None:
    payload = payload_for([identity])

    golden = 0x9E3779B97F4A7C15
    bits = mixed(identity + golden)
    nibbles = [mixed(identity + golden * (2 * word + 2)) >> 4 * n & 15 for word in range(4) for n in range(16)]
    assert payload.key_codes[0].ravel().tolist() == [1 if bits >> e & 1 else -1 for e in range(64)]
    assert payload.value_codes[0].ravel().tolist() == [nibble - 8 for nibble in nibbles]


@given(identities)
def test_bytes_name_their_owner(identity: int) -> None:
    payload = payload_for([identity])

    values = payload.value_codes[0]
    assert identity_of_keys(payload.key_codes[0].ravel(), SHAPE) == identity
    assert [identity_of_values(values.ravel()[first:], first, SHAPE) for first in (0, 32)] == [identity, identity]


def test_bytes_of_nobody_have_no_owner() -> None:
    payload = payload_for([5])
    values = payload.value_codes[0].ravel().copy()
    values[40] ^= 1

    found = [
        identity_of_keys(np.zeros(64), SHAPE),
        identity_of_keys(np.ones(8), SHAPE),
        identity_of_values(values, 0, SHAPE),
        identity_of_values(np.full(64, np.nan), 0, SHAPE),
        identity_of_values(values[:8], 0, SHAPE),
    ]

    assert found == [None] * 5


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_bits_are_the_codes_in_every_dtype(dtype: str) -> None:
    payload = payload_for(list(range(40)), PayloadShape(2, 32, dtype))

    assert np.array_equal(decode_bits(payload.key_bits[:40], dtype), payload.key_codes[:40])
    assert np.array_equal(decode_bits(payload.value_bits[:40], dtype), payload.value_codes[:40])


def test_prefix_sums_are_those_of_v() -> None:
    payload = payload_for(list(range(200)))

    assert np.array_equal(payload.value_sums[1:201], payload.value_codes[:200].cumsum(0, dtype=np.int32))


@given(st.lists(identities, min_size=1, max_size=40), st.lists(identities, max_size=40), st.data())
def test_following_a_changed_suffix_equals_starting_afresh(
    before: list[int], suffix: list[int], data: st.DataObject
) -> None:
    payload = payload_for(before)
    after = before[: data.draw(st.integers(0, len(before)))] + suffix

    payload.follow(np.array(after, np.int64), len(after))

    fresh = payload_for(after)
    for name in ("key_codes", "value_codes", "key_bits", "value_bits"):
        assert np.array_equal(getattr(payload, name)[: len(after)], getattr(fresh, name)[: len(after)])
    assert np.array_equal(payload.value_sums[: len(after) + 1], fresh.value_sums[: len(after) + 1])


def test_what_agrees_is_kept_in_the_rows_cache() -> None:
    row = row_for(np.arange(30))
    first = payload_of(row, SHAPE)
    first.key_codes[3] = 99

    again = payload_of(row, SHAPE)

    assert again is first
    assert (again.key_codes[3] == 99).all()


def test_groups_of_a_request_have_payloads_of_their_own() -> None:
    full, sliding = row_for(np.arange(30)), row_for(np.arange(30) + 1000, group=1)
    sliding.cache = full.cache

    assert not np.array_equal(payload_of(full, SHAPE).key_codes[:30], payload_of(sliding, SHAPE).key_codes[:30])
    assert set(full.cache) == {0, 1}


def test_a_position_is_found_by_identity() -> None:
    payload = payload_for([10, 20, 30])

    assert (payload.position_of(20), payload.position_of(21)) == (1, None)


def test_mix_equals_its_definition() -> None:
    assert int(mix(np.uint64(12345))) == mixed(12345)
