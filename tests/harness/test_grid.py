"""Grids: every number of the payload survives its cache dtype exactly, and every scale in a page has a rival."""

import numpy as np
import pytest

from kvsan.gpu_kernels.formats import FORMATS
from kvsan.gpu_kernels.interface import decode_bits
from kvsan.gpu_kernels.triton_kernels import TritonKernels
from kvsan.harness.grid import grid_of
from kvsan.harness.payload import Payload, PayloadShape, identity_of_keys, identity_of_values

TOKENS = 12
QUANTISED = [name for name, form in FORMATS.items() if form.quantised]


def payload_for(dtype: str) -> Payload:
    payload = Payload(PayloadShape(2, 32, dtype))
    payload.follow(np.random.default_rng(1).integers(-(1 << 63), 1 << 63, TOKENS), TOKENS)
    return payload


@pytest.mark.parametrize("dtype", FORMATS)
def test_what_is_written_is_read_back_exactly(dtype: str) -> None:
    payload, kernels = payload_for(dtype), TritonKernels()
    cache = kernels.allocate(3, 4, 2, 32, dtype)
    keys, values = payload.key_bits[:TOKENS], payload.value_bits[:TOKENS]

    kernels.write(cache, np.arange(TOKENS), keys, values)
    found = np.zeros_like(keys), np.zeros_like(values)
    kernels.gather(cache, np.arange(3), 0, TOKENS, *found)

    assert np.array_equal(found[0], keys)
    assert np.array_equal(found[1], values)


@pytest.mark.parametrize("dtype", QUANTISED)
def test_bits_are_the_codes(dtype: str) -> None:
    payload = payload_for(dtype)

    assert np.array_equal(decode_bits(payload.key_bits[:TOKENS], "float32"), payload.key_codes[:TOKENS])
    assert np.array_equal(decode_bits(payload.value_bits[:TOKENS], "float32"), payload.value_codes[:TOKENS])


@pytest.mark.parametrize("dtype", FORMATS)
def test_no_code_is_larger_than_its_grid_says(dtype: str) -> None:
    payload, grid = payload_for(dtype), grid_of(dtype, 32)

    assert (abs(payload.key_codes[:TOKENS]).max((0, 1)) <= grid.largest_key(32)).all()
    assert (abs(payload.value_codes[:TOKENS]).max((0, 1)) <= grid.largest_value(32)).all()


@pytest.mark.parametrize("dtype", [name for name, form in FORMATS.items() if form.scale_bytes])
def test_scales_in_the_page_differ_between_tokens(dtype: str) -> None:
    payload, kernels = payload_for(dtype), TritonKernels()
    cache = kernels.allocate(3, 4, 2, 32, dtype)

    kernels.write(cache, np.arange(TOKENS), payload.key_bits[:TOKENS], payload.value_bits[:TOKENS])

    assert cache.key_scales is not None
    assert cache.value_scales is not None
    for scales in (cache.key_scales, cache.value_scales):
        assert len(set(scales[..., 0].flatten().tolist())) > 1


@pytest.mark.parametrize("dtype", FORMATS)
def test_bytes_name_their_owner_in_every_dtype(dtype: str) -> None:
    payload = payload_for(dtype)
    wanted = np.random.default_rng(1).integers(-(1 << 63), 1 << 63, TOKENS).tolist()

    keys = [identity_of_keys(payload.key_codes[t].ravel(), payload.shape) for t in range(TOKENS)]
    values = [identity_of_values(payload.value_codes[t, 1], 32, payload.shape) for t in range(TOKENS)]

    assert keys == wanted
    assert values == wanted
