"""A search in worker processes: nothing that a target does to its process is lost, and the search goes on.

A *lane* is one worker at a time, which makes every n-th run. When its process dies, the run is repeated, shrunk and told
as a finding (``autopsy``), and a new process goes on with the lane's next run.
"""

from __future__ import annotations

import select
from dataclasses import dataclass, field, replace

from kvsan.fuzz import wire
from kvsan.fuzz.autopsy import IsolatedReplays, examine_run
from kvsan.fuzz.deaths import Death
from kvsan.fuzz.isolation import HANG_TIMEOUT_S, WorkerDied, WorkerProcess, before_any_operation
from kvsan.fuzz.journal import SHRINKING
from kvsan.fuzz.known import KnownFindings
from kvsan.fuzz.search import Reporter, SearchSettings, SearchSummary, as_found, floors_missed
from kvsan.harness.clock import now_s
from kvsan.harness.trace import Trace
from kvsan.harness.verdict import Finding, UsageError, Violation

MAX_FRUITLESS = 10
"""Processes of one lane that may die, one after the other, without completing a single run."""
_TELL_EVERY_S = 0.5
_GRACE_S = 5.0


@dataclass(slots=True)
class _Lane:
    """``done`` is what dead processes did, ``told`` what the present one says, ``sure`` that up to its last whole run."""

    settings: SearchSettings
    steps: int | None
    worker: WorkerProcess | None = None
    done: SearchSummary = field(default_factory=SearchSummary)
    told: SearchSummary = field(default_factory=SearchSummary)
    sure: SearchSummary = field(default_factory=SearchSummary)
    pending: Finding | None = None
    fruitless: int = 0
    over: bool = False

    def close(self) -> None:
        if self.worker is not None:
            self.worker.close()
            self.worker = None


class GuardedSearch:
    """One search by ``lanes`` worker processes; the same interface as ``Search``."""

    def __init__(
        self,
        settings: SearchSettings,
        known: KnownFindings,
        known_folder: str | None,
        reporter: Reporter,
        lanes: int = 1,
        hang_timeout_s: float = HANG_TIMEOUT_S,
    ) -> None:
        self._settings = settings
        self._known = known
        self._known_folder = known_folder
        self._reporter = reporter
        self._hang_timeout_s = hang_timeout_s
        self._lanes = [_Lane(part, part.steps) for part in split(settings, lanes)]
        self._seen = set(settings.seen)
        self._last_told = now_s()
        self._searching_since: float | None = None
        self.summary = SearchSummary()

    def run(self) -> SearchSummary:
        """Search; Ctrl-C ends it with everything found so far."""
        try:
            for lane in self._lanes:
                self._start(lane)
            while any(not lane.over for lane in self._lanes):
                self._listen()
        except KeyboardInterrupt:
            self.summary.interrupted = True
        finally:
            self._stop()
            self.summary = self._add_up()
        summary = self.summary
        if any(lane.fruitless >= MAX_FRUITLESS for lane in self._lanes):
            summary.too_little = [f"runs: the target's process died in {MAX_FRUITLESS} runs one after the other"]
        elif not summary.interrupted and not summary.findings:
            summary.too_little = floors_missed(summary, self._settings)
        self._reporter.progress(summary)
        return summary

    def _start(self, lane: _Lane) -> None:
        lane.worker = WorkerProcess(lane.settings.configuration.hash_seed, self._hang_timeout_s)
        lane.worker.send({"do": "search", "settings": wire.settings_out(lane.settings), "known": self._known_folder})

    def _listen(self) -> None:
        """Take what has come from every worker."""
        fds = [lane.worker.events_fd for lane in self._lanes if lane.worker is not None]
        select.select(fds, [], [], 0.1)
        for lane in self._lanes:
            if not lane.over:
                self._take(lane)
        if now_s() - self._last_told > _TELL_EVERY_S:
            self._last_told = now_s()
            self._reporter.progress(self._add_up())
        if len(self.summary.findings) >= self._settings.max_findings:
            for lane in self._lanes:
                lane.over = True

    def _take(self, lane: _Lane) -> None:
        assert lane.worker is not None
        try:
            for event in lane.worker.events(wait_s=0.0):
                self._handle(lane, event)
        except WorkerDied as died:
            lane.close()
            self._bury(lane, died.death)

    def _handle(self, lane: _Lane, event: wire.Message) -> None:
        kind = event["event"]
        self._searching_since = self._searching_since or now_s()
        if kind == "violated":
            lane.pending = wire.finding_in(event["finding"])
            self._reporter.violated(*_violation_of(lane.pending))
        elif kind == "found":
            lane.pending = None
            self._found(wire.finding_in(event["finding"]))
        elif kind in ("progress", "run", "done"):
            lane.told = wire.summary_in(event["summary"])
            if kind != "progress":
                lane.sure, lane.pending = lane.told, None
        if kind in ("done", "interrupted") and not lane.over:
            lane.over = True
            self.summary.interrupted |= kind == "interrupted" or lane.told.interrupted

    # -- deaths

    def _bury(self, lane: _Lane, death: Death) -> None:
        """Tell a death, and let the lane go on with its next run."""
        error = before_any_operation(death, lane.settings.configuration)
        if error is not None:
            raise error
        lane.fruitless = 0 if lane.sure.runs else lane.fruitless + 1
        if death.mark.state == SHRINKING and lane.pending is not None:
            self._found(lane.pending)
        else:
            self._examine(lane, death)
        lane.pending = None
        wire.add_up(lane.done, lane.sure)
        lane.done.seconds += lane.told.seconds
        lane.done.runs += 1
        lane.done.steps += max(0, death.mark.operation - 1)
        lane.told = lane.sure = SearchSummary()
        self._go_on(lane, death.mark.run)

    def _go_on(self, lane: _Lane, dead_run: int) -> None:
        settings, whole = lane.settings, self._settings
        since = now_s() if self._searching_since is None else self._searching_since
        steps = None if lane.steps is None else lane.steps - lane.done.steps
        budget_s = None if whole.budget_s is None else whole.budget_s - (now_s() - since)
        lane.over = lane.fruitless >= MAX_FRUITLESS or (steps is not None and steps <= 0)
        lane.over = lane.over or (budget_s is not None and budget_s <= 0)
        lane.over = lane.over or len(self.summary.findings) >= whole.max_findings
        if lane.over:
            return
        lane.settings = replace(
            settings,
            first_run=dead_run + settings.run_stride,
            steps=steps,
            budget_s=budget_s,
            max_findings=whole.max_findings - len(self.summary.findings),
            seen=frozenset(self._seen),
        )
        self._start(lane)

    def _examine(self, lane: _Lane, death: Death) -> None:
        if death.kind in self._seen:
            return
        known = self._known.of_kind(death.kind)
        if known is not None and known.met >= known.confirm:
            known.met += 1
            lane.done.known[known.name] += 1
            return
        repeated: list[Trace] = []
        try:
            trace, shrunk = examine_run(death, lane.settings, self._known_folder, self._hang_timeout_s, repeated.append)
            with IsolatedReplays(self._hang_timeout_s, self._settings.beyond_contract) as replays:
                finding = replays.finding(trace, shrunk, death)
        except KeyboardInterrupt:
            if repeated:
                self._found(as_found(repeated[0], death.violation(repeated[0].operations), (1, 1)))
            raise
        same = self._known.match(finding)
        if same is not None:
            same.met += 1
            lane.done.known[same.name] += 1
        else:
            self._found(finding)

    def _found(self, finding: Finding) -> None:
        """Tell a finding, unless another lane has told one of its kind."""
        if finding.kind not in self._seen:
            self._seen.add(finding.kind)
            self.summary.findings.append(finding)
            self._reporter.found(finding)

    # -- the end

    def _stop(self) -> None:
        """Let every worker tell what it has, for a few seconds, and end it."""
        running = [lane for lane in self._lanes if lane.worker is not None]
        for lane in running:
            assert lane.worker is not None
            if not lane.worker.finished:
                lane.worker.interrupt()
        deadline = now_s() + _GRACE_S
        for lane in running:
            self._last_words(lane, deadline)
            lane.close()

    def _last_words(self, lane: _Lane, deadline: float) -> None:
        assert lane.worker is not None
        try:
            while not lane.worker.finished and now_s() < deadline:
                for event in lane.worker.events(0.1):
                    self._handle(lane, event)
        except (WorkerDied, UsageError):
            pass
        if lane.pending is not None and len(self.summary.findings) < self._settings.max_findings:
            self._found(lane.pending)

    def _add_up(self) -> SearchSummary:
        total = SearchSummary(findings=self.summary.findings, interrupted=self.summary.interrupted)
        for lane in self._lanes:
            wire.add_up(total, lane.done)
            wire.add_up(total, lane.told)
            total.seconds = max(total.seconds, lane.done.seconds + lane.told.seconds)
        return total


def split(settings: SearchSettings, lanes: int) -> list[SearchSettings]:
    """Divide a search: lane i makes runs i, i + n, and so on, and its share of the steps."""
    if settings.steps is not None:
        lanes = max(1, min(lanes, settings.steps))
    parts = []
    for lane in range(lanes):
        steps = None if settings.steps is None else settings.steps // lanes + (lane < settings.steps % lanes)
        parts.append(replace(settings, first_run=settings.first_run + lane, run_stride=lanes, steps=steps))
    return parts


def _violation_of(finding: Finding) -> tuple[Violation, Trace]:
    return Violation(*finding.kind, finding.message, finding.lineage), finding.trace
