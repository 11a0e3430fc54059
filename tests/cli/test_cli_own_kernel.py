"""Kernels on the command line: KVSan's own by name, a user's by its function; found, shrunk, replayed."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kvsan.cli import main
from kvsan.harness import trace as traces
from kvsan.harness.configuration import Configuration
from kvsan.harness.operations import Launch, Operation, Retire, Schedule, Submit
from kvsan.harness.trace import Trace

USER_KERNELS = Path(__file__).parents[1] / "user_targets"
TOKEN: tuple[Operation, ...] = (Submit("r1", ((0, 1),)), Schedule("r1", 1), Launch("b1"), Retire("b1"))
TWO_TOKENS = (*TOKEN, Schedule("r1", 1), Launch("b2"), Retire("b2"))


@pytest.fixture(autouse=True)
def user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("torch_kernels.py", "triton_kernels.py"):
        shutil.copy(USER_KERNELS / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trace_of(kernels: str, operations: tuple[Operation, ...] = TWO_TOKENS) -> str:
    traces.write("one.json", Trace(Configuration(num_units=4, block_size=1, kernels=kernels), operations))
    return "one.json"


def test_a_correct_kernel_is_clean_and_what_ran_is_said(capsys: pytest.CaptureFixture[str], user_folder: Path) -> None:
    assert main(["fuzz", "--kernel", "torch_kernels:decode", "--steps", "300", "--json", "out.json"]) == 0
    text = capsys.readouterr().out
    assert "paged on torch_kernels:decode, seed 0: clean: no violation" in text
    document = json.loads((user_folder / "out.json").read_text())
    assert document["settings"]["configuration"]["kernels"] == "torch_kernels:decode"
    calls = document["calls"]
    assert f"decode by torch_kernels:decode {calls['decode by torch_kernels:decode']}" in text
    assert calls["decode by torch_kernels:decode"] >= 10
    assert calls["write by host"] >= 10


def test_a_kernel_that_hardly_ran_did_not_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", "--kernel", "torch_kernels:copy", "--steps", "100"]) == 5
    assert "kernel: torch_kernels:copy was called 0 times, 10 are the least that counts" in capsys.readouterr().out


def test_a_wrong_block_is_found_and_replays_by_its_trace_alone(
    capsys: pytest.CaptureFixture[str], user_folder: Path
) -> None:
    assert main(["fuzz", "--kernel", "torch_kernels:decode_wrong_block", "--max-findings", "1"]) == 1
    (path,) = user_folder.glob("findings/numbers-*.json")
    trace = traces.read(path).trace
    assert trace.configuration.kernels == "torch_kernels:decode_wrong_block"
    assert len(trace.operations) <= 7
    capsys.readouterr()
    assert main(["replay", str(path)]) == 0
    assert "as expected" in capsys.readouterr().out
    assert main(["replay", str(path), "--kernels", "host"]) == 0
    assert "clean" in capsys.readouterr().out


def test_a_managers_bug_is_not_laid_on_the_kernel(user_folder: Path) -> None:
    """Shrinking tries the host's kernels, too."""
    command = ["fuzz", "--target", "mutant:salt_missing", "--kernel", "torch_kernels:decode", "--max-findings", "1"]
    assert main([*command, "--steps", "20000"]) == 1
    (path,) = user_folder.glob("findings/*.json")
    assert traces.read(path).trace.configuration.kernels == "host"


def test_a_trace_is_shrunk_on_its_own_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    path = trace_of("torch_kernels:decode_wrong_block", (*TWO_TOKENS, Schedule("r1", 1), Launch("b3"), Retire("b3")))
    assert main(["shrink", path, "--out", "short.json"]) == 0
    assert traces.read("short.json").trace.configuration.kernels == "torch_kernels:decode_wrong_block"
    assert main(["shrink", path, "--kernel", "torch_kernels:decode"]) == 2
    assert "does not violate anything" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("raises", "target.crash [kernel RuntimeError] at operation 3"),
        ("exits", "target.crash [exit code 4] at operation 3"),
        ("dereferences_null", "target.crash [SIGSEGV] at operation 3"),
        ("hangs", "target.hang [silence] at operation 3"),
    ],
)
def test_what_a_kernel_does_to_its_process_is_a_violation(
    name: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", trace_of(f"torch_kernels:{name}", TOKEN), "--hang-timeout", "2s"]) == 1
    assert words in capsys.readouterr().out


def test_a_kernel_that_kills_its_process_is_shrunk() -> None:
    assert main(["shrink", trace_of("torch_kernels:exits"), "--out", "short.json"]) == 0
    trace = traces.read("short.json").trace
    assert trace.configuration.kernels == "torch_kernels:exits"
    assert len(trace.operations) <= 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kernel", "no_such_module:decode"], "kernel no_such_module:decode: no module no_such_module"),
        (["--kernel", "torch_kernels:asks_for_more"], "asks for alibi_slopes, which nobody knows"),
        (["--kernel", "decode"], "'decode': expected package.module:function"),
        (["--kernels", "cuda"], "invalid choice: 'cuda'"),
        (["--kernels", "host", "--kernel", "torch_kernels:decode"], "not allowed with argument"),
        (["--kernels", "triton"], "--target: missing; expected a name that kvsan targets lists, or --kernel"),
    ],
)
def test_bad_names_are_bad_input(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", "--steps", "100", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_kvsans_own_triton_kernels_are_searched() -> None:
    assert main(["fuzz", "--target", "paged", "--kernels", "triton", "--steps", "100"]) == 0


def in_a_clean_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run KVSan where nothing has told Triton to interpret."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "kvsan.cli", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_a_triton_kernel_is_interpreted_and_its_wrong_block_found(user_folder: Path) -> None:
    """Measured: 4.0 s of process time, of which the search and shrinking take 0.8 s; the bound only catches a mishap."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = in_a_clean_process("fuzz", "--kernel", "triton_kernels:decode_wrong_block", "--max-findings", "1")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 1, done.stdout + done.stderr
    (path,) = user_folder.glob("findings/numbers-*.json")
    assert len(traces.read(path).trace.operations) <= 7
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 60


def test_a_triton_kernel_that_follows_an_unused_entry_is_found_by_the_interpreters_checks(user_folder: Path) -> None:
    done = in_a_clean_process("fuzz", "--kernel", "triton_kernels:decode_one_block_too_many", "--max-findings", "1")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "VIOLATION kernel [out-of-bounds]" in done.stdout
    assert "out-of-bounds in paged_decode (triton_kernels.py:" in done.stdout
    (path,) = user_folder.glob("findings/kernel-*.json")
    assert in_a_clean_process("replay", str(path)).returncode == 0


@pytest.mark.parametrize("kernels", [["--kernels", "host"], ["--kernel", "torch_kernels:decode"]])
def test_codes_that_the_kernels_do_not_read_are_bad_input(
    kernels: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fuzz", "--target", "paged", "--dtype", "nvfp4", "--steps", "10", *kernels]) == 2
    assert "expected --kernels triton" in capsys.readouterr().err
