"""Profiles: what a run may be made of, and what must have happened for it to count as tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kvsan.harness.configuration import OptionValue
from kvsan.harness.verdict import UsageError

FEATURES = (
    "salts",
    "adapters",
    "adapter ids",
    "one name for all",
    "media",
    "external",
    "delayed",
    "drafts",
    "lookahead",
    "fork",
    "cancel",
    "reused ids",
    "later turns",
    "own lookups",
    "two in flight",
)
"""What a run can leave out; swarm testing switches some of them off in each run."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Relative weights of operations, sizes to draw from (tokens and units), and floors.

    ``floors`` are events per 1,000 steps below which a search has not exercised what it claims (exit code 5), for
    searches of at least ``floor_steps`` steps. Events that a target cannot produce are left out by the search. ``options``
    are drawn for each run, for targets that are built on the reference manager, or, if the profile is ``of_pairs``, on the
    reference pair; what a configuration sets stays.
    """

    name: str
    weights: Mapping[str, float]
    num_units: tuple[int, ...] = (12, 24, 33, 64)
    block_sizes: tuple[int, ...] = (1, 2, 4, 4, 16)
    live_requests: tuple[int, ...] = (2, 4, 8, 12)
    chunks: tuple[int, ...] = (1, 4, 16, 48)
    segment_tokens: tuple[int, ...] = (4, 16, 40)
    segments: int = 3
    families: int = 4
    decode_share: float = 0.4
    run_steps: tuple[int, ...] = (100, 300, 1000, 2000)
    keep_features: float = 0.6
    max_context: int = 512
    floor_steps: int = 20_000
    floors: Mapping[str, float] = field(default_factory=dict)
    options: tuple[tuple[str, tuple[OptionValue, ...]], ...] = ()
    of_pairs: bool = False


_WEIGHTS = {
    "Submit": 1.2,
    "Schedule": 6.0,
    "Launch": 2.4,
    "Retire": 2.2,
    "Advance": 0.6,
    "Fork": 0.5,
    "Finish": 0.7,
    "Abort": 0.25,
    "Preempt": 0.3,
    "Cancel": 0.2,
    "Lookup": 0.3,
    "Landed": 0.5,
    "ResetPrefixCache": 0.02,
    "Offload": 0.0,
    "Load": 0.0,
    "Complete": 0.0,
    "Fail": 0.0,
    "Tear": 0.0,
    "Spoil": 0.0,
    "Restart": 0.0,
    "Send": 0.0,
    "Receive": 0.0,
    "Release": 0.0,
    "Expire": 0.0,
    "Capture": 0.0,
    "Replay": 0.0,
}

DEFAULT = Profile(
    "default",
    _WEIGHTS,
    floors={
        "Schedule": 100,
        "Launch": 30,
        "Retire": 30,
        "Fork": 1,
        "Finish": 5,
        "Abort": 1,
        "Preempt": 1,
        "Cancel": 0.5,
        "Lookup": 1,
        "Landed": 0.2,
        "full hit": 0.1,
        "partial hit": 1,
        "no hit": 5,
        "eviction": 5,
        "refusal": 5,
        "copy on write": 0.5,
        "rejected draft": 1,
        "external load": 0.5,
        "two launches in flight": 5,
        "abort in flight": 0.1,
    },
)

HEAVY = Profile(
    "heavy",
    _WEIGHTS
    | {"Submit": 0.4, "Schedule": 9.0, "Launch": 3.4, "Retire": 3.0, "Advance": 0.0, "Finish": 0.02, "Abort": 0.01,
       "Fork": 0.05, "Preempt": 0.02, "Cancel": 0.05, "Lookup": 0.05, "ResetPrefixCache": 0.0},
    num_units=(512,),
    block_sizes=(16,),
    live_requests=(14, 18),
    chunks=(64, 128, 256),
    segment_tokens=(160, 240),
    segments=3,
    families=3,
    decode_share=0.9,
    run_steps=(20_000,),
    keep_features=0.7,
    max_context=640,
)  # fmt: skip


ASYNC = Profile(
    "async",
    _WEIGHTS
    | {"Submit": 1.6, "Schedule": 5.0, "Advance": 1.2, "Finish": 0.9, "Fork": 0.8, "Offload": 1.4, "Load": 1.6,
       "Complete": 1.2, "Fail": 0.12, "Tear": 0.12, "Spoil": 0.12, "Restart": 0.08, "ResetPrefixCache": 0.02},
    options=(
        ("host_units", (4, 8, 16, 24)),
        ("chunk_blocks", (1, 1, 2, 3)),
        ("policy", ("lru", "arc")),
        ("stores", ("", "disk", "remote", "remote", "disk,remote")),
        ("store_chunks", (3, 8, 16)),
        ("remote_loses", (0, 0, 7)),
        ("reset_reaches", ("device", "host", "stores")),
        ("deferred_free", (True, True, False)),
    ),
    floor_steps=100_000,
    floors={
        **DEFAULT.floors,
        "Offload": 10,
        "Load": 5,
        "Complete": 10,
        "Fail": 0.2,
        "Tear": 0.15,
        "Spoil": 0.5,
        "Restart": 0.5,
        "offload to host": 4,
        "offload to a store": 1,
        "load from a store": 0.15,
        "offload to disk": 0.4,
        "offload to remote": 0.7,
        "load from host": 1,
        "load from disk": 0.08,
        "load from remote": 0.08,
        "load refused": 4,
        "two transfers in flight": 1,
        "late completion": 0.6,
        "reordered completion": 0.25,
        "completion told twice": 4,
        "completion after the end": 0.08,
        "abort while loading": 0.02,
        "preemption while loading": 0.05,
        "transfer failed": 0.2,
        "transfer torn": 0.15,
        "transfer refused": 0.08,
        "restart while storing": 0.01,
        "recompute after a failed load": 0.12,
    },
)  # fmt: skip
"""Transfers between tiers, their faults, and two launches in flight."""

HEAVY_ASYNC = replace(
    HEAVY,
    name="heavy-async",
    weights={**HEAVY.weights,
       "Submit": 1.4, "Schedule": 8.0, "Finish": 0.4, "Advance": 1.0, "Offload": 7.0, "Load": 6.0, "Complete": 8.0,
       "Fail": 0.1, "Tear": 0.1, "Spoil": 0.05},
    live_requests=(20,),
)  # fmt: skip
"""Both at once: what the benchmark of transfers is drawn from."""


GRAPHS = Profile(
    "graphs",
    _WEIGHTS
    | {"Schedule": 3.5, "Launch": 2.0, "Retire": 2.4, "Advance": 1.5, "Preempt": 0.5, "Finish": 0.5, "Capture": 0.2,
       "Replay": 2.5},
    decode_share=0.8,
    options=(("fills", ("compute", "copy")),),
    floors={
        "Schedule": 100,
        "Launch": 30,
        "Retire": 50,
        "Fork": 1,
        "Finish": 5,
        "Abort": 1,
        "Preempt": 1,
        "Cancel": 0.5,
        "no hit": 5,
        "eviction": 5,
        "refusal": 5,
        "copy on write": 0.5,
        "two launches in flight": 5,
        "Capture": 2,
        "Replay": 20,
        "padded replay": 10,
        "two replays in flight": 3,
        "replay with other rows": 5,
        "replay after preemption": 0.5,
    },
)  # fmt: skip
"""Decode batches through captured graphs of a few sizes, between launches that are not."""


_SIDES = tuple(
    (f"{side}_{name}", values)
    for side in ("prefill", "decode")
    for name, values in (
        ("tp", (1, 1, 2, 4, 8)),
        ("dcp", (1, 1, 2)),
        ("pcp", (1, 1, 2)),
        ("interleave", (1, 0)),
        ("layout", ("NHD", "HND")),
    )
)

DISAGG = Profile(
    "disagg",
    _WEIGHTS | {"Submit": 1.0, "Advance": 1.6, "Complete": 1.2, "Fail": 0.4, "Tear": 0.4},
    of_pairs=True,
    options=(
        ("kv_heads", (2, 4)),
        ("decode_block", (0, 0, 1, 2, 4)),
        ("decode_units", (0, 0, 6, 12, 24)),
        ("deferred_free", (True, True, False)),
        *_SIDES,
    ),
    floors={
        **DEFAULT.floors,
        "Fork": 0.2,
        "copy on write": 0.2,
        "Lookup": 0.3,
        "Send": 10,
        "Receive": 5,
        "Complete": 5,
        "Release": 5,
        "Expire": 0.5,
        "Fail": 0.05,
        "Tear": 0.05,
        "launches in both pools": 10,
        "pull": 2,
        "pull between layouts": 2,
        "two pulls in flight": 0.2,
        "send while computing": 0.5,
        "receive refused": 0.5,
        "claim refused": 0.05,
        "release of the unknown": 0.1,
        "release of the released": 0.2,
        "release unread": 0.2,
        "expired": 0.5,
        "expiry refused": 0.1,
        "late completion": 0.2,
        "reordered completion": 0.02,
        "completion told twice": 0.2,
        "completion after the end": 0.05,
        "abort while loading": 0.05,
        "preemption while loading": 0.05,
        "transfer failed": 0.05,
        "transfer torn": 0.05,
        "transfer refused": 0.05,
        "recompute after a failed load": 0.1,
    },
)
"""Two pools, KV pulled from one to the other with its layout converted on the way, and what goes wrong with it."""


def small_scope(profile: Profile) -> Profile:
    """Make a profile whose pools, prompts and runs are as small as they can be and still do something.

    Most bugs show in a small scope, and there they show sooner and in fewer operations.
    """
    return replace(
        profile,
        num_units=(4, 5, 6, 7, 8, 10, 12),
        block_sizes=(1, 2),
        live_requests=(2, 3, 4),
        chunks=(1, 2, 4, 8),
        segment_tokens=(2, 4, 8),
        segments=2,
        families=2,
        run_steps=(30, 60),
    )


def tiny_scope(profile: Profile) -> Profile:
    """Make a profile for interpreted kernels, of which the host runs hundreds in the time of one.

    Forks are common in it: without them there is no copy on write, and nothing for a copy kernel to do.
    """
    return replace(
        small_scope(profile),
        weights={**profile.weights, "Fork": 4 * profile.weights["Fork"]},
        num_units=(4, 5, 6, 8),
        block_sizes=(1, 2, 4),
        live_requests=(2, 3),
        chunks=(1, 2, 4),
        segment_tokens=(2, 3, 4),
        run_steps=(15, 30),
    )


PROFILES: dict[str, Profile] = {
    profile.name: profile for profile in (DEFAULT, HEAVY, ASYNC, DISAGG, HEAVY_ASYNC, GRAPHS)
}


def profile_named(name: str) -> Profile:
    """Return a profile; UsageError if there is none of that name."""
    if name not in PROFILES:
        raise UsageError(f"profile {name!r}: expected one of {', '.join(PROFILES)}")
    return PROFILES[name]
