"""Our decode and prefill against torch's own paged attention, over one and the same K/V memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from drawn_problems import DEVICE
from torch.nn.attention.experimental._paged_attention import PagedAttention
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from kvsan.ci.kernels.expected import Context, Rounding, attend
from kvsan.gpu_kernels.decode import decode
from kvsan.gpu_kernels.formats import format_named
from kvsan.gpu_kernels.launching import Masking
from kvsan.gpu_kernels.layout import PagedCache
from kvsan.gpu_kernels.prefill import prefill

PAGES, HEADS, GROUP, HEAD_DIM = 24, 2, 3, 32
SCALE = 0.2
ROUNDING = Rounding("float32", "float32")
LENGTHS = (37, 8, 21)

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


@dataclass
class Pool:
    """torch's page table, its K/V memory ``[1, heads, slots, head_dim]``, and the tokens that were assigned."""

    table: PagedAttention
    keys: torch.Tensor
    values: torch.Tensor
    tokens: list[Context]

    def ours(self) -> PagedCache:
        """The same memory as a cache of ours, on our device."""
        parts = (one[0].unflatten(1, (PAGES, -1)).permute(1, 2, 0, 3).to(DEVICE) for one in (self.keys, self.values))
        return PagedCache(format_named("float32"), HEAD_DIM, *parts)


def assigned(page_size: int) -> Pool:
    """Sequences in pages that are neither in order nor next to each other: another one was erased between them."""
    rng = torch.Generator().manual_seed(page_size)
    table = PagedAttention(PAGES, page_size, len(LENGTHS) + 1, device="cpu")
    shape = (1, HEADS, PAGES * page_size, HEAD_DIM)
    pool = Pool(table, torch.zeros(shape), torch.zeros(shape), [])
    last = torch.tensor([len(LENGTHS)])
    table.reserve(last, torch.tensor([3 * page_size]))
    for row, length in enumerate(LENGTHS):
        for part in (length // 2, length):
            table.reserve(torch.tensor([row]), torch.tensor([part]))
        if row == 0:
            table.erase(last)
        key, value = (torch.randn((1, HEADS, length, HEAD_DIM), generator=rng) for _ in range(2))
        places = torch.arange(length)[None]
        table.assign(torch.tensor([row]), places, key, value, pool.keys, pool.values)
        keys, values = (one[0].transpose(0, 1).double().numpy() for one in (key, value))
        pool.tokens.append(Context(keys, values, np.ones((length, HEADS, 1))))
    return pool


def opinion(pool: Pool, query: torch.Tensor, masking: Masking) -> torch.Tensor:
    """What torch computes for queries ``[num_rows, queries, q_heads, head_dim]`` at the sequences' ends."""
    rows, count = query.shape[:2]
    lengths = torch.tensor(LENGTHS)
    page = pool.table.page_size

    def sees(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        position = lengths[b] - count + q
        first = torch.zeros_like(position)
        if masking.window is not None:
            first = position - masking.window + 1
        if masking.chunk is not None:
            first = position // masking.chunk * masking.chunk
        return (kv <= position) & (kv >= first)

    def capped(score: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        return score if masking.softcap is None else masking.softcap * torch.tanh(score / masking.softcap)

    longest = -(-max(LENGTHS) // page) * page
    mask = create_block_mask(sees, rows, 1, count, longest, device="cpu", BLOCK_SIZE=(16, page))
    mask = pool.table.convert_logical_block_mask(mask, kv_len=lengths)
    score = pool.table.get_score_mod(capped, kv_len=lengths)
    found = flex_attention(query.transpose(1, 2), pool.keys, pool.values, score, mask, scale=SCALE, enable_gqa=True)
    assert isinstance(found, torch.Tensor)
    return found.transpose(1, 2)


def our_decode(pool: Pool, query: torch.Tensor, tables: torch.Tensor, masking: Masking) -> torch.Tensor:
    """Our decode of queries ``[num_rows, 1, q_heads, head_dim]``, split."""
    arguments = (query[:, 0], pool.ours(), tables.contiguous(), torch.tensor(LENGTHS))
    on_device = (one if isinstance(one, PagedCache) else one.to(DEVICE) for one in arguments)
    return decode(*on_device, SCALE, masking, splits=2).output[:, None].cpu()


def our_prefill(pool: Pool, query: torch.Tensor, tables: torch.Tensor, masking: Masking) -> torch.Tensor:
    """Our prefill of queries ``[num_rows, queries, q_heads, head_dim]``."""
    rows, count = query.shape[:2]
    starts = torch.arange(rows + 1, device=DEVICE) * count
    lengths = torch.tensor(LENGTHS, device=DEVICE)
    flat = query.flatten(0, 1).to(DEVICE)
    tables = tables.contiguous().to(DEVICE)
    return (
        prefill(flat, starts, count, pool.ours(), tables, lengths, SCALE, masking)
        .output.cpu()
        .unflatten(0, (rows, count))
    )


def difference(pool: Pool, ours: torch.Tensor, query: torch.Tensor, masking: Masking) -> float:
    """Largest difference of the two opinions, as a share of what both of them may be off; NaN if one of them is."""
    theirs = opinion(pool, query, masking)
    shares = []
    for row, (length, context) in enumerate(zip(LENGTHS, pool.tokens, strict=True)):
        queries = query[row].double().numpy()
        expected = attend(queries, length - len(queries), context, SCALE, masking, ROUNDING)
        apart = (ours[row] - theirs[row]).abs().double().numpy()
        shares.append((apart / (2 * expected.output_bound)).max())
    return float(np.max(shares))


def random_queries(count: int) -> torch.Tensor:
    shape = (len(LENGTHS), count, HEADS * GROUP, HEAD_DIM)
    return torch.randn(shape, generator=torch.Generator().manual_seed(count))


MASKS = [Masking(), Masking(window=5), Masking(chunk=8), Masking(softcap=3.0), Masking(window=13, softcap=20.0)]


@pytest.mark.parametrize("masking", MASKS, ids=repr)
@pytest.mark.parametrize("page_size", [4, 16])
def test_decode_agrees(page_size: int, masking: Masking) -> None:
    pool, query = assigned(page_size), random_queries(1)

    ours = our_decode(pool, query, pool.table.page_table[: len(LENGTHS)], masking)

    assert difference(pool, ours, query, masking) <= 1.0


@pytest.mark.parametrize("masking", MASKS, ids=repr)
@pytest.mark.parametrize("page_size", [4, 16])
def test_prefill_agrees(page_size: int, masking: Masking) -> None:
    pool, query = assigned(page_size), random_queries(8)

    ours = our_prefill(pool, query, pool.table.page_table[: len(LENGTHS)], masking)

    assert difference(pool, ours, query, masking) <= 1.0


def test_another_page_would_be_seen() -> None:
    pool, query = assigned(4), random_queries(1)
    tables = pool.table.page_table[: len(LENGTHS)].clone()
    tables[1, [0, 1]] = tables[0, [0, 1]]

    ours = our_decode(pool, query, tables, Masking())

    assert difference(pool, ours, query, Masking()) > 1.0
