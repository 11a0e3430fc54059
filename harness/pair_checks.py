"""What a pair hands over: is it what ``kvsan.harness.pair`` says? What is not is bad input, and no finding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kvsan.gpu_kernels.sharding import Layout
from kvsan.harness.granted import INTEGERS, check_methods
from kvsan.harness.pair import CONSUMER, POOLS, PRODUCER, Consumer, PairTarget, Producer, Receiving, Sending
from kvsan.harness.target import IntArray, Traits
from kvsan.harness.verdict import UsageError

# -- the pair itself


def check_pair(pair: PairTarget) -> None:
    """Raise a UsageError unless a pair, whose pools are targets, is one that a session can run."""
    name = type(pair).__name__
    if set(pair.pools) != set(POOLS):
        raise UsageError(
            f"{name}.pools are {', '.join(map(str, pair.pools)) or 'none'}; expected {PRODUCER}, which computes, and "
            f"{CONSUMER}, which pulls"
        )
    layouts = getattr(pair, "layouts", None)
    if not isinstance(layouts, Mapping) or not all(isinstance(layouts.get(pool), Layout) for pool in POOLS):
        raise UsageError(f"{name}.layouts are {layouts!r}; expected a kvsan.gpu_kernels.sharding.Layout for each pool")
    for attribute, protocol in (("producer", Producer), ("consumer", Consumer)):
        check_methods(f"{name}.{attribute} is", getattr(pair, attribute, None), protocol)
    if not callable(getattr(pair, "source_layout", None)):
        raise UsageError(f"{name} has no method source_layout; expected a kvsan.harness.pair.PairTarget")
    for pool in POOLS:
        _check_pool(pool, pair.pools[pool].traits, layouts[pool])
    heads = [layouts[pool].num_kv_heads for pool in POOLS]
    if heads[0] != heads[1]:
        raise UsageError(f"{name}.layouts are of {heads[0]} and of {heads[1]} kv heads; expected as many of both pools")


def _check_pool(pool: str, traits: Traits, layout: Layout) -> None:
    if traits.tiers or traits.graph_rows:
        raise UsageError(f"pool {pool} of a pair: expected one without tiers and without graphs")
    if len(traits.groups) != 1:
        raise UsageError(f"pool {pool} of a pair has {len(traits.groups)} cache groups; expected one")
    if traits.block_size != layout.unit_tokens:
        raise UsageError(
            f"pool {pool} of a pair has block_size {traits.block_size}; expected the {layout.unit_tokens} tokens that a "
            f"unit of its layout holds, {layout.block_size} on each of {layout.cp} ranks"
        )


# -- what its methods return


def check_sending(producer: Producer, granted: object) -> Sending:
    """Return what ``send`` returned, which is not None; UsageError unless it is a Sending."""
    returned = f"{type(producer).__name__}.send returned"
    if not isinstance(granted, Sending):
        raise UsageError(f"{returned} {granted!r}; expected Sending or None")
    _check_tokens(returned, "tokens", granted.tokens, 1)
    return Sending(granted.tokens, _units(f"{returned} units", granted.units))


def check_claimed(producer: Producer, units: object) -> IntArray:
    """Return what ``claim`` returned, which is not None, as int64 ``[num_units]``; UsageError unless it is units."""
    return np.array(_units(f"{type(producer).__name__}.claim returned", units), np.int64)


def check_receiving(consumer: Consumer, granted: object, streams: Sequence[str]) -> Receiving:
    """Return what ``receive`` returned, which is not None; UsageError unless it is a Receiving after known streams."""
    returned = f"{type(consumer).__name__}.receive returned"
    if not isinstance(granted, Receiving):
        raise UsageError(f"{returned} {granted!r}; expected Receiving or None")
    _check_tokens(returned, "hit", granted.hit, None)
    _check_tokens(returned, "tokens", granted.tokens, None)
    if not isinstance(granted.after, tuple | list):
        raise UsageError(f"{returned} after {granted.after!r}; expected names of streams, in a tuple")
    for stream in granted.after:
        if stream not in streams:
            raise UsageError(
                f"{returned} after {stream!r}; expected streams of its pool's traits: {', '.join(streams)}"
            )
    return granted


def check_source_layout(pair: PairTarget, layout: object) -> Layout:
    """Return what ``source_layout`` returned; UsageError unless it is a layout of as many heads as the pools'."""
    returned, heads = f"{type(pair).__name__}.source_layout returned", pair.layouts[PRODUCER].num_kv_heads
    if not isinstance(layout, Layout):
        raise UsageError(f"{returned} {layout!r}; expected a kvsan.gpu_kernels.sharding.Layout")
    if layout.num_kv_heads != heads:
        raise UsageError(f"{returned} num_kv_heads {layout.num_kv_heads}; expected {heads}, as many as the pools have")
    return layout


def _check_tokens(returned: str, name: str, given: object, least: int | None) -> None:
    if not isinstance(given, INTEGERS) or (least is not None and given < least):
        raise UsageError(
            f"{returned} {name} {given!r}; expected a number of tokens"
            + ("" if least is None else f", at least {least}")
        )


def _units(returned: str, given: Any) -> tuple[int, ...]:
    if isinstance(given, Sequence | np.ndarray) and all(isinstance(unit, INTEGERS) for unit in given):
        return tuple(int(unit) for unit in given)
    raise UsageError(f"{returned} {given!r}; expected a sequence of units")
