"""The journal: where a process is, so that another can tell after it died.

A worker that crashes, exits or hangs in C cannot say what it was doing. In its first life a search notes only run and
operation number in shared memory, which costs nothing; the run is then repeated, and this time every operation is written
down before it is executed.
"""

from __future__ import annotations

from kvsan.harness.configuration import Configuration
from kvsan.harness.operations import Operation


class Journal:
    """Keeps nothing; what a search in the user's own process needs."""

    def start(self, run: int, configuration: Configuration) -> None:
        """Note that a run begins."""

    def next(self, operation: Operation) -> None:
        """Note the operation that is about to be executed."""

    def closing(self) -> None:
        """Note that the run's operations are done and its session is being closed."""
