"""The reference pair, and its seeded bugs: each is found by a check that must see it, in a short trace."""

from __future__ import annotations

import re
from functools import cache
from random import Random

import pytest

from kvsan.fuzz.generate import draw_features
from kvsan.fuzz.known import KnownFindings
from kvsan.fuzz.pair_draws import PairGenerator
from kvsan.fuzz.profiles import DISAGG, small_scope
from kvsan.fuzz.replay import open_session, replay
from kvsan.fuzz.search import Reporter, Search, SearchSettings
from kvsan.fuzz.shrink import judge_of, weight
from kvsan.harness.configuration import Configuration, OptionValue
from kvsan.harness.invariant import Invariant
from kvsan.harness.operations import Operation
from kvsan.harness.pair import CONSUMER, PRODUCER
from kvsan.harness.pair_session import PairSession
from kvsan.harness.registry import is_builtin_in_process, resolve
from kvsan.harness.verdict import Finding, UsageError, Violation
from kvsan.invariants import INVARIANTS, catalogue
from kvsan.models_under_test.disagg import make_target
from kvsan.models_under_test.disagg import mutants as seeded
from kvsan.models_under_test.disagg.mutants import MUTANTS

STEPS = 150_000
AT_MOST_DECISIONS = 10
ORACLES_WITHOUT_A_FILE = {"provenance", "foreign_write", "order", "target.crash"}


@cache
def found(name: str) -> Finding:
    """First finding of one mutant with a fixed seed."""
    settings = SearchSettings(Configuration(f"disagg-mutant:{name}"), DISAGG, seed=5, steps=STEPS, numbers=0.0)
    summary = Search(seeded.make_target, settings, KnownFindings(), Reporter()).run()  # type: ignore[arg-type]
    assert summary.findings, f"{name} was not found in {summary.steps} steps"
    return summary.findings[0]


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_killed_by_a_check_that_must_kill_it(name: str) -> None:
    assert found(name).invariant in MUTANTS[name].killed_by


@pytest.mark.parametrize("name", MUTANTS)
def test_its_minimal_trace_is_short_and_deterministic(name: str) -> None:
    assert weight(found(name).trace.operations)[0] <= AT_MOST_DECISIONS
    assert found(name).replays == (3, 3)


@pytest.mark.parametrize("name", MUTANTS)
def test_its_minimal_trace_is_clean_on_the_reference_pair(name: str) -> None:
    assert replay(make_target, found(name).trace, numbers=True).violation is None  # type: ignore[arg-type]


def violates(finding: Finding, operations: tuple[Operation, ...], sweep_every: int, close: bool) -> bool:
    """Whether operations violate as the finding does."""
    judge = judge_of(seeded.make_target, numbers=False)  # type: ignore[arg-type]
    violation = judge(finding.trace.configuration, operations, sweep_every, close).violation
    return violation is not None and violation.kind == finding.kind


@pytest.mark.parametrize("name", MUTANTS)
def test_nothing_can_be_taken_from_its_minimal_trace(name: str) -> None:
    finding = found(name)
    operations = finding.trace.operations
    judges = ((1 << 60, False), (1, False), (1, True))
    judge = next(judge for judge in judges if violates(finding, operations, *judge))
    without = [operations[:position] + operations[position + 1 :] for position in range(len(operations))]
    assert [fewer for fewer in without if violates(finding, fewer, *judge)] == []


def test_killed_by_names_checks_that_exist() -> None:
    ids = {one.id for one in INVARIANTS} | ORACLES_WITHOUT_A_FILE
    assert {check for mutant in MUTANTS.values() for check in mutant.killed_by} <= ids


NAMED = sorted(
    (entry.id, name)
    for entry in catalogue()
    for name in re.findall(r"``disagg-mutant:(\w+)``", entry.text.partition("Mutant:")[2])
)


def test_every_invariant_of_an_exchange_names_a_mutant() -> None:
    assert {invariant for invariant, _ in NAMED} == {one.id for one in INVARIANTS if one.id.startswith("exchange_")}


@pytest.mark.parametrize(("invariant", "name"), NAMED)
def test_an_invariant_alone_trips_over_each_mutant_that_it_names(invariant: str, name: str) -> None:
    (kind,) = [one for one in INVARIANTS if one.id == invariant]
    assert invariant in MUTANTS[name].killed_by
    assert killed(name, (kind,), invariant)


@pytest.mark.parametrize(
    ("oracle", "name"),
    [("order", "pull_unordered"), ("provenance", "source_taken_for_nhd")],
)
def test_an_oracle_sees_a_mutant_without_any_invariant(oracle: str, name: str) -> None:
    assert killed(name, (), oracle)


def killed(name: str, invariants: tuple[type[Invariant], ...], wanted: str) -> bool:
    """Whether runs judged by these invariants alone meet a violation of the wanted one."""
    profile = small_scope(DISAGG)
    for run in range(3000):
        random = Random(run)
        options: dict[str, OptionValue] = {option: random.choice(values) for option, values in profile.options}
        configuration = Configuration(
            f"disagg-mutant:{name}",
            random.choice(profile.num_units),
            random.choice(profile.block_sizes),
            options=tuple(sorted(options.items())),
        )
        factory = seeded.make_target
        session = open_session(factory, configuration, numbers=False, sweep_every=10, invariants=invariants)  # type: ignore[arg-type]
        assert isinstance(session, PairSession)
        generator = PairGenerator(session, profile, random, draw_features(random, profile))
        try:
            for _ in range(100):
                session.step(generator.next())
            session.close()
        except Violation as violation:
            if violation.invariant == wanted:
                return True
    return False


# -- the reference pair


def made(block_size: int = 4, **options: OptionValue) -> seeded.DisaggregatedPair:
    return make_target(Configuration("disagg", 8, block_size, options=tuple(sorted(options.items()))))


def test_a_unit_holds_a_page_on_every_context_parallel_rank() -> None:
    pair = made(prefill_dcp=2, prefill_pcp=2, decode_block=8, decode_units=5, decode_interleave=0)
    assert [one.traits.block_size for one in pair.pools.values()] == [16, 8]
    assert [one.traits.num_units for one in pair.pools.values()] == [8, 5]
    assert pair.layouts[CONSUMER].interleave == 8
    assert pair.source_layout() == pair.layouts[PRODUCER]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tp": 2}, "unknown option 'tp'; it has kv_heads"),
        ({"prefill_tp": 3}, "prefill: tp 3: expected a divisor"),
        ({"decode_interleave": 3}, "decode: interleave 3: expected a divisor"),
        ({"decode_layout": "DHN"}, "decode: memory_layout 'DHN'"),
        ({"decode_units": 1}, "option decode_units: 1; expected 2 or more"),
        ({"decode_block": -1}, "option decode_block: -1; expected 0 to"),
        ({"prefill_dcp": 65}, "prefill: expected at most 64 ranks"),
        ({"prefill_tp": "2"}, "option prefill_tp: expected int"),
    ],
    ids=str,
)
def test_bad_options_say_what_was_expected(options: dict[str, OptionValue], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        made(**options)


def test_pairs_are_targets_by_name() -> None:
    assert resolve("disagg") is make_target
    assert resolve("disagg-mutant:freed_unread") is seeded.make_target
    assert is_builtin_in_process("disagg")
    assert is_builtin_in_process("disagg-mutant:freed_unread")


def test_an_unknown_mutant_is_bad_input_with_a_suggestion() -> None:
    with pytest.raises(UsageError, match="did you mean freed_unread"):
        seeded.make_target(Configuration("disagg-mutant:freed_unred"))
