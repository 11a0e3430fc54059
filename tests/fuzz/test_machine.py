"""The Hypothesis machine: finds bugs, shrinks with KVSan's shrinker, and works for a stranger in five lines."""

from __future__ import annotations

import subprocess
import sys
import unittest
from pathlib import Path

import pytest

from kvsan.fuzz import machine_for
from kvsan.fuzz.machine import SETTINGS
from kvsan.fuzz.replay import replay
from kvsan.fuzz.shrink import weight
from kvsan.harness import trace as traces
from kvsan.harness.configuration import Configuration
from kvsan.harness.registry import resolve
from kvsan.models_under_test.mutants import MUTANTS
from kvsan.models_under_test.paged import PagedManager

USERS_FILE = """\
from kvsan.fuzz import machine_for
from my_pool import MyPool

TestMyPool = machine_for(MyPool, num_units=8, block_size=4).TestCase
"""

USERS_POOL = """\
from kvsan.models_under_test.mutants.sharing import MissingCopyOnWrite

def MyPool(configuration):
    return MissingCopyOnWrite(configuration.num_units, configuration.block_size)
"""


@pytest.fixture(autouse=True)
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Findings go to a folder of the test."""
    folder = tmp_path / "out"
    monkeypatch.setenv("KVSAN_OUT", str(folder))
    return folder


def outcome(target: object, **options: object) -> unittest.TestResult:
    """Run a machine's TestCase as unittest does."""
    result = unittest.TestResult()
    machine_for(target, numbers=False, **options).TestCase().run(result)  # type: ignore[arg-type]
    return result


@pytest.mark.parametrize("name", ["missing_copy_on_write", "off_by_one_slot", "refusal_leaks", "two_places"])
def test_finds_a_seeded_bug_and_writes_its_minimal_trace(name: str, out: Path) -> None:
    result = outcome(f"mutant:{name}")
    (file,) = out.iterdir()
    trace = traces.read(file).trace
    violation = replay(resolve(f"mutant:{name}"), trace, numbers=False).violation
    assert violation is not None
    assert violation.invariant in MUTANTS[name].killed_by
    assert weight(trace.operations)[0] <= 7
    assert f"kvsan replay {file}" in result.failures[0][1]


def test_report_has_the_story_and_the_operations_and_no_example_of_hypothesis() -> None:
    report = outcome("mutant:one_block_short").failures[0][1]
    assert "VIOLATION table_covers [short]" in report
    assert "deterministic 3/3" in report
    assert "    Schedule(r='r1'" in report
    assert "Falsifying example" not in report


def test_reference_manager_passes() -> None:
    result = outcome("paged")
    assert (result.failures, result.errors) == ([], [])


def test_same_machine_gives_the_same_report() -> None:
    reports = [outcome("mutant:refusal_leaks").failures[0][1] for _ in range(2)]
    assert reports[0] == reports[1]


def test_error_of_kvsan_is_an_error_and_not_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("kvsan.harness.device.Device.complete", broken)
    result = outcome("paged")
    assert (len(result.failures), len(result.errors)) == (0, 1)
    assert "HarnessError" in result.errors[0][1]


def test_configuration_and_fields_decide_what_is_driven() -> None:
    machine = machine_for("paged", configuration=Configuration(num_units=9), block_size=2)
    assert (machine.configuration.num_units, machine.configuration.block_size) == (9, 2)


def test_settings_are_the_users_to_change() -> None:
    test_case = machine_for("paged", numbers=False).TestCase
    test_case.settings = type(SETTINGS)(SETTINGS, max_examples=3)
    result = unittest.TestResult()
    test_case().run(result)
    assert result.wasSuccessful()


def test_a_strangers_file_fails_with_the_minimal_trace_and_the_replay_line(tmp_path: Path) -> None:
    (tmp_path / "my_pool.py").write_text(USERS_POOL)
    (tmp_path / "test_my_pool.py").write_text(USERS_FILE)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_pool.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    (file,) = (tmp_path / "out").iterdir()
    assert run.returncode == 1, run.stdout
    assert f"kvsan replay {file}" in run.stdout
    assert "Submit(r='r1'" in run.stdout
    assert len(run.stdout.splitlines()) < 60
    assert traces.read(file).trace.configuration.target == "my_pool:MyPool"


def test_importing_the_package_does_not_import_hypothesis() -> None:
    code = "import sys, kvsan.fuzz; sys.exit('hypothesis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_class_is_a_target() -> None:
    class Small(PagedManager):
        """Takes a Configuration, as a user's class does."""

        def __init__(self, configuration: Configuration) -> None:
            super().__init__(configuration.num_units, configuration.block_size)

    assert outcome(Small, num_units=6, block_size=2).wasSuccessful()
