"""What a target with tiers hands over, its traits too: is it what the protocol says? What is not is bad input, and no finding."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from kvsan.harness.target import (
    COMPUTE_STREAM,
    COPY_STREAM,
    Chunk,
    Copy,
    Fill,
    Loading,
    Offloading,
    TieredTarget,
    Traits,
    Zero,
)
from kvsan.harness.tiers import DEVICE_TIER, HOST_TIER, Get, Put, Store, TierView
from kvsan.harness.verdict import UsageError

_EFFECTS = (Copy, Zero, Put, Get, Fill)
INTEGERS = (int, np.integer)
"""What counts as an integer in what a target returns."""


def check_tiers(traits: Traits, name: str) -> None:
    """Raise a UsageError unless the streams and tiers that the traits of a target name can be those of a device."""
    streams, tiers = traits.streams, traits.tiers
    if streams[:2] != (COMPUTE_STREAM, COPY_STREAM) or len(set(streams)) < len(streams):
        raise UsageError(
            f"{name}: its traits name streams {streams}; expected {COMPUTE_STREAM}, {COPY_STREAM} and others, each once"
        )
    if not tiers:
        return
    if tiers[0] != HOST_TIER or len(set(tiers)) < len(tiers) or DEVICE_TIER in tiers:
        raise UsageError(f"{name}: its traits name tiers {tiers}; expected {HOST_TIER} and then stores, each once")
    if traits.chunk_blocks < 1:
        raise UsageError(f"{name}: its traits have chunk_blocks {traits.chunk_blocks}; expected at least 1")
    if traits.host_units < traits.chunk_blocks:
        raise UsageError(
            f"{name}: its traits have host_units {traits.host_units}; expected at least chunk_blocks, "
            f"{traits.chunk_blocks}, as everything goes through the host"
        )


def check_granted(target: TieredTarget, method: str, granted: object, kind: type[Offloading | Loading]) -> None:
    """Raise a UsageError unless ``granted``, which is not None, is what ``method`` may return."""
    returned = f"{type(target).__name__}.{method} returned"
    if not isinstance(granted, Offloading | Loading) or not isinstance(granted, kind):
        raise UsageError(f"{returned} {granted!r}; expected {kind.__name__} or None")
    if isinstance(granted, Loading):
        if not isinstance(granted.hit, INTEGERS) or granted.hit < 0:
            raise UsageError(f"{returned} hit {granted.hit!r}; expected a number of tokens")
        if not isinstance(granted.tokens, INTEGERS) or granted.tokens < 1:
            raise UsageError(f"{returned} tokens {granted.tokens!r}; expected a number of tokens, at least 1")
    for chunk in _sequence(returned, "chunks", granted.chunks):
        _check_chunk(returned, chunk, target.traits.tiers)
    check_effect_kinds(returned, granted.effects)


def check_effect_kinds(returned: str, effects: object) -> None:
    """Raise a UsageError unless these are effects, each of a kind that there is."""
    for effect in _sequence(returned, "effects", effects):
        if not isinstance(effect, _EFFECTS):
            names = ", ".join(one.__name__ for one in _EFFECTS)
            raise UsageError(f"{returned} effect {effect!r}; expected one of {names}")
        if isinstance(effect, Fill):
            _check_fill(returned, effect)


def _check_fill(returned: str, fill: Fill) -> None:
    values = fill.values
    if not isinstance(values, np.ndarray) or values.ndim != 2 or values.dtype.kind not in "iu":
        raise UsageError(f"{returned} values of buffer {fill.buffer!r} {values!r}; expected integers [rows, columns]")
    if not isinstance(fill.row, INTEGERS):
        raise UsageError(f"{returned} row {fill.row!r} of buffer {fill.buffer!r}; expected an integer")


def _sequence(returned: str, name: str, given: Any) -> Sequence[Any]:
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise UsageError(f"{returned} {name} {given!r}; expected a sequence")
    return given


def _check_chunk(returned: str, chunk: object, tiers: tuple[str, ...]) -> None:
    if not isinstance(chunk, Chunk):
        raise UsageError(f"{returned} chunk {chunk!r}; expected a kvsan.harness.target.Chunk")
    if not isinstance(chunk.key, str):
        raise UsageError(f"{returned} {chunk}; expected a key that is a str")
    if not isinstance(chunk.block, INTEGERS):
        raise UsageError(f"{returned} {chunk}; expected a block that is an int")
    if not isinstance(chunk.units, tuple) or not all(isinstance(unit, INTEGERS) for unit in chunk.units):
        raise UsageError(f"{returned} {chunk}; expected units that are a tuple of ints")
    if chunk.tier not in tiers:
        raise UsageError(f"{returned} {chunk}; expected a tier of the target's traits: {', '.join(tiers)}")


def view_of_tiers(target: TieredTarget) -> TierView:
    """Ask a new target for the view of its tiers; UsageError if it has none."""
    name = f"{type(target).__name__}.tier_view"
    try:
        view = target.tier_view()
    except Exception as error:
        raise _raised(name, error) from error
    check_methods(f"{name} returned", view, TierView)
    return view


def stores_of_tiers(target: TieredTarget, traits: Traits) -> Mapping[str, Store]:
    """Ask a new target for its stores; UsageError unless they are those that its traits name, and empty."""
    name, expected = f"{type(target).__name__}.stores", traits.tiers[1:]
    try:
        stores = target.stores()
    except Exception as error:
        raise _raised(name, error) from error
    wanted = f"expected a store for each of {', '.join(expected)}" if expected else "expected no store"
    if not isinstance(stores, Mapping):
        raise UsageError(f"{name} returned {stores!r}; {wanted}: a mapping from names")
    if set(stores) != set(expected):
        raise UsageError(f"{name} returned {', '.join(map(repr, stores)) or 'none'}; {wanted}")
    for store_name, store in stores.items():
        check_methods(f"{name} returned, as {store_name!r},", store, Store)
        if held := len(_keys_at_first(store_name, store)):
            raise UsageError(
                f"store {store_name!r} already holds {held} keys; expected an empty one for each target, as no replay "
                "of a finding has what an earlier session left"
            )
    return stores


def _keys_at_first(name: str, store: Store) -> Collection[str]:
    try:
        keys = store.keys()
    except Exception as error:
        raise _raised(f"store {name!r}: its keys()", error) from error
    if not isinstance(keys, Collection):
        raise UsageError(f"store {name!r}: its keys() returned {keys!r}; expected a collection of keys")
    return keys


def check_methods(returned: str, given: object, protocol: type) -> None:
    """Raise a UsageError unless ``given`` has every method of a protocol; ``returned`` says where it is from."""
    for method in vars(protocol):
        if not method.startswith("_") and not callable(getattr(given, method, None)):
            raise UsageError(
                f"{returned} {given!r}, which has no method {method}; expected a {protocol.__module__}.{protocol.__name__}"
            )


def _raised(what: str, error: Exception) -> UsageError:
    return UsageError(f"{what} raised {type(error).__name__}: {error}".splitlines()[0])
