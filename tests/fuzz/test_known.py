"""Known findings: which trace on file a finding is, at which releases, and how a search steers around it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from kvsan.fuzz.known import Known, KnownFindings, concerns, features_of, in_range, load_known, shape
from kvsan.harness import trace as traces
from kvsan.harness.configuration import Configuration
from kvsan.harness.operations import (
    Abort,
    Adapter,
    Advance,
    Finish,
    Fork,
    Launch,
    Lookup,
    Media,
    Operation,
    Retire,
    Schedule,
    Submit,
)
from kvsan.harness.trace import Expectation, Trace, TraceFile
from kvsan.harness.verdict import Finding, UsageError

ABORTED: tuple[Operation, ...] = (Submit("r1", ((0, 4),)), Schedule("r1", 4), Abort("r1"))


def on_file(target: str, releases: str = "", operations: tuple[Operation, ...] = ABORTED) -> TraceFile:
    return TraceFile(Trace(Configuration(target), operations), Expectation("provenance", "foreign", 2, releases))


def finding(*operations: Operation, kind: tuple[str, str] = ("provenance", "foreign")) -> Finding:
    return Finding(*kind, "", len(operations) - 1, Trace(Configuration("vllm@0.9.2"), operations))


def known(file: TraceFile, name: str = "one.json") -> Known:
    trace = file.trace
    return Known(name, ("provenance", "foreign"), shape(trace.operations), features_of(trace), file)


# -- which trace it is


@pytest.mark.parametrize(
    ("operations", "matches"),
    [
        (ABORTED, True),
        ((*ABORTED[:2], Launch("b1"), Advance("compute"), Retire("b1"), Abort("r1")), True),
        ((ABORTED[0], Lookup("r1"), *ABORTED[1:]), True),
        ((*ABORTED, *ABORTED), True),
        ((*ABORTED, Fork("r1", "r2")), True),
        ((*ABORTED[:2], Finish("r1")), False),
    ],
    ids=["same", "with launches", "with a look-up", "twice", "one kind more", "another kind"],
)
def test_a_finding_is_known_by_the_kinds_of_its_operations(operations: tuple[Operation, ...], matches: bool) -> None:
    findings = KnownFindings([known(on_file("vllm@0.9.2"))])
    assert (findings.match(finding(*operations)) is not None) is matches


@pytest.mark.parametrize("kind", [("provenance", "unwritten"), ("foreign_write", "foreign")])
def test_another_invariant_or_cause_is_another_finding(kind: tuple[str, str]) -> None:
    assert KnownFindings([known(on_file("vllm@0.9.2"))]).match(finding(*ABORTED, kind=kind)) is None


# -- at which releases


@pytest.mark.parametrize(
    ("filed", "releases", "target", "concerned"),
    [
        ("vllm@0.9.2", "", "vllm@0.9.2", True),
        ("vllm@0.9.2", "", "vllm@0.10.2", False),
        ("vllm@0.9.2", ">=0.9,<0.11", "vllm@0.10.2", True),
        ("vllm@0.9.2", ">=0.9,<0.11", "vllm@0.11.0", False),
        ("vllm@0.9.2", ">=0.9", "vllm@0.32.0rc1", True),
        ("vllm@0.9.2", ">=0.9", "sglang@0.9.2", False),
        ("paged", "", "paged", True),
        ("mutant:canary", "", "mutant:other", False),
    ],
)
def test_a_trace_concerns_its_target_at_its_releases(filed: str, releases: str, target: str, concerned: bool) -> None:
    assert concerns(on_file(filed, releases), target) is concerned


@pytest.mark.parametrize(
    ("filed", "kernels", "concerned"),
    [("host", "my:decode", True), ("my:decode", "my:decode", True), ("my:decode", "host", False)],
)
def test_a_trace_of_a_kernel_concerns_that_kernel_alone(filed: str, kernels: str, concerned: bool) -> None:
    file = on_file("paged")
    trace = replace(file.trace, configuration=replace(file.trace.configuration, kernels=filed))
    assert concerns(replace(file, trace=trace), "paged", kernels) is concerned


@pytest.mark.parametrize(("release", "releases"), [("0.9", "about 0.9"), ("", ">=0.9"), ("latest", ">=0.9")])
def test_a_range_or_release_that_cannot_be_read_is_bad_input(release: str, releases: str) -> None:
    with pytest.raises(UsageError, match="range"):
        in_range(release, releases)


def test_a_folder_is_read_with_its_folders_and_only_for_the_target(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    traces.write(tmp_path / "deep" / "ours.json", on_file("vllm@0.9.2"))
    traces.write(tmp_path / "other.json", on_file("sglang@0.9.2"))
    traces.write(tmp_path / "clean.json", Trace(Configuration("vllm@0.9.2"), ABORTED))
    (one,) = load_known(tmp_path, "vllm@0.9.2").known
    assert (one.name, one.kind) == ("deep/ours.json", ("provenance", "foreign"))


def test_a_folder_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected a folder of trace files"):
        load_known(tmp_path / "none", "paged")


def test_a_file_that_is_no_trace_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{}")
    with pytest.raises(UsageError, match=r"broken\.json"):
        load_known(tmp_path, "paged")


# -- steering


@pytest.mark.parametrize(
    ("operation", "features"),
    [
        (Submit("r2", ((0, 4),)), set()),
        (Submit("r2", ((0, 4),), salt="x"), {"salts"}),
        (Submit("r2", ((0, 4),), adapter=Adapter("a", 1)), {"adapters"}),
        (Submit("r2", ((0, 4),), salt="a", adapter=Adapter("a", 1)), {"salts", "adapters", "one name for all"}),
        (Submit("r2", ((0, 4),), media=(Media("x", 0, 1),)), {"media"}),
        (Schedule("r1", 1, external=4), {"external"}),
        (Schedule("r1", 1, external=4, delayed=True), {"delayed"}),
    ],
)
def test_a_trace_tells_which_features_it_needs(operation: Operation, features: set[str]) -> None:
    assert features_of(Trace(Configuration(), (*ABORTED[:2], operation))) == features


def test_two_ids_of_one_adapter_are_a_feature() -> None:
    adapters = [Submit(f"r{n}", ((0, 4),), adapter=Adapter("a", n)) for n in (1, 2)]
    assert features_of(Trace(Configuration(), tuple(adapters))) == {"adapters", "adapter ids"}


def test_a_search_mostly_leaves_out_one_feature_of_each_known_finding() -> None:
    needs_two = on_file("paged", "", (Submit("r1", ((0, 4),), salt="x", media=(Media("x", 0, 1),)),))
    findings = KnownFindings([known(needs_two)])
    avoided = [findings.avoid(Random(seed)) for seed in range(200)]
    assert {len(one) for one in avoided} == {0, 1}
    assert 160 < sum(map(len, avoided)) < 199
    assert frozenset().union(*avoided) == {"salts", "media"}


def test_one_feature_may_steer_around_two_findings() -> None:
    salted = on_file("paged", "", (Submit("r1", ((0, 4),), salt="x"),))
    findings = KnownFindings([known(salted), known(salted, "two.json")])
    assert findings.avoid(Random(1)) == {"salts"}
