"""Protocols with one step done wrong: each breaks the induction at a named claim, from a state that is shown.

Most are seeded bugs of the reference manager that the fuzzer has to find as well; the others are steps for which there is none.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsan.harness.configuration import Configuration
from kvsan.models_under_test.mutants import MUTANTS
from kvsan.models_under_test.mutants.base import Mutant, make_mutant
from kvsan.models_under_test.paged.pool import NULL_UNIT, BlockPool


class Variant(Mutant):
    """A seeded bug that only the proofs are shown; ``make`` is its name as a target."""

    @classmethod
    def make(cls, configuration: Configuration) -> Mutant:
        """Make one with the reference manager's options."""
        return make_mutant(cls, configuration)


class _TouchedInTheQueue(BlockPool):
    __slots__ = ()

    def touch(self, unit: int) -> None:
        self.references[unit] += 1
        self.touched.append(unit)


class TouchWithoutUnlink(Variant):
    """A cached block that is hit gets a holder and stays in the free queue."""

    name = "touch_without_unlink"
    killed_by = ("free_iff_unreferenced",)
    pool_type = _TouchedInTheQueue


class _QueuedOneTooEarly(BlockPool):
    __slots__ = ()

    def release(self, unit: int) -> None:
        left = self.references[unit] - 1
        self.references[unit] = left
        self.touched.append(unit)
        if left == 1:
            self.append(unit)


class QueuedAtOne(Variant):
    """A block is free when one holder is left, and not when none is."""

    name = "queued_at_one"
    killed_by = ("free_iff_unreferenced",)
    pool_type = _QueuedOneTooEarly


class _FreedToTheFront(BlockPool):
    __slots__ = ()

    def append(self, unit: int) -> None:
        sentinel = self.num_units
        first = self._next[sentinel]
        self._previous[first] = unit
        self._next[unit] = first
        self._previous[unit] = sentinel
        self._next[sentinel] = unit
        self.num_free += 1


class FreedToTheFront(Variant):
    """The block that was freed last is the first to be given out again."""

    name = "freed_to_the_front"
    killed_by = ("free_order",)
    pool_type = _FreedToTheFront


class _WithdrawsTheOldest(BlockPool):
    __slots__ = ()

    def withdraw(self, unit: int) -> None:
        key = self.keys[unit]
        assert key is not None
        self.keys[unit] = None
        self.touched.append(unit)
        present = self.by_key[key]
        if isinstance(present, int):
            del self.by_key[key]
            return
        present.pop(0)
        if len(present) == 1:
            self.by_key[key] = present[0]


class WithdrawsTheOldest(Variant):
    """Of the blocks with one hash the map forgets the oldest, whichever was given out."""

    name = "withdraws_the_oldest"
    killed_by = ("hash_map",)
    pool_type = _WithdrawsTheOldest


class _NullBlockFreed(BlockPool):
    __slots__ = ()

    def __init__(self, num_units: int) -> None:
        super().__init__(num_units)
        self.append(NULL_UNIT)


class NullBlockFreed(Variant):
    """A new pool gives the null block out, after all others."""

    name = "null_block_freed"
    killed_by = ("free_iff_unreferenced",)
    pool_type = _NullBlockFreed


@dataclass(frozen=True, slots=True)
class BrokenProtocol:
    """One variant; ``claim`` names the claim that must be refuted, ``clause`` what its step breaks."""

    kind: type[Mutant]
    claim: str
    clause: str

    @property
    def name(self) -> str:
        """Its name."""
        return self.kind.name

    @property
    def target(self) -> str:
        """Its name as a target of `kvsan replay`."""
        return target_of(self.kind)


def target_of(kind: type[Mutant]) -> str:
    """Name of a variant as a target."""
    return f"{__name__}:{kind.__name__}.make" if issubclass(kind, Variant) else f"mutant:{kind.name}"


def _seeded(name: str, claim: str, clause: str) -> BrokenProtocol:
    return BrokenProtocol(MUTANTS[name], claim, clause)


BROKEN: tuple[BrokenProtocol, ...] = (
    BrokenProtocol(TouchWithoutUnlink, "touch", "free"),
    BrokenProtocol(QueuedAtOne, "release", "free"),
    BrokenProtocol(FreedToTheFront, "release", "ring"),
    BrokenProtocol(WithdrawsTheOldest, "withdraw", "hash"),
    _seeded("hash_kept_on_reuse", "allocate", "map"),
    _seeded("stale_hash_on_recycled_block", "allocate", "withdrawn"),
    _seeded("hash_not_in_the_map", "publish", "hash"),
    _seeded("freed_while_shared", "release", "free"),
    _seeded("refusal_leaks", "fits", "references"),
    _seeded("two_places", "fits", "room"),
    _seeded("missing_copy_on_write", "write", "alone"),
    _seeded("copy_source_not_held", "write", "references"),
    _seeded("off_by_one_slot", "write", "copied"),
    _seeded("cancel_keeps_copy", "cancel", "references"),
    _seeded("fork_without_count", "fork", "references"),
    _seeded("fork_shares_too_much", "fork", "tail"),
    _seeded("table_aliased", "fork", "tail"),
    _seeded("publishes_early", "publish_full", "requests"),
    _seeded("rejected_drafts_counted", "retire", "known"),
    _seeded("trims_too_much", "retire", "requests"),
    _seeded("duplicate_freed_in_table", "retire", "references"),
    _seeded("double_free", "abort", "references"),
    _seeded("abort_forgets_last_block", "abort", "references"),
    _seeded("aborted_is_published", "abort", "computed"),
    _seeded("freed_while_launched", "abort", "in flight"),
    _seeded("parked_with_the_oldest", "abort", "in flight"),
    _seeded("load_freed_on_abort", "abort", "in flight"),
    BrokenProtocol(NullBlockFreed, "start", "null"),
)
