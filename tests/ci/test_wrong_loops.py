"""Managers that are right for the first few entries, rows or tables and wrong for the rest: none of them is proved.

The first eight are wrong within the lengths that are run. The others are right there: it is their source that tells, of some,
that they are wrong with longer tables, and of the rest that they might be.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import pytest

from kvsan.ci.proofs.protocol import claims, prove
from kvsan.harness.target import Effects, Result
from kvsan.invariants.proofs.obligation import PROVED, REFUTED, REJECTED
from kvsan.invariants.proofs.protocol.bench import Parts
from kvsan.invariants.proofs.protocol.loops import LISTED, findings, loops
from kvsan.invariants.proofs.protocol.manager_steps import MANAGER_STEPS
from kvsan.invariants.proofs.protocol.pool_steps import POOL_STEPS
from kvsan.models_under_test.paged import PagedManager
from kvsan.models_under_test.paged.batch import InFlight, Row
from kvsan.models_under_test.paged.pool import BlockPool
from kvsan.models_under_test.paged.request import PagedRequest

STEPS = {step.name: step for step in (*POOL_STEPS, *MANAGER_STEPS)}


def parts(manager: type[PagedManager] = PagedManager) -> Parts:
    return Parts(BlockPool, manager, PagedRequest, Row, InFlight)


# -- wrong within what is run


class ReleasesTwo(PagedManager):
    """The third block of a table and those behind it leak."""

    def release(self, table: list[int]) -> None:
        for unit in reversed(table[:2]):
            self.pool.release(unit)


class LaunchesOneRow(PagedManager):
    """Only the first request of a batch gets its copy's source kept."""

    def launch(self, b: str) -> None:
        self.batch = dict(list(self.batch.items())[:1])
        super().launch(b)


class FreesOneParkedTable(PagedManager):
    """Only one parked table is freed."""

    def retire(self, b: str, results: Sequence[Result]) -> Effects:
        del self.launches[b].parked[1:]
        return super().retire(b, results)


class HoldsTwo(PagedManager):
    """A child does not hold its third block."""

    def _hold(self, table: list[int]) -> None:
        super()._hold(table[:2])


class PreemptsWithoutTheCopy(PagedManager):
    """Preemption of a scheduled request forgets the copy."""

    def preempt(self, name: str) -> None:
        row = self.batch.get(name)
        if row is not None:
            row.copied = None
        super().preempt(name)


class CancelsOneRow(PagedManager):
    """A cancelled batch undoes one row."""

    def cancel(self) -> Effects:
        first = list(self.batch)[:1]
        self.batch = {name: self.batch[name] for name in first}
        return super().cancel()


class TakesTwoHits(PagedManager):
    """Takes hold of the first two hits only."""

    def take_hits(self, request: PagedRequest, hits: list[int]) -> None:
        if len(hits) > 2:
            request.table.extend(hits)
            self._hold(hits[:2])
            return
        super().take_hits(request, hits)


class FinishesALoadAtOnce(PagedManager):
    """A request that is finished while it is loading is freed at once."""

    def finish(self, name: str) -> None:
        self.requests[name].loading = False
        super().finish(name)


WITHIN = [
    (ReleasesTwo, "release_table"),
    (ReleasesTwo, "abort"),
    (ReleasesTwo, "landed"),
    (LaunchesOneRow, "launch"),
    (FreesOneParkedTable, "retire"),
    (HoldsTwo, "hold"),
    (HoldsTwo, "fork"),
    (HoldsTwo, "take_hits"),
    (PreemptsWithoutTheCopy, "preempt"),
    (CancelsOneRow, "cancel"),
    (TakesTwoHits, "take_hits"),
    (FinishesALoadAtOnce, "finish"),
]


@pytest.mark.parametrize(("manager", "claim"), WITHIN, ids=lambda one: getattr(one, "__name__", one))
def test_what_is_wrong_for_a_third_entry_or_a_second_row_is_refuted(manager: type[PagedManager], claim: str) -> None:
    outcome = prove(claim, manager_type=manager)
    assert (outcome.status, outcome.reason) == (REFUTED, "")
    assert outcome.counterexample is not None
    assert "no state of the real code" not in outcome.counterexample.replay
    assert "breaks: nothing" not in outcome.counterexample.replay


# -- wrong beyond what is run


class ReleasesThree(PagedManager):
    """A slice."""

    def release(self, table: list[int]) -> None:
        for unit in reversed(table[:3]):
            self.pool.release(unit)


class ReleasesFourByName(PagedManager):
    """A slice that is no constant by itself."""

    most = 4

    def release(self, table: list[int]) -> None:
        held = table[: self.most]
        for unit in reversed(held):
            self.pool.release(unit)


class ReleasesFourByDefault(PagedManager):
    """A number that is a default argument."""

    def release(self, table: list[int], most: int = 4) -> None:
        for unit in reversed(table):
            if len(table) <= most:
                self.pool.release(unit)


class ReleasesByIslice(PagedManager):
    """A function that is not known."""

    def release(self, table: list[int]) -> None:
        for unit in islice(reversed(table), 4):
            self.pool.release(unit)


class StopsEarly(PagedManager):
    """A loop that is left when something comes to be."""

    def release(self, table: list[int]) -> None:
        for unit in reversed(table):
            if len(table) > len(self.batch) + len(table):
                break
            self.pool.release(unit)


class CountsItsTurns(PagedManager):
    """A number that is kept from turn to turn."""

    def release(self, table: list[int]) -> None:
        turn = len(table) - len(table)
        for unit in reversed(table):
            if turn < len(table):
                self.pool.release(unit)
            turn += 1


class ComparesTheLength(PagedManager):
    """A length that is told from others."""

    def release(self, table: list[int]) -> None:
        if len(table) < 1 + 1 + 1 + 1:
            super().release(table)


class NumbersItsEntries(PagedManager):
    """An enumeration."""

    def release(self, table: list[int]) -> None:
        for number, unit in enumerate(table):
            if number <= len(table):
                self.pool.release(unit)


class TakesUntilEmpty(PagedManager):
    """A while loop that nobody has looked at."""

    def release(self, table: list[int]) -> None:
        table = table[:]
        while table:
            self.pool.release(table.pop())


class CountsDown(PagedManager):
    """A sum of small numbers."""

    def release(self, table: list[int]) -> None:
        if len(table) - 1 - 1 - 1 < 1:
            super().release(table)


class CountsByAList(PagedManager):
    """A list that grows with each turn."""

    def release(self, table: list[int]) -> None:
        done: list[int] = []
        for unit in reversed(table):
            if len(done) < len(table):
                self.pool.release(unit)
            done.append(unit)


class CallsItself(PagedManager):
    """A loop by recursion."""

    def release(self, table: list[int]) -> None:
        if table:
            self.pool.release(table.pop())
            self.release(table)


class KnowsTheNames(PagedManager):
    """Right for the requests that a proof is about."""

    def release(self, table: list[int]) -> None:
        if "zoe" not in self.requests:
            super().release(table)


BEYOND = [
    (CountsDown, "the arithmetic of"),
    (CountsByAList, "done is changed and read"),
    (CallsItself, "calls itself"),
    (KnowsTheNames, "the text 'zoe'"),
    (ReleasesThree, "table[:3]"),
    (ReleasesFourByName, "table[:self.most]"),
    (ReleasesFourByDefault, "the number 4"),
    (ReleasesByIslice, "islice"),
    (StopsEarly, "break"),
    (CountsItsTurns, "turn is kept"),
    (ComparesTheLength, "the arithmetic of `1 + 1`"),
    (NumbersItsEntries, "enumerate"),
    (TakesUntilEmpty, "while table"),
]


@pytest.mark.parametrize(("manager", "said"), BEYOND, ids=lambda one: getattr(one, "__name__", one))
def test_a_loop_that_is_not_uniform_is_rejected(manager: type[PagedManager], said: str) -> None:
    outcome = prove("release_table", manager_type=manager)
    assert outcome.status == REJECTED
    assert f"{manager.__name__}.release, line " in outcome.reason
    assert said in outcome.reason


def test_the_reason_names_the_line() -> None:
    [found] = findings(parts(StopsEarly), ("manager.release",))
    with open(__file__) as source:
        assert source.read().splitlines()[found.line - 1].strip() == "break"


def test_code_without_a_source_is_rejected() -> None:
    namespace: dict[str, Any] = {}
    exec("def release(self, table):\n    for unit in reversed(table): self.pool.release(unit)", namespace)
    unread = type("Unread", (PagedManager,), {"release": namespace["release"]})
    outcome = prove("release_table", manager_type=unread)
    assert (outcome.status, outcome.reason) == (REJECTED, "release, line 0: its source cannot be read")


# -- the reference manager


@pytest.mark.parametrize("step", STEPS.values(), ids=lambda step: step.name)
def test_the_reference_manager_is_written_in_the_language(step: Any) -> None:
    assert findings(parts(), step.methods) == []


def test_the_loops_of_the_reference_manager_are_read() -> None:
    found = {loop for step in STEPS.values() for loop in loops(parts(), step.methods)}
    assert found == {
        ("_find", "self.keys.upto(request, limit)"),
        ("_hold", "table"),
        ("cancel", "self.batch.items()"),
        ("cancel", "self.batch.values()"),
        ("extend", "range(fresh)"),
        ("launch", "self.batch.values()"),
        ("publish", "range(request.published, full)"),
        ("release", "reversed(table)"),
        ("retire", "launch.parked"),
        ("retire", "launch.requests"),
        ("retire", "results"),
        ("taken", "hits"),
        ("trim", "len(request.table) > blocks"),
    }


@pytest.mark.parametrize("listed", LISTED, ids=lambda one: one.replace(" ", ""))
def test_every_listed_exception_is_needed(listed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(LISTED, listed)
    assert [one for step in STEPS.values() for one in findings(parts(), step.methods)] != []


def test_what_is_read_is_said_in_the_assumptions() -> None:
    said = {claim.name for claim in claims() if any("checked on the source" in one for one in claim.assumptions)}
    looping = {step.name for step in MANAGER_STEPS if loops(parts(), step.methods)}
    assert looping - said == set()


def test_what_a_manager_does_not_override_is_proved() -> None:
    assert prove("hold", manager_type=ReleasesThree).status == PROVED
