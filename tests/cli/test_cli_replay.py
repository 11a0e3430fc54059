from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kvsan.cli import main
from kvsan.harness import trace as traces
from kvsan.harness.configuration import Configuration
from kvsan.harness.operations import Operation, Schedule, Submit
from kvsan.harness.trace import Expectation, Trace, TraceFile

# Tenant r2 hits the block of tenant r1.
SHARED: tuple[Operation, ...] = (
    Submit("r1", ((0, 5),), salt="x"),
    Schedule("r1", 5),
)


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def violating(tmp_path_factory: pytest.TempPathFactory) -> TraceFile:
    """What a search finds in a mutant."""
    folder = tmp_path_factory.mktemp("search")
    target = ["--target", "mutant:salt_missing", "--steps", "20000", "--numbers", "never"]
    assert main(["fuzz", *target, "--out", str(folder)]) == 1
    (path,) = folder.glob("*.json")
    return traces.read(path)


def expectation(file: TraceFile) -> Expectation:
    assert file.expect is not None
    return file.expect


def test_a_violation_as_expected_is_no_failure(violating: TraceFile, capsys: pytest.CaptureFixture[str]) -> None:
    traces.write("one.json", violating)
    assert main(["replay", "one.json"]) == 0
    text = capsys.readouterr().out
    assert "as expected" in text
    assert f"VIOLATION {expectation(violating).invariant}" in text


def test_a_violation_that_nobody_expects_is_a_failure(violating: TraceFile, capsys: pytest.CaptureFixture[str]) -> None:
    traces.write("one.json", violating.trace)
    assert main(["replay", "one.json"]) == 1
    assert "VIOLATION" in capsys.readouterr().out


@pytest.mark.parametrize("change", [{"invariant": "ref_counts"}, {"cause": "?"}, {"step": 0}])
def test_another_verdict_than_expected_is_a_failure(
    change: dict[str, object], violating: TraceFile, capsys: pytest.CaptureFixture[str]
) -> None:
    other = replace(expectation(violating), **change)  # type: ignore[arg-type]
    traces.write("one.json", TraceFile(violating.trace, other))
    assert main(["replay", "one.json"]) == 1
    assert "NOT AS EXPECTED" in capsys.readouterr().out


def test_a_trace_that_no_longer_fails_is_a_failure(violating: TraceFile, capsys: pytest.CaptureFixture[str]) -> None:
    mended = replace(violating.trace, configuration=replace(violating.trace.configuration, target="paged"))
    traces.write("one.json", TraceFile(mended, violating.expect))
    assert main(["replay", "one.json"]) == 1
    assert "NOT AS EXPECTED: clean" in capsys.readouterr().out


def test_on_another_target_it_is_said_what_is_seen(violating: TraceFile, capsys: pytest.CaptureFixture[str]) -> None:
    traces.write("one.json", violating)
    assert main(["replay", "one.json", "--target", "paged"]) == 0
    assert "one.json on paged: clean" in capsys.readouterr().out


def test_hashes_are_the_same_twice(capsys: pytest.CaptureFixture[str]) -> None:
    traces.write("one.json", Trace(Configuration("paged"), SHARED))
    main(["replay", "one.json", "--hashes"])
    first = capsys.readouterr().out
    main(["replay", "one.json", "--hashes"])
    assert first == capsys.readouterr().out
    assert "operation 1 " in first


def test_an_absent_target_is_counted_unless_all_are_required(
    violating: TraceFile, capsys: pytest.CaptureFixture[str], empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVSAN_ENGINES", str(empty_folder / "engines"))
    (empty_folder / "corpus").mkdir()
    traces.write("corpus/one.json", violating)
    traces.write("corpus/two.json", Trace(Configuration("vllm@0.22.1"), SHARED))
    assert main(["replay", "corpus"]) == 0
    text = capsys.readouterr().out
    assert "two.json: not run: vllm 0.22.1 is not in the engines cache" in text
    assert "1 replayed, 0 not as they should be, 1 not run" in text
    assert main(["replay", "corpus", "--require-all"]) == 2
    assert "two.json" in capsys.readouterr().err


def test_a_folder_of_which_nothing_can_run_tells_too_little(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVSAN_ENGINES", str(empty_folder / "engines"))
    (empty_folder / "corpus").mkdir()
    traces.write("corpus/two.json", Trace(Configuration("vllm@0.22.1"), SHARED))
    assert main(["replay", "corpus"]) == 5


def test_a_trace_is_shrunk_to_what_it_needs(violating: TraceFile, capsys: pytest.CaptureFixture[str]) -> None:
    padding = (Submit("r98", ((9, 3),)), Submit("r99", ((9, 3),)))
    traces.write("long.json", replace(violating.trace, operations=(*padding, *violating.trace.operations)))
    assert main(["shrink", "long.json"]) == 0
    count = len(violating.trace.operations)
    assert f"{count + 2} operations before, {count} after" in capsys.readouterr().out
    assert traces.read("long.min.json").expect == violating.expect


def test_what_does_not_violate_cannot_be_shrunk(capsys: pytest.CaptureFixture[str]) -> None:
    traces.write("clean.json", Trace(Configuration("paged"), SHARED))
    assert main(["shrink", "clean.json"]) == 2
    assert "does not violate anything" in capsys.readouterr().err


def test_targets_invariants_and_engines_are_listed(
    capsys: pytest.CaptureFixture[str], empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVSAN_ENGINES", str(empty_folder / "engines"))
    assert [main(["targets"]), main(["invariants"]), main(["invariants", "numbers"]), main(["engines", "list"])] == [
        0
    ] * 4
    text = capsys.readouterr().out
    for word in ("paged", "mutant:salt_missing", "provenance", "target.hang", "kvsan.harness.numbers", "none in"):
        assert word in text
    assert main(["invariants", "tenants"]) == 0
    assert "Statement" in capsys.readouterr().out


def test_traces_of_pairs_and_graphs_on_file_keep_their_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    corpus = Path(__file__).resolve().parents[2] / "corpus" / "kvsan"
    assert main(["replay", str(corpus)]) == 0
    assert "2 replayed, 0 not as they should be" in capsys.readouterr().out
