"""The host side that attention kernels share: masks, tile sizes, outputs, and the checks of what they are given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from kvsan.gpu_kernels.addressing import first_visible, first_visible_in_chunk
from kvsan.gpu_kernels.layout import PagedCache
from kvsan.gpu_kernels.tiles import CAUSAL, CHUNKED, SLIDING

_INTEGERS = (torch.int32, torch.int64)

AMD = torch.version.hip is not None
"""Whether this process launches on AMD GPUs."""


@dataclass(frozen=True, slots=True)
class Masking:
    """What a causal query sees: ``window`` tokens with its own, or its own chunk of ``chunk`` tokens, or everything.

    ``softcap`` bounds scores by ``softcap * tanh(score / softcap)``. ValueError if both a window and a chunk are given,
    or one is below 1.
    """

    window: int | None = None
    chunk: int | None = None
    softcap: float | None = None

    def __post_init__(self) -> None:
        if self.window is not None and self.chunk is not None:
            raise ValueError("a window and a chunk: expected one of them at most")
        for name, value in (("window", self.window), ("chunk", self.chunk), ("softcap", self.softcap)):
            if value is not None and value <= 0:
                raise ValueError(f"{name} {value}: expected more than 0")

    @property
    def mode(self) -> int:
        """The constant that kernels take as ``MASK``."""
        mode = SLIDING if self.window is not None else CHUNKED if self.chunk is not None else CAUSAL
        return int(mode.value)

    @property
    def span(self) -> int:
        """Window or chunk in tokens; 1 if there is none."""
        return self.window or self.chunk or 1

    def first(self, position: int) -> int:
        """First position that the query at ``position`` sees."""
        if self.chunk is not None:
            return first_visible_in_chunk(position, self.chunk)
        return first_visible(position, self.window)


FULL = Masking()
"""Plain causal attention."""


class Attended(NamedTuple):
    """What attention returns on the device, for ``num_tokens`` queries.

    ``output`` ``[num_tokens, num_q_heads, head_dim]``; ``lse`` float32 ``[num_tokens, num_q_heads]``, the natural
    logarithm of the sum of exp(score), minus infinity where nothing is seen; ``sums`` and ``row_sums`` as in
    ``interface.Attention``, empty unless asked for.
    """

    output: torch.Tensor
    lse: torch.Tensor
    sums: torch.Tensor
    row_sums: torch.Tensor


def new_attended(query: torch.Tensor, dtype: torch.dtype, checked: bool) -> Attended:
    """Allocate outputs; poisoned with NaN if ``checked``, so that an element that no program writes is seen."""
    make = _poisoned if checked else torch.empty
    where = query.device
    head_shape = query.shape[:2]
    return Attended(
        make(query.shape, dtype=dtype, device=where),
        make(head_shape, dtype=torch.float32, device=where),
        make(query.shape if checked else (1, 1, 1), dtype=torch.float32, device=where),
        make(head_shape if checked else (1, 1), dtype=torch.float32, device=where),
    )


def _poisoned(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.full(shape, float("nan"), dtype=dtype, device=device)


def power_of_two(number: int) -> int:
    """Smallest power of two that is not below a positive number."""
    return 1 << (number - 1).bit_length()


def shape_constants(
    cache: PagedCache, masking: Masking, query_dtype: torch.dtype, rows: int, amd: bool = AMD
) -> dict[str, Any]:
    """Constants of an attention kernel, and its warps, that follow from the cache, the mask and the query.

    ``rows`` is how many rows of queries a program has; ``amd`` whether they are for an AMD GPU.
    """
    compute = query_dtype if cache.format.quantised else cache.keys.dtype
    padded = max(16, power_of_two(cache.head_dim))
    packed = cache.format.elements_per_byte > 1
    crowded = rows * padded > 4096 or packed or (cache.format.quantised and rows > 32)
    return {
        "BLOCK_SIZE": cache.block_size,
        "HEAD_DIM": cache.head_dim,
        "DIM": padded,
        "TILE": tile_of(padded, compute.itemsize, rows, amd),
        "MASK": masking.mode,
        "SOFTCAP": masking.softcap is not None,
        **format_constants(cache),
        "num_warps": 8 if crowded else 4,
    }


def format_constants(cache: PagedCache) -> dict[str, int]:
    """Constants that say how a cache's elements are stored."""
    return {"ELEMENTS": cache.format.elements, "FORMAT": cache.format.format}


def tile_of(padded_head_dim: int, compute_bytes: int, rows: int, amd: bool = AMD) -> int:
    """Positions of a tile, 16 or 32, so that K, V, scores, masks and sums stay in registers.

    float32 has no tensor cores to itself: its products are made of registers, so its tiles are smaller. An AMD GPU
    keeps masks in scalar registers, of which 32 positions for many rows take too many.
    """
    room_bytes = 16384 if compute_bytes == 2 else 8192
    return max(16, min(16 if amd and rows > 32 else 32, room_bytes // (padded_head_dim * compute_bytes)))


def or_keys(cache: PagedCache, scales: torch.Tensor | None) -> torch.Tensor:
    """Scales, or a tensor that stands for them where a kernel never looks."""
    return cache.keys if scales is None else scales


def check_attention(query: torch.Tensor, cache: PagedCache, block_tables: torch.Tensor, seq_lens: torch.Tensor) -> None:
    """Raise ValueError unless shapes and types are those that the attention kernels take."""
    fits = query.ndim == 3 and query.shape[2] == cache.head_dim and (query.stride(2) == 1 or query.numel() == 0)
    if not fits:
        raise ValueError(
            f"query {tuple(query.shape)}, strides {query.stride()}: expected [num_tokens, num_q_heads, "
            f"{cache.head_dim}], the last dimension contiguous"
        )
    if query.shape[1] % cache.num_kv_heads:
        raise ValueError(f"{query.shape[1]} q heads: expected a multiple of {cache.num_kv_heads} kv heads")
    check_rows(block_tables, seq_lens)


def check_rows(block_tables: torch.Tensor, seq_lens: torch.Tensor) -> None:
    """Raise ValueError unless there is a block table for each length, and kernels can read both."""
    check_integers("seq_lens", seq_lens)
    rows = len(seq_lens)
    if block_tables.ndim != 2 or len(block_tables) != rows or block_tables.dtype not in _INTEGERS:
        raise ValueError(
            f"block_tables {block_tables.dtype} {tuple(block_tables.shape)}: expected int32 or int64 [{rows}, max_blocks]"
        )
    if block_tables.stride(1) != 1 and block_tables.shape[1] > 1:
        raise ValueError(f"block_tables with strides {block_tables.stride()}: expected the last dimension contiguous")


def check_integers(name: str, tensor: torch.Tensor) -> None:
    """Raise ValueError unless a tensor is int32 or int64, 1-d and contiguous: kernels take no stride of it."""
    if tensor.ndim != 1 or tensor.dtype not in _INTEGERS or not tensor.is_contiguous():
        raise ValueError(
            f"{name} {tensor.dtype} {tuple(tensor.shape)}, strides {tensor.stride()}: expected int32 or int64, 1-d, "
            "contiguous"
        )
