"""Same trace, same target: same verdict and same hash of every state, in any process."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from kvsan.fuzz.generate import Generator
from kvsan.fuzz.pair_draws import PairGenerator
from kvsan.fuzz.profiles import ASYNC, DEFAULT, DISAGG, FEATURES, GRAPHS, Profile, small_scope
from kvsan.fuzz.replay import open_session, replay
from kvsan.harness import registry
from kvsan.harness import trace as traces
from kvsan.harness.configuration import Configuration, OptionValue
from kvsan.harness.operations import Finish, Launch, Operation, Retire, Schedule, Submit
from kvsan.harness.pair_session import PairSession
from kvsan.harness.trace import Trace
from kvsan.harness.verdict import UsageError
from kvsan.models_under_test.engines import cache

REPLAY = """
import sys
from kvsan.fuzz.replay import replay
from kvsan.harness import registry, trace
content = trace.read(sys.argv[1]).trace
done = replay(registry.resolve(content.configuration.target), content, numbers=False, hashes=True)
print(done.violation, done.step, done.executed, *done.hashes, sep="\\n")
"""

HASH_SEEDS = ("0", "4711")


def told_by_two_processes(trace: Trace, folder: Path) -> list[str]:
    """Verdict and hashes of a replay in two fresh processes with different hash seeds."""
    traces.write(folder / "trace.json", trace)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", REPLAY, str(folder / "trace.json")],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in HASH_SEEDS
    ]
    told = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    return told


def generated(configuration: Configuration, seed: int = 1, length: int = 300) -> Trace:
    """A trace that the generator draws for the reference manager, every feature on, to be run on any target."""
    session = open_session(registry.resolve("paged"), replace(configuration, target="paged"), numbers=False)
    generator = Generator(session, small_scope(DEFAULT), Random(seed), frozenset(FEATURES))
    operations = []
    for _ in range(length):
        operations.append(generator.next())
        session.step(operations[-1])
    return Trace(configuration, tuple(operations))


@pytest.mark.parametrize("target", ["paged", "mutant:hash_kept_on_reuse"])
def test_two_processes_see_the_same_states(target: str, tmp_path: Path) -> None:
    trace = generated(Configuration(target, num_units=9, block_size=2))
    first, second = told_by_two_processes(trace, tmp_path)
    assert first == second
    assert (first.splitlines()[0] == "None") is (target == "paged")


@pytest.mark.parametrize(
    ("target", "profile", "options"),
    [
        ("paged", ASYNC, {"host_units": 6, "stores": "disk,remote", "remote_loses": 7, "reset_reaches": "device"}),
        ("disagg", DISAGG, {}),
        ("graphs", GRAPHS, {}),
    ],
)
def test_two_processes_see_the_same_states_of_tiers_pairs_and_graphs(
    target: str, profile: Profile, options: dict[str, OptionValue], tmp_path: Path
) -> None:
    configuration = Configuration(target, num_units=9, block_size=2, options=tuple(sorted(options.items())))
    session = open_session(registry.resolve(target), configuration, numbers=False)
    kind = PairGenerator if isinstance(session, PairSession) else Generator
    generator = kind(session, small_scope(profile), Random(1), frozenset(FEATURES))  # type: ignore[arg-type]
    operations = []
    for _ in range(300):
        operations.append(generator.next())
        session.step(operations[-1])
    first, second = told_by_two_processes(Trace(configuration, tuple(operations)), tmp_path)
    assert first == second
    assert first.splitlines()[0] == "None"


@pytest.mark.engines
@pytest.mark.slow
def test_two_processes_see_the_same_states_of_an_engine(tmp_path: Path) -> None:
    try:
        cache.find("vllm", "0.9.2")
    except UsageError as error:
        pytest.skip(str(error))
    trace = generated(Configuration("vllm@0.9.2", num_units=9, block_size=2))
    first, second = told_by_two_processes(trace, tmp_path)
    assert first == second
    assert len(first.splitlines()) == 3 + len(trace.operations)


PREFILL: tuple[Operation, ...] = (Submit("r1", ((0, 6),)), Schedule("r1", 6), Launch("b1"), Retire("b1"))


def hashes_of(*operations: Operation) -> list[str]:
    trace = Trace(Configuration(num_units=8), operations)
    return replay(registry.resolve("paged"), trace, numbers=False, hashes=True).hashes


def test_there_is_one_hash_for_each_operation() -> None:
    assert len(set(hashes_of(*PREFILL))) == len(PREFILL)


def test_hashes_are_chained() -> None:
    assert hashes_of(*PREFILL, Finish("r1"))[:4] == hashes_of(*PREFILL)


def test_another_token_family_is_another_state_once_it_is_written() -> None:
    ours, theirs = hashes_of(*PREFILL), hashes_of(Submit("r1", ((1, 6),)), *PREFILL[1:])
    assert [one == other for one, other in zip(ours, theirs, strict=True)] == [True, True, True, False]
