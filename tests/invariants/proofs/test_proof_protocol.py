"""The protocol's induction: every step is proved, what is assumed is true of real sessions, and what is wrong is noticed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest
import z3

from kvsan.ci.proofs.protocol import claims, prove
from kvsan.fuzz.generate import Generator
from kvsan.fuzz.profiles import DEFAULT, FEATURES
from kvsan.harness.operations import Cancel, Finish, Fork, Launch, Retire, Schedule, Submit
from kvsan.harness.session import Session
from kvsan.invariants.proofs.obligation import PROVED, REFUTED, UNKNOWN
from kvsan.invariants.proofs.paths import explore
from kvsan.invariants.proofs.protocol import counts, start, state
from kvsan.invariants.proofs.protocol.bench import Bench, Parts
from kvsan.invariants.proofs.protocol.columns import HashMap
from kvsan.invariants.proofs.protocol.concrete import broken_clauses, view_of
from kvsan.invariants.proofs.protocol.flights import requests_hold
from kvsan.invariants.proofs.protocol.induction import Step, show
from kvsan.invariants.proofs.protocol.state import holdings_of
from kvsan.invariants.proofs.solver import Limits, satisfiable, solve
from kvsan.invariants.proofs.term import Term
from kvsan.models_under_test.mutants import MUTANTS
from kvsan.models_under_test.paged import PagedManager
from kvsan.models_under_test.paged.batch import InFlight, Row
from kvsan.models_under_test.paged.pool import BlockPool
from kvsan.models_under_test.paged.request import PagedRequest

REAL = Parts(BlockPool, PagedManager, PagedRequest, Row, InFlight)
LONG = {"schedule", "write", "retire", "abort", "extend"}
SEEDS = [
    pytest.param(claim.name, seed, marks=pytest.mark.slow if seed and claim.name in LONG else ())
    for claim in claims()
    for seed in (0, 1, 2)
]


@pytest.mark.parametrize(("name", "seed"), SEEDS)
def test_every_claim_is_proved_with_every_seed(name: str, seed: int) -> None:
    outcome = prove(name, Limits(seed=seed))
    assert (outcome.status, outcome.reason) == (PROVED, "")


def test_claims_have_names_and_sources_of_their_own() -> None:
    keys = [claim.key for claim in claims()]
    assert len({*keys}) == len(keys)
    assert all(claim.statement.endswith(".") for claim in claims())
    assert all(claim.source for claim in claims() if not claim.name.startswith("count-"))


@pytest.mark.parametrize("lemma", counts.lemmas(), ids=lambda lemma: lemma.name)
def test_a_lemma_is_about_something(lemma: counts.Lemma) -> None:
    assert all(satisfiable(obligation.hypotheses) for obligation in lemma.obligations)
    untrue = (z3.Not(obligation.goal) for obligation in lemma.obligations[-1:])
    assert not any(satisfiable((*lemma.obligations[-1].hypotheses, goal)) for goal in untrue)


@pytest.mark.parametrize("lemma", [lemma.name for lemma in counts.lemmas()])
def test_a_lemma_is_refuted_of_a_count_that_is_another(lemma: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum over the first n that adds the entry behind them: the entry at n + 1 where it should be that at n."""

    def goes_on_with_the_next(self: counts._Sum, n: z3.ArithRef, u: z3.ArithRef) -> z3.BoolRef:
        return self.of(n + 1, u) == self.of(n, u) + self._summand(n + 1, u)

    monkeypatch.setattr(counts._Sum, "goes_on", goes_on_with_the_next)
    assert prove(f"count-{lemma}").status == REFUTED


# -- what is assumed is true


FORKING = replace(DEFAULT, weights={**DEFAULT.weights, "Fork": 6.0, "Cancel": 1.0, "Preempt": 0.6})
SEEN = ("copy on write", "eviction", "Fork", "partial hit", "rejected draft", "Cancel", "Preempt", "abort in flight")


def states(counts: Counter[str]) -> Iterator[PagedManager]:
    """States of a manager in sessions that are drawn: after some forks, cancels and retirements, and with copies."""
    for seed in range(6):
        manager = PagedManager(12, 2)
        session = Session(manager, ())
        generator = Generator(session, FORKING, Random(seed), frozenset(FEATURES))
        for number in range(300):
            operation = generator.next()
            happened = session.step(operation)
            copying = any(row.copied for row in manager.batch.values())
            if (happened and isinstance(operation, Fork | Cancel | Retire) and number % 6 == 0) or (
                copying and number % 2 == 0
            ):
                yield manager
        counts.update(session.counts)


def test_every_clause_holds_in_real_sessions() -> None:
    counts: Counter[str] = Counter()
    for manager in states(counts):
        view = view_of(manager.pool, holdings_of(manager))
        assert [*broken_clauses(view, manager.pool)] == []
        assert z3.is_true(z3.simplify(z3.And(*requests_hold(manager))))
    assert [what for what in SEEN if not counts[what]] == []


def test_a_clause_that_does_not_hold_is_noticed_in_a_session() -> None:
    manager = MUTANTS["freed_while_shared"](4, 2)
    session = Session(manager, ())
    for operation in (Submit("r", ((0, 2),)), Schedule("r", 2), Launch("b"), Retire("b"), Fork("r", "c"), Finish("r")):
        session.step(operation)
    assert [*broken_clauses(view_of(manager.pool, holdings_of(manager)), manager.pool)] == ["free"]


# -- what is wrong is noticed


def touch_twice(bench: Bench) -> None:
    """Two references are taken and one entry names the block."""
    unit = bench.unit("unit")
    bench.hand.append(unit)
    bench.begin()
    bench.pool.touch(unit)


def reads_the_other_end(bench: Bench) -> None:
    """A column is read at -1, which Python takes for its last."""
    bench.begin()
    _ = bench.pool.references[-1]


def in_no_state(bench: Bench) -> None:
    """Two requirements that exclude each other."""
    unit = bench.unit("unit")
    bench.require(bench.pool.references[unit] == 0)
    bench.hand.append(unit)
    bench.begin()


def not_understood(bench: Bench) -> None:
    """A step that does what no stand-in can."""
    bench.begin()
    bench.pool.queue()


@pytest.mark.parametrize(
    ("scenario", "status", "said"),
    [
        (touch_twice, REFUTED, "references"),
        (reads_the_other_end, REFUTED, "index"),
        (in_no_state, UNKNOWN, "vacuous"),
        (not_understood, UNKNOWN, "more than"),
    ],
)
def test_what_is_wrong_with_a_step_is_said(scenario, status: str, said: str) -> None:
    shown = show(Step("wrong", "", (), (scenario,)), REAL)
    assert shown.status == status
    assert said in (shown.broken.goal.name if shown.broken else shown.reason)


def test_a_step_that_does_nothing_keeps_everything() -> None:
    assert show(Step("nothing", "", (), (Bench.begin,)), REAL).status == PROVED


def test_a_new_pool_that_is_another_is_noticed() -> None:
    class Shorter(BlockPool):
        __slots__ = ()

        def __init__(self, num_units: int) -> None:
            super().__init__(num_units)
            self.allocate()

    assert start.differences(Shorter)[:1] == ["a new pool of 2 blocks"]


# -- stand-ins do what Python's own do


@pytest.mark.parametrize("units", [[5], [5, 6], [5, 6, 7]])
def test_the_hash_map_takes_units_out_as_a_dict_of_lists_does(units: list[int]) -> None:
    def withdraw_second() -> list[int]:
        by_key = HashMap(lambda _: z3.IntVal(0), lambda _: z3.BoolVal(False), state.entry, lambda _: z3.IntVal(1))
        by_key[Term(z3.IntVal(9))] = units if len(units) > 1 else units[0]
        found = by_key[9]
        if isinstance(found, int):
            del by_key[9]
        else:
            found.remove(6)
        length = z3.simplify(by_key.length(z3.IntVal(9))).as_long()
        return [by_key.entry(z3.IntVal(9), z3.IntVal(position)) for position in range(length)]

    left = [unit for unit in units if unit != 6][len(units) == 1 :]
    for path in explore(withdraw_second):
        if path.error is None:
            same = [one == other for one, other in zip(path.result, left, strict=True)]
            assert not satisfiable((*path.conditions, z3.Not(z3.And(*same))))


def test_obligations_of_a_new_pool_are_not_vacuous() -> None:
    for obligation in start.obligations():
        assert satisfiable(obligation.hypotheses)
        assert solve(obligation).status == PROVED
