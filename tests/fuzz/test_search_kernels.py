"""A search with kernels other than the host's: small runs, honest floors, and findings laid on whom they belong to."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from kvsan.fuzz import wire
from kvsan.fuzz.known import KnownFindings
from kvsan.fuzz.profiles import DEFAULT
from kvsan.fuzz.replay import make_numbers, replay
from kvsan.fuzz.search import Reporter, Search, SearchSettings, SearchSummary, floors_missed
from kvsan.fuzz.shrink import Shrinker, judge_of, shrink
from kvsan.fuzz.simplify import simpler_configurations
from kvsan.harness.configuration import Configuration
from kvsan.harness.operations import Launch, Operation, Retire, Schedule, Submit
from kvsan.harness.registry import runs_in_process
from kvsan.harness.trace import Trace
from kvsan.harness.verdict import Finding, UsageError, Violation
from kvsan.models_under_test.paged import PagedManager, make_target

USER_KERNELS = Path(__file__).parents[1] / "user_targets" / "torch_kernels.py"
MINE = "torch_kernels:decode"
TWO_TOKENS: tuple[Operation, ...] = (
    Submit("r1", ((0, 1),)),
    Schedule("r1", 1),
    Launch("b1"),
    Retire("b1"),
    Schedule("r1", 1),
    Launch("b2"),
    Retire("b2"),
)


@pytest.fixture(autouse=True)
def user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copy(USER_KERNELS, tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def settings(kernels: str = MINE, **changes: object) -> SearchSettings:
    return SearchSettings(Configuration(kernels=kernels), DEFAULT, steps=300, slow=True, **changes)  # type: ignore[arg-type]


def search(kernels: str, **changes: object) -> SearchSummary:
    return Search(make_target, settings(kernels, **changes), KnownFindings(), Reporter()).run()


def test_the_numbers_oracle_gets_the_kernels_of_the_configuration() -> None:
    traits = PagedManager(8, 4).traits
    assert type(make_numbers(traits, Configuration()).kernels).__name__ == "HostKernels"
    assert type(make_numbers(traits, Configuration(kernels="triton")).kernels).__name__ == "TritonKernels"
    assert make_numbers(traits, Configuration(kernels=MINE)).calls == Counter()


def test_kernels_that_cannot_be_had_are_bad_input() -> None:
    with pytest.raises(UsageError, match=r"kernel torch_kernels:nothing: torch_kernels has no nothing"):
        make_numbers(PagedManager(8, 4).traits, Configuration(kernels="torch_kernels:nothing"))


@pytest.mark.parametrize(
    ("target", "kernels", "here"),
    [("paged", "host", True), ("paged", "triton", True), ("paged", MINE, False), ("my.module:Manager", "host", False)],
)
def test_a_users_kernel_gets_a_process_of_its_own(target: str, kernels: str, here: bool) -> None:
    assert runs_in_process(Configuration(target, kernels=kernels)) is here


# -- pace and floors


def test_a_slow_search_makes_small_runs() -> None:
    done = search(MINE)
    assert not done.findings
    assert done.steps / done.runs < 40
    assert done.tokens_read / done.counts["Launch"] < 20


def test_what_a_slow_search_has_to_have_tried_is_less_and_its_kernel_has_to_have_run() -> None:
    done = SearchSummary(steps=100, calls=Counter({f"decode by {MINE}": 10, "write by host": 90}))
    assert floors_missed(done, settings()) == []
    done.calls[f"decode by {MINE}"] = 9
    assert floors_missed(done, settings()) == [f"kernel: {MINE} was called 9 times, 10 are the least that counts"]
    done.steps = 99
    assert floors_missed(done, settings()) == ["steps: 99 were executed, 100 are the least that counts"]
    assert floors_missed(SearchSummary(steps=100), settings("triton")) == []


def test_events_are_asked_for_a_tenth_as_often_in_tiny_runs() -> None:
    counts = Counter({event: int(2 * floor) + 1 for event, floor in DEFAULT.floors.items()})
    done = SearchSummary(steps=20_000, counts=counts, calls=Counter({f"decode by {MINE}": 10}))
    assert floors_missed(done, settings()) == []
    done.counts["refusal"] = 9
    assert floors_missed(done, settings()) == ["refusal: 0.45 per 1,000 steps, the floor is 0.5"]


def test_calls_cross_from_workers() -> None:
    told = wire.summary_in(wire.summary_out(SearchSummary(calls=Counter({"decode by a": 3}))))
    total = SearchSummary(calls=Counter({"decode by a": 1}))
    wire.add_up(total, told)
    assert total.calls == {"decode by a": 4}
    assert wire.settings_in(wire.settings_out(settings())) == settings()


# -- whose fault it is


def violation_of(trace: Trace) -> Violation:
    violation = replay(make_target, trace).violation
    assert violation is not None
    return violation


def test_a_kernels_violation_is_shrunk_with_the_kernel() -> None:
    longer = (*TWO_TOKENS, Schedule("r1", 1), Launch("b3"), Retire("b3"), Schedule("r1", 1), Launch("b4"), Retire("b4"))
    trace = Trace(Configuration(num_units=8, block_size=2, kernels="torch_kernels:decode_wrong_block"), longer)
    finding: Finding = shrink(make_target, trace, violation_of(trace), numbers=True)
    assert finding.trace.configuration.kernels == "torch_kernels:decode_wrong_block"
    assert finding.trace.configuration.block_size == 1
    assert len(finding.trace.operations) <= 7


def test_the_hosts_kernels_are_the_simplest() -> None:
    assert next(simpler_configurations(Configuration(kernels=MINE))).kernels == "host"
    assert all(simpler.kernels == "host" for simpler in simpler_configurations(Configuration()))


@pytest.mark.parametrize(("kernels", "tried"), [(MINE, {1, 2, 4, 8}), ("host", {1, 2, 3, 4, 8})])
def test_shrinking_tries_blocks_of_a_power_of_two_on_kernels(kernels: str, tried: set[int]) -> None:
    judge = judge_of(make_target, numbers=True)
    sizes = set()

    def judged(configuration: Configuration, *rest: object) -> object:
        sizes.add(configuration.block_size)
        replayed = judge(configuration, *rest)  # type: ignore[arg-type]
        if configuration.block_size in (4, 8) and configuration.kernels == kernels:
            replayed.violation = Violation("numbers", "zero", "")
        return replayed

    trace = Trace(Configuration(num_units=4, block_size=8, kernels=kernels), TWO_TOKENS)
    Shrinker(judged, trace, Violation("numbers", "zero", "")).shrink()  # type: ignore[arg-type]
    assert sizes == tried
