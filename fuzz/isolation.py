"""Worker processes as their parent sees them: start, ask, listen, and tell from silence that one hangs."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections import deque
from pathlib import Path
from types import TracebackType

from kvsan.fuzz import wire
from kvsan.fuzz.deaths import Death, Watch
from kvsan.fuzz.journal import IDLE, RUNNING, SHRINKING, STARTING, SharedJournal
from kvsan.harness.configuration import Configuration, is_users_own
from kvsan.harness.trace_format import shown
from kvsan.harness.verdict import HarnessError, UsageError

HANG_TIMEOUT_S = 30.0
START_AT_MOST_S = 300.0
_GRACE_S = 5.0
_LOOK_EVERY_S = 0.1
_READ_AT_MOST = 1 << 22
_WORDS_KEPT = 500
_FINAL = frozenset({"done", "replayed", "shrunk", "examined", "interrupted"})


class WorkerDied(Exception):
    """The worker process ended or was killed for hanging."""

    def __init__(self, death: Death) -> None:
        super().__init__(death.how())
        self.death = death


class WorkerProcess:
    """One worker; a context manager that leaves no process behind."""

    def __init__(self, hash_seed: int, hang_timeout_s: float = HANG_TIMEOUT_S) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kvsan-")
        path = Path(self._folder.name) / "journal"
        SharedJournal.create(path)
        self._journal = SharedJournal(path)
        self._watch = Watch(hang_timeout_s)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "kvsan.fuzz.worker", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONHASHSEED": str(hash_seed)},
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.events_fd = self._process.stdout.fileno()
        self._errors_fd = self._process.stderr.fileno()
        for fd in (self.events_fd, self._errors_fd):
            os.set_blocking(fd, False)
        self._received = b""
        self._last_words: deque[str] = deque(maxlen=20)
        self.finished = False

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def send(self, request: wire.Message) -> None:
        """Ask for something."""
        assert self._process.stdin is not None
        self.finished = False
        with contextlib.suppress(BrokenPipeError):  # it is dead, and listening will say so
            self._process.stdin.write(wire.line_out(request))
            self._process.stdin.flush()

    def events(self, wait_s: float = _LOOK_EVERY_S) -> list[wire.Message]:
        """Return what has come; WorkerDied, or the error that the worker reports."""
        select.select([self.events_fd, self._errors_fd], [], [], wait_s)
        ended = self._process.poll() is not None
        self._hear_errors()
        self._received += _available(self.events_fd)
        *lines, self._received = self._received.split(b"\n")
        events = [json.loads(line) for line in lines]
        for event in events:
            if event["event"] == "error":
                raise _reported(event)
        if events:
            self.finished = events[-1]["event"] in _FINAL
        elif not self.finished:
            self._check(ended)
        return events

    def result(self) -> wire.Message:
        """Wait for the event that ends an answer."""
        while True:
            events = self.events()
            if self.finished:
                if events[-1]["event"] == "interrupted":
                    raise KeyboardInterrupt
                return events[-1]

    def _check(self, ended: bool) -> None:
        mark = self._journal.read()
        if ended:
            raise WorkerDied(Death(self._process.returncode, mark, 0.0, self._words()))
        patience_s = self._watch.patience_s
        constructing = mark.state == RUNNING and not mark.operation
        if mark.state in (STARTING, IDLE) or constructing:
            patience_s = max(START_AT_MOST_S, patience_s)
        elif mark.state == SHRINKING:
            patience_s = max(HANG_TIMEOUT_S, patience_s)
        if self._watch.hangs(mark, patience_s):
            self._kill()
            raise WorkerDied(Death(None, mark, patience_s, self._words()))

    def _hear_errors(self) -> None:
        text = _available(self._errors_fd)
        if os.environ.get("KVSAN_DEBUG"):
            os.write(2, text)
        self._last_words.extend(
            line[:_WORDS_KEPT] for line in text.decode("utf-8", "replace").splitlines() if line.strip()
        )

    def _words(self) -> str:
        self._hear_errors()
        return shown(self._last_words[-1].strip())[:200] if self._last_words else ""

    def interrupt(self) -> None:
        """Ask for the end of what is being done; the terminal may have asked already, which does no harm."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def close(self) -> None:
        """End the process, by force if it does not end by itself."""
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        try:
            self._process.wait(_GRACE_S if self.finished else 0.5)
        except subprocess.TimeoutExpired:
            self._kill()
        self._folder.cleanup()

    def _kill(self) -> None:
        self._process.kill()
        self._process.wait()


def before_any_operation(death: Death, configuration: Configuration) -> UsageError | None:
    """What a death is that no operation led to: target or kernel cannot be imported or made, which is bad input."""
    target, kernels = configuration.target, configuration.kernels
    if is_users_own(kernels):
        target += f" with kernel {kernels}"
    words = f"; its last words: {death.last_words}" if death.last_words else ""
    if death.mark.state in (STARTING, IDLE):
        return UsageError(f"target {target}: its process ended while it was imported: {death.how()}{words}")
    if death.mark.state == RUNNING and death.mark.operation == 0:
        return UsageError(f"target {target}: its constructor ended the process: {death.how()}{words}")
    return None


def _available(fd: int) -> bytes:
    received = b""
    with contextlib.suppress(BlockingIOError):
        while len(received) < _READ_AT_MOST and (chunk := os.read(fd, 1 << 16)):
            received += chunk
    return received


def _reported(event: wire.Message) -> Exception:
    if event["kind"] == "usage":
        return UsageError(event["message"])
    if os.environ.get("KVSAN_DEBUG"):
        sys.stderr.write(event["traceback"])
    return HarnessError(event["message"])
