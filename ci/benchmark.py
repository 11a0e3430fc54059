"""``make bench``: how fast a checked step is, where its time goes, and against what.

Everything is measured in one run on one core, interleaved, and told as the median of several rounds with ratios beside it:
absolute figures belong to a machine, ratios travel.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import platform
import pstats
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from kvsan.ci import plain_machine
from kvsan.ci.benchmark_trace import STEPS, TRANSFERS, load, mix_of, opened, renamed
from kvsan.harness.clock import now_s
from kvsan.harness.configuration import Configuration
from kvsan.harness.launches import closing_operations
from kvsan.harness.operations import Launch, Operation, Retire, Schedule, Submit
from kvsan.harness.session import Session
from kvsan.harness.trace import Trace

_MILLION = 1_000_000
_AGING_TOKENS = 4096


def timed(session: Session, operations: list[Operation]) -> float:
    """Run operations without a garbage collection of what was built before; seconds."""
    gc.collect()
    gc.freeze()
    started = now_s()
    for operation in operations:
        session.step(operation)
    seconds = now_s() - started
    gc.unfreeze()
    return seconds


def measure_steps(trace: Trace, numbers: bool) -> tuple[float, Session]:
    """Steps per second on the benchmark trace."""
    session = opened(trace.configuration, numbers)
    seconds = timed(session, list(trace.operations))
    return session.steps / seconds, session


def rest(session: Session) -> None:
    """End all requests, so that the trace can follow itself."""
    for operation in closing_operations(session):
        session.step(operation)


def measure_pool(trace: Trace, num_units: int, passes: int, aged: bool) -> tuple[float, Session]:
    """Steps per second of ``passes`` repetitions of the trace in one session, sweeps included, construction excluded."""
    configuration = replace(trace.configuration, num_units=num_units)
    session = opened(configuration)
    if aged:
        age(session, configuration)
    seconds, before = 0.0, session.steps
    for number in range(passes):
        seconds += timed(session, renamed(trace.operations, f".{number}"))
        rest(session)
    return (session.steps - before) / seconds, session


def age(session: Session, configuration: Configuration) -> None:
    """Fill the whole pool with cached blocks that nobody holds: from now on every allocation evicts."""
    blocks = _AGING_TOKENS // configuration.block_size
    for number in range(configuration.num_units // blocks + 1):
        r = f"age{number}"
        session.step(Submit(r, ((1000 + number, _AGING_TOKENS),)))
        session.step(Schedule(r, _AGING_TOKENS))
        session.step(Launch(f"{r}b"))
        session.step(Retire(f"{r}b"))
        for operation in closing_operations(session):
            session.step(operation)


def time_by_part(trace: Trace) -> list[tuple[str, float]]:
    """Share of a step's time by the folder or module it is spent in, from the profiler (which slows small functions)."""
    profile = cProfile.Profile()
    session = opened(trace.configuration)
    profile.enable()
    for operation in trace.operations:
        session.step(operation)
    profile.disable()
    parts: dict[str, float] = {}
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    for (filename, _, _), (_, _, own, _, _) in stats.items():
        parts[_part_of(filename)] = parts.get(_part_of(filename), 0.0) + own
    total = sum(parts.values())
    return sorted(((part, seconds / total) for part, seconds in parts.items()), key=lambda one: -one[1])


def _part_of(filename: str) -> str:
    path = Path(filename)
    if path.parent.name == "harness":
        return f"harness/{path.stem}"
    if path.parent.name in ("invariants", "paged", "gpu_kernels"):
        return path.parent.name
    return "built-in and numpy"


def median(measure: Callable[[], float], rounds: int) -> float:
    """Median of several rounds."""
    return statistics.median(measure() for _ in range(rounds))


def report(rounds: int, seconds: float, pool_passes: int) -> None:
    """Measure and print everything."""
    trace = load()
    mix = mix_of(trace)
    print(f"machine: {platform.machine()}, Python {platform.python_version()}, one core")
    print(f"trace {STEPS.hash[:12]}: {mix}")
    measure_steps(trace, True)  # compile the kernels
    checked = median(lambda: measure_steps(trace, False)[0], rounds)
    print(f"structure, provenance, order at every step:   {checked:10,.0f} steps/s")
    speeds = []
    for _ in range(rounds):
        speed, session = measure_steps(trace, True)
        oracle = session.executor.numbers
        assert oracle is not None
        per_step = oracle.outputs_compared / session.steps, oracle.tokens_read / session.steps
        speeds.append((speed, speed * per_step[0], speed * per_step[1]))
    speed, outputs, tokens = sorted(speeds)[len(speeds) // 2]
    print(f"and every attention output compared:          {speed:10,.0f} steps/s")
    print(f"                                              {outputs:10,.0f} outputs/s, {tokens:,.0f} tokens read/s")
    plain = plain_machine.measure(seconds)
    print(f"plain Hypothesis machine, hand-written asserts:{plain:9,.0f} steps/s")
    print(f"ratio to the plain machine: {checked / plain:.1f} without, {speed / plain:.1f} with every output compared")
    small, _ = measure_pool(trace, trace.configuration.num_units, pool_passes, False)
    fresh, session = measure_pool(trace, _MILLION, pool_passes, False)
    print(
        f"1,000,000 blocks, fresh: {fresh:10,.0f} steps/s, {fresh / small:.2f} of 512 blocks ({session.counts['sweep']} sweeps)"
    )
    aged, session = measure_pool(trace, _MILLION, pool_passes, True)
    print(
        f"1,000,000 blocks, aged:  {aged:10,.0f} steps/s, {aged / small:.2f} of 512 blocks ({session.counts['sweep']} sweeps, "
        f"{session.counts['eviction']:,} evictions)"
    )
    report_transfers(rounds)
    print("where a step's time goes: " + ", ".join(f"{part} {share:.0%}" for part, share in time_by_part(trace)[:10]))


def report_transfers(rounds: int) -> None:
    """Measure the trace of transfers, and what a transfer costs beside another step."""
    trace = load(TRANSFERS)
    checked = median(lambda: measure_steps(trace, False)[0], rounds)
    compared = median(lambda: measure_steps(trace, True)[0], rounds)
    print(f"trace {TRANSFERS.hash[:12]}: {mix_of(trace)}")
    print(f"transfers: structure, provenance, order:      {checked:10,.0f} steps/s")
    print(f"transfers: and every output compared:         {compared:10,.0f} steps/s")
    print("where its time goes: " + ", ".join(f"{part} {share:.0%}" for part, share in time_by_part(trace)[:10]))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, epilog="example: python -m kvsan.ci.benchmark --rounds 3")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of which the median is told (default 5)")
    parser.add_argument("--seconds", type=float, default=10.0, help="time for the plain machine (default 10)")
    parser.add_argument(
        "--pool-passes", type=int, default=30, help="repetitions of the trace on each pool (default 30)"
    )
    arguments = parser.parse_args()
    report(arguments.rounds, arguments.seconds, arguments.pool_passes)


if __name__ == "__main__":
    main()
