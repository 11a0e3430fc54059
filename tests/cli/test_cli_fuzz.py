from __future__ import annotations

import json
import os
import pty
import resource
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from kvsan.cli import main, progress
from kvsan.cli.arguments import duration, option, share
from kvsan.cli.fuzz import _usual_profile
from kvsan.cli.summary import Outcome
from kvsan.fuzz.profiles import DEFAULT, PROFILES
from kvsan.fuzz.search import SearchSettings, SearchSummary
from kvsan.harness import trace as traces
from kvsan.harness.configuration import Configuration
from kvsan.harness.trace import Trace
from kvsan.harness.verdict import Finding, HarnessError, UsageError

USER_TARGETS = Path(__file__).parents[1] / "user_targets" / "misbehaving.py"
WRONG = ("fuzz", "--target", "mutant:salt_missing", "--steps", "15000", "--numbers", "never")
CLEAN = ("fuzz", "--target", "paged", "--steps", "2000", "--numbers", "never")
KVSAN = (sys.executable, "-m", "kvsan.cli")


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(folder: Path) -> list[Path]:
    return sorted(folder.glob("findings/*.json"))


def test_a_clean_search_says_how_hard_it_tried(capsys: pytest.CaptureFixture[str], empty_folder: Path) -> None:
    assert main([*CLEAN]) == 0
    text = capsys.readouterr().out
    assert "paged, seed 0: clean: no violation" in text
    for word in ("steps", "compared", "Submit", "prefix hits", "eviction", "refusal", "preemption", "skipped"):
        assert word in text
    assert not found(empty_folder)


def test_a_finding_is_told_and_written_with_its_verdict(capsys: pytest.CaptureFixture[str], empty_folder: Path) -> None:
    assert main([*WRONG]) == 1
    text = capsys.readouterr().out
    (path,) = found(empty_folder)
    file = traces.read(path)
    assert file.expect is not None
    assert path.name == f"{file.expect.invariant}-{traces.canonical_hash(file.trace)[:12]}.json"
    assert f"VIOLATION {file.expect.invariant} [{file.expect.cause}]" in text
    assert f"first bad     operation {file.expect.step}: " in text
    assert "deterministic 3/3" in text
    assert f"kvsan replay findings/{path.name}" in text
    assert main(["replay", str(path)]) == 0


def test_the_same_seed_finds_the_same(empty_folder: Path) -> None:
    main([*WRONG, "--json", "first.json"])
    main([*WRONG, "--json", "second.json"])
    first, second = (json.loads((empty_folder / name).read_text()) for name in ("first.json", "second.json"))
    assert first.pop("seconds") > 0
    assert second.pop("seconds") > 0
    assert first == second


def test_the_summary_for_programs_has_stdout_to_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WRONG, "--json", "-"]) == 1
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert (document["format"], document["version"], document["exit_code"]) == ("kvsan-summary", 1, 1)
    assert document["settings"]["configuration"]["target"] == "mutant:salt_missing"
    assert document["counts"]["Submit"] > 10
    (finding,) = document["findings"]
    assert Path(finding["trace"]).is_file()
    assert finding["replays"] == {"same": 3, "tried": 3}
    assert "VIOLATION" in captured.err


def test_a_known_finding_is_counted_and_not_reported(capsys: pytest.CaptureFixture[str], empty_folder: Path) -> None:
    main([*WRONG])
    (path,) = found(empty_folder)
    shutil.copytree("findings", "known")
    path.unlink()
    assert main([*WRONG, "--known", "known", "--json", "out.json"]) == 0
    document = json.loads((empty_folder / "out.json").read_text())
    assert document["known"][path.name] > 0
    assert document["stale"] == []
    assert f"{path.name} met" in capsys.readouterr().out
    assert not found(empty_folder)


def test_a_known_trace_that_no_longer_fails_is_stale(capsys: pytest.CaptureFixture[str], empty_folder: Path) -> None:
    main([*WRONG])
    (path,) = found(empty_folder)
    path.write_text(path.read_text().replace('"mutant:salt_missing"', '"paged"'))
    assert main([*CLEAN, "--known", "findings"]) == 0
    assert f"{path.name} no longer fails" in capsys.readouterr().out


def test_a_search_that_hardly_began_did_not_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", "--target", "paged", "--budget", "0.01s"]) == 5
    assert "too little was tried" in capsys.readouterr().out


def test_what_is_beyond_the_contract_decides_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WRONG, "--beyond-contract"]) == 0
    text = capsys.readouterr().out
    assert "beyond the target's contract" in text
    assert "--beyond-contract" in text


def test_sizes_that_are_given_are_not_drawn(empty_folder: Path) -> None:
    main([*WRONG, "--num-units", "31", "--block-size", "2", "--json", "out.json"])
    settings = json.loads((empty_folder / "out.json").read_text())["settings"]
    assert (settings["configuration"]["num_units"], settings["configuration"]["block_size"]) == (31, 2)
    assert settings["drawn"] == []


def test_a_target_of_the_users_own_is_found_in_the_current_folder(
    capfd: pytest.CaptureFixture[str], empty_folder: Path
) -> None:
    shutil.copy(USER_TARGETS, empty_folder)
    assert main(["fuzz", "--target", "misbehaving:DereferencesNull", "--steps", "3000", "--numbers", "never"]) == 1
    assert "VIOLATION target.crash [SIGSEGV]" in capfd.readouterr().out
    assert main(["replay", "findings", "--require-all"]) == 0
    (path,) = found(empty_folder)
    assert main(["shrink", str(path), "--out", "short.json"]) == 0
    assert len(traces.read("short.json").trace.operations) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fuzz"], "--target"),
        (["fuzz", "--target", "pagd"], "did you mean paged?"),
        (["fuzz", "--target", "mutant:salt_mising"], "did you mean salt_missing"),
        (["fuzz", "--target", "nowhere:Target"], "no module nowhere"),
        (["fuzz", "--target", "pa ged"], "target"),
        (["fuzz", "--target", "paged", "--budget", "5 parsecs"], "expected a time such as"),
        (["fuzz", "--target", "paged", "--budget", "0s"], "expected a time such as"),
        (["fuzz", "--target", "paged", "--steps", "0"], "expected an integer of at least 1"),
        (["fuzz", "--target", "paged", "--numbers", "2"], "expected always, never or a share"),
        (["fuzz", "--target", "paged", "--profile", "brisk"], "expected one of default"),
        (["fuzz", "--target", "paged", "--dtype", "float8"], "dtype"),
        (["fuzz", "--target", "paged", "--groups", "full,round"], "round"),
        (["fuzz", "--target", "paged", "--num-units", "1"], "num_units"),
        (["fuzz", "--target", "paged", "--option", "watermark"], "expected NAME=VALUE"),
        (["fuzz", "--target", "paged", "--option", "a=1", "--option", "a=2"], "given twice"),
        (["fuzz", "--target", "paged", "--option", "colour=1"], "unknown option 'colour'"),
        (["fuzz", "--target", "paged", "--option", "watermark=high"], "expected int"),
        (["fuzz", "--target", "paged", "--known", "absent"], "expected a folder of trace files"),
        (["fuzz", "--target", "paged", "--out", "file"], "expected a folder"),
        (["fuzz", "--target", "paged", "--json", "absent/out.json"], "expected a file in a folder that exists"),
        (["fuzz", "--target", "paged", "--colour"], "--colour"),
        (["dance"], "invalid choice"),
        ([], "COMMAND"),
        (["replay", "absent.json"], "cannot be read"),
        (["replay", "."], "holds no trace files"),
        (["shrink", "file"], "expected JSON"),
        (["invariants", "tenant"], "did you mean tenants?"),
        (["engines", "add", "vllm"], "expected NAME==VERSION"),
    ],
)
def test_bad_input_gets_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], empty_folder: Path
) -> None:
    (empty_folder / "file").write_text("x")
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not captured.out


@pytest.mark.parametrize("command", ["", "fuzz", "replay", "shrink", "targets", "invariants", "engines", "engines add"])
def test_help_describes_and_shows_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "example: kvsan" in text
    assert len(text.splitlines()) > 5


def test_help_imports_nothing_heavy() -> None:
    code = "import sys; from kvsan.cli import parser; parser(); print({'numpy', 'torch', 'numba', 'rich'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("5m", 300), ("2h", 7200), ("0.5s", 0.5)])
def test_a_time_has_a_unit(text: str, seconds: float) -> None:
    assert duration(text) == seconds


def test_shares_and_options_are_what_they_look_like() -> None:
    assert [share(text) for text in ("always", "never", "0.25")] == [1.0, 0.0, 0.25]
    assert [option(text)[1] for text in ("a=true", "a=-3", "a=b=c")] == [True, -3, "b=c"]


FINDING = Finding("tenants", "salt", "shared", 0, Trace(Configuration(), ()))


@pytest.mark.parametrize(
    ("findings", "too_little", "interrupted", "error", "code"),
    [
        ([], [], False, None, 0),
        ([], ["Fork: none"], False, None, 5),
        ([FINDING], ["Fork: none"], False, None, 1),
        ([FINDING], [], True, None, 130),
        ([FINDING], [], False, HarnessError("disk full"), 3),
        ([], [], False, RuntimeError("?"), 3),
        ([], [], False, UsageError("?"), 2),
    ],
)
def test_what_matters_most_decides_the_exit_code(
    findings: list[Finding], too_little: list[str], interrupted: bool, error: Exception | None, code: int
) -> None:
    summary = SearchSummary(counts=Counter(), findings=findings, too_little=too_little, interrupted=interrupted)
    assert Outcome(SearchSettings(Configuration(), DEFAULT), summary, {}, error=error).exit_code == code


def test_without_a_terminal_progress_is_plain_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_PLAIN_EVERY_S", 0.0)
    main([*CLEAN])
    lines = capsys.readouterr().err.splitlines()
    assert lines
    assert all(line.startswith("kvsan: ") for line in lines)
    assert "steps/s" in lines[-1]


def test_on_a_terminal_progress_is_one_live_line() -> None:
    controller, terminal = pty.openpty()
    command = [*KVSAN, "fuzz", "--target", "paged", "--budget", "2s", "--numbers", "never"]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "200"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal, env=environment) as process:
        os.close(terminal)
        shown = b""
        try:
            while chunk := os.read(controller, 4096):
                shown += chunk
        except OSError:  # the terminal's last user has left
            pass
        assert process.stdout is not None
        assert b"clean: no violation" in process.stdout.read()
    assert b"steps/s" in shown
    assert b"s left" in shown
    assert shown.count(b"\x1b[2K") >= 2


def test_a_full_disk_is_an_error_of_the_machine_and_the_finding_is_still_told() -> None:
    done = subprocess.run(
        [*KVSAN, *WRONG],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
    )
    assert done.returncode == 3
    assert "VIOLATION" in done.stdout
    assert "not on file" in done.stdout
    assert "ended by an error; 1 finding" in done.stdout
    assert "Traceback" not in done.stderr
    assert "cannot be written: File too large" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("command", [CLEAN, ("invariants",)])
def test_output_that_cannot_be_written_is_an_error_of_the_machine(command: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*KVSAN, *command], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert "No space left on device" in done.stderr


@pytest.mark.parametrize("target", ["mutant:salt_missing", "misbehaving:Leaks"])
def test_ctrl_c_ends_with_the_summary_and_what_was_found(target: str, empty_folder: Path) -> None:
    shutil.copy(USER_TARGETS, empty_folder)
    with (empty_folder / "misbehaving.py").open("a") as file:
        file.write("\n\nclass Leaks(WrongAndCrashes):\n    reset_prefix_cache = Good.reset_prefix_cache\n")
    command = [*KVSAN, "fuzz", "--target", target, "--budget", "10m", "--max-findings", "99"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    told = ""
    while "kvsan replay" not in told:
        told += process.stdout.readline()
    os.killpg(process.pid, signal.SIGINT)
    rest, errors = process.communicate(timeout=90)  # a compiler that is at work for the first time does not stop
    assert process.returncode == 130
    assert "interrupted; " in rest
    assert "Traceback" not in errors
    assert found(empty_folder)


def test_help_names_every_profile(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["fuzz", "--help"])
    text = capsys.readouterr().out
    assert [name for name in PROFILES if name not in text] == []


@pytest.mark.parametrize(
    ("target", "profile"),
    [
        ("paged", "default"),
        ("mutant:missing_copy_on_write", "default"),
        ("mutant:offload_unpinned", "async"),
        ("graphs-mutant:stale_table", "graphs"),
        ("disagg", "disagg"),
        ("vllm-offload@0.11.2", "async"),
        ("my_pool:MyPool", "default"),
    ],
)
def test_a_target_is_searched_with_the_profile_that_it_is_for(target: str, profile: str) -> None:
    assert _usual_profile(target) == profile


def test_a_seeded_bug_of_transfers_is_found_without_a_word_about_profiles(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    assert (
        main(["fuzz", "--target", "mutant:offload_unpinned", "--steps", "20000", "--max-findings", "1", "--out", out])
        == 1
    )
