"""Deaths: how a process ended, or that it hangs, as a violation of the target that it ran.

A process is taken for hanging when its journal does not change for a while; that also sees a loop in C that never lets
Python run.
"""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from kvsan.fuzz.journal import CLOSING, Mark
from kvsan.fuzz.replay import Replayed
from kvsan.harness.clock import now_s
from kvsan.harness.operations import Operation
from kvsan.harness.verdict import CRASH, Violation

HANG = "target.hang"
_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Watch:
    """Tells a process that hangs from one that works, by its marks."""

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self._last: Mark | None = None
        self._since = now_s()

    def hangs(self, mark: Mark, patience_s: float | None = None) -> bool:
        """Whether the mark has not changed for as long as patience lasts."""
        if mark != self._last:
            self._last, self._since = mark, now_s()
            return False
        return now_s() - self._since > (self.patience_s if patience_s is None else patience_s)


@dataclass(frozen=True, slots=True)
class Death:
    """``returncode`` as subprocess gives it, None if the process hung and was killed for it."""

    returncode: int | None
    mark: Mark
    patience_s: float = 0.0
    last_words: str = ""

    @property
    def kind(self) -> tuple[str, str]:
        """Invariant id and cause."""
        return (HANG, "silence") if self.returncode is None else (CRASH, self.how())

    @property
    def killed(self) -> bool:
        """Whether somebody else may have killed the process."""
        return self.returncode is not None and -self.returncode in (signal.SIGKILL, signal.SIGTERM)

    def how(self) -> str:
        """Say how the process ended."""
        if self.returncode is None:
            return f"no sign of life for {self.patience_s:g} s"
        if self.returncode < 0:
            return _signal_name(-self.returncode)
        return f"exit code {self.returncode}"

    def violation(self, operations: Sequence[Operation] = ()) -> Violation:
        """Tell the death as a violation; the operations let it say what the target was doing."""
        number = self.mark.operation
        operation = operations[number - 1] if 0 < number <= len(operations) else None
        where = "the end of the session" if self.mark.state == CLOSING or operation is None else repr(operation)
        lineage = (f"the process's last words: {self.last_words}",) if self.last_words else ()
        if self.returncode is None:
            return Violation(*self.kind, f"{self.how()}, in {where}", lineage)
        return Violation(*self.kind, f"the target's process ended: {self.how()}, in {where}", lineage)

    def step(self, operations: Sequence[Operation]) -> int:
        """Index of the operation that was fatal; behind the last one if it was the end of the session."""
        return len(operations) if self.mark.state == CLOSING else max(0, self.mark.operation - 1)

    def replayed(self, operations: Sequence[Operation]) -> Replayed:
        """Tell the death as the outcome of a replay; what was skipped is not known."""
        step = self.step(operations)
        return Replayed(self.violation(operations), step, step, ran=list(range(len(operations)))[: step + 1])


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
