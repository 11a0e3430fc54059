"""From a configuration to a reference pair: sizes and layouts of its two pools."""

from __future__ import annotations

from typing import cast

from kvsan.gpu_kernels.sharding import Layout, MemoryLayout
from kvsan.harness.configuration import Configuration, OptionValue
from kvsan.harness.pair import CONSUMER, PRODUCER
from kvsan.harness.verdict import UsageError
from kvsan.models_under_test.disagg.target import DisaggregatedPair
from kvsan.models_under_test.paged import PagedManager

LAYOUT_OPTIONS: dict[str, OptionValue] = {"tp": 1, "dcp": 1, "pcp": 1, "interleave": 1, "layout": "NHD"}
OPTIONS: dict[str, OptionValue] = {
    "kv_heads": 2,
    "deferred_free": True,
    "decode_block": 0,
    "decode_units": 0,
    **{f"{side}_{name}": value for side in ("prefill", "decode") for name, value in LAYOUT_OPTIONS.items()},
}
"""Options and their defaults. The configuration's ``num_units`` and ``block_size`` are the prefill pool's, and the decode
pool's where ``decode_units`` and ``decode_block`` are 0. A block size counts the tokens of a page on one rank; a unit holds as
many on each of the dcp * pcp context-parallel ranks. An interleave of 0 is a whole page."""


def pair_arguments(configuration: Configuration) -> tuple[PagedManager, PagedManager, dict[str, Layout]]:
    """Arguments of a ``DisaggregatedPair``; UsageError for cache groups, options or layouts that it does not have."""
    what = f"target {configuration.target}"
    if configuration.groups != ("full",):
        raise UsageError(f"{what}: groups {configuration.groups}: it has one group, 'full'")
    for name, _ in configuration.options:
        if name not in OPTIONS:
            raise UsageError(f"{what}: unknown option {name!r}; it has {', '.join(OPTIONS)}")
    block_size = _whole(configuration, "decode_block") or configuration.block_size
    units = _whole(configuration, "decode_units") or configuration.num_units
    if units < 2:
        raise UsageError(f"{what}: option decode_units: {units}; expected 2 or more, or 0")
    layouts = {
        PRODUCER: _layout(configuration, "prefill", configuration.block_size),
        CONSUMER: _layout(configuration, "decode", block_size),
    }
    deferred_free = configuration.option("deferred_free", True)
    assert isinstance(deferred_free, bool)
    prefill, decode = (
        PagedManager(num_units, layouts[pool].unit_tokens, deferred_free=deferred_free)
        for pool, num_units in ((PRODUCER, configuration.num_units), (CONSUMER, units))
    )
    return prefill, decode, layouts


def _whole(configuration: Configuration, name: str) -> int:
    value = configuration.option(name, OPTIONS[name])
    assert isinstance(value, int)
    if not 0 <= value < 1 << 16:
        raise UsageError(f"target {configuration.target}: option {name}: {value}; expected 0 to {(1 << 16) - 1}")
    return value


def _layout(configuration: Configuration, side: str, block_size: int) -> Layout:
    tp, dcp, pcp, interleave = (_whole(configuration, f"{side}_{name}") for name in ("tp", "dcp", "pcp", "interleave"))
    if max(tp, dcp, pcp) > 64:
        raise UsageError(f"target {configuration.target}: {side}: expected at most 64 ranks each of tp, dcp and pcp")
    memory_layout = cast(MemoryLayout, configuration.option(f"{side}_layout", "NHD"))
    try:
        return Layout(
            tp, dcp, pcp, interleave or block_size, block_size, _whole(configuration, "kv_heads"), memory_layout
        )
    except ValueError as error:
        raise UsageError(f"target {configuration.target}: {side}: {error}") from None


def make_target(configuration: Configuration) -> DisaggregatedPair:
    """Reference pair: a prefill and a decode pool, KV pulled between their layouts."""
    return DisaggregatedPair(*pair_arguments(configuration))
