"""What the reference manager promises."""

from __future__ import annotations

from kvsan.gpu_kernels.addressing import full_blocks
from kvsan.harness.operations import EXCHANGES, OPERATIONS, TRANSFERS
from kvsan.harness.target import PrefixIndex, Traits
from kvsan.models_under_test.paged.pool import NULL_UNIT
from kvsan.models_under_test.paged.tiers import Tiers


def traits_of(
    num_units: int, block_size: int, *, deferred_free: bool, watermark: int, max_in_flight: int, tiers: Tiers | None
) -> Traits:
    """Traits of one manager; transfers need tiers."""
    return Traits(
        num_units=num_units,
        block_size=block_size,
        null_unit=NULL_UNIT,
        operations=frozenset(OPERATIONS) - EXCHANGES - (frozenset() if tiers else TRANSFERS),
        publish="retire",
        free_order="lru",
        deferred_free=deferred_free,
        watermark=watermark,
        max_in_flight=max_in_flight,
        max_drafts=4,
        max_lookahead=8,
        media=True,
        judge_admission=True,
        promised_hit=longest_prefix,
        **({} if tiers is None else tiers.traits()),
    )


def longest_prefix(index: PrefixIndex, tokens: int) -> int:
    """Promised hit of a full-attention cache: every published block from the first on, the last token recomputed."""
    size = index.block_size
    block = 0
    while block < full_blocks(tokens - 1, size) and index.has(0, block):
        block += 1
    return block * size
