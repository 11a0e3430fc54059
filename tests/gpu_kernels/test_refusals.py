"""What a kernel would read wrongly and silently is refused before it is launched."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kvsan.gpu_kernels import copy, decode, mla, prefill, quant, write
from kvsan.gpu_kernels.layout import PagedCache, allocate_cache

TABLES = torch.zeros((2, 4), dtype=torch.int32)
ONES = torch.ones(2, dtype=torch.int32)
STRIDED = torch.ones(4, dtype=torch.int32)[::2]
QUERY = torch.zeros((2, 4, 32))
TOKENS = torch.zeros((2, 2, 32))
LATENT = torch.zeros((4, 2, 48))


def cache(dtype: str = "float32") -> PagedCache:
    return allocate_cache(8, 4, 2, 32, dtype)


REFUSED: dict[str, tuple[str, Callable[[], object]]] = {
    "write, strided slots": ("slot_mapping .* contiguous", lambda: write.write(TOKENS, TOKENS, cache(), STRIDED)),
    "write, codes": ("expected a plain one", lambda: write.write(TOKENS, TOKENS, cache("nvfp4"), ONES)),
    "quantised write, floats": ("expected a quantised one", lambda: quant.write(TOKENS, TOKENS, cache(), ONES)),
    "write, transposed keys": (
        "key .* contiguous",
        lambda: write.write(TOKENS.mT.contiguous().mT, TOKENS, cache(), ONES),
    ),
    "decode, strided lengths": ("seq_lens .* contiguous", lambda: decode.decode(QUERY, cache(), TABLES, STRIDED, 1.0)),
    "decode, more queries": ("one query a sequence", lambda: decode.decode(QUERY, cache(), TABLES[:1], ONES[:1], 1.0)),
    "decode, float lengths": (
        "seq_lens torch.float32",
        lambda: decode.decode(QUERY, cache(), TABLES, ONES.float(), 1.0),
    ),
    "decode, strided tables": (
        "block_tables with strides",
        lambda: decode.decode(QUERY, cache(), TABLES.repeat(1, 2)[:, ::2], ONES, 1.0),
    ),
    "decode, odd heads": ("expected a multiple of 2", lambda: decode.decode(QUERY[:, :3], cache(), TABLES, ONES, 1.0)),
    "prefill, strided starts": (
        "query_start_loc .* contiguous",
        lambda: prefill.prefill(QUERY, torch.arange(6, dtype=torch.int32)[::2], 1, cache(), TABLES, ONES, 1.0),
    ),
    "gather, strided blocks": ("blocks .* contiguous", lambda: copy.gather_blocks(cache(), STRIDED)),
    "scatter, strided blocks": (
        "blocks .* contiguous",
        lambda: copy.scatter_blocks(copy.gather_blocks(cache(), ONES), cache(), STRIDED),
    ),
    "gather of tokens, strided table": ("table .* contiguous", lambda: quant.gather(cache(), STRIDED, 0, 2)),
    "copy, part outside a block": ("expected a range", lambda: copy.copy_blocks(cache(), torch.tensor([[0, 1]]), 0, 5)),
    "copy, float pairs": ("pairs torch.float32", lambda: copy.copy_blocks(cache(), torch.zeros((1, 2)))),
    "scatter, transposed buffers": (
        "contiguous last dimension",
        lambda: copy.scatter_blocks(
            [one.mT.contiguous().mT for one in copy.gather_blocks(cache(), ONES)], cache(), ONES
        ),
    ),
    "scatter, another type": (
        "expected one type",
        lambda: copy.scatter_blocks(copy.gather_blocks(cache(), ONES), cache("float16"), ONES),
    ),
    "decode, no splits": ("splits 0", lambda: decode.decode(QUERY, cache(), TABLES, ONES, 1.0, splits=0)),
    "latent, all of it rope": ("rope 48", lambda: mla.mla(torch.zeros(2, 4, 48), LATENT, 48, TABLES, ONES, 1.0)),
    "reshard, strided": (
        "shards with strides",
        lambda: copy.reshard(torch.zeros((2, 1, 4, 1, 8))[..., ::2], 2, 1),
    ),
    "latent, strided": ("contiguous", lambda: mla.mla_write(LATENT[0, :, ::2], LATENT[0, :, :24], LATENT, ONES)),
    "latent, one table": ("block_tables", lambda: mla.mla(torch.zeros(2, 4, 48), LATENT, 16, TABLES[:1], ONES, 1.0)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_read_wrongly_is_refused(name: str) -> None:
    message, call = REFUSED[name]

    with pytest.raises(ValueError, match=message):
        call()


def test_small_v_keeps_its_digits_in_float16_dot_products() -> None:
    """Weights times scales of 2**-20 would be subnormal in float16."""
    paged = cache("int8_per_token_head")
    generator = torch.Generator().manual_seed(0)
    values = torch.randn((4, 2, 32), generator=generator) * 1e-5
    quant.write(torch.randn((4, 2, 32), generator=generator), values, paged, torch.arange(4))
    _, stored = quant.gather(paged, torch.zeros(1, dtype=torch.int32), 0, 4)

    query = torch.zeros((1, 4, 32), dtype=torch.float16)
    output = decode.decode(
        query, paged, torch.zeros((1, 1), dtype=torch.int32), torch.tensor([4], dtype=torch.int32), 1.0,
        output_dtype=torch.float32,
    ).output  # fmt: skip

    mean = stored.double().mean(0).repeat_interleave(2, 0)
    assert (output[0].double() - mean).abs().max() < 1e-3 * stored.abs().max()
