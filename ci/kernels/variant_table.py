"""Gives every broken variant random problems and writes down which checks saw it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvsan.ci.kernels.kernel_set import KERNELS, KernelSet
from kvsan.ci.kernels.trials import STREAMS, VARIANTS, failures_of, trial_of
from kvsan.ci.kernels.variant import Variant, loaded

HEADER = ("variant", "module", "what is wrong", "public report", "problems", "first caught", "checks that saw it")
"""Columns; all but the last two follow from the code alone."""


@dataclass(slots=True)
class Record:
    """What ``tried`` problems showed: ``first``, from 1, is the first that failed, by the checks ``first_checks``.

    ``caught`` counts problems that failed, ``checks`` for each check those that it failed.
    """

    tried: int = 0
    caught: int = 0
    first: int | None = None
    first_checks: tuple[str, ...] = ()
    checks: Counter[str] = field(default_factory=Counter)

    def add(self, checks: set[str]) -> None:
        """Count one problem and the checks that failed."""
        self.tried += 1
        self.caught += bool(checks)
        self.checks.update(checks)
        if checks and self.first is None:
            self.first, self.first_checks = self.tried, tuple(sorted(checks))


def record(stream: str, kernels: KernelSet, problems: int, seed: int, until: str | None = None) -> Record:
    """Give kernels so many problems of a stream, or fewer if the check ``until`` fails one."""
    result = Record()
    for number in range(problems):
        checks = {failure.check for failure in failures_of(trial_of(stream, seed, number), kernels)}
        result.add(checks)
        if until in checks:
            break
    return result


def described(variant: Variant) -> tuple[str, ...]:
    """Return the cells of a variant's row that follow from the code."""
    return (variant.name, f"{variant.module}.py", variant.mechanism, variant.source, variant.problems)


def rows(problems: int, seed: int) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield rows of the table, each with whether it is as it should be: variants caught, and the kernels silent."""
    yield HEADER, True
    yield ("---",) * len(HEADER), True
    whole = Record()
    for stream in STREAMS:
        part = record(stream, KERNELS, problems, seed)
        whole.tried, whole.caught, whole.checks = (
            whole.tried + part.tried,
            whole.caught + part.caught,
            whole.checks + part.checks,
        )
    control = ("(none: the kernels as they are)", "all", "", "", "all", "never" if not whole.caught else "WRONGLY")
    yield (*control, f"none: {whole.caught} of {whole.tried}"), not whole.caught
    for variant in VARIANTS:
        with loaded(variant) as kernels:
            found = record(variant.problems, kernels, problems, seed)
        counts = ", ".join(f"{check} {count}" for check, count in in_order(found.checks))
        first = "NEVER" if found.first is None else f"{', '.join(found.first_checks)} (problem {found.first})"
        yield (*described(variant), first, f"{counts}: {found.caught} of {found.tried}"), bool(found.caught)


def in_order(checks: Counter[str]) -> list[tuple[str, int]]:
    """Checks, those that saw most first, equals by name."""
    return sorted(checks.items(), key=lambda item: (-item[1], item[0]))
