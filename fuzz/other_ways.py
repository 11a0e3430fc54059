"""Other ways to the same violation: the state that it needs comes about otherwise, in fewer operations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvsan.fuzz.profiles import ASYNC
from kvsan.fuzz.simplify import ids_of, whole_prefills
from kvsan.harness.configuration import Configuration, OptionValue
from kvsan.harness.operations import (
    Advance,
    Complete,
    Fail,
    Load,
    Offload,
    Operation,
    ResetPrefixCache,
    Restart,
    Spoil,
    Submit,
    Tear,
)
from kvsan.harness.registry import takes_reference_options
from kvsan.harness.tiers import HOST_TIER

Operations = tuple[Operation, ...]
_EVICTING = 6
_EVICTING_DOWN = 8


def cache_resets(operations: Operations, longest: int = _EVICTING) -> Iterator[Operations]:
    """A reset of the prefix cache in place of a few operations that evict something."""
    for start in range(1, len(operations) - 1):
        for stop in range(start + 1, min(start + longest, len(operations)) + 1):
            if not any(isinstance(one, ResetPrefixCache) for one in operations[start:stop]):
                yield (*operations[:start], ResetPrefixCache(), *operations[stop:])


def tier_resets(configuration: Configuration, operations: Operations) -> Iterator[tuple[Configuration, Operations]]:
    """The same where there are tiers: a reset that leaves those which the trace still needs."""
    if takes_reference_options(configuration.target) and any(isinstance(one, Offload) for one in operations):
        options = dict(configuration.options)
        for reach in dict(ASYNC.options)["reset_reaches"]:
            if options.get("reset_reaches") != reach:
                other = replace(configuration, options=tuple(sorted((options | {"reset_reaches": reach}).items())))
                for shorter in cache_resets(operations, _EVICTING_DOWN):
                    yield other, shorter


def with_other_prompts(operations: Operations) -> Iterator[Operations]:
    """One operation less, and the prompt of its request a token longer or shorter."""
    for position, dropped in enumerate(operations):
        for at, one in enumerate(operations):
            if isinstance(one, Submit) and one is not dropped and one.r in ids_of(dropped):
                *before, last = one.prompt
                for length in (last[-1] - 1, last[-1] + 1):
                    other = replace(one, prompt=(*before, (*last[:-1], length)))
                    told = [*operations[:at], other, *operations[at + 1 :]]
                    rest = told[:position] + told[position + 1 :]
                    yield tuple(rest)
                    yield whole_prefills(rest)


def without_stores(configuration: Configuration, operations: Operations) -> Iterator[tuple[Configuration, Operations]]:
    """Nothing goes further down than to the host; loads come from there, and one of them fails without a store's help."""
    stored = {one.t for one in operations if isinstance(one, Offload) and one.tier != HOST_TIER}
    if not stored:
        return
    kept = tuple(one for one in operations if not _is_of_stores(one, stored))
    loads = [one.t for one in kept if isinstance(one, Load)]
    ways = [kept, *(_failed(kept, at) for at, one in enumerate(kept) if isinstance(one, Complete) and one.t in loads)]
    for other in _leaving_the_host(configuration):
        for way in ways:
            yield other, way


def _is_of_stores(operation: Operation, stored: set[str]) -> bool:
    """Whether an operation means nothing where no store has anything. A store's stream has the store's name."""
    if isinstance(operation, Advance):
        return operation.stream in dict(ASYNC.options)["stores"]
    return isinstance(operation, Spoil | Restart) or getattr(operation, "t", None) in stored


def _failed(operations: Operations, at: int) -> Operations:
    """The load that ends at ``at`` has failed."""
    t = operations[at].t  # type: ignore[union-attr]
    before = [one for one in operations[:at] if not (isinstance(one, Fail | Tear) and one.t == t)]
    return (*before, Fail(t), *operations[at:])


def _leaving_the_host(configuration: Configuration) -> Iterator[Configuration]:
    """The same, and where resets can be told how far to reach, with one that empties the device alone."""
    yield configuration
    if takes_reference_options(configuration.target):
        options: dict[str, OptionValue] = dict(configuration.options) | {"reset_reaches": "device"}
        yield replace(configuration, options=tuple(sorted(options.items())))
