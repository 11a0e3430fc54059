"""What is accepted of a compiled kernel and what is not; compiled by nobody here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvsan.gpu_kernels.compile import budgets
from kvsan.gpu_kernels.compile.budgets import BadBudgets, Budgets, accept, judge, read, write
from kvsan.gpu_kernels.compile.build import TARGETS, Build, Outcome, Report
from kvsan.gpu_kernels.compile.resources import Resources

BUILD = Build("somewhere:decode", "bf16-d128", {}, {})
NO_SPILLS = {"stack_bytes": 0, "stored_bytes": 0, "loaded_bytes": 0}
FIGURES = {"registers": 100, "shared_bytes": 1024, "code_bytes": 2000, "scalar_spills": 10}
GOOD = Outcome(BUILD, "sm_90", Resources(spills=NO_SPILLS, **FIGURES))
UNCOMPILED = Outcome(BUILD, "sm_90", error="at 4:4:\n  x = 1\nAssertionError('no')")
ENTRY = ("decode", "bf16-d128", "sm_90")
ACCEPTED = Budgets("3.8.0", {ENTRY: FIGURES})


def having(outcome: Outcome = GOOD, **figures: object) -> Outcome:
    assert outcome.resources is not None
    return replace(outcome, resources=replace(outcome.resources, **figures))  # type: ignore[arg-type]


def verdict(outcome: Outcome, accepted: Budgets = ACCEPTED, triton: str = "3.8.0") -> list[tuple[bool, str]]:
    return [(complaint.fails, str(complaint)) for complaint in judge(Report(triton, (outcome,)), accepted)]


def test_figures_within_budget_are_fine() -> None:
    assert verdict(GOOD) == []


@pytest.mark.parametrize(
    ("name", "most"), [("registers", 114), ("shared_bytes", 1024), ("code_bytes", 2456), ("scalar_spills", 10)]
)
def test_a_figure_over_its_budget_fails(name: str, most: int) -> None:
    assert verdict(having(**{name: most})) == []
    message = f"decode bf16-d128 sm_90: {name} {most + 1}, budget {FIGURES[name]} (up to {most})"
    assert verdict(having(**{name: most + 1})) == [(True, message)]


def test_a_figure_over_its_budget_only_warns_with_another_triton() -> None:
    ((fails, message),) = verdict(having(registers=200), triton="3.9.0")
    assert (fails, "registers 200, budget 100" in message) == (False, True)


@pytest.mark.parametrize("name", ["stack_bytes", "stored_bytes", "loaded_bytes", "vector_registers", "private_bytes"])
@pytest.mark.parametrize("triton", ["3.8.0", "3.9.0"])
def test_a_spill_fails_with_any_triton(name: str, triton: str) -> None:
    message = f"decode bf16-d128 sm_90: spills: {name} 4, budget 0"
    assert verdict(having(spills=NO_SPILLS | {name: 4}), triton=triton) == [(True, message)]


def test_a_kernel_without_a_budget_fails() -> None:
    ((fails, message),) = verdict(GOOD, Budgets("3.8.0", {}))
    assert (fails, "no budget" in message, "--update" in message) == (True, True, True)


@pytest.mark.parametrize("target", TARGETS)
def test_shared_memory_that_no_program_can_have_fails_whatever_the_budget(target: str) -> None:
    most = TARGETS[target].shared_bytes
    accepted = Budgets("3.8.0", {("decode", "bf16-d128", target): FIGURES | {"shared_bytes": most + 1}})
    assert verdict(having(replace(GOOD, target=target), shared_bytes=most), accepted) == []
    message = f"decode bf16-d128 {target}: shared_bytes {most + 1}, a program can have {most}"
    assert verdict(having(replace(GOOD, target=target), shared_bytes=most + 1), accepted) == [(True, message)]


def test_a_kernel_that_does_not_compile_fails_with_the_last_line() -> None:
    assert verdict(UNCOMPILED) == [(True, "decode bf16-d128 sm_90: does not compile: AssertionError('no')")]


def test_a_harness_error_is_not_judged() -> None:
    assert verdict(Outcome(BUILD, "sm_90", harness_error="killed by signal 11")) == []


def test_accepting_makes_the_figures_the_budget() -> None:
    accepted = accept(Report("3.9.0", (having(registers=200),)), ACCEPTED, keep_others=False)
    assert accepted == Budgets("3.9.0", {ENTRY: FIGURES | {"registers": 200}})
    assert verdict(having(registers=200), accepted, "3.9.0") == []


@pytest.mark.parametrize("outcome", [having(spills={"stack_bytes": 8}), having(shared_bytes=1 << 20), UNCOMPILED])
def test_what_fails_anyhow_is_never_accepted(outcome: Outcome) -> None:
    assert accept(Report("3.8.0", (outcome,)), Budgets(), keep_others=False).figures == {}
    assert accept(Report("3.8.0", (outcome,)), ACCEPTED, keep_others=False) == ACCEPTED


@pytest.mark.parametrize(("keep_others", "kept"), [(True, True), (False, False)])
def test_budgets_of_others_stay_when_only_some_are_compiled(keep_others: bool, kept: bool) -> None:
    other = ("other", "bf16-d128", "sm_90")
    accepted = accept(Report("3.8.0", (GOOD,)), Budgets("3.8.0", {other: FIGURES}), keep_others=keep_others)
    assert (ENTRY in accepted.figures, other in accepted.figures) == (True, kept)


def test_budgets_of_two_versions_are_not_mixed() -> None:
    with pytest.raises(ValueError, match=r"hold for triton 3\.8\.0, this is 3\.9\.0"):
        accept(Report("3.9.0", (GOOD,)), ACCEPTED, keep_others=True)


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    more = Budgets("3.8.0", {("z", "c", "sm_90"): FIGURES, ("decode", "a", "gfx942"): FIGURES} | ACCEPTED.figures)
    write(tmp_path / "b.json", more)
    assert read(tmp_path / "b.json") == more
    assert [path.name for path in tmp_path.iterdir()] == ["b.json"]


def test_a_file_has_one_line_a_target(tmp_path: Path) -> None:
    write(tmp_path / "b.json", ACCEPTED)
    assert (
        '\n        "sm_90": { "registers": 100, "shared_bytes": 1024, "code_bytes": 2000, "scalar_spills": 10 }\n'
        in (tmp_path / "b.json").read_text()
    )


def test_no_scalar_spills_are_not_written(tmp_path: Path) -> None:
    none = Budgets("3.8.0", {ENTRY: FIGURES | {"scalar_spills": 0}})
    write(tmp_path / "b.json", none)
    assert "scalar_spills" not in (tmp_path / "b.json").read_text()
    assert read(tmp_path / "b.json") == none


def test_no_file_has_no_budgets(tmp_path: Path) -> None:
    assert read(tmp_path / "b.json") == Budgets()


def content(**figures: object) -> str:
    return json.dumps({"triton": "3.8.0", "budgets": {"decode": {"c": {"sm_90": figures}}}})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"triton": "3.8.0", "budgets": []}',
        content(),
        content(**(FIGURES | {"registers": "100"})),
        content(**(FIGURES | {"registers": -1})),
        content(**(FIGURES | {"registers": True})),
        content(**(FIGURES | {"spills": 1})),
    ],
)
def test_a_file_that_is_none_is_refused_by_name(text: str, tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text(text)
    with pytest.raises(BadBudgets, match=r"b\.json"):
        read(tmp_path / "b.json")


def test_the_checked_in_file_can_be_read() -> None:
    assert read(budgets.FILE).triton
