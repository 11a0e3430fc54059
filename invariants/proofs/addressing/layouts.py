"""`sharding.Layout` itself, with symbolic fields: what it refuses, and that its methods are the functions proved here.

Layouts are made by their own constructor, whose checks are run on the symbolic fields too.
"""

from __future__ import annotations

from typing import Any

from kvsan.invariants.proofs.addressing.functions import Functions
from kvsan.invariants.proofs.addressing.theorem import Statement, theorem
from kvsan.invariants.proofs.term import Condition, Number, both, one_of, same


@theorem(
    tp=0,
    dcp=0,
    pcp=0,
    interleave=0,
    block_size=0,
    num_kv_heads=0,
)
def layouts_are_refused(
    f: Functions, tp: Number, dcp: Number, pcp: Number, interleave: Number, block_size: Number, num_kv_heads: Number
) -> Condition:
    """A layout is accepted if and only if sizes are 1 or more, tp and heads divide, and interleave divides the block size."""
    try:
        f.Layout(tp=tp, dcp=dcp, pcp=pcp, interleave=interleave, block_size=block_size, num_kv_heads=num_kv_heads)
        accepted = True
    except ValueError:
        accepted = False
    sizes = [tp, dcp, pcp, interleave, block_size, num_kv_heads]
    if any(size < 1 for size in sizes):
        return not accepted
    divide = one_of(tp % num_kv_heads == 0, num_kv_heads % tp == 0)
    return same(accepted, both(divide, block_size % interleave == 0))


def _heads_agree(f: Functions, layout: Any, tp: Number, num_heads: Number, tp_rank: Number, head: Number) -> Condition:
    return both(
        layout.heads == f.heads_per_rank(num_heads, tp),
        layout.replicas == f.replicas_of_head(tp, num_heads),
        layout.first_head(tp_rank) == f.first_head_of(tp_rank, tp, num_heads),
        layout.first_rank(head) == f.first_rank_of(head, tp, num_heads),
        layout.local_head(head) == f.local_head_of(head, tp, num_heads),
    )


@theorem(tp=1, share=1, tp_rank=0, head=0)
def layouts_share_heads(f: Functions, tp: Number, share: Number, tp_rank: Number, head: Number) -> Condition:
    """Where ranks hold shares of heads, a layout has heads where the functions say."""
    layout = f.Layout(tp=tp, num_kv_heads=tp * share)
    return _heads_agree(f, layout, tp, tp * share, tp_rank, head)


@theorem(num_heads=1, copies=1, tp_rank=0, head=0)
def layouts_copy_heads(f: Functions, num_heads: Number, copies: Number, tp_rank: Number, head: Number) -> Condition:
    """Where ranks hold copies of heads, a layout has heads where the functions say."""
    layout = f.Layout(tp=num_heads * copies, num_kv_heads=num_heads)
    return _heads_agree(f, layout, num_heads * copies, num_heads, tp_rank, head)


@theorem(interleave=1, runs=1, dcp=1, pcp=1, cp_rank=0, position=0)
def layouts_deal_tokens(
    f: Functions, interleave: Number, runs: Number, dcp: Number, pcp: Number, cp_rank: Number, position: Number
) -> Condition:
    """A layout deals tokens to dcp * pcp ranks as the functions say, and a unit has the tokens of all of them."""
    layout = f.Layout(dcp=dcp, pcp=pcp, interleave=interleave, block_size=interleave * runs)
    cp = dcp * pcp
    return both(
        layout.cp == cp,
        layout.unit_tokens == interleave * runs * cp,
        layout.holder(position) == f.holder_of(position, interleave, cp),
        layout.local(position) == f.local_of(position, interleave, cp),
        layout.local_length(position, cp_rank) == f.local_length_of(position, cp_rank, interleave, cp),
    )


@theorem(num_heads=1, copies=1, dcp=1, pcp=1, tp_rank=0, cp_rank=0)
def layouts_number_ranks(
    f: Functions, num_heads: Number, copies: Number, dcp: Number, pcp: Number, tp_rank: Number, cp_rank: Number
) -> Condition:
    """A layout numbers tp * dcp * pcp ranks as the function says."""
    tp = num_heads * copies
    layout = f.Layout(tp=tp, dcp=dcp, pcp=pcp, num_kv_heads=num_heads)
    return both(layout.ranks == tp * dcp * pcp, layout.rank(tp_rank, cp_rank) == f.rank_of(tp_rank, cp_rank, tp, dcp))


@theorem(block_size=1, share=1, offset=0, head=0, vector=0)
def layouts_order_vectors(
    f: Functions, block_size: Number, share: Number, offset: Number, head: Number, vector: Number
) -> Condition:
    """A layout has vectors where the functions of its memory layout say, of the heads of one rank."""
    nhd = f.Layout(tp=2, num_kv_heads=2 * share, block_size=block_size, memory_layout="NHD")
    hnd = f.Layout(tp=2, num_kv_heads=2 * share, block_size=block_size, memory_layout="HND")
    nhd_element, hnd_element = nhd.element(vector), hnd.element(vector)
    nhd_expected, hnd_expected = f.nhd_element_of(vector, share), f.hnd_element_of(vector, block_size)
    return both(
        nhd.vector(offset, head) == f.nhd_vector_of(offset, head, share),
        hnd.vector(offset, head) == f.hnd_vector_of(offset, head, block_size),
        nhd_element[0] == nhd_expected[0],
        nhd_element[1] == nhd_expected[1],
        hnd_element[0] == hnd_expected[0],
        hnd_element[1] == hnd_expected[1],
    )


STATEMENTS = (
    Statement(
        "layout-fields", "Layout refuses exactly the sizes for which nothing is proved here", (layouts_are_refused,)
    ),
    Statement(
        "layout-methods",
        "the methods of Layout are the functions that the other claims are about, of its own fields",
        (layouts_share_heads, layouts_copy_heads, layouts_deal_tokens, layouts_number_ranks, layouts_order_vectors),
        ("positions, pages and slots, which take arrays, are tested against the functions, not proved",),
    ),
)
