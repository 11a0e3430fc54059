"""The end of a search: for people, and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kvsan.fuzz.search import SearchSettings, SearchSummary
from kvsan.harness import trace as traces
from kvsan.harness.configuration import HOST
from kvsan.harness.operations import OPERATIONS
from kvsan.harness.story import where
from kvsan.harness.trace_format import encode
from kvsan.harness.verdict import (
    EXIT_CLEAN,
    EXIT_HARNESS,
    EXIT_INTERRUPTED,
    EXIT_TOO_LITTLE,
    EXIT_USAGE,
    EXIT_VIOLATION,
    HarnessError,
    UsageError,
)

FORMAT = "kvsan-summary"
VERSION = 1
_WIDTH = 100
_HITS = {"full hit": "full", "partial hit": "partial", "no hit": "none"}


@dataclass(slots=True)
class Outcome:
    """A finished search, and what the command line knows besides. ``error`` ended it early."""

    settings: SearchSettings
    summary: SearchSummary
    paths: dict[int, Path]
    stale: list[str] = field(default_factory=list)
    error: Exception | None = None

    @property
    def exit_code(self) -> int:
        """The code of what matters most: an interrupt, an error, a violation, too little."""
        summary = self.summary
        if isinstance(self.error, UsageError):
            return EXIT_USAGE
        if self.error is not None:
            return EXIT_HARNESS
        if summary.interrupted:
            return EXIT_INTERRUPTED
        if summary.findings and not self.settings.beyond_contract:
            return EXIT_VIOLATION
        return EXIT_TOO_LITTLE if summary.too_little else EXIT_CLEAN

    def verdict(self) -> str:
        """One line."""
        summary, code = self.summary, self.exit_code
        found = len(summary.findings)
        if code in (EXIT_USAGE, EXIT_HARNESS):
            return f"ended by an error; {_counted(found, 'finding')}"
        if code == EXIT_INTERRUPTED:
            return f"interrupted; {_counted(found, 'finding')}"
        if found:
            return _counted(found, "finding") + (" beyond the contract" if self.settings.beyond_contract else "")
        if code == EXIT_TOO_LITTLE:
            return "no violation, but too little was tried"
        return "clean: no violation"


def _counted(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def text(outcome: Outcome) -> str:
    """Tell a search in about a dozen lines."""
    summary, counts = outcome.summary, outcome.summary.counts
    rate = summary.steps / summary.seconds if summary.seconds else 0.0
    kinds = [kind.__name__ for kind in OPERATIONS]
    others = sorted(name for name in counts if name not in kinds and name not in _HITS)
    target, seed = outcome.settings.configuration.target, outcome.settings.seed
    if (kernels := outcome.settings.configuration.kernels) != HOST:
        target += f" on {kernels}"
    lines = ["", f"{target}, seed {seed}: {outcome.verdict()}"]
    lines += _row("steps", [f"{summary.steps:,} in {summary.seconds:.1f} s ({rate:,.0f}/s), {summary.runs:,} runs"])
    compared = f"{summary.outputs_compared:,} attention outputs, {summary.tokens_read:,} tokens read"
    lines += _row("compared", [compared])
    lines += _row("kernels", [f"{call} {count:,}" for call, count in sorted(summary.calls.items())])
    lines += _row("operations", [f"{name} {counts[name]:,}" for name in kinds if counts[name]])
    lines += _row("prefix hits", [f"{word} {counts[name]:,}" for name, word in _HITS.items()])
    lines += _row("events", [f"{name} {counts[name]:,}" for name in others])
    if _tiers_idle(outcome):
        lines += _row("tiers", ["not exercised; use --profile async"])
    if summary.skipped:
        lines += _row("skipped", [f"{summary.skipped:,} (not possible then, or outside the contract)"])
    lines += _row("known", [f"{name} met {times}x" for name, times in sorted(summary.known.items())])
    for name in outcome.stale:
        lines += _row("stale", [f"{name} no longer fails: remove it, or narrow its releases"])
    for missed in summary.too_little:
        lines += _row("too little", [missed])
    return "\n".join(lines)


def _tiers_idle(outcome: Outcome) -> bool:
    """Whether the target has tiers, and the profile leaves them alone."""
    summary, weights = outcome.summary, outcome.settings.profile.weights
    has_tiers = summary.runs > 0 and not summary.impossible & {"Offload", "offload to host"}
    return has_tiers and not (weights["Offload"] or summary.counts["Offload"] or summary.counts["Load"])


def _row(name: str, words: list[str]) -> Iterator[str]:
    """Lay words out behind a name, over as many lines as they need."""
    if not words:
        return
    line = f"  {name:12}"
    for word in words:
        if len(line) + len(word) > _WIDTH:
            yield line.rstrip()
            line = " " * 14
        line += f"{word}  "
    yield line.rstrip()


def document(outcome: Outcome) -> dict[str, Any]:
    """Tell a search to a program."""
    settings, summary = outcome.settings, outcome.summary
    return {
        "format": FORMAT,
        "version": VERSION,
        "kvsan": version("kvsan"),
        "settings": {
            "configuration": encode(settings.configuration, keep_defaults=True),
            "drawn": sorted(settings.drawn),
            "profile": settings.profile.name,
            "seed": settings.seed,
            "steps": settings.steps,
            "budget_s": settings.budget_s,
            "max_findings": settings.max_findings,
            "numbers": settings.numbers,
            "beyond_contract": settings.beyond_contract,
        },
        "verdict": outcome.verdict(),
        "exit_code": outcome.exit_code,
        "error": None if outcome.error is None else str(outcome.error),
        "interrupted": summary.interrupted,
        "steps": summary.steps,
        "skipped": summary.skipped,
        "seconds": round(summary.seconds, 3),
        "runs": summary.runs,
        "outputs_compared": summary.outputs_compared,
        "tokens_read": summary.tokens_read,
        "counts": dict(sorted(summary.counts.items())),
        "calls": dict(sorted(summary.calls.items())),
        "known": dict(sorted(summary.known.items())),
        "stale": outcome.stale,
        "too_little": summary.too_little,
        "findings": [
            {
                "invariant": finding.invariant,
                "cause": finding.cause,
                "message": finding.message,
                "step": finding.step,
                "first_bad": where(finding),
                "lineage": list(finding.lineage),
                "operations": len(finding.trace.operations),
                "replays": {"same": finding.replays[0], "tried": finding.replays[1]},
                "hash": traces.canonical_hash(finding.trace),
                "trace": str(path) if (path := outcome.paths.get(id(finding))) is not None else None,
            }
            for finding in summary.findings
        ],
    }


def write_json(outcome: Outcome, path: str, output: Any) -> None:
    """Write the document to a file, or to ``output`` if the path is ``-``."""
    content = json.dumps(document(outcome), indent=1) + "\n"
    if path == "-":
        output.write(content)
        output.flush()
        return
    try:
        Path(path).write_text(content, encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError) as error:
        raise UsageError(f"--json {path}: cannot be written: {error.strerror}") from None
    except OSError as error:
        raise HarnessError(f"--json {path}: cannot be written: {error.strerror}") from error
