"""Floors: what a search must have exercised, less what the target cannot do and what known findings steer it away from."""

from __future__ import annotations

from kvsan.harness.operations import EXCHANGES, OPERATIONS, Abort, Preempt, Schedule
from kvsan.harness.pair import CONSUMER, PRODUCER
from kvsan.harness.pair_session import PairSession
from kvsan.harness.session import Session
from kvsan.harness.target import RequestState, SessionState, Traits

_STEERED = {
    "drafts": ("rejected draft",),
    "external": ("external load", "Landed"),
    "delayed": ("Landed",),
    "fork": ("Fork", "copy on write"),
    "cancel": ("Cancel",),
}
"""Events that become rare when a search leaves a feature out of most runs."""


_TRANSFER_EVENTS = {
    "load refused",
    "two transfers in flight",
    "late completion",
    "reordered completion",
    "completion after the end",
    "abort while loading",
    "transfer failed",
    "transfer torn",
    "recompute after a failed load",
}


_EXCHANGE_EVENTS = {
    "launches in both pools",
    "pull",
    "pull between layouts",
    "two pulls in flight",
    "send while computing",
    "receive refused",
    "claim refused",
    "release of the unknown",
    "release of the released",
    "release of the expired",
    "release unread",
    "expired",
    "expiry refused",
}


_PULL_EVENTS = {"completion told twice", "preemption while loading", "transfer refused"}
"""Events of transfers between tiers that pulls have too, besides ``_TRANSFER_EVENTS``."""


class _Everything:
    """Implements ``kvsan.harness.target.PrefixIndex``: every block is published."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size

    def has(self, group: int, block: int) -> bool:
        """Every block of every group is there."""
        return True


def impossible_in(session: Session | PairSession) -> frozenset[str]:
    """Events that the targets of a session rule out, all of them."""
    possible_nowhere = frozenset.intersection(*(impossible_events(part.traits) for part in session.parts))
    if session.exchange is None:
        return possible_nowhere | _EXCHANGE_EVENTS | {kind.__name__ for kind in EXCHANGES}
    missing = EXCHANGES.difference(*(part.traits.operations for part in session.parts))
    layouts = session.exchange.target.layouts
    alike = {"pull between layouts"} if layouts[PRODUCER] == layouts[CONSUMER] else set()
    return (possible_nowhere - _TRANSFER_EVENTS - _PULL_EVENTS) | {kind.__name__ for kind in missing} | alike


def impossible_events(traits: Traits) -> frozenset[str]:
    """Events that a target's traits rule out, of those that need no pair."""
    impossible = {kind.__name__ for kind in frozenset(OPERATIONS) - EXCHANGES - traits.operations}
    if "Landed" in impossible or not _may(traits, Schedule("r", 1, external=traits.external_unit), in_flight=0):
        impossible.add("external load")
    if not _may(traits, Schedule("r", 1, external=traits.external_unit, delayed=True), in_flight=0):
        impossible.add("Landed")
    if "Fork" in impossible:
        impossible.add("copy on write")
    if "Abort" in impossible or not _may(traits, Abort("r"), in_flight=1):
        impossible.add("abort in flight")
    impossible |= _impossible_transfers(traits)
    impossible |= _impossible_replays(traits)
    if traits.max_in_flight < 2:
        impossible |= {"two launches in flight", "two replays in flight"}
    if traits.max_drafts == 0:
        impossible.add("rejected draft")
    return frozenset(impossible | _impossible_hits(traits))


def _impossible_transfers(traits: Traits) -> set[str]:
    """Transfers need tiers, most faults need a store."""
    impossible = {event for tier in ("host", "disk", "remote") if tier not in traits.tiers
                  for event in (f"offload to {tier}", f"load from {tier}")}  # fmt: skip
    if len(traits.tiers) < 2:
        impossible |= {"Spoil", "Restart", "transfer refused", "restart while storing"}
        impossible |= {"offload to a store", "load from a store"}
    if not traits.tiers:
        impossible |= _TRANSFER_EVENTS
    if not traits.late_notices:
        impossible.add("completion told twice")
    if not traits.preempts_loading:
        impossible.add("preemption while loading")
    return impossible


def _impossible_replays(traits: Traits) -> set[str]:
    """Without a runner there is nothing to replay; a graph of one row has no padding, and a request must be able to go."""
    impossible = set()
    if not traits.graph_rows:
        impossible |= {"Capture", "Replay", "two replays in flight", "replay with other rows"}
    if traits.graph_rows < 2:
        impossible.add("padded replay")
    if not traits.graph_rows or Preempt not in traits.operations:
        impossible.add("replay after preemption")
    return impossible


def _may(traits: Traits, operation: Schedule | Abort, in_flight: int) -> bool:
    """Whether the contract ever allows an operation: on a new request, or on one with a launch in flight."""
    request = RequestState(in_flight, 0, in_flight, False, False, isinstance(operation, Schedule))
    pending = "r" if isinstance(operation, Schedule) else None
    return traits.allows(request, SessionState(0, in_flight, pending), operation)


def _impossible_hits(traits: Traits) -> set[str]:
    """Without a promise nobody can be held to hits or evictions; with one, a full hit may still be out of reach (EAGLE)."""
    if traits.promised_hit is None:
        return {"full hit", "partial hit", "eviction"}
    blocks = 64
    tokens = blocks * traits.block_size + 1
    full = traits.promised_hit(_Everything(traits.block_size), tokens) == blocks * traits.block_size
    return set() if full else {"full hit"}


def steered_events(features: frozenset[str]) -> frozenset[str]:
    """Events that a search meets seldom because it leaves these features out of most runs."""
    return frozenset(event for feature in features for event in _STEERED.get(feature, ()))
