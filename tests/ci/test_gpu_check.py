"""The script for a machine with a GPU does what it says, on tiny problems that the interpreter runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kvsan.ci import gpu_check
from kvsan.ci.gpu import comparisons
from kvsan.ci.gpu.comparisons import KINDS
from kvsan.ci.kernels import problems
from kvsan.ci.kernels.kernel_set import KERNELS
from kvsan.gpu_kernels.launching import Attended

ROOT = Path(__file__).resolve().parents[2]

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="asks what happens without a GPU")


def wrong_decode(*args: Any, **options: Any) -> Attended:
    attended = KERNELS.decode(*args, **options)
    attended.output[-1] *= 1.5
    return attended


WRONG_DECODE = replace(KERNELS, decode=wrong_decode)


def told(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def test_sound_kernels_pass_and_every_kind_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    code = gpu_check.main(["--interpret", "--seconds", "0", "--part", "comparisons"])

    lines = told(capsys).splitlines()
    assert code == gpu_check.PASSED
    assert [
        line.split(" | ")[1:3] for line in lines if line.startswith("| ") and line[2:].split(" | ")[0] in KINDS
    ] == [["1", "0"]] * len(KINDS)
    assert lines[-1].startswith("0 failures")


def test_a_broken_kernel_ends_in_exit_code_1_and_the_line_that_brings_it_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = gpu_check.main(["--interpret", "--seconds", "0", "--part", "comparisons", "--seed", "3"], WRONG_DECODE)

    failed = [line for line in told(capsys).splitlines() if line.startswith("FAILED: DecodeProblem(")]
    assert code == gpu_check.FAILED
    assert failed
    line = failed[0].removeprefix("FAILED: ").partition("): ")[0] + ")"
    problem = eval(line, vars(problems))
    assert repr(problem) == line
    assert comparisons.checked("decode", problem, WRONG_DECODE, "cpu").failures
    assert not comparisons.checked("decode", problem, KERNELS, "cpu").failures


def test_a_wrong_timed_kernel_ends_in_exit_code_1(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "found.json"

    code = gpu_check.main(["--interpret", "--part", "performance", "--out", str(out)], WRONG_DECODE)

    assert code == gpu_check.FAILED
    assert "FAILED: decode, 2 x 40 tokens" in told(capsys)
    record = json.loads(out.read_text("utf-8"))
    assert len(record["failures"]) == 3
    assert {one["case"].split(",")[0] for one in record["performance"]} == {"prefill", "write", "block copy"}
    assert record["machine"].startswith("no GPU")


@without_gpu
def test_without_a_gpu_the_exit_code_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main([]) == gpu_check.NOT_RUN
    assert "no GPU" in capsys.readouterr().err


def test_kernels_are_not_interpreted_by_accident(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setenv("TRITON_INTERPRET", "1")

    assert gpu_check.main([]) == gpu_check.NOT_RUN
    assert "TRITON_INTERPRET is set" in capsys.readouterr().err


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu_check.main(["--help"])
    assert "python ci/gpu_check.py --out" in told(capsys)


ABSENT = ("numba", "hypothesis", "pytest", "packaging", "rich", "z3")


def test_a_copy_of_the_tree_runs_where_kvsan_is_not_installed(tmp_path: Path) -> None:
    for folder in ("gpu_kernels", "harness", "ci"):
        shutil.copytree(ROOT / folder, tmp_path / "copy" / folder, ignore=shutil.ignore_patterns("__pycache__"))
    absent = tmp_path / "absent"
    for name in ABSENT:
        (absent / name).mkdir(parents=True)
        (absent / name / "__init__.py").write_text(f"raise ImportError('{name} is not installed')")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TRITON"))}
    # Python started with -S reads no .pth files, so the editable install of KVSan is not seen
    environment["PYTHONPATH"] = os.pathsep.join([str(absent), sysconfig.get_path("purelib")])
    command = [sys.executable, "-S", "ci/gpu_check.py", "--interpret", "--seconds", "0", "--processes", "1"]

    done = subprocess.run(
        [*command, "--out", "found.json"],
        cwd=tmp_path / "copy",
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((tmp_path / "copy" / "found.json").read_text("utf-8"))
    assert sum(one["problems"] for one in record["comparisons"]) == len(KINDS)
    assert record["performance"]


def test_the_documentation_invents_no_figure() -> None:
    text = (ROOT / "docs" / "performance.md").read_text("utf-8")

    assert names_a_machine_or_says_that_there_is_none(text)
    assert not names_a_machine_or_says_that_there_is_none("| decode | KVSan | 12.3 |")


def names_a_machine_or_says_that_there_is_none(text: str) -> bool:
    return "not yet run on a GPU" in text or any(line.startswith("Machine: ") for line in text.splitlines())


@pytest.mark.parametrize(
    ("failures", "missing", "code"), [([], [], 0), ([], ["far blocks"], 5), (["decode"], ["far blocks"], 1)]
)
def test_a_kind_that_never_ran_is_no_success(failures: list[str], missing: list[str], code: int) -> None:
    assert gpu_check.exit_code(failures, missing) == code
