"""How fast seeded bugs are found, and how short their reproducers are: ``python -m kvsan.ci.shrink_table --seeds 10``."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from kvsan.fuzz.known import KnownFindings
from kvsan.fuzz.profiles import profile_named
from kvsan.fuzz.search import Reporter, Search, SearchSettings
from kvsan.fuzz.shrink import weight
from kvsan.harness.clock import now_s
from kvsan.harness.configuration import Configuration
from kvsan.harness.trace import Trace
from kvsan.harness.verdict import Finding, Violation
from kvsan.models_under_test.mutants import MUTANTS, make_target

SEARCH_STEPS = 200_000


class _ShrinkClock(Reporter):
    """Measures the time between a violation and its finding."""

    def __init__(self) -> None:
        self._started_s = 0.0
        self.shrink_s = 0.0

    def violated(self, violation: Violation, trace: Trace) -> None:
        self._started_s = now_s()

    def found(self, finding: Finding) -> None:
        self.shrink_s = now_s() - self._started_s


@dataclass(slots=True)
class MutantRow:
    """What the seeds of one mutant gave; lists have one entry for each seed that found it."""

    name: str
    seeds: int = 0
    steps: list[int] = field(default_factory=list)
    decisions: list[int] = field(default_factory=list)
    operations: list[int] = field(default_factory=list)
    shrink_s: list[float] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def measure(name: str, seeds: Iterable[int], steps: int = SEARCH_STEPS) -> MutantRow:
    """Search for one mutant with each seed."""
    row = MutantRow(name)
    for seed in seeds:
        clock = _ShrinkClock()
        profile = profile_named(MUTANTS[name].profile)
        settings = SearchSettings(Configuration(f"mutant:{name}"), profile, seed=seed, steps=steps, numbers=0.0)
        summary = Search(make_target, settings, KnownFindings(), clock).run()
        row.seeds += 1
        if summary.findings:
            operations = summary.findings[0].trace.operations
            decisions, length = weight(operations)
            row.steps.append(summary.steps)
            row.decisions.append(decisions)
            row.operations.append(length)
            row.shrink_s.append(clock.shrink_s)
            row.findings.append(summary.findings[0])
    return row


def table(rows: Iterable[MutantRow]) -> str:
    """Lay rows out as a Markdown table; operations are counted without Launch, Retire and Advance."""
    lines = [
        "| mutant | found | steps to find (median) | operations (median, max) | shrinking ms (median, max) | seen by |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        seen = Counter(f"{finding.invariant} [{finding.cause}]" for finding in row.findings)
        steps = f"{median(row.steps):.0f}" if row.steps else "-"
        sizes = f"{median(row.decisions):.0f}, {max(row.decisions)}" if row.decisions else "-"
        times = f"{1000 * median(row.shrink_s):.0f}, {1000 * max(row.shrink_s):.0f}" if row.shrink_s else "-"
        lines.append(
            f"| {row.name} | {len(row.steps)}/{row.seeds} | {steps} | {sizes} | {times} | "
            f"{'; '.join(f'{what} {count}' for what, count in seen.most_common())} |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m kvsan.ci.shrink_table", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="seeds a mutant (10)")
    parser.add_argument("--mutant", action="append", choices=sorted(MUTANTS), help="only this mutant; may be repeated")
    options = parser.parse_args(arguments)
    rows = [measure(name, range(options.seeds)) for name in options.mutant or MUTANTS]
    print(table(rows))
    times = [one for row in rows for one in row.shrink_s]
    sizes = [one for row in rows for one in row.decisions]
    print(
        f"\nall: shrinking median {1000 * median(times):.0f} ms; operations median {median(sizes):.0f}, max {max(sizes)}"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
