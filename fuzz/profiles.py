"""Profiles: what a run may be made of, and what must have happened for it to count as tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

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
    searches of at least ``floor_steps`` steps. Events that a target cannot produce are left out by the search.
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


PROFILES: dict[str, Profile] = {profile.name: profile for profile in (DEFAULT, HEAVY)}


def profile_named(name: str) -> Profile:
    """Return a profile; UsageError if there is none of that name."""
    if name not in PROFILES:
        raise UsageError(f"profile {name!r}: expected one of {', '.join(PROFILES)}")
    return PROFILES[name]
