"""The target ``vllm-offload@X`` itself: the reference manager over vLLM's index, searched, and held to what is on file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvsan.cli import main
from kvsan.fuzz.known import in_range
from kvsan.harness.configuration import Configuration
from kvsan.harness.verdict import UsageError
from kvsan.models_under_test.engines import cache
from kvsan.models_under_test.engines.vllm_offload.target import make_target

CORPUS = Path(__file__).resolve().parents[3] / "corpus" / "vllm-offload"
SMALL = "0.11.2"
OTHERS = ("0.14.1", "0.17.1", "0.20.2", "0.24.0", "0.32.0")

every_release = pytest.mark.parametrize(
    "version", [SMALL, *(pytest.param(version, marks=pytest.mark.slow) for version in OTHERS)]
)


def needs(version: str) -> None:
    try:
        cache.find("vllm", version)
    except UsageError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", ["vllm-offload", "vllm-offload@", "vllm@0.11.2"])
def test_a_release_must_be_named(name: str) -> None:
    with pytest.raises(UsageError, match=r"expected vllm-offload@VERSION, such as vllm-offload@0\.32\.0"):
        make_target(Configuration(name))


@pytest.mark.engines
@every_release
@pytest.mark.parametrize("file", sorted(CORPUS.glob("*.json")), ids=lambda file: file.stem)
def test_a_trace_fails_on_the_releases_that_it_names_and_on_no_newer_one(
    file: Path, version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    needs(version)
    if file.stem == "55461-arc-refused" and cache.version_numbers(version) < (0, 20):
        pytest.skip("on this release the bugs of the other traces come first")
    trace = json.loads(file.read_text())
    trace["configuration"]["target"] = f"vllm-offload@{version}"
    here = tmp_path / "here.json"
    here.write_text(json.dumps(trace))
    assert main(["replay", str(here)]) == 0
    verdict = capsys.readouterr().out.splitlines()[0]
    assert verdict.endswith("as expected")
    assert ("clean" in verdict) != in_range(version, trace["expect"]["releases"])


@pytest.mark.engines
@every_release
@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_a_search_finds_nothing_but_what_is_on_file(policy: str, version: str, tmp_path: Path) -> None:
    needs(version)
    command = ["fuzz", "--target", f"vllm-offload@{version}", "--option", f"policy={policy}", "--steps", "8000"]
    assert main([*command, "--numbers", "never", "--known", str(CORPUS), "--out", str(tmp_path / "out")]) == 0
