"""Who asks z3: what is shown, refuted, unknown; small values; and that an answer is remembered for its own question only."""

from __future__ import annotations

import pytest
import z3

from kvsan.invariants.proofs.obligation import Obligation
from kvsan.invariants.proofs.solver import Limits, satisfiable, solve

X, Y = z3.Ints("x y")


def obligation(goal: z3.BoolRef, *hypotheses: z3.BoolRef, small: int | None = None) -> Obligation:
    return Obligation("something", hypotheses, goal, watch={"x": X, "y": Y}, small=small)


# Whether a sum of two cubes is a third: true for all positive integers, and no solver shows it in a millisecond.
HARD = obligation(
    z3.Int("a") ** 3 + z3.Int("b") ** 3 != z3.Int("c") ** 3, z3.Int("a") > 0, z3.Int("b") > 0, z3.Int("c") > 0
)


def test_what_follows_is_proved() -> None:
    assert solve(obligation(X * X >= 0)).status == "proved"


def test_what_does_not_follow_is_refuted_with_the_smallest_values() -> None:
    answer = solve(obligation(z3.Implies(Y == 2 * X, X * Y < 1000), X > 3, Y > 3))
    assert (answer.status, answer.values) == ("refuted", {"x": 23, "y": 46})


def test_only_the_first_values_are_made_small() -> None:
    answer = solve(obligation(X + Y < 100, X >= 0, Y >= 0, small=1))
    assert answer.values["x"] == 0
    assert answer.values["y"] >= 100


def test_what_is_not_decided_within_the_limit_is_unknown() -> None:
    answer = solve(HARD, Limits(timeout_ms=50))
    assert answer.status == "unknown"
    assert answer.reason


def test_hypotheses_of_which_nothing_is_known_are_not_satisfiable() -> None:
    wanted = z3.And(z3.Int("a") ** 3 + z3.Int("b") ** 3 == z3.Int("c") ** 3, *HARD.hypotheses)
    assert not satisfiable([wanted], Limits(timeout_ms=50))
    assert not satisfiable([X > 0, X < 0])
    assert satisfiable([X > 0, Y < 0])


def test_a_proof_is_remembered_for_its_own_goal_and_hypotheses_only() -> None:
    assert solve(obligation(X > 0, X > 1)).status == "proved"
    assert solve(obligation(X > 0, X > 1)).status == "proved"
    assert solve(obligation(X > 0, X > -1)).status == "refuted"
    assert solve(obligation(X > 2, X > 1)).status == "refuted"
    assert solve(obligation(X > 0)).status == "refuted"


def test_numbers_of_expressions_that_are_gone_are_not_taken_for_others() -> None:
    """z3 gives the number of an expression that nobody holds to another one."""
    for number in range(300):
        shown = solve(obligation(X + number >= number, X >= 0))
        assert shown.status == "proved"
        assert solve(obligation(X + number > number, X >= 0)).status == "refuted"


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_seeds_agree(seed: int) -> None:
    assert solve(obligation(X * Y >= 0, X >= 0, Y >= 0), Limits(seed=seed)).status == "proved"
    assert solve(obligation(X * Y > 0, X >= 0, Y >= 0), Limits(seed=seed)).status == "refuted"
