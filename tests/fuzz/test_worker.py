from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvsan.fuzz.autopsy import IsolatedReplays
from kvsan.fuzz.guarded import GuardedSearch, split
from kvsan.fuzz.known import KnownFindings
from kvsan.fuzz.profiles import DEFAULT
from kvsan.fuzz.search import Reporter, Search, SearchSettings, SearchSummary
from kvsan.harness.clock import now_s
from kvsan.harness.configuration import Configuration
from kvsan.harness.operations import Finish, Fork, Launch, Retire, Schedule, Submit
from kvsan.harness.trace import Trace
from kvsan.harness.verdict import Finding, HarnessError, UsageError
from kvsan.models_under_test.paged import make_target

USER_TARGETS = Path(__file__).parents[1] / "user_targets" / "misbehaving.py"
FORKS = (Submit("r1", ((0, 4),)), Schedule("r1", 4), Launch("b1"), Retire("b1"), Fork("r1", "r2"))


@pytest.fixture(autouse=True)
def user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copy(USER_TARGETS, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Listener(Reporter):
    def __init__(self) -> None:
        self.found_first: list[Finding] = []

    def found(self, finding: Finding) -> None:
        self.found_first.append(finding)


def settings(target: str, steps: int, **changes: object) -> SearchSettings:
    return SearchSettings(Configuration(target), DEFAULT, steps=steps, numbers=0.0, **changes)  # type: ignore[arg-type]


def search(
    target: str, steps: int = 5000, lanes: int = 1, hang_timeout_s: float = 30.0, **changes: object
) -> SearchSummary:
    listener = Listener()
    guarded = GuardedSearch(
        settings(target, steps, **changes), KnownFindings(), None, listener, lanes, hang_timeout_s=hang_timeout_s
    )
    summary = guarded.run()
    assert listener.found_first == summary.findings
    return summary


def replay_of(name: str, *operations: object) -> tuple[str, str, int]:
    trace = Trace(Configuration(f"misbehaving:{name}"), operations)  # type: ignore[arg-type]
    with IsolatedReplays(hang_timeout_s=1.0) as replays:
        replayed = replays.replay(trace).replayed
    assert replayed.violation is not None
    return *replayed.violation.kind, replayed.step


def test_a_worker_does_the_same_runs_as_this_process() -> None:
    here = Search(make_target, settings("paged", 3000), KnownFindings(), Reporter()).run()
    there = search("misbehaving:Good", 3000)
    assert (there.steps, there.runs, there.counts) == (here.steps, here.runs, here.counts)


def test_two_workers_share_the_runs_and_the_steps() -> None:
    once, again = search("paged", 3001, lanes=2), search("paged", 3001, lanes=2)
    assert once.counts == again.counts
    assert once.steps >= 3001
    assert [(part.first_run, part.run_stride, part.steps) for part in split(settings("paged", 3001), 2)] == [
        (0, 2, 1501),
        (1, 2, 1500),
    ]


def test_what_a_target_prints_is_not_taken_for_an_event() -> None:
    assert search("misbehaving:Prints", 3000).counts == search("misbehaving:Good", 3000).counts


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("Exits", "exit code 7"),
        ("CallsSysExit", "exit code 1"),
        ("DereferencesNull", "SIGSEGV"),
        ("KillsItself", "SIGKILL"),
        ("Raises", "RuntimeError"),
    ],
)
def test_a_crash_is_a_violation_of_the_operation_that_crashed(name: str, cause: str) -> None:
    assert replay_of(name, *FORKS) == ("target.crash", cause, 4)


def test_a_crash_in_a_search_is_shrunk_to_what_it_needs() -> None:
    (finding,) = search("misbehaving:DereferencesNull").findings
    assert finding.kind == ("target.crash", "SIGSEGV")
    assert finding.replays == (3, 3)
    assert finding.identity[2] == ("Submit", "Schedule", "Launch", "Retire", "Fork")


def test_a_hang_in_c_is_a_violation() -> None:
    assert replay_of("HangsInC", *FORKS) == ("target.hang", "silence", 4)


def test_a_hang_at_the_end_of_a_session_is_a_violation() -> None:
    assert replay_of("HangsAtTheEnd", Submit("r1", ((0, 4),))) == ("target.hang", "silence", 1)


def test_a_hang_in_a_search_is_shrunk_to_what_it_needs() -> None:
    (finding,) = search("misbehaving:HangsAtTheEnd", hang_timeout_s=1.0).findings
    assert finding.kind == ("target.hang", "silence")
    assert len(finding.trace.operations) == 2
    assert isinstance(finding.trace.operations[-1], Finish)


def test_a_crash_takes_nothing_that_was_found() -> None:
    summary = search("misbehaving:WrongAndCrashes", 40_000, max_findings=2)
    kinds = {finding.invariant for finding in summary.findings}
    assert "target.crash" in kinds
    assert len(kinds) == 2


def test_the_search_goes_on_after_a_crash() -> None:
    summary = search("misbehaving:CrashesInSmallPools", 2000, max_findings=2)
    assert [finding.kind for finding in summary.findings] == [("target.crash", "exit code 5")]
    assert summary.steps >= 2000
    assert summary.counts["Launch"] > 100


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ConstructorRaises", "its constructor raised ValueError: blocks of 4 only"),
        ("ConstructorExits", "its constructor ended the process: exit code 3"),
        ("LacksMethods", "does not implement kvsan.harness.target.Target"),
        ("nothing", "made a NoneType"),
        ("absent", "has no absent"),
    ],
)
def test_what_is_no_target_is_bad_input(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        search(f"misbehaving:{name}")


def test_a_module_that_ends_its_process_is_bad_input(user_folder: Path) -> None:
    (user_folder / "gone.py").write_text("import os\nprint('leaving', flush=True)\nos._exit(0)\n")
    with pytest.raises(UsageError, match=r"while it was imported: exit code 0; its last words: leaving"):
        search("gone:Target")


def test_an_error_of_the_harness_is_not_the_targets(user_folder: Path) -> None:
    source = "import kvsan.fuzz.search as s\nfrom misbehaving import Good\ns.Generator = None\n"
    (user_folder / "saboteur.py").write_text(source)
    with pytest.raises(HarnessError, match="TypeError"):
        search("saboteur:Good")


def test_a_worker_dies_with_its_parent(user_folder: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-m", "kvsan.cli", "fuzz", "--target", "misbehaving:SleepsAtOnce"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    pid = user_folder / "pid"
    assert eventually(lambda: pid.exists() and pid.read_text().isdigit())
    parent.kill()
    parent.wait()
    assert eventually(lambda: not alive(int(pid.read_text())))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False


def eventually(condition: Callable[[], bool], within_s: float = 20.0) -> bool:
    deadline = now_s() + within_s
    while now_s() < deadline:
        if condition():
            return True
        signal.sigtimedwait((), 0.05)
    return False
