"""Findings on disk: a trace file each, written the moment it is found."""

from __future__ import annotations

import os
import re
from pathlib import Path

from kvsan.harness import trace as traces
from kvsan.harness.trace import Expectation, TraceFile
from kvsan.harness.trace_format import shown
from kvsan.harness.verdict import Finding, HarnessError, UsageError

_HASH_LENGTH = 12
_ABOUT_LENGTH = 1000


def open_folder(folder: Path) -> None:
    """Make the folder for findings; UsageError if none can be made or written to there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise UsageError(f"--out {folder}: expected a folder: {error.strerror}") from None
    except OSError as error:
        raise HarnessError(f"--out {folder}: cannot be made: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"--out {folder}: expected a folder that can be written to")


def file_of(finding: Finding) -> TraceFile:
    """Make the file's content: the trace, and the verdict that it must keep."""
    about = shown(finding.message)[:_ABOUT_LENGTH]
    return TraceFile(finding.trace, Expectation(finding.invariant, shown(finding.cause), finding.step, about=about))


def name_of(finding: Finding) -> str:
    """Name of the file: the invariant, and the beginning of the trace's hash."""
    invariant = re.sub(r"[^A-Za-z0-9_.-]", "-", finding.invariant)
    return f"{invariant}-{traces.canonical_hash(finding.trace)[:_HASH_LENGTH]}.json"


def write(folder: Path, finding: Finding) -> Path:
    """Write a finding, whole or not at all; HarnessError if the machine fails."""
    path = folder / name_of(finding)
    traces.write(path, file_of(finding))
    return path
