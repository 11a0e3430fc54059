"""How soon a known bug of a real engine is found and shrunk, for several seeds: ``python -m kvsan.ci.engine_table``.

The time counts from after start-up (the engine is imported, the kernels are compiled) to the shrunk finding, with everything else
that the same search finds and shrinks on its way there. Each reproducer is checked to be 1-minimal.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass

from kvsan.fuzz.known import KnownFindings
from kvsan.fuzz.profiles import DEFAULT
from kvsan.fuzz.replay import replay
from kvsan.fuzz.search import Reporter, Search, SearchSettings
from kvsan.harness.clock import now_s
from kvsan.harness.configuration import Configuration
from kvsan.harness.registry import TargetFactory, resolve
from kvsan.harness.trace import Trace
from kvsan.harness.verdict import Finding

INCIDENTAL = ("Launch", "Retire", "Advance")


@dataclass(frozen=True, slots=True)
class Found:
    """One seed's result; ``decisions`` are the reproducer's operations without Launch, Retire and Advance."""

    seed: int
    seconds: float
    operations: int
    decisions: int
    one_minimal: bool
    message: str


class _Wanted(Exception):
    """Ends the search."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.invariant)
        self.finding = finding


class _Until(Reporter):
    def __init__(self, invariant: str) -> None:
        self._invariant = invariant

    def found(self, finding: Finding) -> None:
        if finding.invariant == self._invariant:
            raise _Wanted(finding)


def is_one_minimal(factory: TargetFactory, finding: Finding) -> bool:
    """Whether the violation is gone without any one of the trace's operations."""
    trace = finding.trace
    for position in range(len(trace.operations)):
        rest = trace.operations[:position] + trace.operations[position + 1 :]
        again = replay(factory, Trace(trace.configuration, rest)).violation
        if again is not None and again.kind == finding.kind:
            return False
    return True


def measure(configuration: Configuration, invariant: str, seed: int, budget_s: float) -> Found | None:
    """Search with one seed until the invariant is violated and the trace is shrunk."""
    factory = resolve(configuration.target)
    settings = SearchSettings(configuration, DEFAULT, seed=seed, budget_s=budget_s, max_findings=100)
    started = now_s()
    try:
        Search(factory, settings, KnownFindings(), _Until(invariant)).run()
    except _Wanted as wanted:
        seconds = now_s() - started
        finding = wanted.finding
        names = [type(operation).__name__ for operation in finding.trace.operations]
        decisions = sum(name not in INCIDENTAL for name in names)
        return Found(seed, seconds, len(names), decisions, is_one_minimal(factory, finding), finding.message)
    return None


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="example: python -m kvsan.ci.engine_table --target vllm@0.22.1 --seeds 5"
    )
    parser.add_argument("--target", default="vllm@0.22.1")
    parser.add_argument("--groups", default="full,sliding")
    parser.add_argument("--invariant", default="ownership")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--budget", type=float, default=120.0, help="seconds a seed at most (default 120)")
    arguments = parser.parse_args()
    configuration = Configuration(target=arguments.target, groups=tuple(arguments.groups.split(",")))
    warm = SearchSettings(configuration, DEFAULT, steps=20)
    Search(resolve(arguments.target), warm, KnownFindings(), Reporter()).run()
    print("| seed | found and shrunk, s | operations | without Launch, Retire, Advance | 1-minimal |")
    print("| --- | --- | --- | --- | --- |")
    times = []
    for seed in range(arguments.seeds):
        found = measure(configuration, arguments.invariant, seed, arguments.budget)
        if found is None:
            print(f"| {seed} | not within {arguments.budget:.0f} | | | |", flush=True)
            continue
        times.append(found.seconds)
        minimal = "yes" if found.one_minimal else "no"
        print(f"| {seed} | {found.seconds:.2f} | {found.operations} | {found.decisions} | {minimal} |", flush=True)
    if times:
        print(f"median {statistics.median(times):.2f} s, {len(times)} of {arguments.seeds} seeds")


if __name__ == "__main__":
    main()
