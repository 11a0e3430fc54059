"""Blocks on the move: copy on write, gather and scatter for transfers, and re-sharding between tensor-parallel layouts.

One kernel moves blocks, whoever they belong to, because copying, gathering and scattering differ in the numbers alone::

    grid       (pair, tile of SLOTS slots, head)
    pair i     source_blocks[i] of ``source``  ->  target_blocks[i] of ``target``, slots [start, stop)

Elements are moved as bits, so NaN and every code arrive as they were. Pairs of one launch run in any order: a block
must not be written by one pair and read or written by another.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvsan.gpu_kernels.addressing import heads_per_rank
from kvsan.gpu_kernels.launching import check_integers, power_of_two
from kvsan.gpu_kernels.layout import PagedCache

_SLOTS = 16
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


@triton.jit
def move_blocks(
    source, target, source_blocks, target_blocks, start, stop,
    stride_sb, stride_ss, stride_sh, stride_tb, stride_ts, stride_th,
    SLOTS: tl.constexpr, WIDTH: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """Move slots ``[start, stop)`` of one block and head."""
    pair = tl.program_id(0)
    slot = tl.program_id(1) * SLOTS + tl.arange(0, SLOTS)
    head = tl.program_id(2).to(tl.int64)
    origin = tl.load(source_blocks + pair).to(tl.int64)
    goal = tl.load(target_blocks + pair).to(tl.int64)
    d = tl.arange(0, DIM)
    mask = ((slot >= start) & (slot < stop))[:, None] & (d < WIDTH)[None, :]
    at = slot.to(tl.int64)
    moved = tl.load(source + (origin * stride_sb + at * stride_ss + head * stride_sh)[:, None] + d[None, :], mask=mask)
    tl.store(target + (goal * stride_tb + at * stride_ts + head * stride_th)[:, None] + d[None, :], moved, mask=mask)


@triton.jit
def move_heads(
    source, target, stride_sr, stride_sb, stride_ss, stride_sh, stride_tr, stride_tb, stride_ts, stride_th, num_blocks,
    NUM_HEADS: tl.constexpr, SOURCE_RANKS: tl.constexpr, TARGET_RANKS: tl.constexpr,
    SLOTS: tl.constexpr, BLOCK_SIZE: tl.constexpr, WIDTH: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """Move one head of one block from the rank that holds it to one that shall, ``SLOTS`` slots at a time.

    grid (target rank x block, tile of slots, head of the target rank); ranks follow ``addressing.heads_per_rank``.
    """
    rank = tl.program_id(0) // num_blocks
    block = (tl.program_id(0) % num_blocks).to(tl.int64)
    slot = tl.program_id(1) * SLOTS + tl.arange(0, SLOTS)
    own = tl.program_id(2)
    head = rank * NUM_HEADS // TARGET_RANKS + own
    origin = head * SOURCE_RANKS // NUM_HEADS
    there = head - origin * NUM_HEADS // SOURCE_RANKS
    d = tl.arange(0, DIM)
    at = slot.to(tl.int64)
    mask = (slot < BLOCK_SIZE)[:, None] & (d < WIDTH)[None, :]
    moved = tl.load(
        source
        + origin.to(tl.int64) * stride_sr
        + (block * stride_sb + at * stride_ss + there.to(tl.int64) * stride_sh)[:, None]
        + d[None, :],
        mask=mask,
    )
    tl.store(
        target
        + rank.to(tl.int64) * stride_tr
        + (block * stride_tb + at * stride_ts + own.to(tl.int64) * stride_th)[:, None]
        + d[None, :],
        moved,
        mask=mask,
    )


def slot_constants(width: int) -> dict[str, int]:
    """Constants of kernels that go through slots, ``SLOTS`` a program, of vectors of ``width`` elements."""
    return {"SLOTS": _SLOTS, "WIDTH": width, "DIM": power_of_two(width)}


def copy_blocks(cache: PagedCache, pairs: torch.Tensor, start: int = 0, stop: int | None = None) -> None:
    """Copy slots ``[start, stop)`` of blocks to others of the same cache, scales included: copy on write.

    ``pairs`` int64 ``[num_pairs, 2]``, source and target block. ValueError on a bad shape or range.
    """
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise ValueError(f"pairs {tuple(pairs.shape)}: expected [num_pairs, 2]")
    check_integers("pairs", pairs.flatten())
    sources, targets = pairs[:, 0].contiguous(), pairs[:, 1].contiguous()
    for tensor in cache.tensors():
        _move(tensor, tensor, sources, targets, start, cache.block_size if stop is None else stop)


def gather_blocks(cache: PagedCache, blocks: torch.Tensor) -> list[torch.Tensor]:
    """Copy blocks into contiguous buffers ``[num_blocks, block_size, num_kv_heads, width]``, one for each tensor.

    ``blocks`` int64 ``[num_blocks]``. The buffers are in the order of ``PagedCache.tensors``.
    """
    check_integers("blocks", blocks)
    places = torch.arange(len(blocks), device=blocks.device)
    buffers = [tensor.new_empty((len(blocks), *tensor.shape[1:])) for tensor in cache.tensors()]
    for tensor, buffer in zip(cache.tensors(), buffers, strict=True):
        _move(tensor, buffer, blocks, places, 0, cache.block_size)
    return buffers


def scatter_blocks(buffers: list[torch.Tensor], cache: PagedCache, blocks: torch.Tensor) -> None:
    """Copy what ``gather_blocks`` returned into blocks of a cache, int64 ``[num_blocks]``."""
    check_integers("blocks", blocks)
    places = torch.arange(len(blocks), device=blocks.device)
    for buffer, tensor in zip(buffers, cache.tensors(), strict=True):
        if buffer.shape != (len(blocks), *tensor.shape[1:]):
            raise ValueError(f"buffer {tuple(buffer.shape)}: expected {(len(blocks), *tensor.shape[1:])}")
        _move(buffer, tensor, places, blocks, 0, cache.block_size)


def reshard(shards: torch.Tensor, num_heads: int, ranks: int) -> torch.Tensor:
    """Turn the shards of one tensor-parallel layout into those of another.

    ``shards`` ``[source_ranks, num_blocks, block_size, heads of a rank, width]``, any strides but the last; returns
    ``[ranks, num_blocks, block_size, heads of a rank, width]``. Where ranks share a head all of them get it.
    ValueError unless one of ``num_heads`` and each number of ranks divides the other.
    """
    sources, num_blocks, block_size, held, width = shards.shape
    for count in (sources, ranks):
        if num_heads % count and count % num_heads:
            raise ValueError(f"{num_heads} heads on {count} ranks: expected one to divide the other")
    if held != heads_per_rank(num_heads, sources):
        raise ValueError(f"{held} heads a rank: expected {heads_per_rank(num_heads, sources)}")
    if shards.stride(4) != 1 and width > 1:
        raise ValueError(f"shards with strides {shards.stride()}: expected the last dimension contiguous")
    result = shards.new_empty((ranks, num_blocks, block_size, heads_per_rank(num_heads, ranks), width))
    if num_blocks:
        bits = _BITS[shards.element_size()]
        grid = (ranks * num_blocks, triton.cdiv(block_size, _SLOTS), result.shape[3])
        move_heads[grid](
            shards.view(bits), result.view(bits), *shards.stride()[:4], *result.stride()[:4], num_blocks,
            NUM_HEADS=num_heads, SOURCE_RANKS=sources, TARGET_RANKS=ranks,
            BLOCK_SIZE=block_size, **slot_constants(width),
        )  # fmt: skip
    return result


def _move(
    source: torch.Tensor, target: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor, start: int, stop: int
) -> None:
    _, block_size, heads, width = source.shape
    if source.dtype != target.dtype or ({source.stride(3), target.stride(3)} != {1} and width > 1):
        raise ValueError(
            f"{source.dtype}, strides {source.stride()}, to {target.dtype}, strides {target.stride()}: expected one type "
            "and a contiguous last dimension"
        )
    if not 0 <= start <= stop <= block_size:
        raise ValueError(f"slots [{start}, {stop}): expected a range in blocks of {block_size}")
    if len(sources) == 0 or start == stop:
        return
    bits = _BITS[source.element_size()]
    move_blocks[(len(sources), triton.cdiv(block_size, _SLOTS), heads)](
        source.view(bits), target.view(bits), sources, targets, start, stop,
        *source.stride()[:3], *target.stride()[:3], **slot_constants(width),
    )  # fmt: skip
