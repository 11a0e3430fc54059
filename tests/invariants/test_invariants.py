"""Each thing that an invariant can say, on a trace made by hand: the broken manager trips it, the reference does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import broken
import pytest

from kvsan.harness.configuration import Configuration, OptionValue
from kvsan.harness.operations import (
    Abort,
    Adapter,
    Cancel,
    Complete,
    Fail,
    Finish,
    Fork,
    Landed,
    Launch,
    Load,
    Lookup,
    Media,
    Offload,
    Operation,
    ResetPrefixCache,
    Retire,
    Schedule,
    Submit,
)
from kvsan.harness.session import Session
from kvsan.harness.verdict import Violation
from kvsan.invariants import INVARIANTS
from kvsan.models_under_test.mutants import make_target as make_mutant
from kvsan.models_under_test.paged import PagedManager, make_target

BY_ID = {invariant.id: invariant for invariant in INVARIANTS}


def prefill(r: str, *prompt: tuple[int, int], **key: object) -> list[Operation]:
    """A request arrives and computes its whole prompt; launch and request share a number."""
    length = sum(length for _, length in prompt)
    return [Submit(r, prompt, **key), Schedule(r, length), Launch(f"b{r}"), Retire(f"b{r}")]  # type: ignore[arg-type]


def asks(r: str, *prompt: tuple[int, int], **key: object) -> list[Operation]:
    """A request arrives and is scheduled."""
    return prefill(r, *prompt, **key)[:2]


R1 = prefill("r1", (0, 6))
LONG = prefill("r1", (0, 10))

DOWN = [*R1, Offload("t1", "r1"), Complete("t1")]
AWAY = [*DOWN, Offload("t2", "r1", "remote"), Complete("t2")]
AGAIN = [ResetPrefixCache(), Submit("r2", ((0, 6),)), Load("t3", "r2")]
LONG_AGAIN = [*LONG, Offload("t1", "r1"), Complete("t1"), ResetPrefixCache(), *prefill("r2", (0, 4)), Submit("r3", ((0, 10),)),
              Load("t3", "r3")]  # fmt: skip
"""A prompt that went down to the host, and to a store, and comes up again; and one of which the device has the first block."""

HOST: dict[str, OptionValue] = {"host_units": 4, "reset_reaches": "device"}
STORE: dict[str, OptionValue] = {"host_units": 4, "stores": "remote", "reset_reaches": "host"}
ALL: dict[str, OptionValue] = {"host_units": 4, "stores": "remote"}
PAIRS = HOST | {"chunk_blocks": 2}


class Case(NamedTuple):
    """A broken manager over ``num_units`` blocks of four tokens, and the operations in which it violates ``kind``.

    A seeded bug is given by its name; ``options`` are its own and the reference manager's.
    """

    invariant: str
    cause: str
    target: Callable[[int, int], PagedManager] | str
    operations: list[Operation]
    num_units: int = 8
    options: dict[str, OptionValue] = {}

    def configuration(self, target: str, **others: OptionValue) -> Configuration:
        return Configuration(target, self.num_units, 4, options=tuple(sorted((self.options | others).items())))

    def make(self) -> PagedManager:
        if isinstance(self.target, str):
            return make_mutant(self.configuration(f"mutant:{self.target}"))
        return self.target(self.num_units, 4)


CASES = [
    Case("testimony", "table", broken.ForkSaysNothing, [*R1, Fork("r1", "r2")]),
    Case("testimony", "hash", broken.WithdrawsSilently, [*R1, Finish("r1")]),
    Case("ownership", "two requests", broken.TakesFromAnother, [*R1, *asks("r2", (1, 6))]),
    Case("ownership", "two blocks", broken.TakesItsOwn, asks("r1", (0, 6))),
    Case("ownership", "replaced", broken.CopiesIntoAnother, [*R1, Fork("r1", "r2"), Schedule("r2", 1)]),
    Case("watermark", "not left", "watermark_ignored", asks("r1", (0, 24))),
    Case("hit_bounds", "nothing left", broken.HitsEverything, [Submit("r1", ((0, 8),)), Lookup("r1")]),
    Case("hit_bounds", "partial block", broken.HitsHalfABlock, [Submit("r1", ((0, 6),)), Lookup("r1")]),
    Case(
        "hit_content",
        "not published",
        broken.HitsWhatIsGone,
        [*R1, Submit("r2", ((0, 6),)), Lookup("r2"), Finish("r1"), *asks("r3", (1, 28)), Abort("r3"), Schedule("r2", 2)],
    ),
    Case("hit_content", "tokens", broken.NoParent, [*prefill("r1", (0, 4), (1, 6)), *asks("r2", (1, 6))]),
    Case("hit_content", "adapter name", broken.NoAdapter, [*R1, *asks("r2", (0, 6), adapter=Adapter("a", 1))]),
    Case(
        "hit_content",
        "adapter id",
        broken.NoAdapterId,
        [*prefill("r1", (0, 6), adapter=Adapter("a", 1)), *asks("r2", (0, 6), adapter=Adapter("a", 2))],
    ),
    Case("hit_content", "media", broken.NoMedia, [*R1, *asks("r2", (0, 6), media=(Media("x", 1, 2),))]),
    Case("tenants", "salt", broken.NoSalt, [*R1, *asks("r2", (0, 6), salt="x")]),
    Case("lost_hits", "nothing", broken.HitsNothing, [*R1, Submit("r2", ((0, 6),)), Lookup("r2")]),
    Case("lost_hits", "too little", broken.HitsOneBlock, [*LONG, Submit("r2", ((0, 10),)), Lookup("r2")]),
    Case("refusal_atomic", "table", broken.RefusedWithBlocks, [*R1, *asks("r2", (1, 30))]),
    Case("refusal_atomic", "touched", broken.RefusedAndTouched, [*R1, *asks("r2", (0, 6), (1, 30))]),
    Case("refusal_atomic", "needless", broken.RefusesEverything, asks("r1", (0, 6))),
    Case("deferred_free", "launch", broken.FreesWhileLaunched, [*R1[:3], Abort("r1")]),
    Case("deferred_free", "load", broken.FreesWhileLoading, [R1[0], Schedule("r1", 1, 0, 4, True), Abort("r1")]),
    Case("append_only", "replaced", broken.ReplacesWithoutCopy, [*R1, Fork("r1", "r2"), Schedule("r2", 1)]),
    Case("append_only", "trimmed", broken.TrimsScheduled, R1),
    Case("table_covers", "short", broken.OneBlockShort, asks("r1", (0, 6))),
    Case("table_covers", "no such unit", broken.OutsideThePool, asks("r1", (0, 6))),
    Case("hash_map", "stale entry", broken.MapKeepsEvicted, [*R1, Finish("r1"), *asks("r2", (1, 28))]),
    Case("hash_map", "not in the map", broken.NeverInTheMap, R1),
    Case("hash_content", "one key, two contents: tokens", broken.NoParent, [*R1, *prefill("r2", (1, 4), (0, 6))]),
    Case("hash_content", "not computed", broken.PublishesScheduled, [R1[0], Schedule("r1", 2), Launch("b1"),
         Schedule("r1", 4), Retire("b1")]),
    Case("hash_content", "unknown tokens", broken.PublishesLookahead, R1),
    Case("hash_content", "no holder", broken.PublishesFreed, [*R1, Finish("r1")]),
    Case("hash_content", "no writer left", broken.PublishesThenCancels, [*R1, Submit("r2", ((1, 6),)), Schedule("r2", 6),
         Schedule("r1", 1), Cancel()]),
    Case("ref_counts", "too high", broken.CountsForkTwice, [*R1, Fork("r1", "r2")]),
    Case("ref_counts", "too low", broken.CountsForkNever, [*R1, Fork("r1", "r2")]),
    Case("free_iff_unreferenced", "lost", broken.FreesNothing, [*R1, Finish("r1")]),
    Case("free_iff_unreferenced", "held by a request", broken.FreesWhileShared, [*R1, Fork("r1", "r2"), Finish("r1")]),
    Case("free_iff_unreferenced", "held by work in flight", broken.FreesWhileLaunched, [*R1[:3], Abort("r1")]),
    Case("conservation", "too few", broken.FreesNothing, [*R1, Finish("r1")]),
    Case("conservation", "too many", broken.FreesWhileShared, [*R1, Fork("r1", "r2"), Finish("r1")]),
    Case("free_queue", "twice", broken.FreesTwice, [*R1, Finish("r1")]),
    Case("free_queue", "length", broken.MiscountsQueue, [Submit("r1", ((0, 6),))]),
    Case("free_order", "order", broken.EvictsNewest, asks("r1", (0, 6))),
    Case("free_order", "order", broken.FreesHeadFirst, [*R1, Finish("r1")]),
    Case("quiescence", "leak", broken.FreesNothing, [*R1, Finish("r1")]),
    Case("quiescence", "leak", broken.LeaksOnAbort, [*R1, Abort("r1")]),
    Case("quiescence", "refused", broken.RefusesTheProbe, prefill("r1", (1, 6))),
    Case("transfer_pins", "freed", "offload_unpinned", [*R1, Offload("t1", "r1"), Finish("r1")], 8, HOST),
    Case("transfer_pins", "two chunks", "place_given_twice", [*LONG, Offload("t1", "r1")], 8, HOST),
    Case("transfer_pins", "two transfers", "evicts_what_is_written", [*R1, *prefill("r2", (1, 6)), Offload("t1", "r1"),
         Offload("t2", "r2")], 8, HOST | {"host_units": 1}),
    Case("transfer_pins", "unpinned", "host_hit_unpinned", [*R1, Offload("t1", "r1"), Complete("t1"),
         Offload("t2", "r1", "remote")], 8, ALL),
    Case("transfer_pins", "evicted", "evicts_pinned_chunk", [*AWAY, *AGAIN, *prefill("r3", (1, 6)), Offload("t4", "r3"),
         Complete("t4"), Offload("t5", "r3", "remote")], 12, STORE | {"store_chunks": 1}),
    Case("transfer_ends", "not retired", "offload_of_unretired", [Submit("r1", ((0, 8),)), Schedule("r1", 4), Launch("b1"),
         Retire("b1"), Schedule("r1", 4), Offload("t1", "r1")], 8, HOST),
    Case("transfer_ends", "nothing left", "load_leaves_nothing", [*prefill("r1", (0, 8)), Offload("t1", "r1"), Complete("t1"),
         ResetPrefixCache(), Submit("r2", ((0, 8),)), Load("t2", "r2")], 8, HOST),
    Case("transfer_ends", "elsewhere", "load_one_block_late", [*LONG, Offload("t1", "r1"), Complete("t1"), ResetPrefixCache(),
         Submit("r2", ((0, 10),)), Load("t2", "r2")], 8, HOST),
    Case("transfer_ends", "hit", "load_over_hits", LONG_AGAIN, 12, PAIRS),
    Case("transfer_ends", "left out", "load_skips_the_partial_chunk", LONG_AGAIN, 12, PAIRS),
    Case("unlanded", "published", "published_before_landed", [*DOWN, *AGAIN], 8, HOST),
    Case("unlanded", "served early", "served_before_stored", [*R1, Offload("t1", "r1"), Offload("t2", "r1", "remote")], 8, ALL),
    Case("tier_key", "content", "tier_key_without_prefix", [*prefill("r1", (0, 4), (1, 6)), Offload("t1", "r1"), Complete("t1"),
         Submit("r2", ((1, 6),)), Load("t2", "r2")], 8, HOST),
    Case("tier_key", "tenant", "tier_key_without_salt", [*DOWN, Submit("r2", ((0, 6),), "x"), Load("t2", "r2")], 8, HOST),
    Case("tier_content", "nothing", "copies_one_slot_short", DOWN, 8, HOST),
    Case("tier_content", "foreign", "pages_turned_in_store", [*LONG, Offload("t1", "r1"), Complete("t1"),
         Offload("t2", "r1", "remote"), Complete("t2"), ResetPrefixCache(), Submit("r2", ((0, 10),)), Load("t3", "r2"),
         Complete("t3")], 8, STORE | {"chunk_blocks": 2}),
    Case("tier_content", "foreign", "evicted_chunk_served", [*DOWN, *prefill("r2", (1, 6)), Offload("t2", "r2"), Complete("t2"),
         Offload("t3", "r1", "remote"), Complete("t3")], 8, ALL | {"host_units": 1}),
    Case("tier_index", "pins", "pin_never_returned", AWAY, 8, ALL),
    Case("tier_index", "count", "failed_store_frees_twice", [*R1, Offload("t1", "r1"), Fail("t1"), Complete("t1")], 8, HOST),
    Case("tier_index", "content", "failed_offload_kept", [*R1, Offload("t1", "r1"), Fail("t1"), Complete("t1")], 8, HOST),
    Case("tier_index", "never stored", "failed_store_kept", [*AWAY[:-1], Fail("t2"), Complete("t2")], 8, ALL),
    Case("tier_index", "two chunks", "evicted_chunk_served", [*DOWN, *prefill("r2", (1, 6)), Offload("t2", "r2")], 8,
         HOST | {"host_units": 1}),
    Case("tier_reset", "serving", "reset_leaves_stores", [*AWAY, ResetPrefixCache()], 8, ALL),
    Case("tier_reset", "arrived later", "reset_misses_transfers", [*R1, Offload("t1", "r1"), ResetPrefixCache(),
         Complete("t1")], 8, ALL),
    Case("offload_complete", "left out", "last_chunk_never_stored", [*LONG, Offload("t1", "r1")], 8, HOST),
    Case("offload_complete", "refused", "evicts_though_there_is_room", [*R1, Offload("t1", "r1")], 8, HOST),
    Case("failed_load", "published", "failed_load_kept", [*DOWN, *AGAIN, Fail("t3"), Complete("t3")], 8, HOST),
    Case("failed_load", "offered again", "refused_chunk_offered_again", [*AWAY, *AGAIN, Complete("t3")], 8, STORE),
    Case("load_progress", "starved", "loads_starve", [*DOWN, Finish("r1"), ResetPrefixCache(), *asks("r2", (1, 2)),
         Submit("r3", ((0, 10),)), Load("t2", "r3")], 4, HOST),
    Case("lost_tier_hits", "refused", "first_chunk_never_found", [*DOWN, *AGAIN], 8, HOST),
    Case("transfer_leaks", "unfinished", "failed_store_never_ends", [*AWAY[:-1], Fail("t2"), Complete("t2")], 8, ALL),
    Case("transfer_leaks", "pinned", "aborted_load_keeps_pins", [*DOWN, *AGAIN, Abort("r2"), Complete("t3")], 8, HOST),
    Case("transfer_leaks", "orphan", "reset_leaves_files", [*AWAY, ResetPrefixCache()], 8, ALL),
]  # fmt: skip

AT_THE_END = {"quiescence", "transfer_leaks"}


def name(case: Case) -> str:
    return f"{case.invariant} {case.cause}" + (f" {case.target}" if isinstance(case.target, str) else "")


@pytest.mark.parametrize("case", CASES, ids=name)
def test_a_broken_manager_trips_the_invariant_in_its_last_operation(case: Case) -> None:
    session = Session(case.make(), [BY_ID[case.invariant]], sweep_every=1)
    last = len(case.operations) - (case.invariant not in AT_THE_END)
    for operation in case.operations[:last]:
        assert session.step(operation)
    with pytest.raises(Violation) as caught:
        session.close() if case.invariant in AT_THE_END else session.step(case.operations[-1])
    assert caught.value.kind == (case.invariant, case.cause)


@pytest.mark.parametrize("case", CASES, ids=name)
@pytest.mark.parametrize("deferred_free", [True, False])
def test_the_reference_manager_runs_the_same_trace_clean(case: Case, deferred_free: bool) -> None:
    session = Session(make_target(case.configuration("paged", deferred_free=deferred_free)), INVARIANTS, sweep_every=1)
    for operation in case.operations:
        session.step(operation)
    session.close()


def test_every_invariant_has_a_case() -> None:
    """Those of pairs and of graphs have theirs in ``test_exchange`` and ``test_graph_metadata``."""
    elsewhere = {id for id in BY_ID if id.startswith("exchange_") or id == "graph_metadata"}
    assert {case.invariant for case in CASES} == set(BY_ID) - elsewhere


@pytest.mark.parametrize("landed", [False, True])
def test_a_load_holds_its_blocks_until_it_has_landed(landed: bool) -> None:
    session = Session(PagedManager(8, 4), [BY_ID["free_iff_unreferenced"]], sweep_every=1)
    for operation in (R1[0], Schedule("r1", 1, 0, 4, True), Abort("r1"), *([Landed("r1")] if landed else [])):
        assert session.step(operation)
    assert session.target.view().is_free(1) is landed
