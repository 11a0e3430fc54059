"""The worker process: a whole session, with a target that may crash, hang, print or exit.

Started as ``python -m kvsan.fuzz.worker JOURNAL``. Requests come as JSON lines on stdin, events leave as JSON lines on
what was stdout; the target's own prints go to stderr. The process ends when its stdin does, or when its parent dies.
"""

from __future__ import annotations

import _thread
import json
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from kvsan.fuzz import wire
from kvsan.fuzz.deaths import die_with_parent
from kvsan.fuzz.forked import exit_code, repeat_run, shrink_in_children
from kvsan.fuzz.journal import IDLE, SHRINKING, STARTING, SharedJournal
from kvsan.fuzz.known import KnownFindings, load_known
from kvsan.fuzz.profiles import DEFAULT
from kvsan.fuzz.replay import find_kernels, replay
from kvsan.fuzz.search import Reporter, Search, SearchSettings, SearchSummary, as_found
from kvsan.fuzz.shrink import Shrinker, judge_of
from kvsan.harness.configuration import HOST, Configuration
from kvsan.harness.grid import grid_of
from kvsan.harness.registry import TargetFactory, resolve
from kvsan.harness.trace import Trace
from kvsan.harness.verdict import Finding, HarnessError, UsageError, Violation
from kvsan.models_under_test.paged import make_target

_WARM_UP_STEPS = 200

Send = Callable[[wire.Message], None]


class Worker:
    """Answers requests, one after the other."""

    def __init__(self, send: Send, journal: SharedJournal) -> None:
        self._send = send
        self._journal = journal
        self._factories: dict[str, TargetFactory] = {}

    def answer(self, request: wire.Message) -> None:
        """Do what a request asks; its last event says that it is done."""
        answers = {"search": self._search, "replay": self._replay, "shrink": self._shrink, "autopsy": self._autopsy}
        try:
            answers[request["do"]](request)
        except KeyboardInterrupt:
            self._send({"event": "interrupted"})
        except UsageError as error:
            self._send({"event": "error", "kind": "usage", "message": str(error)})
        except Exception as error:
            text = str(error) if isinstance(error, HarnessError) else f"{type(error).__name__}: {error}"
            self._send({"event": "error", "kind": "harness", "message": text, "traceback": traceback.format_exc()})
        self._journal.state(IDLE)

    def _factory(self, configuration: Configuration) -> TargetFactory:
        """Import kernels and target, each once; what it takes is not held against a run.

        Kernels come first: they decide how Triton runs, which the target may import.
        """
        self._journal.state(STARTING)
        if configuration.kernels != HOST:
            find_kernels(configuration.kernels)
        target = configuration.target
        if target not in self._factories:
            self._factories[target] = resolve(target)
        return self._factories[target]

    def _search(self, request: wire.Message) -> None:
        settings = wire.settings_in(request["settings"])
        factory = self._factory(settings.configuration)
        if settings.numbers:
            warm_up(settings.configuration.dtype)
        known = _known(request, settings.configuration)
        search = Search(factory, settings, known, _Teller(self._send, self._journal), self._journal)
        try:
            search.run()
        except KeyboardInterrupt:  # it came before the search began or after it had ended
            search.summary.interrupted = True
        done = {"event": "done", "summary": wire.summary_out(search.summary)}
        try:
            self._send(done)
        except KeyboardInterrupt:
            self._send(done)

    def _replay(self, request: wire.Message) -> None:
        trace = wire.trace_in(request["trace"])
        factory = self._factory(trace.configuration)
        warm_up(trace.configuration.dtype)
        replayed = replay(
            factory,
            trace,
            beyond_contract=request["beyond_contract"],
            hashes=request["hashes"],
            journal=self._journal,
        )
        self._send({"event": "replayed", "replayed": wire.replayed_out(replayed)})

    def _shrink(self, request: wire.Message) -> None:
        trace, violation = wire.trace_in(request["trace"]), wire.violation_in(request["violation"])
        factory = self._factory(trace.configuration)
        judge = judge_of(
            factory,
            numbers=violation.needs_kernels,
            beyond_contract=request["beyond_contract"],
            journal=self._journal,
        )
        finding = Shrinker(judge, trace, violation).shrink()
        self._send({"event": "shrunk", "finding": wire.finding_out(finding)})

    def _autopsy(self, request: wire.Message) -> None:
        """Shrink a trace that kills its process; of a run in a search only the number is known, so it is repeated."""
        death, patience_s = wire.death_in(request["death"]), request["patience_s"]
        trace: Trace | None
        if "trace" in request:
            trace = wire.trace_in(request["trace"])
            factory = self._factory(trace.configuration)
        else:
            settings = wire.settings_in(request["settings"])
            factory = self._factory(settings.configuration)
            known = _known(request, settings.configuration)
            trace = repeat_run(factory, settings, known, death.mark.operation, self._journal, patience_s)
            if trace is not None:
                self._send({"event": "repeated", "trace": wire.trace_out(trace)})
        finding = None
        if trace is not None and trace.operations:
            violation = death.violation(trace.operations)
            finding = shrink_in_children(
                factory, trace, violation, self._journal, patience_s, request["beyond_contract"]
            )
        self._send({"event": "examined", "finding": None if finding is None else wire.finding_out(finding)})


class _Teller(Reporter):
    """Sends what a search tells."""

    def __init__(self, send: Send, journal: SharedJournal) -> None:
        self._send = send
        self._journal = journal

    def progress(self, summary: SearchSummary) -> None:
        """Send how far the search is."""
        self._send({"event": "progress", "summary": wire.summary_out(summary)})

    def run_done(self, summary: SearchSummary) -> None:
        """Send the accounts after each run: what a later death cannot take back."""
        self._send({"event": "run", "summary": wire.summary_out(summary)})

    def violated(self, violation: Violation, trace: Trace) -> None:
        """Send what was found, whole: the process may die while it is being shrunk."""
        self._journal.state(SHRINKING)
        finding = as_found(trace, violation, (1, 1))
        self._send({"event": "violated", "finding": wire.finding_out(finding)})

    def found(self, finding: Finding) -> None:
        """Send what was found, shrunk."""
        self._send({"event": "found", "finding": wire.finding_out(finding)})


def _known(request: wire.Message, configuration: Configuration) -> KnownFindings:
    if not request["known"]:
        return KnownFindings()
    return load_known(Path(request["known"]), configuration.target, configuration.kernels)


def warm_up(dtype: str) -> None:
    """Compile what the numbers oracle needs, so that it does not look as if the target hangs."""
    element_dtype = grid_of(dtype, 16).element_dtype
    settings = SearchSettings(Configuration(dtype=element_dtype), DEFAULT, steps=_WARM_UP_STEPS)
    Search(make_target, settings, KnownFindings(), Reporter()).run()


def _claim_output() -> Send:
    """Keep stdout for events; whatever else is printed, also by C code and by child processes, goes to stderr."""
    events = os.dup(1)
    os.dup2(2, 1)

    def send(message: wire.Message) -> None:
        """Send whole lines only: an interrupt waits."""
        line = wire.line_out(message)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            while line:
                line = line[os.write(events, line) :]
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    return send


def _claim_input() -> queue.SimpleQueue[wire.Message | None]:
    """Read requests in the background, so that the end of stdin interrupts whatever is being done; the target gets none."""
    stdin = os.fdopen(os.dup(0), "r", encoding="ascii")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    requests: queue.SimpleQueue[wire.Message | None] = queue.SimpleQueue()

    def read() -> None:
        for line in stdin:
            requests.put(json.loads(line))
        requests.put(None)
        _thread.interrupt_main()

    threading.Thread(target=read, daemon=True).start()
    return requests


def _interrupt_once(_number: int, _frame: object) -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> NoReturn:
    """Answer requests until there are no more."""
    code = 0
    try:
        signal.signal(signal.SIGINT, _interrupt_once)
        die_with_parent()
        send, requests = _claim_output(), _claim_input()
        sys.path.insert(0, os.getcwd())
        worker = Worker(send, SharedJournal(Path(sys.argv[1])))
        while (request := requests.get()) is not None:
            worker.answer(request)
    except KeyboardInterrupt:
        pass
    except SystemExit as error:
        code = exit_code(error)
    except BaseException:
        traceback.print_exc()
        code = 70
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
