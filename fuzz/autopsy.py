"""From a dead worker to a finding: repeat, shrink, confirm; and replays of traces that may kill their process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import NamedTuple

from kvsan.fuzz import wire
from kvsan.fuzz.deaths import HANG, Death
from kvsan.fuzz.isolation import HANG_TIMEOUT_S, WorkerDied, WorkerProcess, before_any_operation
from kvsan.fuzz.replay import Replayed
from kvsan.fuzz.search import SearchSettings
from kvsan.harness.trace import Trace
from kvsan.harness.verdict import Finding, HarnessError, Violation

_SHRINK_PATIENCE_S = 1.0
_SHRINK_OVERHEAD_S = 60.0
_CONFIRMATIONS = 3


class Seen(NamedTuple):
    """What a replay in a worker showed; ``death`` if the process did not survive it."""

    replayed: Replayed
    death: Death | None = None


class IsolatedReplays:
    """Replays in worker processes, one for each target; a context manager."""

    def __init__(self, hang_timeout_s: float = HANG_TIMEOUT_S, beyond_contract: bool = False) -> None:
        self._hang_timeout_s = hang_timeout_s
        self._beyond_contract = beyond_contract
        self._workers: dict[tuple[str, int], WorkerProcess] = {}

    def __enter__(self) -> IsolatedReplays:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for worker in self._workers.values():
            worker.close()

    def replay(self, trace: Trace, hashes: bool = False) -> Seen:
        """Run a trace with every oracle; UsageError if its target cannot be imported or made."""
        configuration = trace.configuration
        key = configuration.target, configuration.hash_seed
        if key not in self._workers:
            self._workers[key] = WorkerProcess(configuration.hash_seed, self._hang_timeout_s)
        worker = self._workers[key]
        request = {"do": "replay", "trace": wire.trace_out(trace), "hashes": hashes}
        worker.send(request | {"beyond_contract": self._beyond_contract})
        try:
            return Seen(wire.replayed_in(worker.result()["replayed"]))
        except WorkerDied as died:
            self._workers.pop(key).close()
            death = died.death
            if (error := before_any_operation(death, configuration)) is not None:
                raise error from None
            return Seen(death.replayed(trace.operations), death)

    def confirm(self, trace: Trace, kind: tuple[str, str], tries: int) -> tuple[Violation | None, int, tuple[int, int]]:
        """Replay a trace several times: the violation of this kind if it is seen, its step, and how often it was."""
        told, step, same = None, 0, 0
        for _ in range(tries):
            replayed = self.replay(trace).replayed
            if replayed.violation is not None and replayed.violation.kind == kind:
                told, step, same = replayed.violation, replayed.step, same + 1
        return told, step, (same, tries)

    def shrink(self, trace: Trace, seen: Seen) -> Finding:
        """Shrink a trace that was seen to violate."""
        assert seen.replayed.violation is not None
        patience_s = self._hang_timeout_s + _SHRINK_OVERHEAD_S
        with WorkerProcess(trace.configuration.hash_seed, patience_s) as worker:
            if seen.death is not None:
                request = {"trace": wire.trace_out(trace), "beyond_contract": self._beyond_contract}
                _, finding = _examine(worker, seen.death, request, self._hang_timeout_s)
                return self.finding(trace, finding, seen.death)
            request = {"do": "shrink", "trace": wire.trace_out(trace), "beyond_contract": self._beyond_contract}
            worker.send(request | {"violation": wire.violation_out(seen.replayed.violation)})
            try:
                return wire.finding_in(worker.result()["finding"])
            except WorkerDied as died:
                raise HarnessError(f"the target's process ended while its trace was shrunk: {died}") from died

    def finding(self, trace: Trace, shrunk: Finding | None, death: Death) -> Finding:
        """Tell a death by its shortest trace that kills a fresh process, too."""
        tries = 1 if death.kind[0] == HANG else _CONFIRMATIONS
        told = death.violation(trace.operations)
        if shrunk is not None:
            violation, step, replays = self.confirm(shrunk.trace, death.kind, tries)
            if violation is not None:
                return Finding(*death.kind, violation.message, step, shrunk.trace, violation.lineage, replays)
        violation, _, replays = self.confirm(trace, death.kind, tries)
        if violation is None and death.killed:
            raise HarnessError(
                f"the target's process was killed by {death.how()}, and not again when its run was repeated: "
                "is there too little memory?"
            )
        return Finding(*death.kind, told.message, death.step(trace.operations), trace, told.lineage, replays)


def examine_run(
    death: Death,
    settings: SearchSettings,
    known: str | None,
    hang_timeout_s: float,
    repeated: Callable[[Trace], None],
) -> tuple[Trace, Finding | None]:
    """Repeat the run in which a worker died, and shrink what it did; ``repeated`` is told as soon as the first is done."""
    once = replace(settings, first_run=death.mark.run, runs=1, steps=None, budget_s=None)
    request = {"settings": wire.settings_out(once), "known": known, "beyond_contract": settings.beyond_contract}
    with WorkerProcess(settings.configuration.hash_seed, hang_timeout_s + _SHRINK_OVERHEAD_S) as worker:
        trace, finding = _examine(worker, death, request, hang_timeout_s, repeated)
    if trace is None:
        raise HarnessError(f"run {death.mark.run} ended its process ({death.how()}) and could not be repeated")
    return trace, finding


def _examine(
    worker: WorkerProcess,
    death: Death,
    request: wire.Message,
    hang_timeout_s: float,
    repeated: Callable[[Trace], None] | None = None,
) -> tuple[Trace | None, Finding | None]:
    patience_s = min(_SHRINK_PATIENCE_S, hang_timeout_s / 4)
    worker.send(request | {"do": "autopsy", "death": wire.death_out(death), "patience_s": patience_s})
    trace = None
    with contextlib.suppress(WorkerDied):
        while not worker.finished:
            for event in worker.events():
                if event["event"] == "repeated":
                    trace = wire.trace_in(event["trace"])
                    if repeated is not None:
                        repeated(trace)
                elif event["event"] == "examined" and event["finding"] is not None:
                    return trace, wire.finding_in(event["finding"])
    return trace, None
