"""Replays: in this process for KVSan's own targets, in workers for all others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import TracebackType

from kvsan.fuzz.autopsy import IsolatedReplays, Seen
from kvsan.fuzz.replay import replay
from kvsan.fuzz.shrink import shrink
from kvsan.harness.registry import resolve, runs_in_process
from kvsan.harness.trace import Trace
from kvsan.harness.verdict import Finding, UsageError


class Replays:
    """Replays and shrinks traces of any target; a context manager."""

    def __init__(self, hang_timeout_s: float, beyond_contract: bool) -> None:
        self._beyond_contract = beyond_contract
        self._isolated = IsolatedReplays(hang_timeout_s, beyond_contract)

    def __enter__(self) -> Replays:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._isolated.__exit__(kind, error, traceback)

    def replay(self, trace: Trace, hashes: bool = False) -> Seen:
        """Run a trace with every oracle; UsageError if its target cannot be made, or its kernels cannot be had."""
        if not runs_in_process(trace.configuration):
            return self._isolated.replay(trace, hashes)
        return Seen(
            replay(resolve(trace.configuration.target), trace, beyond_contract=self._beyond_contract, hashes=hashes)
        )

    def shrink(self, trace: Trace, seen: Seen) -> Finding:
        """Shrink a trace that was seen to violate."""
        if not runs_in_process(trace.configuration):
            return self._isolated.shrink(trace, seen)
        violation = seen.replayed.violation
        assert violation is not None
        factory = resolve(trace.configuration.target)
        numbers = violation.needs_kernels
        return shrink(factory, trace, violation, numbers=numbers, beyond_contract=self._beyond_contract)


def on_other(trace: Trace, target: str | None = None, kernels: str | None = None) -> Trace:
    """Give a trace on another target, or other kernels, if some are named."""
    changed = {name: value for name, value in (("target", target), ("kernels", kernels)) if value is not None}
    return replace(trace, configuration=replace(trace.configuration, **changed))  # type: ignore[arg-type]


def trace_paths(paths: list[Path]) -> list[Path]:
    """Every trace file named, or in a folder named; UsageError if there is none."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(path.rglob("*.json"))
            if not inside:
                raise UsageError(f"{path}: holds no trace files (*.json)")
            found += inside
        else:
            found.append(path)
    return found
