"""Address arithmetic of a sharded cache: which rank holds a head of a position, and where.

Two things are dealt, independently of each other. *Heads* go to tensor-parallel (tp) ranks in contiguous shares; where
there are more ranks than heads, neighbours hold the same head, a *replica* each. *Tokens* go to context-parallel (cp)
ranks, round robin in runs of ``interleave``::

    position      0  1 | 2  3 | 4  5 | 6  7 | 8  9 | 10 11    interleave 2, cp 2
    cp rank         0  |   1  |   0  |   1  |   0  |   1      holder_of
    local         0  1 | 0  1 | 2  3 | 2  3 | 4  5 | 4  5     local_of: contiguous on each rank
    virtual block  ------- 0 ---------- | ------ 1 ------     block_size 4: a unit holds 8 tokens, 4 on each rank

A block table names *virtual* blocks of ``block_size * cp`` positions; a unit is the same page number on every rank. Since
``interleave`` divides ``block_size``, local positions fill pages in order, positions ``[start, stop)`` are a contiguous
range of local positions, and an offset in a unit, or a slot, is dealt exactly like a position.

Ranks are numbered pcp-major, then tp, then dcp; cp rank ``pcp_rank * dcp + dcp_rank`` (as vLLM's ``total_cp_rank``).
Here ``tp`` counts the shares of heads and context-parallel ranks are ranks of their own. vLLM takes the dcp ranks out of
its tensor-parallel group instead: its ``tensor_parallel_size`` is ``tp * dcp`` here, and because it asks that the dcp
ranks replicate the same heads and numbers ranks with dcp innermost, rank numbers and heads are then the same.

The functions are branch-free and use only ``+ - * // %`` and comparisons, like those of ``addressing``, so that symbolic
integers can run them; ``//`` and ``%`` meet non-negative integers only. Arrays of int64 can run them too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

import numpy as np

from kvsan.gpu_kernels.addressing import IntArray, heads_per_rank

Whole = TypeVar("Whole", int, IntArray)
"""One integer, or an int64 array of them."""

MemoryLayout = Literal["NHD", "HND"]
"""Order of the vectors of a page: slot-major, or head-major."""


def replicas_of_head(tp: int, num_heads: int) -> int:
    """Tensor-parallel ranks that hold one head."""
    return heads_per_rank(tp, num_heads)


def first_head_of(tp_rank: int, tp: int, num_heads: int) -> int:
    """First head of a rank; it holds ``heads_per_rank`` of them."""
    return tp_rank * num_heads // tp


def first_rank_of(head: int, tp: int, num_heads: int) -> int:
    """First tensor-parallel rank that holds a head; it is on ``replicas_of_head`` of them."""
    return head * tp // num_heads


def local_head_of(head: int, tp: int, num_heads: int) -> int:
    """Index of a head on every rank that holds it."""
    return head - first_head_of(first_rank_of(head, tp, num_heads), tp, num_heads)


def first_query_head_of(tp_rank: int, tp: int, num_heads: int, num_q_heads: int) -> int:
    """First q head of a rank, which attends with those up to the next rank's; replicas may get different numbers of them.

    Those of a kv head are dealt to its replicas in contiguous shares. (Engines ask that ``tp`` divides ``num_q_heads``,
    and then all ranks get as many.)
    """
    group = num_q_heads // num_heads
    replicas = replicas_of_head(tp, num_heads)
    return first_head_of(tp_rank, tp, num_heads) * group + tp_rank % replicas * group // replicas


def holder_of(position: Whole, interleave: int, cp: int) -> Whole:
    """Context-parallel rank that holds a position."""
    return position // interleave % cp


def local_of(position: Whole, interleave: int, cp: int) -> Whole:
    """Local position of a position on the rank that holds it."""
    return position // (interleave * cp) * interleave + position % interleave


def position_of(cp_rank: int, local: Whole, interleave: int, cp: int) -> Whole:
    """Position of a rank's local position: the inverse of ``holder_of`` and ``local_of``."""
    return (local // interleave * cp + cp_rank) * interleave + local % interleave


def local_length_of(tokens: int, cp_rank: int, interleave: int, cp: int) -> int:
    """How many of the first ``tokens`` positions a rank holds; also the first local position at or after ``tokens``."""
    over = tokens % (interleave * cp) - cp_rank * interleave
    over = over * (over > 0)
    return tokens // (interleave * cp) * interleave + over - (over - interleave) * (over > interleave)


def local_slot_of(unit: Whole, position: Whole, interleave: int, cp: int, block_size: int) -> Whole:
    """Slot, on the rank that holds it, of a position whose virtual block is in ``unit``."""
    return unit * block_size + local_of(position, interleave, cp) % block_size


def rank_of(tp_rank: int, cp_rank: int, tp: int, dcp: int) -> int:
    """Rank by what it holds."""
    return (cp_rank // dcp * tp + tp_rank) * dcp + cp_rank % dcp


def tp_rank_of(rank: int, tp: int, dcp: int) -> int:
    """Tensor-parallel rank of a rank: which heads it holds."""
    return rank // dcp % tp


def cp_rank_of(rank: int, tp: int, dcp: int) -> int:
    """Context-parallel rank of a rank: which tokens it holds."""
    return rank // (dcp * tp) * dcp + rank % dcp


def nhd_vector_of(offset: Whole, head: Whole, heads: int) -> Whole:
    """Place of a head's vector in a slot-major page of ``heads`` heads."""
    return offset * heads + head


def nhd_element_of(vector: Whole, heads: int) -> tuple[Whole, Whole]:
    """Offset and head whose vector is at a place of a slot-major page: the inverse of ``nhd_vector_of``."""
    return vector // heads, vector % heads


def hnd_vector_of(offset: Whole, head: Whole, block_size: int) -> Whole:
    """Place of a head's vector in a head-major page of ``block_size`` slots."""
    return head * block_size + offset


def hnd_element_of(vector: Whole, block_size: int) -> tuple[Whole, Whole]:
    """Offset and head whose vector is at a place of a head-major page: the inverse of ``hnd_vector_of``."""
    return vector % block_size, vector // block_size


def vector_strides(memory_layout: MemoryLayout, block_size: int, heads: int) -> tuple[int, int]:
    """How many vectors two slots, and two heads, of a page are apart."""
    if memory_layout == "NHD":
        return nhd_vector_of(1, 0, heads), nhd_vector_of(0, 1, heads)
    return hnd_vector_of(1, 0, block_size), hnd_vector_of(0, 1, block_size)


@dataclass(frozen=True, slots=True)
class Layout:
    """How one pool of ranks shards a cache. Its methods are the steps that whoever shards takes: a wrong variant
    overrides one of them, and everything else follows.

    ``tp``, ``dcp``, ``pcp``: ranks by tensor, decode-context and prefill-context parallelism; ``interleave``: tokens of a
    run; ``block_size``: tokens of a page on one rank; ``num_kv_heads``: of the whole cache, of which ``tp`` is a divisor
    or a multiple; ``memory_layout``: order of the vectors of a page. ValueError names the field that is wrong.
    """

    tp: int = 1
    dcp: int = 1
    pcp: int = 1
    interleave: int = 1
    block_size: int = 16
    num_kv_heads: int = 2
    memory_layout: MemoryLayout = "NHD"

    def __post_init__(self) -> None:
        for name in ("tp", "dcp", "pcp", "interleave", "block_size", "num_kv_heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)}: expected 1 or more")
        if self.tp % self.num_kv_heads and self.num_kv_heads % self.tp:
            raise ValueError(f"tp {self.tp}: expected a divisor or a multiple of num_kv_heads {self.num_kv_heads}")
        if self.block_size % self.interleave:
            raise ValueError(f"interleave {self.interleave}: expected a divisor of block_size {self.block_size}")
        if self.memory_layout not in get_args(MemoryLayout):
            raise ValueError(
                f"memory_layout {self.memory_layout!r}: expected one of {', '.join(get_args(MemoryLayout))}"
            )

    @property
    def cp(self) -> int:
        """Context-parallel ranks."""
        return self.dcp * self.pcp

    @property
    def ranks(self) -> int:
        """All ranks."""
        return self.tp * self.cp

    @property
    def unit_tokens(self) -> int:
        """Tokens that a unit holds on all ranks together: the block size that a block table knows."""
        return self.block_size * self.cp

    @property
    def heads(self) -> int:
        """kv heads of one rank."""
        return heads_per_rank(self.num_kv_heads, self.tp)

    @property
    def replicas(self) -> int:
        """Tensor-parallel ranks that hold the same head."""
        return replicas_of_head(self.tp, self.num_kv_heads)

    def rank(self, tp_rank: int, cp_rank: int) -> int:
        """Number of a rank."""
        return rank_of(tp_rank, cp_rank, self.tp, self.dcp)

    def first_head(self, tp_rank: int) -> int:
        """First kv head of a tensor-parallel rank."""
        return first_head_of(tp_rank, self.tp, self.num_kv_heads)

    def first_rank(self, head: int) -> int:
        """First of the ``replicas`` tensor-parallel ranks that hold a kv head."""
        return first_rank_of(head, self.tp, self.num_kv_heads)

    def local_head(self, head: int) -> int:
        """Index of a kv head on the ranks that hold it."""
        return local_head_of(head, self.tp, self.num_kv_heads)

    def holder(self, position: Whole) -> Whole:
        """Context-parallel rank of a position, or of a slot."""
        return holder_of(position, self.interleave, self.cp)

    def local(self, position: Whole) -> Whole:
        """Local position of a position, or local slot of a slot, on the rank that holds it."""
        return local_of(position, self.interleave, self.cp)

    def local_length(self, tokens: int, cp_rank: int) -> int:
        """How many of the first ``tokens`` positions a context-parallel rank holds."""
        return local_length_of(tokens, cp_rank, self.interleave, self.cp)

    def positions(self, cp_rank: int, start: int, stop: int) -> IntArray:
        """Those of positions ``[start, stop)`` that a context-parallel rank holds, ascending, int64."""
        local = np.arange(self.local_length(start, cp_rank), self.local_length(stop, cp_rank), dtype=np.int64)
        return position_of(cp_rank, local, self.interleave, self.cp)

    def pages(self, table: Sequence[int] | IntArray, local: IntArray) -> IntArray:
        """Pages of local positions, int64 of their shape; ``table`` names units by virtual block, IndexError if short."""
        units: IntArray = np.asarray(table, dtype=np.int64)[local // self.block_size]
        return units

    def slots(self, table: Sequence[int] | IntArray, positions: IntArray) -> IntArray:
        """Slots of positions on the ranks that hold them, int64 of their shape; ``table`` as in ``pages``."""
        pages = self.pages(table, self.local(positions))
        return local_slot_of(pages, positions, self.interleave, self.cp, self.block_size)

    def vector(self, offset: Whole, head: Whole) -> Whole:
        """Place, in a page of a rank, of the vector of a local head at an offset."""
        if self.memory_layout == "NHD":
            return nhd_vector_of(offset, head, self.heads)
        return hnd_vector_of(offset, head, self.block_size)

    def element(self, vector: Whole) -> tuple[Whole, Whole]:
        """Offset and local head whose vector is at a place of a page of a rank: the inverse of ``vector``."""
        if self.memory_layout == "NHD":
            return nhd_element_of(vector, self.heads)
        return hnd_element_of(vector, self.block_size)
