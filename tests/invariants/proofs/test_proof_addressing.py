"""Claims about addresses: proved whatever the seed, true of small numbers, and refuted where something is wrong."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
import z3

from kvsan.ci.proofs.broken_addressing import BROKEN, BrokenAddressing, window_one_wide
from kvsan.gpu_kernels import addressing, sharding
from kvsan.gpu_kernels.layout import allocate_cache
from kvsan.invariants.proofs.addressing import (
    REAL,
    STATEMENTS,
    Functions,
    NotReplayed,
    Theorem,
    claims,
    prove,
    theorem,
    theorems_of,
)
from kvsan.invariants.proofs.addressing.functions import NAMES, source_of
from kvsan.invariants.proofs.addressing.limits import COMMON_POOLS, pool_limits
from kvsan.invariants.proofs.solver import Limits
from kvsan.invariants.proofs.term import Condition, Number

ALL = list({id(one): one for name in STATEMENTS for one in theorems_of(name)}.values())

MOST_CASES = 8_000


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", STATEMENTS)
def test_a_claim_is_proved_whatever_the_seed(name: str, seed: int) -> None:
    outcome = prove(name, Limits(seed=seed))

    assert (outcome.status, outcome.reason) == ("proved", "")
    assert outcome.obligations >= len(STATEMENTS[name].theorems)


def small_cases(one: Theorem) -> Iterator[dict[str, int]]:
    """All small numbers of which a theorem's hypotheses are true: from the lowest on, as many of each as time allows."""
    names = list(one.lowest)
    count = max(2, min(12, int(MOST_CASES ** (1 / len(names)))))
    for numbers in product(*(range(one.lowest[name], one.lowest[name] + count) for name in names)):
        case = dict(zip(names, numbers, strict=True))
        if all(one.assumed(case)):
            yield case


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)
def test_a_theorem_is_true_of_small_numbers(one: Theorem) -> None:
    """The same function that z3 is asked about, in plain Python: it means what it seems to mean, and not of no case."""
    cases = list(small_cases(one))

    assert cases
    assert [case for case in cases if not one.holds(REAL, **case)] == []


REFUTED = [(broken, claim) for broken in BROKEN for claim in (broken.claim, *broken.also)]


@pytest.mark.parametrize(("broken", "claim"), REFUTED, ids=[f"{broken.name}-{claim}" for broken, claim in REFUTED])
def test_a_broken_variant_is_refuted(broken: BrokenAddressing, claim: str) -> None:
    outcome = prove(claim, Limits(), broken.functions)

    assert outcome.status == "refuted"
    counterexample = outcome.counterexample
    assert counterexample is not None
    assert counterexample.replay.startswith("run again on these numbers: ")
    assert max(counterexample.values.values()) <= 4, "not small"


@pytest.mark.parametrize("seed", [1, 2])
def test_refutations_do_not_depend_on_the_seed(seed: int) -> None:
    assert {prove(claim, Limits(seed=seed), one.functions).status for one, claim in REFUTED} == {"refuted"}


def test_every_claim_has_a_variant_that_refutes_it() -> None:
    """A new claim has to have one."""
    assert {claim for _, claim in REFUTED} == STATEMENTS.keys()


def test_broken_variants_are_of_every_kind() -> None:
    assert len({broken.name for broken in BROKEN}) == len(BROKEN) >= 10
    assert all(getattr(broken.functions, broken.function) != getattr(REAL, broken.function) for broken in BROKEN)


def test_a_counterexample_can_be_read() -> None:
    """A window of 1 that does not count the query's own token: at position 1, position 0 is seen."""
    outcome = prove("window", Limits(), replace(REAL, first_visible=window_one_wide))

    counterexample = outcome.counterexample
    assert counterexample is not None
    assert counterexample.values == {"window": 1, "position": 1, "seen": 0}
    assert counterexample.story == (f"This does not hold: {counterexample.what}", "first_visible(1, 1) = 0")
    assert counterexample.replay == "run again on these numbers: it is false"
    assert counterexample.what.startswith("A query sees an earlier position")


def test_an_error_on_a_path_is_a_counterexample() -> None:
    broken = next(one for one in BROKEN if one.name == "query_heads_without_replicas")

    counterexample = prove(broken.claim, Limits(), broken.functions).counterexample

    assert counterexample is not None
    assert "Here ZeroDivisionError is raised" in counterexample.what
    assert "ZeroDivisionError" in counterexample.replay


def test_a_counterexample_that_is_none_is_an_error_of_ours() -> None:
    one = STATEMENTS["window"].theorems[0]

    with pytest.raises(NotReplayed, match="no counterexample"):
        one.replayed(REAL, {"window": 1, "position": 1, "seen": 0})
    with pytest.raises(NotReplayed, match="not what was assumed"):
        one.replayed(REAL, {"window": 1, "position": 1, "seen": 2})


# -- theorems that are none


@theorem(lambda *, number: number > number, number=0)
def of_no_number(f: Functions, number: Number) -> Condition:
    """Nothing is assumed to be true of any number."""
    return number < 0


@theorem(number=0, other=0)
def quadratics_differ(f: Functions, number: Number, other: Number) -> Condition:
    """Beyond what is decided in the time that is given."""
    return number * number * number + 3 * number != other * other * other * number + 7 * other * other + 5


@theorem(number=0)
def of_a_loop(f: Functions, number: Number) -> Condition:
    """A loop whose bound is symbolic."""
    steps = number
    while steps > 0:
        steps = steps - 1
    return steps == 0


@theorem(None, (of_a_loop, lambda f, *, number: {"number": number}), number=0)
def by_a_wrong_lemma(f: Functions, number: Number) -> Condition:
    """What a lemma says has to be proved too."""
    return number >= 0


def outcome_of(one: Theorem, monkeypatch: pytest.MonkeyPatch, limits: Limits = Limits()) -> tuple[str, str]:  # noqa: B008
    monkeypatch.setitem(STATEMENTS, "padding", replace(STATEMENTS["padding"], theorems=(one,)))
    outcome = prove("padding", limits)
    return outcome.status, outcome.reason


def test_hypotheses_that_cannot_be_met_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    status, reason = outcome_of(of_no_number, monkeypatch)

    assert (status, reason.split(":")[0]) == ("unknown", "vacuous")


def test_what_is_not_decided_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    status, reason = outcome_of(quadratics_differ, monkeypatch, Limits(timeout_ms=1))

    assert status == "unknown"
    assert reason


@pytest.mark.parametrize("one", [of_a_loop, by_a_wrong_lemma], ids=lambda one: one.name)
def test_loops_are_unknown_and_so_is_what_uses_them(one: Theorem, monkeypatch: pytest.MonkeyPatch) -> None:
    status, reason = outcome_of(one, monkeypatch)

    assert status == "unknown"
    assert reason.startswith("of_a_loop: more than 64 decisions")


def test_a_theorem_names_its_variables_and_says_what_holds() -> None:
    def silent(f: Functions, number: Number) -> Condition:
        return number >= 0

    with pytest.raises(TypeError, match="a docstring that says what holds"):
        theorem(number=0)(silent)
    with pytest.raises(TypeError, match="expected those of"):
        theorem(other=0)(silent)


# -- what claims are about


def test_every_scalar_function_is_in_a_claim() -> None:
    """A new one has to be proved, or named here with the reason why not."""
    arrays = {"slots_of", "last_of_each"}
    scalar = {
        name
        for module in (addressing, sharding)
        for name, one in vars(module).items()
        if inspect.isfunction(one) and one.__module__ == module.__name__
    }

    assert scalar - arrays == set(NAMES) - {"Layout", "Format"}
    assert {name for one in ALL for name in one.about} == set(NAMES)


def test_claims_have_names_and_sources_that_last() -> None:
    found = claims()

    assert len({claim.key for claim in found}) == len(found) == len(STATEMENTS)
    assert all(" " not in claim.name and claim.part == "addressing" for claim in found)
    assert all(len(claim.source) == 64 for claim in found)
    assert found == claims()


def test_a_source_is_that_of_all_that_is_called() -> None:
    """first_visible_block calls first_visible and block_of, so a change of either is a change of it."""
    assert source_of({"first_visible_block"}) == source_of({"first_visible_block", "first_visible", "block_of"})
    assert source_of({"first_visible_block"}) != source_of({"first_visible", "block_of"})


def test_paths_are_explored_with_the_assumptions() -> None:
    """No division by zero is left where sizes are 1 or more; each condition that is stated is one obligation."""
    one = STATEMENTS["positions"].theorems[0]

    assert [z3.is_false(obligation.goal) for obligation in one.obligations(REAL)] == [False] * 4


# -- limits


def test_limits_are_printed_as_numbers_to_compare_with_a_pool() -> None:
    limits = prove("int32").limits

    assert limits["blocks of 16 tokens: slots"] == (1 << 31) // 16
    assert limits["blocks of 16 tokens, 8 heads, head_dim 128, bfloat16: elements"] == 65536
    assert len(limits) == 2 * len(COMMON_POOLS) + len({pool[0] for pool in COMMON_POOLS})


@pytest.mark.parametrize("pool", COMMON_POOLS, ids=str)
def test_limits_are_those_of_the_tensors(pool: tuple[int, int, int, str]) -> None:
    """Strides as torch has them, of a cache without memory: the largest index of a pool at its limit, and of one more."""
    block_size, heads, head_dim, dtype = pool
    cache = allocate_cache(1, block_size, heads, head_dim, dtype, device="meta")
    limits = pool_limits(block_size, heads, head_dim, dtype)

    stride, reach = cache.keys.stride(0), cache.keys[0].numel()
    page_bytes = stride * cache.keys.element_size()

    assert (limits.elements - 1) * stride + reach - 1 <= addressing.INT32_MAX < limits.elements * stride + reach - 1
    assert limits.bytes * page_bytes - 1 <= addressing.INT32_MAX < (limits.bytes + 1) * page_bytes - 1
    assert limits.slots * block_size - 1 <= addressing.INT32_MAX < (limits.slots + 1) * block_size - 1


def test_limits_of_an_unknown_dtype_are_refused() -> None:
    with pytest.raises(ValueError, match="float8"):
        pool_limits(16, 8, 128, "float8")
