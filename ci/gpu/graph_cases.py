"""A decode step through static tensors and a CUDA graph as a case: other tables for each input set, one graph for all.

The baseline is the same step without a graph, which must give the same outputs bit for bit. What is checked is a replay; what is
timed is the copy into the static tensors and the step behind it, since the timer captures calls into a graph of its own.

Not yet run on a GPU.
"""

from __future__ import annotations

import torch

from kvsan.ci.gpu.attention_cases import splits_for
from kvsan.ci.gpu.cases import Case, Contestant
from kvsan.ci.gpu.inputs import Shape
from kvsan.ci.gpu.memory_cases import difference
from kvsan.ci.kernels.kernel_set import KernelSet
from kvsan.gpu_kernels.addressing import PADDING_SLOT
from kvsan.gpu_kernels.cuda_graphs import DecodeBatch, DecodeGraph
from kvsan.gpu_kernels.layout import PagedCache, allocate_cache

_SETS = 4
_ROWS_OF_PADDING = 1


def graph_case(shape: Shape, kernels: KernelSet, device: str, processors: int) -> Case:
    """Make a cache, a graph over it for a row more than a batch has, and batches whose tables name its blocks in any order."""
    blocks = -(-shape.length // shape.block_size)
    cache = allocate_cache(
        shape.rows * blocks, shape.block_size, shape.kv_heads, shape.head_dim, shape.dtype, "NHD", device
    )
    cache.keys.normal_()
    cache.values.normal_()
    splits, scale = splits_for(shape, processors), shape.head_dim**-0.5
    batches = [_draw_batch(shape, cache, blocks) for _ in range(_SETS)]
    graph = DecodeGraph(cache, shape.rows + _ROWS_OF_PADDING, blocks, shape.q_heads, scale, splits)

    def replayed(number: int) -> torch.Tensor:
        return graph.replay(batches[number])

    def eager(number: int) -> torch.Tensor:
        one = batches[number]
        kernels.write(one.key, one.value, cache, one.slots)
        return kernels.decode(one.query, cache, one.tables, one.lengths, scale, splits=splits).output

    def poison(number: int) -> None:
        graph.static.tables.zero_()
        graph.static.lengths.zero_()
        graph.static.slots.fill_(PADDING_SLOT)
        for tensor in (cache.keys, cache.values):
            tensor.flatten(0, 1)[batches[number].slots] = float("nan")

    def wrong(number: int, result: object) -> str:
        assert isinstance(result, torch.Tensor)
        found = result.clone()
        return difference("output", found, eager(number)) or ("NaN" if bool(torch.isnan(found).any()) else "")

    contestants = Contestant("KVSan, graph replay", replayed), Contestant("KVSan, eager", eager)
    return Case(f"step of {shape.name}", _SETS, shape.moved_bytes, contestants, poison, wrong)


def _draw_batch(shape: Shape, cache: PagedCache, blocks: int) -> DecodeBatch:
    device, last = cache.keys.device, shape.length - 1
    tables = torch.randperm(shape.rows * blocks, device=device).reshape(shape.rows, blocks)
    token = (shape.rows, shape.kv_heads, shape.head_dim)
    query = torch.randn((shape.rows, shape.q_heads, shape.head_dim), device=device)
    key, value = torch.randn((2, *token), device=device)
    return DecodeBatch(
        query.to(cache.keys.dtype),
        key.to(cache.keys.dtype),
        value.to(cache.keys.dtype),
        tables.int(),
        torch.full((shape.rows,), shape.length, dtype=torch.int32, device=device),
        tables[:, last // shape.block_size] * shape.block_size + last % shape.block_size,
    )
