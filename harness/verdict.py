"""Verdicts: a violation as it is raised, a finding as it is kept, and the errors that are nobody's finding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsan.harness.trace import Trace

KERNEL = "kernel"
NUMBERS = "numbers"
CRASH = "target.crash"
KERNEL_CRASH = "kernel "
"""Begins the cause of ``target.crash`` where a user's kernel raised, and not the manager."""

EXIT_CLEAN = 0
EXIT_VIOLATION = 1
EXIT_USAGE = 2
EXIT_HARNESS = 3
EXIT_TOO_LITTLE = 5
EXIT_INTERRUPTED = 130


class UsageError(Exception):
    """Bad input: the message names what is wrong and what was expected; ends in exit code 2."""


class HarnessError(Exception):
    """KVSan itself, or the machine under it, failed; ends in exit code 3 and never counts against a target."""


class Violation(Exception):
    """An invariant does not hold.

    ``cause`` is the discriminating detail that the invariant names (a key component, the kinds of two owners); together
    with the invariant's id it makes the violation's kind, which shrinking must keep.
    """

    def __init__(self, invariant: str, cause: str, message: str, lineage: tuple[str, ...] = ()) -> None:
        super().__init__(f"{invariant} [{cause}]: {message}")
        self.invariant = invariant
        self.cause = cause
        self.message = message
        self.lineage = lineage

    @property
    def kind(self) -> tuple[str, str]:
        """Invariant id and cause."""
        return self.invariant, self.cause

    @property
    def needs_kernels(self) -> bool:
        """Whether it shows only where kernels run."""
        return self.invariant in (NUMBERS, KERNEL) or self.cause.startswith(KERNEL_CRASH)


@dataclass(frozen=True, slots=True)
class Finding:
    """A violation that can be replayed: where it first showed, what it says, and the trace that leads there.

    ``step`` is the index of the first bad operation in ``trace``. ``replays`` are (failed the same way, tried).
    """

    invariant: str
    cause: str
    message: str
    step: int
    trace: Trace
    lineage: tuple[str, ...] = ()
    replays: tuple[int, int] = (1, 1)

    @property
    def kind(self) -> tuple[str, str]:
        """Invariant id and cause."""
        return self.invariant, self.cause

    @property
    def identity(self) -> tuple[str, str, tuple[str, ...]]:
        """Invariant, cause and the sequence of operation kinds of the trace."""
        return self.invariant, self.cause, tuple(type(operation).__name__ for operation in self.trace.operations)
