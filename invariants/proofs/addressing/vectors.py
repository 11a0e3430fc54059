"""Places of vectors in a part of a page, slot-major (NHD) and head-major (HND)."""

from __future__ import annotations

from kvsan.invariants.proofs.addressing.functions import Functions
from kvsan.invariants.proofs.addressing.theorem import Statement, theorem
from kvsan.invariants.proofs.term import Condition, Number, both, within


@theorem(
    lambda *, block_size, heads, offset, head: both(offset < block_size, head < heads),
    block_size=1,
    heads=1,
    offset=0,
    head=0,
)
def vectors_are_in_the_part(f: Functions, block_size: Number, heads: Number, offset: Number, head: Number) -> Condition:
    """In both memory layouts the vector of a head at an offset is one of the block_size * heads of a part."""
    vectors = block_size * heads
    return both(
        within(0, f.nhd_vector_of(offset, head, heads), vectors),
        within(0, f.hnd_vector_of(offset, head, block_size), vectors),
    )


@theorem(
    lambda *, block_size, heads, offset, head: both(offset < block_size, head < heads),
    block_size=1,
    heads=1,
    offset=0,
    head=0,
)
def a_vector_knows_its_offset_and_head(
    f: Functions, block_size: Number, heads: Number, offset: Number, head: Number
) -> Condition:
    """In both memory layouts a vector's offset and head are those that it was computed from: no two share a vector."""
    nhd = f.nhd_element_of(f.nhd_vector_of(offset, head, heads), heads)
    hnd = f.hnd_element_of(f.hnd_vector_of(offset, head, block_size), block_size)
    return both(nhd[0] == offset, nhd[1] == head, hnd[0] == offset, hnd[1] == head)


@theorem(lambda *, block_size, heads, vector: vector < block_size * heads, block_size=1, heads=1, vector=0)
def every_vector_is_used(f: Functions, block_size: Number, heads: Number, vector: Number) -> Condition:
    """In both memory layouts every vector of a part is that of one head at one offset: both fill the same part."""
    nhd_offset, nhd_head = f.nhd_element_of(vector, heads)
    hnd_offset, hnd_head = f.hnd_element_of(vector, block_size)
    return both(
        within(0, nhd_offset, block_size),
        within(0, nhd_head, heads),
        f.nhd_vector_of(nhd_offset, nhd_head, heads) == vector,
        within(0, hnd_offset, block_size),
        within(0, hnd_head, heads),
        f.hnd_vector_of(hnd_offset, hnd_head, block_size) == vector,
    )


@theorem(block_size=1, heads=1, offset=0, head=0)
def strides_lead_to_vectors(f: Functions, block_size: Number, heads: Number, offset: Number, head: Number) -> Condition:
    """What kernels compute with the strides of a cache's tensors is where the layout has the vector."""
    nhd_slot, nhd_head = f.vector_strides("NHD", block_size, heads)
    hnd_slot, hnd_head = f.vector_strides("HND", block_size, heads)
    return both(
        offset * nhd_slot + head * nhd_head == f.nhd_vector_of(offset, head, heads),
        offset * hnd_slot + head * hnd_head == f.hnd_vector_of(offset, head, block_size),
    )


STATEMENTS = (
    Statement(
        "vectors",
        "in NHD and HND alike, pairs of an offset and a head, and vectors of a part, correspond one to one",
        (vectors_are_in_the_part, a_vector_knows_its_offset_and_head, every_vector_is_used, strides_lead_to_vectors),
    ),
)
