"""Address arithmetic with one thing wrong: each is refuted by a named claim, with numbers on which it goes wrong.

The numbers in ``source`` are public reports of the mechanism (those without a name are vLLM's), where there is one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kvsan.gpu_kernels import addressing, sharding
from kvsan.gpu_kernels.sharding import Layout, MemoryLayout, Whole
from kvsan.invariants.proofs.addressing import REAL, Functions


@dataclass(frozen=True, slots=True)
class BrokenAddressing:
    """One function replaced by a wrong one; ``claim`` names the claim that must be refuted, ``mechanism`` the mistake.

    ``also`` names other claims that it refutes, those for which no variant is made of its own.
    """

    name: str
    function: str
    functions: Functions
    claim: str
    mechanism: str
    source: str = ""
    also: tuple[str, ...] = ()


def offset_of_next(position: int, block_size: int) -> int:
    """Offset of the next position."""
    return (position + 1) % block_size


def block_of_next(position: int, block_size: int) -> int:
    """Block of the next position."""
    return (position + 1) // block_size


def slots_one_short(unit: int, offset: int, block_size: int) -> int:
    """Slot where units are one slot closer to each other than they are long."""
    return unit * (block_size - 1) + offset


def slots_from_one(unit: int, offset: int, block_size: int) -> int:
    """Slot where offsets are taken to start at 1: the first of the pool is -1, which is padding."""
    return unit * block_size + offset - 1


def blocks_rounded_down(tokens: int, block_size: int) -> int:
    """Blocks without the one that is full in part."""
    return tokens // block_size


def blocks_and_one(tokens: int, block_size: int) -> int:
    """Blocks, with one too many where tokens fill the last one."""
    return tokens // block_size + 1


def window_one_wide(position: int, window: int | None) -> int:
    """First visible position of a window that does not count the query's own token."""
    if window is None:
        return 0
    first = position - window
    return first * (first > 0)


def window_not_clamped(position: int, window: int | None) -> int:
    """First visible position of a window, below 0 at the start of a sequence."""
    return 0 if window is None else position - window + 1


def window_block_rounded_up(position: int, window: int | None, block_size: int) -> int:
    """First block that is visible as a whole."""
    return addressing.blocks_for(addressing.first_visible(position, window), block_size)


def chunk_as_window(position: int, chunk: int) -> int:
    """First visible position where a chunk is taken for a window."""
    return max(0, position - chunk + 1)


def heads_without_replicas(tp_rank: int, tp: int, num_heads: int) -> int:
    """First head by the heads that a rank has, where a rank with a copy has one of its own."""
    return tp_rank * addressing.heads_per_rank(num_heads, tp) % num_heads


def local_head_of_one_rank(head: int, tp: int, num_heads: int) -> int:
    """Index of a head where no rank holds another."""
    return head


def query_heads_without_replicas(tp_rank: int, tp: int, num_heads: int, num_q_heads: int) -> int:
    """First q head by a number of replicas that is 0 where a rank holds several heads."""
    group, replicas = num_q_heads // num_heads, tp // num_heads
    return sharding.first_head_of(tp_rank, tp, num_heads) * group + tp_rank % replicas * group // replicas


def interleave_forgotten(position: int, interleave: int, cp: int) -> int:
    """Holder where every token is a run of its own."""
    return position % cp


def run_in_part_forgotten(tokens: int, cp_rank: int, interleave: int, cp: int) -> int:
    """Local length without a run that is not complete."""
    return sharding.local_length_of(tokens, cp_rank, interleave, cp) // interleave * interleave


def page_times_ranks(unit: int, position: int, interleave: int, cp: int, block_size: int) -> int:
    """Local slot where the unit is scaled by the ranks that its tokens are on."""
    return sharding.local_slot_of(unit * cp, position, interleave, cp, block_size)


def ranks_without_dcp(tp_rank: int, cp_rank: int, tp: int, dcp: int) -> int:
    """Number of a rank where one that has more than one context-parallel neighbour is taken to have none."""
    return cp_rank * tp + tp_rank * dcp


def slot_major_always(memory_layout: MemoryLayout, block_size: int, heads: int) -> tuple[int, int]:
    """Strides of slot-major pages, whatever the memory layout is."""
    return sharding.vector_strides("NHD", block_size, heads)


def heads_in_slots(offset: int, head: int, block_size: int) -> int:
    """Place in a head-major page where the heads of a slot are taken to follow each other."""
    return offset * block_size + head


def scales_not_aligned(vectors: int, width: int, element_bytes: int) -> int:
    """Bytes of a part without what alignment needs."""
    return vectors * width * element_bytes


def vectors_padded(vectors: int, width: int, element_bytes: int) -> int:
    """Bytes of a part where each vector is aligned by itself, so that narrow vectors take more room than wide ones."""
    return vectors * addressing.aligned(width * element_bytes)


def scales_of_keys_forgotten(part: int, data_bytes: int, scale_bytes: int) -> int:
    """Start of a part where the scales of V are taken to follow V."""
    return min(part, 2) * data_bytes + (part > 3) * scale_bytes


def page_without_scales(data_bytes: int, scale_bytes: int) -> int:
    """Bytes of a page, its scales forgotten."""
    return 2 * data_bytes


def one_unit_too_many(stride: int, reach: int, largest: int = addressing.INT32_MAX) -> int:
    """Units that fit where the number of indexes is taken for the largest index."""
    return (largest + 1) // stride + 1


class LocalPageTimesDcp(Layout):
    """The page of a local position is scaled by the ranks that its tokens are on."""

    def local(self, position: Whole) -> Whole:
        """Local position of a position, in the wrong page."""
        local = Layout.local(self, position)
        return local // self.block_size * self.dcp * self.block_size + local % self.block_size


class RunsCrossPages(Layout):
    """Runs of tokens may be longer than a page, or end within one."""

    def __post_init__(self) -> None:
        """Check all but that the interleave divides the block size."""
        if self.interleave < 1:
            raise ValueError(f"interleave {self.interleave}: expected 1 or more")
        Layout(self.tp, self.dcp, self.pcp, 1, self.block_size, self.num_kv_heads, self.memory_layout)


def _broken(
    claim: str, function: str, wrong: Callable[..., Any], mechanism: str, source: str = "", *also: str
) -> BrokenAddressing:
    functions = replace(REAL, **{function: wrong})
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", wrong.__name__).lower()
    return BrokenAddressing(name, function, functions, claim, mechanism, source, also)


BROKEN = (
    _broken("positions", "offset_of", offset_of_next, "off by one token"),
    _broken("positions", "block_of", block_of_next, "off by one block at each boundary"),
    _broken(
        "slots-injective", "slot_of", slots_one_short, "units overlap by a slot", "FlashInfer 527", "slots-inverse"
    ),
    _broken("padding", "slot_of", slots_from_one, "a slot of the pool is padding's number", "", "slots-in-range"),
    _broken("table-length", "blocks_for", blocks_rounded_down, "tables end before their tokens", "56469, 54296"),
    _broken("table-length", "blocks_for", blocks_and_one, "a block too many at a boundary", "SGLang 22819"),
    _broken("window", "first_visible", window_one_wide, "a window off by one", "48435"),
    _broken("window", "first_visible", window_not_clamped, "a window that begins before the sequence"),
    _broken(
        "window-blocks", "first_visible_block", window_block_rounded_up, "a visible block is taken for one that left"
    ),
    _broken(
        "chunk", "first_visible_in_chunk", chunk_as_window, "a chunk is taken for a window", "", "chunk-boundaries"
    ),
    _broken("heads", "first_head_of", heads_without_replicas, "wrong shard stride: replicas are dealt, not neighbours"),
    _broken("tp-relayout", "local_head_of", local_head_of_one_rank, "an index of the whole used on a shard"),
    _broken("query-heads", "first_query_head_of", query_heads_without_replicas, "division by 0 replicas"),
    _broken("context-parallel", "holder_of", interleave_forgotten, "interleaving forgotten"),
    _broken("local-length", "local_length_of", run_in_part_forgotten, "a run in part is not counted"),
    _broken("local-slots", "local_slot_of", page_times_ranks, "page = page * dcp", "SGLang 38941"),
    _broken("rank-numbers", "rank_of", ranks_without_dcp, "two ranks have one number"),
    _broken("vectors", "vector_strides", slot_major_always, "NHD strides of HND pages", "37703, 46204"),
    _broken("vectors", "hnd_vector_of", heads_in_slots, "offset and head exchanged in HND pages", "37703, 46204"),
    _broken("page-parts", "part_bytes_of", scales_not_aligned, "parts that start where no vector load may"),
    _broken("page-parts", "part_start_of", scales_of_keys_forgotten, "scales of K and of V overlap", "", "pages"),
    _broken("page-parts", "page_bytes_of", page_without_scales, "pages overlap in their scales"),
    _broken("unified-pages", "part_bytes_of", vectors_padded, "pages of groups that share a pool differ in bytes"),
    _broken("int32", "most_units", one_unit_too_many, "int32 in slot arithmetic", "1486, 50427, 47671"),
    _broken("layout-fields", "Layout", RunsCrossPages, "a layout for which nothing is proved is accepted"),
    _broken("layout-methods", "Layout", LocalPageTimesDcp, "page = page * dcp", "SGLang 38941"),
)
"""All of them."""
