"""How large a pool can be while 32 bits are enough for its indexes, and that one unit more is too large."""

from __future__ import annotations

from dataclasses import dataclass

from kvsan.gpu_kernels.addressing import INT32_MAX
from kvsan.gpu_kernels.formats import format_named
from kvsan.invariants.proofs.addressing.arithmetic import products_grow
from kvsan.invariants.proofs.addressing.functions import REAL, Functions
from kvsan.invariants.proofs.addressing.theorem import Statement, theorem
from kvsan.invariants.proofs.term import Condition, Number, both, implies, same

COMMON_POOLS = (
    (16, 8, 128, "bfloat16"),
    (16, 1, 128, "bfloat16"),
    (16, 8, 128, "fp8_e4m3"),
    (16, 8, 128, "nvfp4"),
    (32, 8, 128, "bfloat16"),
    (64, 8, 128, "bfloat16"),
    (16, 32, 128, "float32"),
)
"""Block size, kv heads of a rank, head_dim and dtype of pools that people have."""


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Most blocks of one layer's pool with which every slot, every element's index and every byte's fits in int32.

    ``elements`` is the one that matters to kernels that compute offsets in 32 bits; strides are those of ``allocate_cache``.
    """

    slots: int
    elements: int
    bytes: int


def pool_limits(block_size: int, num_kv_heads: int, head_dim: int, dtype: str) -> PoolLimits:
    """Compute them for the pages of a rank; ValueError on an unknown dtype."""
    form = format_named(dtype)
    vectors, width = block_size * num_kv_heads, form.width(head_dim)
    data = REAL.part_bytes_of(vectors, width, form.element_bytes)
    page_bytes = REAL.page_bytes_of(data, REAL.part_bytes_of(vectors, form.scale_width(head_dim), form.scale_bytes))
    return PoolLimits(
        int(REAL.most_units(block_size, block_size)),
        int(REAL.most_units(page_bytes // form.element_bytes, vectors * width)),
        int(REAL.most_units(page_bytes, page_bytes)),
    )


def _common_limits() -> dict[str, int]:
    found: dict[str, int] = {}
    for block_size, heads, head_dim, dtype in COMMON_POOLS:
        limits = pool_limits(block_size, heads, head_dim, dtype)
        found[f"blocks of {block_size} tokens: slots"] = limits.slots
        page = f"blocks of {block_size} tokens, {heads} heads, head_dim {head_dim}, {dtype}"
        found[f"{page}: elements"] = limits.elements
        found[f"{page}: bytes"] = limits.bytes
    return found


@theorem(stride=1, reach=1, largest=0, num_units=1)
def one_unit_more_is_too_many(
    f: Functions, stride: Number, reach: Number, largest: Number, num_units: Number
) -> Condition:
    """The last index of a pool is at most the largest if and only if the pool has no more units than most_units says."""
    last = (num_units - 1) * stride + reach - 1
    return same(last <= largest, num_units <= f.most_units(stride, reach, largest))


@theorem(
    lambda *, block_size, num_units, unit, offset: both(unit < num_units, offset < block_size),
    (one_unit_more_is_too_many, lambda f, *, block_size, num_units, **_: {
        "stride": block_size, "reach": block_size, "largest": INT32_MAX, "num_units": num_units
    }),
    (products_grow, lambda f, *, block_size, num_units, unit, **_: {
        "size": block_size, "few": unit + 1, "many": num_units
    }),
    block_size=1,
    num_units=1,
    unit=0,
    offset=0,
)  # fmt: skip
def slots_fit(f: Functions, block_size: Number, num_units: Number, unit: Number, offset: Number) -> Condition:
    """Up to most_units, every slot of the pool is at most INT32_MAX; beyond it, the last slot is larger."""
    most = f.most_units(block_size, block_size)
    return both(
        implies(num_units <= most, f.slot_of(unit, offset, block_size) <= INT32_MAX),
        implies(num_units > most, f.slot_of(num_units - 1, block_size - 1, block_size) > INT32_MAX),
    )


@theorem(
    lambda *, vectors, width, stride, num_units, unit, vector, element: both(
        unit < num_units, vector < vectors, element < width
    ),
    (one_unit_more_is_too_many, lambda f, *, vectors, width, stride, num_units, **_: {
        "stride": stride, "reach": vectors * width, "largest": INT32_MAX, "num_units": num_units
    }),
    (products_grow, lambda f, *, stride, num_units, unit, **_: {"size": stride, "few": unit + 1, "many": num_units}),
    (products_grow, lambda f, *, vectors, width, vector, **_: {"size": width, "few": vector + 1, "many": vectors}),
    vectors=1,
    width=1,
    stride=1,
    num_units=1,
    unit=0,
    vector=0,
    element=0,
)  # fmt: skip
def elements_fit(
    f: Functions,
    vectors: Number,
    width: Number,
    stride: Number,
    num_units: Number,
    unit: Number,
    vector: Number,
    element: Number,
) -> Condition:
    """Up to most_units, the index of every element of a part is at most INT32_MAX; beyond it, that of the last is larger."""
    most = f.most_units(stride, vectors * width)
    last = (num_units - 1) * stride + (vectors - 1) * width + width - 1
    return both(
        implies(num_units <= most, unit * stride + vector * width + element <= INT32_MAX),
        implies(num_units > most, last > INT32_MAX),
    )


STATEMENTS = (
    Statement(
        "int32",
        "most_units is the largest pool whose slots, and elements, have indexes that int32 holds: one more, and one has not",
        (one_unit_more_is_too_many, slots_fit, elements_fit),
        ("indexes are computed without intermediate results that are larger than they are",),
        _common_limits,
    ),
)
