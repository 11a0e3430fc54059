"""Layouts with one step wrong: seeded bugs of whoever shards a cache, or converts it, by them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from typing import Any

import numpy as np

from kvsan.gpu_kernels.addressing import IntArray
from kvsan.gpu_kernels.sharding import Layout, Whole


class ReplicasDealt(Layout):
    """Rank r holds head r modulo their number: replicas of a head are not neighbours."""

    def first_head(self, tp_rank: int) -> int:
        return tp_rank * self.heads % self.num_kv_heads

    def first_rank(self, head: int) -> int:
        return head // self.heads


class PageTimesDcp(Layout):
    """The page that a block table names is scaled by the ranks that its tokens are on (SGLang 38941)."""

    def pages(self, table: Sequence[int] | IntArray, local: IntArray) -> IntArray:
        return Layout.pages(self, table, local) * self.dcp


class LocalPageTimesDcp(Layout):
    """The page of a slot is scaled likewise."""

    def local(self, position: Whole) -> Whole:
        local = Layout.local(self, position)
        return local // self.block_size * self.dcp * self.block_size + local % self.block_size


class LengthOneShort(Layout):
    """The last local token of a rank is forgotten."""

    def local_length(self, tokens: int, cp_rank: int) -> int:
        length = Layout.local_length(self, tokens, cp_rank)
        return length - (length > 0)


class RunInPartForgotten(Layout):
    """A run that is not complete is not counted."""

    def local_length(self, tokens: int, cp_rank: int) -> int:
        return Layout.local_length(self, tokens, cp_rank) // self.interleave * self.interleave


class LengthOneLong(Layout):
    """Every rank is taken to hold one token more."""

    def local_length(self, tokens: int, cp_rank: int) -> int:
        return Layout.local_length(self, tokens, cp_rank) + (tokens > 0)


class CpRanksSwapped(Layout):
    """Context-parallel ranks are numbered dcp-major."""

    def rank(self, tp_rank: int, cp_rank: int) -> int:
        return Layout.rank(self, tp_rank, cp_rank % self.dcp * self.pcp + cp_rank // self.dcp)


class BlocksOfOneRank(Layout):
    """The block table is taken for one of blocks of ``block_size`` positions, not of virtual blocks."""

    def slots(self, table: Sequence[int] | IntArray, positions: IntArray) -> IntArray:
        units = np.asarray(table)[positions // self.block_size % len(table)]
        return units * self.block_size + positions % self.block_size


class LocalHeadForgotten(Layout):
    """A head is always the first of its rank."""

    def local_head(self, head: int) -> int:
        return 0


CLASSES = (
    ReplicasDealt,
    PageTimesDcp,
    LocalPageTimesDcp,
    LengthOneShort,
    RunInPartForgotten,
    LengthOneLong,
    CpRanksSwapped,
    BlocksOfOneRank,
    LocalHeadForgotten,
)
OTHER_FIELDS: dict[str, Callable[[Layout], dict[str, Any]]] = {
    "InterleaveIgnored": lambda layout: {"interleave": 1},
    "MemoryLayoutMistaken": lambda layout: {"memory_layout": "NHD" if layout.memory_layout == "HND" else "HND"},
    "TpForgotten": lambda layout: {"tp": 1},
    "TpDoubled": lambda layout: {"tp": layout.tp * 2},
    "PcpForgotten": lambda layout: {"pcp": 1},
    "PcpDoubled": lambda layout: {"pcp": layout.pcp * 2},
    "BlockSizeDoubled": lambda layout: {"block_size": layout.block_size * 2},
}
"""Variants that are layouts of their own: what they take for the fields of the right one."""


def wrong(name: str, layout: Layout) -> Layout:
    """The variant of a name of a layout."""
    if name in OTHER_FIELDS:
        return replace(layout, **OTHER_FIELDS[name](layout))
    return {kind.__name__: kind for kind in CLASSES}[name](*astuple(layout))
