"""flash-attn and FlashInfer, where they are installed: each given pages that it can read, planned before it is timed.

flash-attn reads pages of 256 tokens, so it is given the contiguous K and V as such pages; FlashInfer reads ours.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

import torch

from kvsan.ci.gpu.cases import Contestant
from kvsan.ci.gpu.inputs import Inputs, Shape

_FLASH_PAGE = 256
_WORKSPACE_BYTES = 256 << 20


def rival_contestants(shape: Shape, inputs: Sequence[Inputs]) -> list[Contestant]:
    """Return both, with a note instead of a call for one that is not installed, or that cannot do this case."""
    found = []
    for name, module, make in (
        (f"flash-attn, pages of {_FLASH_PAGE}", "flash_attn", _flash_attn),
        ("FlashInfer", "flashinfer", _flashinfer),
    ):
        if importlib.util.find_spec(module) is None:
            found.append(Contestant(name, None, "not installed"))
            continue
        try:
            found.append(make(name, importlib.import_module(module), shape, inputs))
        except Exception as error:  # somebody else's package: what it cannot do is told, and is no failure of ours
            found.append(Contestant(name, None, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"))
    return found


def _flash_attn(name: str, flash_attn: Any, shape: Shape, inputs: Sequence[Inputs]) -> Contestant:
    if shape.length % _FLASH_PAGE:
        return Contestant(name, None, f"needs a multiple of {_FLASH_PAGE} tokens")
    pages = shape.length // _FLASH_PAGE
    device = inputs[0].query.device
    tables = torch.arange(shape.rows * pages, dtype=torch.int32, device=device).view(shape.rows, pages)

    def call(number: int) -> torch.Tensor:
        one = inputs[number]
        output = flash_attn.flash_attn_with_kvcache(
            one.query.view(shape.rows, shape.queries, shape.q_heads, shape.head_dim),
            one.keys.view(-1, _FLASH_PAGE, shape.kv_heads, shape.head_dim),
            one.values.view(-1, _FLASH_PAGE, shape.kv_heads, shape.head_dim),
            cache_seqlens=one.lengths,
            block_table=tables,
            causal=True,
        )
        result: torch.Tensor = output.view(one.query.shape)
        return result

    return Contestant(name, call)


def _flashinfer(name: str, flashinfer: Any, shape: Shape, inputs: Sequence[Inputs]) -> Contestant:
    wrappers = [_planned(flashinfer, shape, one) for one in inputs]

    def call(number: int) -> torch.Tensor:
        one = inputs[number]
        result: torch.Tensor = wrappers[number].run(one.query, (one.cache.keys, one.cache.values))
        return result

    return Contestant(name, call)


def _planned(flashinfer: Any, shape: Shape, inputs: Inputs) -> Any:
    device = inputs.query.device
    blocks = inputs.tables.shape[1]
    pages = (
        torch.arange(shape.rows + 1, dtype=torch.int32, device=device) * blocks,
        inputs.tables.flatten(),
        torch.full((shape.rows,), (shape.length - 1) % shape.block_size + 1, dtype=torch.int32, device=device),
    )
    heads = (shape.q_heads, shape.kv_heads, shape.head_dim, shape.block_size)
    types = {"q_data_type": inputs.query.dtype, "kv_data_type": inputs.cache.keys.dtype}
    workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
    if shape.queries == 1:
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
        wrapper.plan(*pages, *heads, **types)
    else:
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
        wrapper.plan(inputs.starts, *pages, *heads, causal=True, **types)
    return wrapper
