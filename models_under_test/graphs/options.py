"""From a configuration to a runner: which manager it launches for, and how it fills its buffers."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from kvsan.harness.configuration import Configuration
from kvsan.harness.registry import resolve
from kvsan.harness.target import COMPUTE_STREAM, Target, Traits
from kvsan.harness.verdict import UsageError
from kvsan.models_under_test.graphs.runner import GraphRunner

OPTIONS = {"fills": COMPUTE_STREAM, "over": "paged"}
"""Options and their defaults: the stream that fills the buffers, and the target whose batches are launched; all others are
that target's."""


def make_runner(configuration: Configuration, kind: type[GraphRunner]) -> Target:
    """Make a runner over the manager that the options name."""
    over, fills = (str(configuration.option(name, default)) for name, default in reversed(OPTIONS.items()))
    rest = tuple(option for option in configuration.options if option[0] not in OPTIONS)
    manager = resolve(over)(replace(configuration, target=over, options=rest))
    if not isinstance(getattr(manager, "traits", None), Traits):
        raise UsageError(
            f"option over: {over!r} makes a {type(manager).__name__}; expected a kvsan.harness.target.Target"
        )
    return cast(Target, kind(manager, fills))


def make_target(configuration: Configuration) -> Target:
    """CUDA-graph runner: static buffers, padded batches, over the reference manager or the target that option over names."""
    return make_runner(configuration, GraphRunner)
