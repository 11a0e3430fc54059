"""vLLM's manager at real releases: a process for each runs ``vllm_sequences.py``; these tests look at what it saw."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvsan.harness.configuration import Configuration
from kvsan.harness.verdict import UsageError
from kvsan.models_under_test.engines import cache
from kvsan.models_under_test.engines.vllm import make_target

SMALL = "0.9.2"
OTHERS = ("0.8.5", "0.10.2", "0.11.2", "0.12.0", "0.14.1", "0.17.1", "0.20.2", "0.22.1", "0.23.0", "0.24.0", "0.32.0")

pytestmark = pytest.mark.engines

every_release = pytest.mark.parametrize(
    "version", [SMALL, *(pytest.param(version, marks=pytest.mark.slow) for version in OTHERS)]
)


@functools.cache
def seen(version: str) -> dict[str, Any]:
    """What the sequences saw on a release; skips if it is not in the engines cache."""
    try:
        cache.find("vllm", version)
    except UsageError as error:
        pytest.skip(str(error))
    script = Path(__file__).with_name("vllm_sequences.py")
    outcome = subprocess.run(
        [sys.executable, str(script), version], capture_output=True, text=True, timeout=180, check=False
    )
    assert outcome.returncode == 0, outcome.stderr
    told: dict[str, Any] = json.loads(outcome.stdout.splitlines()[-1])
    return told


def at_least(version: str, other: str) -> bool:
    return cache.version_numbers(version) >= cache.version_numbers(other)


@every_release
def test_prefixes_are_shared_and_everything_comes_back(version: str) -> None:
    assert seen(version)["sharing"] == {
        "hits": [0, 8],
        "shared": True,
        "keys": 2,
        "free": 32,
        "left": [],
        "reset": True,
        "keys_after": 0,
    }


@every_release
def test_a_preempted_request_gives_all_back_and_finds_its_prefix_again(version: str) -> None:
    assert seen(version)["preemption"] == [0, 12, 12]


@every_release
def test_a_refusal_changes_nothing(version: str) -> None:
    assert seen(version)["refused"] is True


@every_release
def test_loaded_blocks_are_published_when_the_load_has_landed(version: str) -> None:
    assert seen(version)["loading"] == ([0, 2] if at_least(version, "0.9.2") else None)


@every_release
def test_blocks_of_a_step_in_flight_are_kept_for_a_consumer_of_loads(version: str) -> None:
    assert seen(version)["in_flight_abort"] == [32, 32]
    assert seen(version)["in_flight_abort_consumer"] == ([29, 32] if at_least(version, "0.24.0") else None)


@every_release
def test_view_and_ledger_tell_the_truth(version: str) -> None:
    walks = seen(version)["walks"]
    assert walks
    assert not any(walks.values()), walks


@every_release
def test_promised_hits_are_given_except_for_vllm_33270(version: str) -> None:
    for kind, (broken, looked_up) in seen(version)["promises"].items():
        assert looked_up == 150
        assert (broken > 0) == (version == "0.14.1" and kind == "full+sliding:8 eagle"), kind


@every_release
def test_vllm_44409_one_block_in_two_groups(version: str) -> None:
    bad = at_least(version, "0.14.1") and not at_least(version, "0.24.0")
    assert seen(version)["double_ownership"] is (bad if at_least(version, "0.11.2") else None)


@every_release
def test_vllm_44701_adapter_name_equal_to_a_salt(version: str) -> None:
    bad = at_least(version, "0.11.2") and not at_least(version, "0.32.0")
    assert seen(version)["adapter_as_salt"] == ((4 if bad else 0) if at_least(version, "0.9.2") else None)


@every_release
def test_vllm_30931_adapters_of_one_name(version: str) -> None:
    assert seen(version)["adapter_ids"] == (8 if at_least(version, "0.11.2") else 0)
    assert seen(version)["adapter_or_none"] == 0


@every_release
def test_what_cannot_be_made_is_bad_input(version: str) -> None:
    told = seen(version)
    assert told["second_release"] == f"vllm 0.0.1: this process holds vllm {version}; one release a process"
    assert "unknown option 'speed'" in told["unknown_option"]
    assert bool(told["many_groups"]) == (not at_least(version, "0.14.1"))


@pytest.mark.parametrize("name", ["vllm", "vllm@", "other@1.0"])
def test_a_target_without_a_version_is_bad_input(name: str) -> None:
    with pytest.raises(UsageError, match=r"expected vllm@VERSION"):
        make_target(Configuration(name))


def test_a_release_that_is_not_there_says_what_to_run() -> None:
    with pytest.raises(UsageError, match=r"run kvsan engines add vllm==0\.0\.1"):
        make_target(Configuration("vllm@0.0.1"))
