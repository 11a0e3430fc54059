"""The journal: where a process is, so that another can tell after it died.

A worker that crashes, exits or hangs in C cannot say what it was doing. In its first life a search notes only run and
operation number in shared memory, which costs next to nothing; the run is then repeated, and this time every operation is
written down before it is executed.
"""

from __future__ import annotations

import json
import mmap
import struct
from pathlib import Path
from typing import NamedTuple

from kvsan.harness import trace as traces
from kvsan.harness.configuration import Configuration
from kvsan.harness.operations import Operation
from kvsan.harness.trace import Trace
from kvsan.harness.trace_format import encode

STARTING, RUNNING, CLOSING, SHRINKING, IDLE = range(5)
"""States of a worker: importing the target, executing a run's operations, ending its session, shrinking, waiting."""

_LAYOUT = struct.Struct("<4q")
_OPERATION = struct.Struct("<q")
_OPERATION_AT = 16


class Mark(NamedTuple):
    """Where a worker is. ``operation`` counts those begun; 0 while the target is being constructed."""

    state: int
    run: int
    operation: int
    beats: int


class Journal:
    """Keeps nothing; what a search in the user's own process needs."""

    def start(self, run: int, configuration: Configuration) -> None:
        """Note that a run begins; called before its target is constructed."""

    def next(self, operation: Operation) -> None:
        """Note the operation that is about to be executed."""

    def closing(self) -> None:
        """Note that the run's operations are done and its session is being closed."""

    def beat(self) -> None:
        """Note a sign of life while nothing else is noted."""


class SharedJournal(Journal):
    """Notes a ``Mark`` in a small file that is mapped into memory; the file outlives the process."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _LAYOUT.size)
        self._run = self._operation = self._beats = 0

    @staticmethod
    def create(path: Path) -> None:
        """Make the file for a worker that is about to start."""
        path.write_bytes(_LAYOUT.pack(STARTING, 0, 0, 0))

    def read(self) -> Mark:
        """Where the process that writes this file is now."""
        return Mark(*_LAYOUT.unpack_from(self._memory))

    def state(self, state: int) -> None:
        """Note what the process does now."""
        self._beats += 1
        _LAYOUT.pack_into(self._memory, 0, state, self._run, self._operation, self._beats)

    def start(self, run: int, configuration: Configuration) -> None:
        """Note that a run begins."""
        self._run, self._operation = run, 0
        self.state(RUNNING)

    def next(self, operation: Operation) -> None:
        """Note the operation's number."""
        self._operation = number = self._operation + 1
        _OPERATION.pack_into(self._memory, _OPERATION_AT, number)

    def closing(self) -> None:
        """Note that the session is being closed."""
        self.state(CLOSING)

    def beat(self) -> None:
        """Note that a candidate is about to be tried."""
        self.state(SHRINKING)


class RunWritten(BaseException):
    """Raised out of a run that is repeated, once as many operations as were asked for are written down."""


class WritingJournal(Journal):
    """Writes the configuration and the first ``limit`` operations of one run, a JSON line each, then ends the run."""

    def __init__(self, path: Path, limit: int) -> None:
        self._file = path.open("w", encoding="ascii")
        self._left = limit

    def start(self, run: int, configuration: Configuration) -> None:
        """Write the configuration."""
        self._write(traces.dumps(Trace(configuration, ())))

    def next(self, operation: Operation) -> None:
        """Write an operation; the last one is not executed."""
        self._write(json.dumps([type(operation).__name__, encode(operation)]))
        self._left -= 1
        if self._left == 0:
            raise RunWritten

    def closing(self) -> None:
        """The run was shorter than was asked for; what there is, is written."""
        raise RunWritten

    def _write(self, line: str) -> None:
        self._file.write(line.replace("\n", "") + "\n")
        self._file.flush()


def read_written(path: Path) -> Trace | None:
    """Read what a WritingJournal wrote; a line that was cut off by the death of the writer is left out."""
    lines = path.read_text("ascii").splitlines(keepends=True)
    whole = [line for line in lines if line.endswith("\n")]
    if not whole:
        return None
    content = json.loads(whole[0])
    content["operations"] = [json.loads(line) for line in whole[1:]]
    return traces.loads(json.dumps(content)).trace
