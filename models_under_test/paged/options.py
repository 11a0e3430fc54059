"""From a configuration to a reference manager: its options, and the tiers that they ask for."""

from __future__ import annotations

from typing import Any

from kvsan.harness.configuration import Configuration, OptionValue
from kvsan.harness.verdict import UsageError
from kvsan.models_under_test.paged.manager import PagedManager
from kvsan.models_under_test.paged.tiers import RESETS, IndexMaker, StoreMakers, Tiers, index_maker, store_makers

MANAGER_OPTIONS: dict[str, OptionValue] = {"deferred_free": True, "watermark": 0, "max_in_flight": 2}
TIER_OPTIONS: dict[str, OptionValue] = {
    "host_units": 0,
    "chunk_blocks": 1,
    "policy": "lru",
    "stores": "",
    "store_chunks": 8,
    "remote_loses": 0,
    "reset_reaches": "stores",
}
OPTIONS = {**MANAGER_OPTIONS, **TIER_OPTIONS}
"""Options and their defaults. Units of memory are blocks and chunks; ``stores`` names ``disk`` and ``remote``, with a comma
between them; of every ``remote_loses`` requests that the remote store gets, one makes it lose an entry (0: never). A reset of the
prefix cache empties the ``device`` alone, the ``host`` too, or everything down to the ``stores``."""


def manager_arguments(
    configuration: Configuration,
    make_index: IndexMaker | None = None,
    stores: StoreMakers | None = None,
    host_units: int = 0,
) -> dict[str, Any]:
    """Keyword arguments of a ``PagedManager``; UsageError for cache groups or options that it does not have.

    ``make_index`` and ``stores`` take the place of its own; ``host_units`` are those where the options name none.
    """
    if configuration.groups != ("full",):
        raise UsageError(f"target {configuration.target}: groups {configuration.groups}: it has one group, 'full'")
    for name, _ in configuration.options:
        if name not in OPTIONS:
            raise UsageError(f"target {configuration.target}: unknown option {name!r}; it has {', '.join(OPTIONS)}")
    arguments: dict[str, Any] = {"num_units": configuration.num_units, "block_size": configuration.block_size}
    for name, default in MANAGER_OPTIONS.items():
        arguments[name] = configuration.option(name, default)
    return arguments | {"tiers": _tiers(configuration, make_index, stores, host_units)}


def _tiers(
    configuration: Configuration, make_index: IndexMaker | None, stores: StoreMakers | None, default_units: int
) -> Tiers | None:
    """Tiers that the options ask for; none without host units, through which everything goes."""
    host_units = _at_least(configuration, "host_units", 0, default_units)
    chunk_blocks = _at_least(configuration, "chunk_blocks", 1)
    store_chunks = _at_least(configuration, "store_chunks", 1)
    _at_least(configuration, "remote_loses", 0)
    policy = index_maker(str(configuration.option("policy", "lru")))
    makers = store_makers(configuration, stores or {})
    names = [name for name in str(configuration.option("stores", "")).split(",") if name]
    for name in names:
        if name not in makers:
            raise UsageError(f"option stores: {name!r}; expected some of {', '.join(makers)}")
    reset_reaches = str(configuration.option("reset_reaches", RESETS[-1]))
    if reset_reaches not in RESETS:
        raise UsageError(f"option reset_reaches: {reset_reaches!r}; expected one of {', '.join(RESETS)}")
    if not host_units:
        if names:
            raise UsageError(f"option stores: {','.join(names)} without host units; expected host_units=N as well")
        return None
    if chunk_blocks > host_units:
        raise UsageError(
            f"option chunk_blocks: {chunk_blocks} blocks; expected 1 to {host_units}, as there are {host_units} host units"
        )
    return Tiers(
        configuration.num_units,
        host_units // chunk_blocks * chunk_blocks,
        chunk_blocks,
        make_index or policy,
        {name: makers[name] for name in names},
        store_chunks,
        reset_reaches,
    )


def _at_least(configuration: Configuration, name: str, least: int, default: int | None = None) -> int:
    """Value of an option that counts something."""
    value = configuration.option(name, TIER_OPTIONS[name] if default is None else default)
    assert isinstance(value, int)
    if value < least:
        raise UsageError(f"option {name}: {value}; expected at least {least}")
    return value


def make_target(configuration: Configuration) -> PagedManager:
    """Reference manager: block pool, prefix cache, fork with copy on write, deferred free, tiers."""
    return PagedManager(**manager_arguments(configuration))
