"""Candidates that may kill their process, each tried in a forked child: the target is imported once for all of them.

What a fork does not survive (a library whose threads are gone in the child) shows as a death of the empty trace, and
then nothing is shrunk. A shrunk trace is confirmed in a fresh process by the caller.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from kvsan.fuzz import wire
from kvsan.fuzz.deaths import Death, Watch, die_with_parent
from kvsan.fuzz.journal import RunWritten, SharedJournal, WritingJournal, read_written
from kvsan.fuzz.known import KnownFindings
from kvsan.fuzz.replay import Replayed, open_session, run
from kvsan.fuzz.search import Reporter, Search, SearchSettings
from kvsan.fuzz.shrink import Judge, NotRepeated, Operations, Shrinker
from kvsan.harness.clock import now_s
from kvsan.harness.configuration import Configuration, is_users_own
from kvsan.harness.registry import TargetFactory
from kvsan.harness.trace import Trace
from kvsan.harness.verdict import Finding, HarnessError, UsageError, Violation

_NEVER = 1 << 60
_SHRINK_AT_MOST_S = 30.0
_LOOK_EVERY_S = 0.05


def in_child(work: Callable[[], wire.Message], journal: SharedJournal, patience_s: float) -> wire.Message | Death:
    """Do some work in a forked child and return its message, or how the child died."""
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(receive)
        _be_child(work, send)
    os.close(send)
    try:
        return _attend(pid, receive, journal, patience_s)
    finally:
        os.close(receive)


def _be_child(work: Callable[[], wire.Message], send: int) -> NoReturn:
    code = 70
    try:
        die_with_parent()
        try:
            message = work()
        except UsageError as error:
            message = {"usage": str(error)}
        except HarnessError as error:
            message = {"harness": str(error)}
        line = wire.line_out(message)
        while line:
            line = line[os.write(send, line) :]
        code = 0
    except SystemExit as error:
        code = exit_code(error)
    except BaseException:  # the target's own kind of exception is a death like any other
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def exit_code(error: SystemExit) -> int:
    """Exit code that Python gives a process for this SystemExit."""
    return error.code & 255 if isinstance(error.code, int) else int(error.code is not None)


def _attend(pid: int, receive: int, journal: SharedJournal, patience_s: float) -> wire.Message | Death:
    """Wait for the child's message or its death, and leave no child behind."""
    os.set_blocking(receive, False)
    watch, received = Watch(patience_s), b""
    while True:
        select.select([receive], [], [], _LOOK_EVERY_S)
        ended, status = os.waitpid(pid, os.WNOHANG)
        received += _available(receive)
        if received.endswith(b"\n"):
            if not ended:
                os.waitpid(pid, 0)
            message: wire.Message = json.loads(received)
            return message
        if ended:
            return Death(os.waitstatus_to_exitcode(status), journal.read())
        if watch.hangs(journal.read()):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return Death(None, journal.read(), patience_s)


def _available(receive: int) -> bytes:
    received = b""
    try:
        while chunk := os.read(receive, 1 << 16):
            received += chunk
    except BlockingIOError:
        pass
    return received


def judge_in_children(
    factory: TargetFactory, journal: SharedJournal, patience_s: float, beyond_contract: bool
) -> Judge:
    """Judge candidates in children; a child's death is a violation. A user's kernel may be what kills it."""

    def judge(configuration: Configuration, operations: Operations, sweep_every: int, close: bool) -> Replayed:
        numbers = is_users_own(configuration.kernels)

        def work() -> wire.Message:
            journal.start(0, configuration)
            session = open_session(
                factory, configuration, numbers=numbers, sweep_every=sweep_every, beyond_contract=beyond_contract
            )
            return wire.replayed_out(run(session, operations, close=close, journal=journal))

        outcome = in_child(work, journal, patience_s)
        if isinstance(outcome, Death):
            if outcome.mark.operation == 0 and operations:
                raise UsageError(f"target {configuration.target}: its constructor: {outcome.how()}")
            return outcome.replayed(operations)
        if "usage" in outcome:
            raise UsageError(outcome["usage"])
        if "harness" in outcome:
            raise HarnessError(outcome["harness"])
        return wire.replayed_in(outcome)

    return judge


def repeat_run(
    factory: TargetFactory,
    settings: SearchSettings,
    known: KnownFindings,
    operations: int,
    journal: SharedJournal,
    patience_s: float,
) -> Trace | None:
    """Repeat one run in a child up to an operation, and return what was drawn; None if not even the target was made."""
    with tempfile.TemporaryDirectory(prefix="kvsan-") as folder:
        path = Path(folder) / "run"

        def work() -> wire.Message:
            with contextlib.suppress(RunWritten):
                Search(factory, settings, known, Reporter(), WritingJournal(path, operations)).run()
            return {}

        in_child(work, journal, patience_s)
        return read_written(path) if path.exists() else None


def shrink_in_children(
    factory: TargetFactory,
    trace: Trace,
    violation: Violation,
    journal: SharedJournal,
    patience_s: float,
    beyond_contract: bool,
) -> Finding | None:
    """Shrink a trace that kills its process; None if children do not die of it, or die of nothing."""
    judge = judge_in_children(factory, journal, patience_s, beyond_contract)
    nothing = judge(trace.configuration, (), _NEVER, True).violation
    if nothing is not None and nothing.kind == violation.kind:
        return None
    started = now_s()
    try:
        return Shrinker(judge, trace, violation, lambda: now_s() - started > _SHRINK_AT_MOST_S).shrink()
    except NotRepeated:
        return None
