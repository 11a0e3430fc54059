"""What each compiled kernel may take, and what is wrong with one that takes more.

The checked-in file says for every kernel, configuration and target how many registers, how much shared memory and how
much machine code the kernel took when somebody last looked and accepted it, and for which version of Triton that is so.
It fails

- a kernel that does not compile, or spills (under any version: registers that go to memory in an inner loop cost more
  than anything else here);
- a kernel that asks for more shared memory than a program can have on the target, and so cannot be launched;
- a figure over its budget, by more than compilers vary when harmless code moves: 10% and 4 registers, 10% and 256 bytes
  of code. Shared memory follows from tile sizes and stages alone, so it has no allowance, nor have scalar registers
  that AMD keeps in vector registers;
- a kernel without a budget, so that a new one is looked at.

With another version of Triton than the file's a figure over budget is only a warning.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from kvsan.gpu_kernels.compile.build import TARGETS, Outcome, Report

_FLAT = re.compile(r"\{[^{}]*\d\s*\}")  # the innermost objects, which go on one line

FILE = Path(__file__).with_name("budgets.json")

Figures: TypeAlias = dict[str, int]
Entry: TypeAlias = tuple[str, str, str]
"""Kernel, configuration, target."""

ALLOWED_PERCENT = {"registers": 10, "shared_bytes": 0, "code_bytes": 10, "scalar_spills": 0}
ALLOWED_MORE = {"registers": 4, "shared_bytes": 0, "code_bytes": 256, "scalar_spills": 0}
_UNWRITTEN = {"scalar_spills": 0}
"""Figures that an entry need not have, because most have none."""


class BadBudgets(ValueError):
    """The file of budgets is not one; the message names it."""


@dataclass(frozen=True, slots=True)
class Budgets:
    """Accepted figures by kernel, configuration and target, and the version of Triton that they hold for."""

    triton: str = ""
    figures: Mapping[Entry, Figures] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Complaint:
    """One thing that is wrong with an outcome; ``fails`` is false for a warning, ``detail`` may have many lines."""

    outcome: Outcome
    message: str
    fails: bool = True
    detail: str = ""

    def __str__(self) -> str:
        return f"{' '.join(_entry(self.outcome))}: {self.message}"


def read(file: Path) -> Budgets:
    """Read a file of budgets; one that is not there has none. BadBudgets if it is something else."""
    try:
        content = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return Budgets()
    except (OSError, ValueError) as error:
        raise BadBudgets(f"{file}: {error}") from error
    try:
        figures = {
            (kernel, configuration, target): _checked(values)
            for kernel, configurations in content["budgets"].items()
            for configuration, targets in configurations.items()
            for target, values in targets.items()
        }
        return Budgets(str(content["triton"]), figures)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        wanted = f"kernel, configuration, target, and then {', '.join(ALLOWED_MORE)}"
        raise BadBudgets(f"{file}: expected triton, and budgets by {wanted}: {error!r}") from error


def write(file: Path, budgets: Budgets) -> None:
    """Write a file of budgets, sorted, one line a target; whole or not at all."""
    tree: dict[str, dict[str, dict[str, Figures]]] = {}
    for (kernel, configuration, target), figures in sorted(budgets.figures.items()):
        tree.setdefault(kernel, {}).setdefault(configuration, {})[target] = {
            name: figure for name, figure in figures.items() if _UNWRITTEN.get(name) != figure
        }
    text = _FLAT.sub(
        lambda inside: " ".join(inside[0].split()), json.dumps({"triton": budgets.triton, "budgets": tree}, indent=2)
    )
    part = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        part.write_text(text + "\n", "utf-8")
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def judge(report: Report, budgets: Budgets) -> list[Complaint]:
    """Say what is wrong with each outcome; those that broke the harness are not judged."""
    return [complaint for outcome in report.outcomes for complaint in _judge(outcome, report.triton, budgets)]


def acceptable(outcome: Outcome) -> bool:
    """Whether the figures of an outcome may become a budget: whether nothing fails but a budget."""
    return outcome.resources is not None and not any(_unbudgeted(outcome))


def accept(report: Report, budgets: Budgets, *, keep_others: bool) -> Budgets:
    """Budgets with the figures of every acceptable outcome; the others keep what they have.

    ``keep_others``: budgets of what is not in the report stay, as when only some targets were compiled. ValueError if
    the others hold for another version of Triton.
    """
    if keep_others and budgets.figures and budgets.triton != report.triton:
        raise ValueError(f"budgets hold for triton {budgets.triton}, this is {report.triton}: accept all or none")
    reported = {_entry(outcome) for outcome in report.outcomes}
    kept = {entry: figures for entry, figures in budgets.figures.items() if keep_others or entry in reported}
    new = {_entry(outcome): _figures(outcome) for outcome in report.outcomes if acceptable(outcome)}
    return Budgets(report.triton, kept | new)


def _judge(outcome: Outcome, triton: str, budgets: Budgets) -> Iterator[Complaint]:
    if outcome.harness_error:
        return
    yield from _unbudgeted(outcome)
    if outcome.resources is None:
        return
    budget = budgets.figures.get(_entry(outcome))
    if budget is None:
        yield Complaint(outcome, "no budget (kvsan kernels compile --update accepts the figures)")
        return
    for name, figure in _figures(outcome).items():
        limit = budget[name] + budget[name] * ALLOWED_PERCENT[name] // 100 + ALLOWED_MORE[name]
        if figure > limit:
            message = f"{name} {figure}, budget {budget[name]} (up to {limit})"
            yield Complaint(outcome, message, fails=triton == budgets.triton)


def _unbudgeted(outcome: Outcome) -> Iterator[Complaint]:
    """What is wrong whatever the budget."""
    if outcome.resources is None:
        lines = outcome.error.strip().splitlines()
        yield Complaint(outcome, f"does not compile: {lines[-1] if lines else 'no message'}", detail=outcome.error)
        return
    if spilled := outcome.resources.spilled:
        counts = ", ".join(f"{name} {count}" for name, count in spilled.items())
        yield Complaint(outcome, f"spills: {counts}, budget 0")
    most = TARGETS[outcome.target].shared_bytes
    if outcome.resources.shared_bytes > most:
        yield Complaint(outcome, f"shared_bytes {outcome.resources.shared_bytes}, a program can have {most}")


def _entry(outcome: Outcome) -> Entry:
    return outcome.build.name, outcome.build.configuration, outcome.target


def _figures(outcome: Outcome) -> Figures:
    assert outcome.resources is not None
    return {name: getattr(outcome.resources, name) for name in ALLOWED_MORE}


def _checked(values: Figures) -> Figures:
    """The figures of one entry; ValueError if they are not all there, or more, or no counts."""
    values = _UNWRITTEN | values
    if values.keys() != ALLOWED_MORE.keys() or any(type(value) is not int or value < 0 for value in values.values()):
        raise ValueError(f"{values} are no figures")
    return values
