"""A decode step through static tensors equals the same step without: interpreted on a CPU, as a CUDA graph on a GPU."""

from __future__ import annotations

import pytest
import torch

from kvsan.gpu_kernels.addressing import PADDING_SLOT
from kvsan.gpu_kernels.cuda_graphs import DecodeBatch, DecodeGraph, step
from kvsan.gpu_kernels.layout import PagedCache, allocate_cache

SIZE, BLOCKS, HEADS, DIM = 4, 4, 2, 32
NUM_BLOCKS = 24
HAS_GPU = torch.cuda.is_available()


def filled_cache(device: str) -> PagedCache:
    cache = allocate_cache(NUM_BLOCKS, SIZE, HEADS, DIM, "float16", "NHD", device)
    for tensor in (cache.keys, cache.values):
        tensor.normal_()
    return cache


def draw_batch(rows: int, device: str) -> DecodeBatch:
    """Sequences of other lengths, in other blocks, than those of any earlier batch."""
    tables = torch.randperm(NUM_BLOCKS)[: rows * BLOCKS].reshape(rows, BLOCKS)
    lengths = torch.randint(1, SIZE * BLOCKS + 1, (rows,))
    last = lengths - 1
    slots = tables[torch.arange(rows), last // SIZE] * SIZE + last % SIZE
    query, key, value = (torch.randn((rows, heads, DIM), dtype=torch.float16) for heads in (2 * HEADS, HEADS, HEADS))
    moved = (query, key, value, tables.int(), lengths.int(), slots)
    return DecodeBatch(*(tensor.to(device) for tensor in moved))


def compare(device: str, batches: tuple[int, ...]) -> None:
    """Replay batches of so many rows one after the other; caches and outputs stay those of eager steps, bit for bit."""
    torch.manual_seed(0)
    cache = filled_cache(device)
    eager = allocate_cache(NUM_BLOCKS, SIZE, HEADS, DIM, "float16", "NHD", device)
    eager.keys.copy_(cache.keys)
    eager.values.copy_(cache.values)
    graph = DecodeGraph(cache, 4, BLOCKS, 2 * HEADS, DIM**-0.5)
    for rows in batches:
        batch = draw_batch(rows, device)
        output = graph.replay(batch)
        wanted = step(batch, eager, DIM**-0.5).output
        assert torch.equal(output, wanted)
        assert torch.equal(cache.keys, eager.keys)
        assert torch.equal(cache.values, eager.values)


@pytest.mark.skipif(HAS_GPU, reason="kernels are not interpreted where there is a CUDA device")
def test_static_tensors_are_rewritten_and_padded() -> None:
    compare("cpu", (4, 2, 3, 1))


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="there is no CUDA device")
def test_a_replayed_graph_equals_eager_steps() -> None:
    compare("cuda", (4, 2, 3, 1, 4, 4, 1))


def test_capturing_writes_nothing() -> None:
    device = "cuda" if HAS_GPU else "cpu"
    cache = filled_cache(device)
    before = cache.keys.clone()
    DecodeGraph(cache, 4, BLOCKS, 2 * HEADS, 1.0)
    assert torch.equal(cache.keys, before)


def test_padding_is_what_kernels_skip() -> None:
    device = "cuda" if HAS_GPU else "cpu"
    graph = DecodeGraph(filled_cache(device), 4, BLOCKS, 2 * HEADS, 1.0)
    for rows in (4, 1):
        graph.fill(draw_batch(rows, device))
    assert graph.static.slots[1:].tolist() == [PADDING_SLOT] * 3
    assert graph.static.lengths[1:].tolist() == [0] * 3


@pytest.mark.parametrize(("rows", "message"), [(5, "5 rows of 4 blocks: expected at most 4 of 4")])
def test_a_batch_that_is_too_large_is_refused(rows: int, message: str) -> None:
    device = "cuda" if HAS_GPU else "cpu"
    graph = DecodeGraph(filled_cache(device), 4, BLOCKS, 2 * HEADS, 1.0)
    with pytest.raises(ValueError, match=message):
        graph.fill(draw_batch(rows, device))
