"""Comparisons for a share of time, in one process or several: everything is asked, and whatever goes wrong is a failure."""

from __future__ import annotations

import os
import sys
from dataclasses import fields, replace
from typing import Any

import pytest

from kvsan.ci.gpu import comparisons, workers
from kvsan.ci.gpu import worker as worker_process
from kvsan.ci.gpu.comparisons import KINDS, Outcome, outcomes, tallied
from kvsan.ci.kernels import problems
from kvsan.ci.kernels.draws import TINY
from kvsan.ci.kernels.kernel_set import KERNELS, KernelSet
from kvsan.gpu_kernels.interface import KernelBug
from kvsan.gpu_kernels.launching import Attended


def told(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


@pytest.mark.parametrize("name", [field.name for field in fields(KernelSet)])
def test_every_kernel_of_a_set_is_asked_by_some_kind(name: str) -> None:
    def broken(*args: Any, **options: Any) -> Any:
        raise KernelBug("race", name, "nowhere.py", 1, (0,), 0, "planted")

    def returning(*args: Any, **options: Any) -> Any:
        raise KernelBug("overflow", "another", "nowhere.py", 1, (0,), 0, "not run, to save time")

    others = {field.name: returning for field in fields(KernelSet) if field.name not in (name, "gather_blocks")}
    kernels = replace(KERNELS, **{**others, name: broken})

    found = [outcome for seed in range(4) for outcome in outcomes(seed, 0, TINY, "cpu", kernels)]

    assert any("planted" in failure for outcome in found for failure in outcome.failures)


def test_an_exception_is_a_failure_with_its_problem() -> None:
    def refuses(*args: Any) -> None:
        raise RuntimeError("no kernel image\n is available")

    found = tallied(outcomes(0, 0, TINY, "cpu", replace(KERNELS, write=refuses)))

    (failed,) = found[0].failed
    assert failed.failures == ("raised RuntimeError: no kernel image is available",)
    assert failed.problem.startswith("WriteProblem(")


def test_the_worst_error_is_told_as_a_share_of_its_bound() -> None:
    problem = problems.DecodeProblem(
        problems.Attending(problems.CacheSpec("float32", 4, 2, 32), 2, 0.2, query_dtype="float32"), (11, 6)
    )

    def changed(factor: float) -> float | None:
        def decode(*args: Any, **options: Any) -> Attended:
            attended = KERNELS.decode(*args, **options)
            attended.output.mul_(factor)
            return attended

        return comparisons.checked("decode", problem, replace(KERNELS, decode=decode), "cpu").share

    sound, wrong = changed(1.0), changed(1.01)
    assert sound is not None
    assert wrong is not None
    assert 0 < sound < 1 < wrong
    assert str(changed(float("nan"))) == "nan"
    assert comparisons.checked("write", KINDS["write"](worker_source(), TINY), KERNELS, "cpu").share is None


def worker_source() -> comparisons.Source:
    return comparisons.Seeded(1)


def test_tallies_keep_the_worst_and_nan_is_worse_than_any() -> None:
    shares = [0.2, 0.7, None, 0.1]
    found = [Outcome("decode", "", (), share) for share in shares]

    def worst(one: list[Outcome]) -> str:
        return str(next(tally.worst for tally in tallied(one) if tally.kind == "decode"))

    assert worst(found) == "0.7"
    assert worst([*found, Outcome("decode", "", ("x",), float("nan")), Outcome("decode", "", (), 0.9)]) == "nan"


def test_a_worker_announces_and_reports_each_problem(capsys: pytest.CaptureFixture[str]) -> None:
    worker_process.main(["--seed", "1", "--seconds", "0", "--interpret"])

    lines = told(capsys)
    found = workers.read_outcomes(lines, "exit code 0", "")
    assert [outcome.kind for outcome in found] == list(KINDS)
    assert len(lines.splitlines()) == 2 * len(KINDS)
    assert not any(outcome.failures for outcome in found)


@pytest.mark.parametrize(("far", "said"), [(False, ["False"] * 2), (True, ["False"] * 2 + ["True"])])
def test_one_more_process_is_for_far_problems(far: bool, said: list[str]) -> None:
    report_far = (
        'import json, sys; problem = str("--far" in sys.argv);'
        'print(json.dumps({"kind": "decode", "problem": problem, "failures": [], "share": 0}))'
    )

    found = workers.compare_in_processes(2, 0, 0.5, True, far, command=(sys.executable, "-S", "-c", report_far))

    assert [outcome.problem for outcome in found] == said


@pytest.mark.skipif(
    os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") < 20e9,
    reason="a machine of less than 20 GB may refuse 20 GB of addresses",
)
def test_far_problems_are_compared_too() -> None:
    tallies = {tally.kind: tally for tally in tallied(comparisons.far_outcomes(1, "cpu"))}

    assert all(tallies[kind].problems >= 4 and not tallies[kind].failed for kind in comparisons.FAR_KINDS)
    assert tallies["far rows"].worst is not None


ANNOUNCED = 'import json, sys, time; print(json.dumps({"kind": "decode", "problem": "DecodeProblem()"}), flush=True); '


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ("sys.exit('an illegal memory access')", "exit code 1; an illegal memory access"),
        ("import os; os.abort()", "exit code -6"),
        ("time.sleep(60)", "no end after 1 s"),
    ],
)
def test_a_worker_that_does_not_return_fails_what_it_had_begun(ending: str, said: str) -> None:
    command = (sys.executable, "-S", "-c", ANNOUNCED + ending)

    (outcome,) = workers.compare_in_processes(1, 0, 0.5, True, False, grace_s=0.5, command=command)

    assert (outcome.kind, outcome.problem) == ("decode", "DecodeProblem()")
    assert said in outcome.failures[0]


def test_a_worker_that_does_not_start_fails_too() -> None:
    command = (sys.executable, "-S", "-c", "import nothing_of_this_name")

    (outcome,) = workers.compare_in_processes(1, 0, 0.5, True, False, command=command)

    assert "No module named 'nothing_of_this_name'" in outcome.failures[0]
