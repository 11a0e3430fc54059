"""``kvsan kernels`` on tiny kernels: what fails, what is accepted, and the exit codes."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kvsan.cli import main
from kvsan.gpu_kernels.compile import budgets
from kvsan.gpu_kernels.compile.build import TARGETS, Build, signature

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Triton is made for Linux")

ADD = Build("tiny_kernels:add", "fp32", signature({"*fp32": "x out", "i32": "length"}), {"SIZE": 128}, ("x", "out"))
GREEDY = Build("tiny_kernels:greedy", "fp32", signature({"*fp32": "x out"}), {"SIZE": 1 << 17}, num_warps=16)
FICKLE = Build("tiny_kernels:fickle", "fp32", signature({"*fp32": "out", "i32": "length"}), {})
COMPILE = ("kernels", "compile", "--target", "sm_90")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the cache and the budgets of a test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(budgets, "FILE", tmp_path / "budgets.json")
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "gpu_kernels")
    built(monkeypatch, ADD)
    return tmp_path


def built(monkeypatch: pytest.MonkeyPatch, *builds: Build) -> None:
    monkeypatch.setattr("kvsan.gpu_kernels.compile.builds.builds", lambda: list(builds))


def change_budget(folder: Path, *path: str, value: object) -> None:
    content = json.loads((folder / "budgets.json").read_text())
    place = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    (folder / "budgets.json").write_text(json.dumps(content))


def test_a_kernel_without_a_budget_fails_until_it_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMPILE]) == 1
    assert "FAIL add fp32 sm_90: no budget (kvsan kernels compile --update" in capsys.readouterr().out
    assert main([*COMPILE, "--update"]) == 0
    assert main([*COMPILE]) == 0
    said = capsys.readouterr().out
    assert "1 compiled, 1 from the cache, 0 failures, 0 warnings" in said.splitlines()[-1]


def test_a_figure_over_budget_fails(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMPILE, "--update"]) == 0
    change_budget(folder, "budgets", "add", "fp32", "sm_90", "registers", value=1)
    assert main([*COMPILE]) == 1
    assert re.search(r"FAIL add fp32 sm_90: registers \d+, budget 1 \(up to 5\)", capsys.readouterr().out)


def test_budgets_of_another_triton_only_warn(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMPILE, "--update"]) == 0
    change_budget(folder, "budgets", "add", "fp32", "sm_90", "registers", value=1)
    change_budget(folder, "triton", value="1.0.0")
    assert main([*COMPILE]) == 0
    said = capsys.readouterr().out
    assert re.search(r"WARNING add fp32 sm_90: registers \d+, budget 1", said)
    assert "budgets hold for triton 1.0.0" in said


@pytest.mark.parametrize(
    ("build", "message"), [(GREEDY, "greedy fp32 sm_90: spills: stack_bytes"), (FICKLE, "fickle fp32 sm_90: does not")]
)
def test_what_spills_or_does_not_compile_fails_and_is_never_accepted(
    build: Build, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    built(monkeypatch, ADD, build)
    assert main([*COMPILE, "--update"]) == 1
    assert f"FAIL {message}" in capsys.readouterr().out
    assert {kernel for kernel, _, _ in budgets.read(budgets.FILE).figures} == {"add"}


def test_one_kernel_is_compiled_and_the_budgets_of_others_stay(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built(monkeypatch, ADD, FICKLE)
    assert main(["kernels", "compile", "--kernel", "add", "--update"]) == 0
    figures = {"registers": 1, "shared_bytes": 0, "code_bytes": 1}
    change_budget(folder, "budgets", "fickle", value={"fp32": {"sm_90": figures}})
    assert main([*COMPILE, "--kernel", "add", "--update"]) == 0
    found = set(budgets.read(budgets.FILE).figures)
    assert found == {*(("add", "fp32", target) for target in TARGETS), ("fickle", "fp32", "sm_90")}


def test_a_budget_for_what_does_not_exist_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    build = replace(ADD, targets=("sm_90",))
    built(monkeypatch, build, replace(build, configuration="old"))
    assert main(["kernels", "compile", "--update"]) == 0
    built(monkeypatch, build)
    assert main(["kernels", "compile"]) == 0
    assert "WARNING add old sm_90: a budget for what does not exist" in capsys.readouterr().out


def test_the_figures_are_written_as_json(folder: Path) -> None:
    assert main([*COMPILE, "--json", "out.json"]) == 1
    (row,) = json.loads((folder / "out.json").read_text())["outcomes"]
    assert (row["kernel"], row["configuration"], row["target"]) == ("add", "fp32", "sm_90")
    assert row["resources"]["registers"] > 0
    assert row["failures"][0].startswith("no budget")


def test_without_a_cache_nothing_is_kept(folder: Path) -> None:
    assert main([*COMPILE, "--no-cache"]) == 1
    assert not (folder / "cache").exists()


def test_a_worker_that_dies_is_a_harness_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(folder)
    (folder / "vandal.py").write_text("import os; os.abort()")
    built(monkeypatch, ADD, Build("vandal:kernel", "only", {}, {}))
    assert main([*COMPILE, "--update"]) == 3
    said = capsys.readouterr()
    assert "the process that compiled kernel only sm_90 died: killed by signal 6" in said.err
    assert "FAIL" not in said.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "sm_12"], "--target sm_12: expected one of sm_80, sm_90, sm_100, gfx942"),
        (["--kernel", "subtract"], "--kernel subtract: expected one of add"),
        (["--workers", "0"], "expected an integer of at least 1"),
        (["--json", "no/such/folder.json"], "--json no/such/folder.json: cannot be written"),
    ],
)
def test_bad_input_is_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "compile", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_bad_budgets_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "budgets.json").write_text("{}")
    assert main([*COMPILE]) == 2
    assert "budgets.json: expected triton, and budgets by kernel" in capsys.readouterr().err


def test_a_gate_with_nothing_to_compile_does_not_pass(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    built(monkeypatch)
    assert main(["kernels", "compile"]) == 2
    assert "nothing to compile" in capsys.readouterr().err


def test_some_budgets_are_not_accepted_for_another_triton(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMPILE, "--update"]) == 0
    change_budget(folder, "triton", value="1.0.0")
    assert main([*COMPILE, "--update"]) == 2
    assert "accept all or none" in capsys.readouterr().err


@pytest.mark.parametrize("action", ["compile", "list"])
def test_without_triton_the_message_says_so(
    action: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    assert main(["kernels", action]) == 2
    assert "triton is not installed" in capsys.readouterr().err


def test_kernels_are_listed_with_their_targets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    built(monkeypatch, ADD, replace(GREEDY, targets=("sm_80", "gfx942")))
    assert main(["kernels", "list"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["add", "fp32", "sm_80", "sm_90", "sm_100", "gfx942"],
        ["greedy", "fp32", "sm_80", "gfx942"],
    ]
