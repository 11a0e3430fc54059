"""Protocols with one step done wrong: each breaks the induction at a named claim, from a state that is shown.

Most are seeded bugs of the reference manager that the fuzzer has to find as well; the others are steps for which there is none.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsan.harness.configuration import Configuration
from kvsan.models_under_test.mutants import MUTANTS
from kvsan.models_under_test.mutants.base import Mutant, make_mutant
from kvsan.models_under_test.paged.pool import NULL_UNIT, BlockPool
from kvsan.models_under_test.paged.request import PagedRequest


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


class _FindsOneOnly(BlockPool):
    __slots__ = ()

    def find(self, key: int) -> int | None:
        present = self.by_key.get(key)
        return present if isinstance(present, int) else None


class FindsOneOnly(Variant):
    """A hash that several blocks have is not found."""

    name = "finds_one_only"
    killed_by = ("lost_hits",)
    pool_type = _FindsOneOnly


class _FrontIsTheBack(BlockPool):
    __slots__ = ()

    def front(self) -> int | None:
        unit = self._previous[self.num_units]
        return unit if unit != self.num_units else None


class FrontIsTheBack(Variant):
    """The block that was freed last is said to be the next to be given out, which it is not.

    No trace shows it: allocation does not ask for the front, and the check that does, of the order in which blocks are given
    out, compares with a block that was freed last, than which none was freed later.
    """

    name = "front_is_the_back"
    killed_by = ()
    pool_type = _FrontIsTheBack


class _CachedCountsAsHeld(BlockPool):
    __slots__ = ()

    def is_queued(self, unit: int) -> bool:
        return self.keys[unit] is None and super().is_queued(unit)


class CachedCountsAsHeld(Variant):
    """A free block that is cached is said not to be free."""

    name = "cached_counts_as_held"
    killed_by = ("free_iff_unreferenced",)
    pool_type = _CachedCountsAsHeld


class HitsNotHeld(Variant):
    """A request's table begins with cached blocks of which it has become no holder."""

    name = "hits_not_held"
    killed_by = ("ref_counts", "free_iff_unreferenced")

    def take_hits(self, request: PagedRequest, hits: list[int]) -> None:
        """Name the blocks, and hold none."""
        request.table.extend(hits)
        request.published = len(hits)
        request.retired = len(hits) * self.block_size


class HoldsAllButLast(Variant):
    """Whoever shares a table holds every block of it but the last."""

    name = "holds_all_but_last"
    killed_by = ("ref_counts", "free_iff_unreferenced")

    def _hold(self, table: list[int]) -> None:
        super()._hold(table[:-1])


@dataclass(frozen=True, slots=True)
class BrokenProtocol:
    """One variant; ``claim`` names the claim that must be refuted, ``clause`` what its step breaks.

    ``also`` names other claims that it refutes, those for which no variant is made of its own.
    """

    kind: type[Mutant]
    claim: str
    clause: str
    also: tuple[str, ...] = ()

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


def _seeded(name: str, claim: str, clause: str, *also: str) -> BrokenProtocol:
    return BrokenProtocol(MUTANTS[name], claim, clause, also)


BROKEN: tuple[BrokenProtocol, ...] = (
    BrokenProtocol(TouchWithoutUnlink, "touch", "free", ("take_hits",)),
    BrokenProtocol(QueuedAtOne, "release", "free"),
    BrokenProtocol(FreedToTheFront, "release", "ring", ("trim", "release_table")),
    BrokenProtocol(WithdrawsTheOldest, "withdraw", "hash"),
    _seeded("hash_kept_on_reuse", "allocate", "map", "extend"),
    _seeded("stale_hash_on_recycled_block", "allocate", "withdrawn"),
    _seeded("hash_not_in_the_map", "publish", "hash", "landed"),
    BrokenProtocol(FindsOneOnly, "find", "missed"),
    BrokenProtocol(FrontIsTheBack, "front", "first"),
    BrokenProtocol(CachedCountsAsHeld, "front", "queued"),
    _seeded("freed_while_shared", "release", "free"),
    BrokenProtocol(HitsNotHeld, "take_hits", "references"),
    BrokenProtocol(HoldsAllButLast, "hold", "references"),
    _seeded("one_block_short", "schedule", "requests"),
    _seeded("progress_lost_on_refusal", "schedule", "refused"),
    _seeded("refusal_leaks", "fits", "references"),
    _seeded("two_places", "fits", "room"),
    _seeded("missing_copy_on_write", "write", "alone"),
    _seeded("copy_source_not_held", "write", "references", "launch"),
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
    _seeded("freed_while_launched", "abort", "in flight", "finish", "preempt"),
    _seeded("parked_with_the_oldest", "abort", "in flight"),
    _seeded("load_freed_on_abort", "abort", "in flight"),
    BrokenProtocol(NullBlockFreed, "start", "null"),
)
