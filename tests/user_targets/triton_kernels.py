"""A paged decode in Triton as a user writes it, and wrong versions of it; tests copy this file to an empty folder."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def paged_decode(
    output, query, key_cache, value_cache, block_tables, seq_lens, scale, stride_token, stride_table, stride_block,
    stride_slot, GROUP: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, LAG: tl.constexpr,
    BEYOND: tl.constexpr,
):  # fmt: skip
    """One program a sequence and kv head; it takes the unit of ``LAG`` blocks before, and ``BEYOND`` blocks too many."""
    row, kv_head = tl.program_id(0), tl.program_id(1)
    g, t, d = tl.arange(0, GROUP), tl.arange(0, BLOCK_SIZE), tl.arange(0, HEAD_DIM)
    queries = row.to(tl.int64) * stride_token + (kv_head * GROUP + g)[:, None] * HEAD_DIM + d[None, :]
    q = tl.load(query + queries).to(tl.float32) * scale
    length = tl.load(seq_lens + row)
    maximum = tl.full([GROUP], float("-inf"), tl.float32)
    row_sum = tl.zeros([GROUP], tl.float32)
    total = tl.zeros([GROUP, HEAD_DIM], tl.float32)
    for block in range(0, tl.cdiv(length, BLOCK_SIZE) + BEYOND):
        unit = tl.load(block_tables + row.to(tl.int64) * stride_table + tl.maximum(block - LAG, 0)).to(tl.int64)
        inside = block * BLOCK_SIZE + t < length
        at = unit * stride_block + t[:, None] * stride_slot + kv_head * HEAD_DIM + d[None, :]
        mask = (inside | (BEYOND > 0))[:, None] & (d >= 0)[None, :]
        k = tl.load(key_cache + at, mask=mask, other=0.0).to(tl.float32)
        v = tl.load(value_cache + at, mask=mask, other=0.0).to(tl.float32)
        scores = tl.where(inside[None, :], tl.sum(q[:, None, :] * k[None, :, :], 2), float("-inf"))
        new = tl.maximum(maximum, tl.max(scores, 1))
        weights = tl.exp(scores - new[:, None])
        shrink = tl.exp(maximum - new)
        row_sum = row_sum * shrink + tl.sum(weights, 1)
        total = total * shrink[:, None] + tl.sum(weights[:, :, None] * v[None, :, :], 1)
        maximum = new
    tl.store(output + queries, (total / row_sum[:, None]).to(output.dtype.element_ty))


def launch(
    output: torch.Tensor, query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor,
    block_tables: torch.Tensor, seq_lens: torch.Tensor, scale: float, lag: int = 0, beyond: int = 0,
) -> None:  # fmt: skip
    _, block_size, kv_heads, head_dim = key_cache.shape
    paged_decode[len(seq_lens), kv_heads](
        output, query, key_cache, value_cache, block_tables, seq_lens, scale, query.stride(0), block_tables.stride(0),
        key_cache.stride(0), key_cache.stride(1), GROUP=query.shape[1] // kv_heads, BLOCK_SIZE=block_size,
        HEAD_DIM=head_dim, LAG=lag, BEYOND=beyond,
    )  # fmt: skip


def decode(output, query, key_cache, value_cache, block_tables, seq_lens, scale):
    launch(output, query, key_cache, value_cache, block_tables, seq_lens, scale)


def decode_wrong_block(output, query, key_cache, value_cache, block_tables, seq_lens, scale):
    launch(output, query, key_cache, value_cache, block_tables, seq_lens, scale, lag=1)


def decode_one_block_too_many(output, query, key_cache, value_cache, block_tables, seq_lens, scale):
    launch(output, query, key_cache, value_cache, block_tables, seq_lens, scale, beyond=1)
