"""The benchmark trace: made once by the heavy profile, kept in the repository by its hash.

512 blocks of 16 tokens, at least 8 live requests after the warm-up, a mean context of at least 256 tokens, every launch with
four rows or more. A row needs a ``Schedule``, a launch a ``Launch`` and a ``Retire``: launches of four rows can be at most one
step in six, and here they are nearly that. It holds executed operations only.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from random import Random

from kvsan.fuzz.generate import Generator
from kvsan.fuzz.profiles import FEATURES, HEAVY
from kvsan.fuzz.replay import open_session
from kvsan.harness import trace as traces
from kvsan.harness.configuration import Configuration
from kvsan.harness.operations import Launch, Operation, Outcome, Retire, Submit
from kvsan.harness.trace import Trace
from kvsan.harness.verdict import UsageError
from kvsan.models_under_test.paged import make_target

TRACE_HASH = "dbe00008c1f78e212205083517f2af654723431447e5a72325f04206600b53c5"
CONFIGURATION = Configuration(num_units=512, block_size=16)
_WARM_UP = 500
_ROWS = 4


@dataclass(frozen=True, slots=True)
class Mix:
    """What a trace is made of; ``context_tokens`` is the mean of what a row reads."""

    steps: int
    least_live: int
    context_tokens: float
    launch_share: float
    rows_per_launch: float
    four_rows_share: float


def make(seed: int, steps: int) -> Trace:
    """Draw a trace of executed operations."""
    session = open_session(make_target, CONFIGURATION, numbers=False)
    generator = Generator(session, HEAVY, Random(f"benchmark:{seed}"), frozenset(FEATURES) - {"media"})
    operations: list[Operation] = []
    while session.steps < steps:
        operation = generator.next()
        if isinstance(operation, Launch) and len(session.batch) < _ROWS:
            continue  # wait until the batch is large enough
        if session.step(operation):
            operations.append(operation)
    return Trace(CONFIGURATION, tuple(operations))


def mix_of(trace: Trace) -> Mix:
    """Run a trace and describe it; UsageError if an operation is skipped."""
    session = open_session(make_target, trace.configuration, numbers=False)
    live, rows = [], []
    for operation in trace.operations:
        if not session.step(operation):
            raise UsageError(f"the benchmark trace skips {operation}; make it again")
        live.append(len(session.requests))
        if isinstance(operation, Launch):
            rows.append(len(session.in_flight[operation.b].payload.rows))  # type: ignore[union-attr]
    return Mix(
        len(trace.operations),
        min(live[_WARM_UP:]),
        session.shadow.tokens_read / max(1, session.executor.rows_read),
        len(rows) / len(trace.operations),
        sum(rows) / len(rows),
        sum(count >= 4 for count in rows) / len(rows),
    )


def load() -> Trace:
    """Read the trace that this repository names by its hash; UsageError if it is another."""
    text = resources.files("kvsan.ci").joinpath(f"traces/heavy-{TRACE_HASH[:12]}.json").read_text()
    trace = traces.loads(text, "benchmark trace").trace
    if traces.canonical_hash(trace) != TRACE_HASH:
        raise UsageError(f"benchmark trace: expected hash {TRACE_HASH[:12]}, got {traces.canonical_hash(trace)[:12]}")
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
    """Make the trace again; prints its mix and the hash to put into ``TRACE_HASH``."""
    parser = argparse.ArgumentParser(description=__doc__, epilog="example: python -m kvsan.ci.benchmark_trace --seed 6")
    parser.add_argument("--seed", type=int, default=6)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--out", type=Path, help="folder to write the trace to; without it, only the mix is printed")
    arguments = parser.parse_args()
    trace = make(arguments.seed, arguments.steps)
    digest = traces.canonical_hash(trace)
    print(mix_of(trace))
    print(digest)
    if arguments.out:
        traces.write(arguments.out / f"heavy-{digest[:12]}.json", trace)


if __name__ == "__main__":
    main()
