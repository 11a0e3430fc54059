"""Claims on several processes: order, errors, a process that dies; and every claim with three seeds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvsan.ci.proofs.proving import prove_all, with_seeds
from kvsan.harness.verdict import HarnessError
from kvsan.invariants.proofs.obligation import Claim, Outcome
from kvsan.invariants.proofs.solver import Limits

PARTS = {"addressing", "kernel", "protocol"}


def slow_or_quick(key: str, timeout_ms: int, seeds: int) -> Outcome:
    """Stands for a proof: says which process it was, dies or raises when told to."""
    if key == "dies":
        os._exit(7)
    if key == "raises":
        raise ValueError("no proof of anything")
    return Outcome(Claim("none", key, str(os.getpid())), "proved", timeout_ms + seeds, 0.0)


def test_every_key_comes_back_from_another_process() -> None:
    found = dict(prove_all([str(number) for number in range(8)], slow_or_quick, 2, 40, 2))
    assert sorted(found) == [str(number) for number in range(8)]
    assert {outcome.obligations for outcome in found.values()} == {42}
    assert str(os.getpid()) not in {outcome.claim.statement for outcome in found.values()}


def test_the_first_seed_that_does_not_prove_counts_and_seconds_are_those_of_all() -> None:
    asked = []

    def prove(limits: Limits) -> Outcome:
        asked.append(limits.seed)
        return Outcome(Claim("none", "", ""), "unknown" if limits.seed == 1 else "proved", 1, 2.0)

    outcome = with_seeds(prove, 40, 3)
    assert (outcome.status, outcome.seconds, asked) == ("unknown", 4.0, [0, 1])


@pytest.mark.parametrize(("key", "said"), [("dies", "a process that proves died"), ("raises", "no proof of anything")])
def test_what_goes_wrong_in_a_process_is_an_error_of_the_harness(key: str, said: str) -> None:
    with pytest.raises(HarnessError, match=said):
        list(prove_all(["fine", key], slow_or_quick, 1, 40, 1))


def prove(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command; processes of tests interpret kernels, and cannot compile them."""
    command = [sys.executable, "-m", "kvsan.cli", "prove", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)


def test_claims_have_names_of_their_own() -> None:
    lines = prove("--list").stdout.partition("\n\n")[0].splitlines()
    names = [line.split()[0] for line in lines]
    assert len(set(names)) == len(names) >= 190
    assert {name.partition("/")[0] for name in names} == PARTS


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_claim_is_proved_with_three_seeds(tmp_path: Path) -> None:
    done = prove("--seeds", "3", "--json", str(tmp_path / "certificate.json"))
    assert done.returncode == 0, done.stdout[-2000:]
    written = json.loads((tmp_path / "certificate.json").read_text())
    assert written["complete"]
    assert written["seeds"] == [0, 1, 2]
    assert written["summary"]["proved"] == written["summary"]["claims"] >= 190
    assert all(claim["source"] for claim in written["claims"])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_seeded_mistake_is_refuted_with_its_values(tmp_path: Path) -> None:
    done = prove("--broken", "all", "--json", str(tmp_path / "refuted.json"))
    assert done.returncode == 1, done.stderr
    written = json.loads((tmp_path / "refuted.json").read_text())
    assert written["summary"]["claims"] == written["summary"]["refuted"] >= 120
    parts = [claim["part"] for claim in written["claims"]]
    assert parts.count("kernel") >= 60
    assert min(parts.count(part) for part in PARTS - {"kernel"}) >= 20
    for claim in written["claims"]:
        found = claim["counterexample"]
        assert found["values"], claim["name"]
        assert found["story"], claim["name"]
        assert found["replay"], claim["name"]
