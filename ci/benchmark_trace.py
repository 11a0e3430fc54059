"""The benchmark traces: made once by a heavy profile, kept in the repository by their hash.

512 blocks of 16 tokens, at least 8 live requests after the warm-up, a mean context of at least 256 tokens, every launch with
four rows or more. A row needs a ``Schedule``, a launch a ``Launch`` and a ``Retire``: launches of four rows can be at most one
step in six, and here they are nearly that. They hold executed operations only. In the trace of transfers at least a fifth of
the operations begin a transfer that moves something, end it or break it.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from random import Random

from kvsan.fuzz.generate import Generator
from kvsan.fuzz.profiles import FEATURES, HEAVY, HEAVY_ASYNC, Profile
from kvsan.fuzz.replay import open_session
from kvsan.harness import trace as traces
from kvsan.harness.configuration import Configuration
from kvsan.harness.operations import (
    Complete,
    Fail,
    Launch,
    Load,
    Offload,
    Operation,
    Outcome,
    Retire,
    Submit,
    Tear,
)
from kvsan.harness.session import Session
from kvsan.harness.trace import Trace
from kvsan.harness.verdict import UsageError
from kvsan.models_under_test.paged import make_target


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A trace on file: the profile that it was drawn from, where it runs, and its hash."""

    profile: Profile
    configuration: Configuration
    hash: str


STEPS = Benchmark(
    HEAVY,
    Configuration(num_units=512, block_size=16),
    "dbe00008c1f78e212205083517f2af654723431447e5a72325f04206600b53c5",
)
TRANSFERS = Benchmark(
    HEAVY_ASYNC,
    Configuration(
        num_units=512,
        block_size=16,
        options=(("chunk_blocks", 2), ("host_units", 512), ("store_chunks", 256), ("stores", "disk,remote")),
    ),
    "35ee4409836739d1fb3c5176a4be568f47c6e149d7bc9235df3faf6784e38602",
)
BENCHMARKS = {one.profile.name: one for one in (STEPS, TRANSFERS)}
_WARM_UP = 500
_ROWS = 4


@dataclass(frozen=True, slots=True)
class Mix:
    """What a trace is made of; ``context_tokens`` is the mean of what a row reads, ``transfer_share`` as at the head."""

    steps: int
    least_live: int
    context_tokens: float
    launch_share: float
    rows_per_launch: float
    four_rows_share: float
    transfer_share: float


def opened(configuration: Configuration, numbers: bool = False) -> Session:
    """Open a session on the reference manager."""
    session = open_session(make_target, configuration, numbers=numbers)
    assert isinstance(session, Session)
    return session


def make(benchmark: Benchmark, seed: int, steps: int) -> Trace:
    """Draw a trace of executed operations that move something; a little shorter than ``steps``."""
    session = opened(benchmark.configuration)
    random = Random(f"benchmark:{seed}")
    generator = Generator(session, benchmark.profile, random, frozenset(FEATURES) - {"media"})
    operations: list[Operation] = []
    while session.steps < steps:
        operation = generator.next()
        if isinstance(operation, Launch) and len(session.batch) < _ROWS:
            continue  # wait until the batch is large enough
        if session.step(operation) and not _in_vain(session, operation):
            operations.append(operation)
    return _executed(Trace(benchmark.configuration, tuple(operations)))


def _in_vain(session: Session, operation: Operation) -> bool:
    """Whether an offload or a load had nothing to move, or a notice came again."""
    facts = session.step_facts
    return isinstance(operation, Offload | Load | Complete) and facts.begun is None and facts.completed is None


def _executed(trace: Trace) -> Trace:
    """Leave out what is skipped since the operations that were in vain are gone."""
    while True:
        session = opened(trace.configuration)
        executed = tuple(operation for operation in trace.operations if session.step(operation))
        if len(executed) == len(trace.operations):
            return trace
        trace = Trace(trace.configuration, executed)


def mix_of(trace: Trace) -> Mix:
    """Run a trace and describe it; UsageError if an operation is skipped."""
    session = opened(trace.configuration)
    live, rows, transfers = [], [], 0
    for operation in trace.operations:
        if not session.step(operation):
            raise UsageError(f"the benchmark trace skips {operation}; make it again")
        live.append(len(session.requests))
        facts = session.step_facts
        transfers += facts.begun is not None or facts.completed is not None or isinstance(operation, Fail | Tear)
        if isinstance(operation, Launch):
            rows.append(len(session.in_flight[operation.b].payload.rows))  # type: ignore[union-attr]
    return Mix(
        len(trace.operations),
        min(live[_WARM_UP:]),
        session.shadow.tokens_read / max(1, session.executor.rows_read),
        len(rows) / len(trace.operations),
        sum(rows) / len(rows),
        sum(count >= 4 for count in rows) / len(rows),
        transfers / len(trace.operations),
    )


def load(benchmark: Benchmark = STEPS) -> Trace:
    """Read the trace that this repository names by its hash; UsageError if it is another."""
    name = f"traces/{benchmark.profile.name}-{benchmark.hash[:12]}.json"
    trace = traces.loads(resources.files("kvsan.ci").joinpath(name).read_text(), "benchmark trace").trace
    if traces.canonical_hash(trace) != benchmark.hash:
        raise UsageError(
            f"benchmark trace: expected hash {benchmark.hash[:12]}, got {traces.canonical_hash(trace)[:12]}"
        )
    return trace


def renamed(operations: tuple[Operation, ...], suffix: str) -> list[Operation]:
    """Give every request and launch another name, so that a trace can follow itself."""
    return [_rename(operation, suffix) for operation in operations]


def _rename(operation: Operation, suffix: str) -> Operation:
    changes: dict[str, object] = {
        name: getattr(operation, name) + suffix for name in ("r", "child", "b", "t") if hasattr(operation, name)
    }
    if isinstance(operation, Submit):
        changes["prompt"] = tuple(
            ("out", segment[1] + suffix, segment[2]) if segment[0] == "out" else segment for segment in operation.prompt
        )
        changes["engine_id"] = ""
    elif isinstance(operation, Retire):
        changes["outcome"] = tuple(Outcome(one.r + suffix, one.accepted, one.family) for one in operation.outcome)
    return replace(operation, **changes) if changes else operation  # type: ignore[arg-type]


def main() -> None:
    """Make a trace again; prints its mix and the hash to put into its ``Benchmark``."""
    parser = argparse.ArgumentParser(description=__doc__, epilog="example: python -m kvsan.ci.benchmark_trace --seed 6")
    parser.add_argument("--benchmark", choices=BENCHMARKS, default="heavy")
    parser.add_argument("--seed", type=int, default=6, help="6 was used for heavy, 1 for heavy-async")
    parser.add_argument("--steps", type=int, default=10_000, help="10,000 for heavy, 12,500 for heavy-async")
    parser.add_argument("--out", type=Path, help="folder to write the trace to; without it, only the mix is printed")
    arguments = parser.parse_args()
    trace = make(BENCHMARKS[arguments.benchmark], arguments.seed, arguments.steps)
    digest = traces.canonical_hash(trace)
    print(mix_of(trace))
    print(digest)
    if arguments.out:
        traces.write(arguments.out / f"{arguments.benchmark}-{digest[:12]}.json", trace)


if __name__ == "__main__":
    main()
