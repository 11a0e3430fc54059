"""Each thing that an invariant can say, on a trace made by hand: the broken manager trips it, the reference does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import broken
import pytest

from kvsan.harness.operations import (
    Abort,
    Adapter,
    Cancel,
    Finish,
    Fork,
    Landed,
    Launch,
    Lookup,
    Media,
    Operation,
    Retire,
    Schedule,
    Submit,
)
from kvsan.harness.session import Session
from kvsan.harness.verdict import Violation
from kvsan.invariants import INVARIANTS
from kvsan.models_under_test.paged import PagedManager

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


class Case(NamedTuple):
    """A broken manager over ``num_units`` blocks of four tokens, and the operations in which it violates ``kind``."""

    invariant: str
    cause: str
    target: Callable[[int, int], PagedManager]
    operations: list[Operation]
    num_units: int = 8


CASES = [
    Case("testimony", "table", broken.ForkSaysNothing, [*R1, Fork("r1", "r2")]),
    Case("testimony", "hash", broken.WithdrawsSilently, [*R1, Finish("r1")]),
    Case("ownership", "two requests", broken.TakesFromAnother, [*R1, *asks("r2", (1, 6))]),
    Case("ownership", "two blocks", broken.TakesItsOwn, asks("r1", (0, 6))),
    Case("ownership", "replaced", broken.CopiesIntoAnother, [*R1, Fork("r1", "r2"), Schedule("r2", 1)]),
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
]  # fmt: skip

AT_THE_END = {"quiescence"}


def name(case: Case) -> str:
    return f"{case.invariant} {case.cause}"


@pytest.mark.parametrize("case", CASES, ids=name)
def test_a_broken_manager_trips_the_invariant_in_its_last_operation(case: Case) -> None:
    session = Session(case.target(case.num_units, 4), [BY_ID[case.invariant]], sweep_every=1)
    last = len(case.operations) - (case.invariant not in AT_THE_END)
    for operation in case.operations[:last]:
        assert session.step(operation)
    with pytest.raises(Violation) as caught:
        session.close() if case.invariant in AT_THE_END else session.step(case.operations[-1])
    assert caught.value.kind == (case.invariant, case.cause)


@pytest.mark.parametrize("case", CASES, ids=name)
@pytest.mark.parametrize("deferred_free", [True, False])
def test_the_reference_manager_runs_the_same_trace_clean(case: Case, deferred_free: bool) -> None:
    session = Session(PagedManager(case.num_units, 4, deferred_free=deferred_free), INVARIANTS, sweep_every=1)
    for operation in case.operations:
        session.step(operation)
    session.close()


def test_every_invariant_has_a_case() -> None:
    assert {case.invariant for case in CASES} == set(BY_ID)


@pytest.mark.parametrize("landed", [False, True])
def test_a_load_holds_its_blocks_until_it_has_landed(landed: bool) -> None:
    session = Session(PagedManager(8, 4), [BY_ID["free_iff_unreferenced"]], sweep_every=1)
    for operation in (R1[0], Schedule("r1", 1, 0, 4, True), Abort("r1"), *([Landed("r1")] if landed else [])):
        assert session.step(operation)
    assert session.target.view().is_free(1) is landed
