"""Bytes of pages: elements in a part, parts in a page, pages in a pool, and groups of layers that share a pool's pages."""

from __future__ import annotations

from kvsan.invariants.proofs.addressing.arithmetic import products_grow
from kvsan.invariants.proofs.addressing.functions import Functions
from kvsan.invariants.proofs.addressing.theorem import Numbers, Statement, theorem
from kvsan.invariants.proofs.term import Condition, Number, both, either, implies, one_of, within

ALIGNMENT_BYTES = 16
"""What the widest vector load of a GPU asks for."""


@theorem(size_bytes=0)
def alignment_adds_the_least(f: Functions, size_bytes: Number) -> Condition:
    """Aligned bytes are a multiple of 16, enough, and fewer than 16 more."""
    whole = f.aligned(size_bytes)
    return both(whole % ALIGNMENT_BYTES == 0, within(size_bytes, whole, size_bytes + ALIGNMENT_BYTES))


@theorem(
    lambda *, vectors, width, vector, element, **_: both(vector < vectors, element < width),
    (products_grow, lambda f, *, vectors, width, vector, **_: {"size": width, "few": vector + 1, "many": vectors}),
    (products_grow, lambda f, *, vectors, width, element_bytes, vector, element: {
        "size": element_bytes, "few": vector * width + element + 1, "many": vectors * width
    }),
    vectors=1,
    width=1,
    element_bytes=1,
    vector=0,
    element=0,
)  # fmt: skip
def elements_are_in_the_part(
    f: Functions, vectors: Number, width: Number, element_bytes: Number, vector: Number, element: Number
) -> Condition:
    """An element of a vector of a part begins and ends within the bytes of the part."""
    start = (vector * width + element) * element_bytes
    return both(start >= 0, start + element_bytes <= f.part_bytes_of(vectors, width, element_bytes))


@theorem(
    lambda *, width, vector, element, other_vector, other_element, **_: both(
        element < width, other_element < width,
        one_of(vector < other_vector, both(vector == other_vector, element < other_element)),
    ),
    (products_grow, lambda f, *, width, vector, other_vector, **_: {
        "size": width, "few": vector + 1, "many": other_vector
    }),
    (products_grow, lambda f, *, width, element_bytes, vector, element, other_vector, other_element: {
        "size": element_bytes, "few": vector * width + element + 1, "many": other_vector * width + other_element
    }),
    width=1,
    element_bytes=1,
    vector=0,
    element=0,
    other_vector=0,
    other_element=0,
)  # fmt: skip
def elements_do_not_overlap(
    f: Functions,
    width: Number,
    element_bytes: Number,
    vector: Number,
    element: Number,
    other_vector: Number,
    other_element: Number,
) -> Condition:
    """Of two elements of a part, the one of a later vector, or later in the same, starts after the other has ended."""
    end = (vector * width + element) * element_bytes + element_bytes
    return end <= (other_vector * width + other_element) * element_bytes


@theorem(
    lambda *, part, **_: part < 4,
    vectors=1,
    width=1,
    element_bytes=1,
    scale_width=0,
    scale_bytes=0,
    part=0,
)
def parts_do_not_overlap(
    f: Functions,
    vectors: Number,
    width: Number,
    element_bytes: Number,
    scale_width: Number,
    scale_bytes: Number,
    part: Number,
) -> Condition:
    """K, V, scales of K and scales of V follow each other, aligned, from byte 0 of a page to its end."""
    data = f.part_bytes_of(vectors, width, element_bytes)
    scales = f.part_bytes_of(vectors, scale_width, scale_bytes)
    page_bytes = f.page_bytes_of(data, scales)
    start, end = f.part_start_of(part, data, scales), f.part_start_of(part + 1, data, scales)
    return both(
        implies(part == 0, start == 0),
        start % ALIGNMENT_BYTES == 0,
        start + either(part < 2, data, scales) <= end,
        end <= page_bytes,
        page_bytes % ALIGNMENT_BYTES == 0,
        page_bytes > 0,
    )


@theorem(
    lambda *, unit, other, **_: unit < other,
    (products_grow, lambda f, *, data_bytes, scale_bytes, unit, other: {
        "size": f.page_bytes_of(data_bytes, scale_bytes), "few": unit + 1, "many": other
    }),
    data_bytes=1,
    scale_bytes=0,
    unit=0,
    other=0,
)  # fmt: skip
def pages_do_not_overlap(
    f: Functions, data_bytes: Number, scale_bytes: Number, unit: Number, other: Number
) -> Condition:
    """A unit's page ends before, or where, that of a later unit starts."""
    page_bytes = f.page_bytes_of(data_bytes, scale_bytes)
    return unit * page_bytes + page_bytes <= other * page_bytes


def _kind(part: Number, width: Number, element_bytes: Number, scale_width: Number, scale_bytes: Number) -> Numbers:
    """Width of a vector, and bytes of an element, of a part."""
    if part < 2:
        return {"width": width, "element_bytes": element_bytes}
    return {"width": scale_width, "element_bytes": scale_bytes}


@theorem(
    lambda *, elements_per_byte, scale_block, width, scales, head_dim: both(
        head_dim == elements_per_byte * width, head_dim == scale_block * scales
    ),
    elements_per_byte=1,
    scale_block=1,
    width=1,
    scales=1,
    head_dim=1,
)
def formats_store_every_element(
    f: Functions, elements_per_byte: Number, scale_block: Number, width: Number, scales: Number, head_dim: Number
) -> Condition:
    """A format has room for all elements of a vector, and a scale for each block of them, for the vector, or none."""
    fields = {"name": "", "format": 1, "elements": 1, "element_bytes": 1, "elements_per_byte": elements_per_byte}
    blocks = f.Format(**fields, scale_block=scale_block, scale_bytes=1)
    vector, plain = f.Format(**fields, scale_bytes=4), f.Format(**fields)
    return both(
        blocks.width(head_dim) == width,
        blocks.scale_width(head_dim) == scales,
        vector.scale_width(head_dim) == 1,
        plain.scale_width(head_dim) == 0,
    )


@theorem(lambda *, part, other, **_: both(part < other, other <= 4), data_bytes=0, scale_bytes=0, part=0, other=0)
def parts_ascend(f: Functions, data_bytes: Number, scale_bytes: Number, part: Number, other: Number) -> Condition:
    """A part of a page ends before, or where, a later part starts, or the page ends."""
    end = f.part_start_of(part, data_bytes, scale_bytes) + either(part < 2, data_bytes, scale_bytes)
    return end <= f.part_start_of(other, data_bytes, scale_bytes)


@theorem(
    lambda *, vectors, width, element_bytes, scale_width, scale_bytes, unit, part, vector, element: both(
        part < 4, vector < vectors, element < either(part < 2, width, scale_width),
    ),
    (elements_are_in_the_part, lambda f, *, vectors, part, vector, element, unit, **sizes: {
        "vectors": vectors, "vector": vector, "element": element, **_kind(part, **sizes)
    }),
    (parts_ascend, lambda f, *, vectors, width, element_bytes, scale_width, scale_bytes, part, **_: {
        "data_bytes": f.part_bytes_of(vectors, width, element_bytes),
        "scale_bytes": f.part_bytes_of(vectors, scale_width, scale_bytes), "part": part, "other": part + 1,
    }),
    vectors=1,
    width=1,
    element_bytes=1,
    scale_width=0,
    scale_bytes=1,
    unit=0,
    part=0,
    vector=0,
    element=0,
)  # fmt: skip
def addresses_are_in_their_part(
    f: Functions,
    vectors: Number,
    width: Number,
    element_bytes: Number,
    scale_width: Number,
    scale_bytes: Number,
    unit: Number,
    part: Number,
    vector: Number,
    element: Number,
) -> Condition:
    """The bytes of an element, of K, V or scales, are those of its part of its unit's page and of no other."""
    data = f.part_bytes_of(vectors, width, element_bytes)
    scales = f.part_bytes_of(vectors, scale_width, scale_bytes)
    page = unit * f.page_bytes_of(data, scales)
    own_width, own_bytes = _kind(part, width, element_bytes, scale_width, scale_bytes).values()
    start = page + f.part_start_of(part, data, scales) + (vector * own_width + element) * own_bytes
    return both(
        page + f.part_start_of(part, data, scales) <= start,
        start + own_bytes <= page + f.part_start_of(part + 1, data, scales),
        page + f.part_start_of(part + 1, data, scales) <= page + f.page_bytes_of(data, scales),
    )


@theorem(
    lambda *, vectors, width, scale_width, unit, part, vector, element, other_unit, other_part, other_vector,
    other_element, **_: both(
        part < 4, vector < vectors, element < either(part < 2, width, scale_width),
        other_part < 4, other_vector < vectors, other_element < either(other_part < 2, width, scale_width),
        one_of(unit < other_unit, both(unit == other_unit, one_of(part < other_part, both(
            part == other_part,
            one_of(vector < other_vector, both(vector == other_vector, element < other_element)),
        )))),
    ),
    (addresses_are_in_their_part, lambda f, *, other_unit, other_part, other_vector, other_element, **first: first),
    (addresses_are_in_their_part, lambda f, *, other_unit, other_part, other_vector, other_element, **first: {
        **first, "unit": other_unit, "part": other_part, "vector": other_vector, "element": other_element
    }),
    (elements_do_not_overlap, lambda f, *, vectors, width, element_bytes, scale_width, scale_bytes, unit, part,
     other_unit, other_part, **places: {**places, **_kind(part, width, element_bytes, scale_width, scale_bytes)}),
    (parts_ascend, lambda f, *, vectors, width, element_bytes, scale_width, scale_bytes, part, other_part, **_: {
        "data_bytes": f.part_bytes_of(vectors, width, element_bytes),
        "scale_bytes": f.part_bytes_of(vectors, scale_width, scale_bytes), "part": part + 1, "other": other_part,
    }),
    (pages_do_not_overlap, lambda f, *, vectors, width, element_bytes, scale_width, scale_bytes, unit, other_unit, **_: {
        "data_bytes": f.part_bytes_of(vectors, width, element_bytes),
        "scale_bytes": f.part_bytes_of(vectors, scale_width, scale_bytes), "unit": unit, "other": other_unit,
    }),
    vectors=1,
    width=1,
    element_bytes=1,
    scale_width=0,
    scale_bytes=1,
    unit=0,
    part=0,
    vector=0,
    element=0,
    other_unit=0,
    other_part=0,
    other_vector=0,
    other_element=0,
)  # fmt: skip
def no_two_elements_share_a_byte(
    f: Functions,
    vectors: Number,
    width: Number,
    element_bytes: Number,
    scale_width: Number,
    scale_bytes: Number,
    unit: Number,
    part: Number,
    vector: Number,
    element: Number,
    other_unit: Number,
    other_part: Number,
    other_vector: Number,
    other_element: Number,
) -> Condition:
    """Of two elements of a pool, in order of unit, part, vector and element, the later starts after the other has ended."""
    data = f.part_bytes_of(vectors, width, element_bytes)
    scales = f.part_bytes_of(vectors, scale_width, scale_bytes)
    page_bytes = f.page_bytes_of(data, scales)
    own, other = (_kind(one, width, element_bytes, scale_width, scale_bytes) for one in (part, other_part))
    index = vector * own["width"] + element
    end = unit * page_bytes + f.part_start_of(part, data, scales) + index * own["element_bytes"] + own["element_bytes"]
    other_index = other_vector * other["width"] + other_element
    return end <= (
        other_unit * page_bytes + f.part_start_of(other_part, data, scales) + other_index * other["element_bytes"]
    )


@theorem(
    lambda *, block_size, heads, width, other_block_size, other_heads, other_width, **_: (
        block_size * heads * width == other_block_size * other_heads * other_width
    ),
    block_size=1,
    heads=1,
    width=1,
    other_block_size=1,
    other_heads=1,
    other_width=1,
    element_bytes=1,
)
def unified_groups_have_equal_pages(
    f: Functions,
    block_size: Number,
    heads: Number,
    width: Number,
    other_block_size: Number,
    other_heads: Number,
    other_width: Number,
    element_bytes: Number,
) -> Condition:
    """Groups with as many elements a block, such as one with half the heads and twice the slots, have equal page bytes."""
    data = f.part_bytes_of(block_size * heads, width, element_bytes)
    other_data = f.part_bytes_of(other_block_size * other_heads, other_width, element_bytes)
    return f.page_bytes_of(data, 0) == f.page_bytes_of(other_data, 0)


@theorem(
    lambda *, factor, unit, other, **_: unit < other,
    (pages_do_not_overlap, lambda f, *, block_size, heads, width, element_bytes, scale_width, scale_bytes, factor, unit,
     other: {
        "data_bytes": f.part_bytes_of(block_size * heads * factor, width, element_bytes),
        "scale_bytes": f.part_bytes_of(block_size * heads * factor, scale_width, scale_bytes),
        "unit": unit, "other": other,
    }),
    block_size=1,
    heads=1,
    width=1,
    element_bytes=1,
    scale_width=0,
    scale_bytes=0,
    factor=1,
    unit=0,
    other=0,
)  # fmt: skip
def pages_of_unified_groups_do_not_overlap(
    f: Functions,
    block_size: Number,
    heads: Number,
    width: Number,
    element_bytes: Number,
    scale_width: Number,
    scale_bytes: Number,
    factor: Number,
    unit: Number,
    other: Number,
) -> Condition:
    """In a pool that a group with factor times the heads shares with one of factor times the slots, pages are apart."""
    vectors, other_vectors = block_size * (heads * factor), (block_size * factor) * heads
    page_bytes, other_bytes = (
        f.page_bytes_of(f.part_bytes_of(one, width, element_bytes), f.part_bytes_of(one, scale_width, scale_bytes))
        for one in (vectors, other_vectors)
    )
    return both(
        page_bytes == other_bytes,
        unit * page_bytes + page_bytes <= other * other_bytes,
        unit * other_bytes + other_bytes <= other * page_bytes,
    )


STATEMENTS = (
    Statement(
        "page-parts",
        "K, V and scales are aligned parts of a page that hold their elements and do not overlap",
        (
            formats_store_every_element,
            alignment_adds_the_least,
            elements_are_in_the_part,
            elements_do_not_overlap,
            parts_do_not_overlap,
        ),
    ),
    Statement(
        "pages",
        "pages of distinct units do not overlap, and every element's bytes are in its own part of its own page",
        (pages_do_not_overlap, parts_ascend, addresses_are_in_their_part, no_two_elements_share_a_byte),
    ),
    Statement(
        "unified-pages",
        "groups that share a pool and have as many elements a block have equal page bytes, and pages that are apart",
        (unified_groups_have_equal_pages, pages_of_unified_groups_do_not_overlap),
        ("elements are as wide in all groups; where a group has another head_dim, pages hold no scales",),
    ),
)
