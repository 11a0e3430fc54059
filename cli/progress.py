"""What a search tells while it runs: one live line on a terminal, plain lines elsewhere, and every finding at once."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TextIO

from kvsan.cli.live_line import LiveLine
from kvsan.fuzz import findings
from kvsan.fuzz.search import Reporter, SearchSettings, SearchSummary
from kvsan.harness.clock import now_s
from kvsan.harness.story import story
from kvsan.harness.trace import Trace
from kvsan.harness.verdict import Finding, Violation

_PLAIN_EVERY_S = 10.0


class FuzzReporter(Reporter):
    """Writes findings to disk before it tells them, and progress to stderr; a context manager."""

    def __init__(self, settings: SearchSettings, folder: Path, output: TextIO) -> None:
        self._settings = settings
        self._folder = folder
        self._output = output
        self._started = self._last_plain = now_s()
        self._line = LiveLine() if sys.stderr.isatty() else None
        self.paths: dict[int, Path] = {}

    def __enter__(self) -> FuzzReporter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._line is not None:
            self._line.clear()

    def progress(self, summary: SearchSummary) -> None:
        """Say how far the search is."""
        if self._line is not None:
            self._line.show(self._status(summary))
        elif now_s() - self._last_plain >= _PLAIN_EVERY_S:
            self._last_plain = now_s()
            _say(self._status(summary))

    def violated(self, violation: Violation, trace: Trace) -> None:
        """Say that a trace is being shrunk, which takes a while."""
        text = f"{violation.invariant} [{violation.cause}]: shrinking {len(trace.operations)} operations"
        if self._line is not None:
            self._line.show(text)
        else:
            _say(text)

    def found(self, finding: Finding) -> None:
        """Write a finding and tell it; if it cannot be written, it is still told."""
        try:
            path = findings.write(self._folder, finding)
        except BaseException:
            with suppress(OSError):
                self._tell(finding, None)
            raise
        self.paths[id(finding)] = path
        self._tell(finding, str(path))

    def complete(self, summary: SearchSummary) -> None:
        """Write what an interrupt kept from being written."""
        for finding in summary.findings:
            if id(finding) not in self.paths:
                self.found(finding)

    def _tell(self, finding: Finding, path: str | None) -> None:
        if self._line is not None:
            self._line.clear()
        lines = story(finding, path, beyond_contract=self._settings.beyond_contract)
        print("\n".join(["", *lines]), file=self._output, flush=True)

    def _status(self, summary: SearchSummary) -> str:
        elapsed = now_s() - self._started
        if not summary.steps:
            return f"{elapsed:.0f} s  starting"
        rate = summary.steps / summary.seconds if summary.seconds else 0.0
        parts = [
            f"{elapsed:.0f} s",
            f"{summary.steps:,} steps",
            f"{rate:,.0f} steps/s",
            f"{summary.runs:,} runs",
            f"{summary.outputs_compared:,} outputs compared",
            f"{len(summary.findings)} findings",
        ]
        if self._settings.budget_s is not None:
            parts.append(f"{max(0.0, self._settings.budget_s - summary.seconds):.0f} s left")
        elif self._settings.steps is not None:
            parts.append(f"{100 * summary.steps // self._settings.steps}%")
        return "  ".join(parts)


def _say(text: str) -> None:
    with suppress(OSError):
        print(f"kvsan: {text}", file=sys.stderr, flush=True)
