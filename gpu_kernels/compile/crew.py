"""Compile kernels down to machine code for GPUs that are not there.

The interpreter runs a kernel on the CPU and passes what a compiler refuses (types that change by branch, shapes that
tensor cores do not take), and says nothing about registers. So every kernel is compiled, in each configuration in which
it is launched, for every kind of GPU. A `Build` says what to compile; nothing here needs a GPU or a driver.

Compiling happens in worker processes (`worker`), for three reasons: a process that interprets cannot compile;
a compiler that crashes takes only its process along; and Triton holds the interpreter lock. Workers see none of the
environment variables that change what Triton compiles.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, TypeAlias

from kvsan.gpu_kernels.compile.build import TARGETS, Build, Outcome, Report, check_distinct
from kvsan.gpu_kernels.compile.resources import Resources

Message: TypeAlias = dict[str, Any]

_CHANGES_COMPILING = ("TRITON_", "AMDGCN_", "DISABLE_", "LLVM_", "MLIR_", "NVPTX_", "PTXAS_", "USE_IR_LOC")
_START_TIMEOUT_S = 300.0
_LAST_WORDS_BYTES = 1 << 16


class WorkerFailure(RuntimeError):
    """No worker can be started; the message is what it last said."""


def results_folder() -> Path:
    """Folder of the result cache, ``$XDG_CACHE_HOME/kvsan/kernels`` or ``~/.cache/kvsan/kernels``; need not exist."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kvsan" / "kernels"


def compile_builds(
    builds: Iterable[Build],
    targets: Iterable[str] = tuple(TARGETS),
    *,
    workers: int = 1,
    results: Path | None = None,
    timeout_s: float = 600.0,
    done: Callable[[Outcome, int, int], None] = lambda outcome, count, total: None,
) -> Report:
    """Compile every build for those of the targets on which it exists.

    ``results`` is the folder of the result cache, None to do without; ``done`` hears each outcome as it comes, with how
    many there are and will be. What is compiled stays in the cache when this is interrupted. A compiler that takes longer than
    ``timeout_s`` is killed. WorkerFailure if no worker starts.
    """
    builds, wanted = list(builds), set(targets)
    check_distinct(builds)
    jobs = [(build, target) for build in builds for target in build.targets if target in wanted]
    with tempfile.TemporaryDirectory(prefix="kvsan-kernels-") as scratch:
        crew = _Crew(jobs, Path(scratch), results, timeout_s)
        outcomes = crew.work(max(1, min(workers, len(jobs))), done)
        return Report(crew.triton, tuple(outcomes))


class _Crew:
    """Threads that share a list of jobs, each with a worker process of its own."""

    def __init__(self, jobs: list[tuple[Build, str]], scratch: Path, results: Path | None, timeout_s: float) -> None:
        self._jobs = jobs
        self._scratch = scratch
        self._results = results
        self._timeout_s = timeout_s
        self._todo = iter(range(len(jobs)))
        self._lock = threading.Lock()
        self._news: queue.Queue[tuple[int, Outcome] | BaseException] = queue.Queue()
        self._running: set[_Worker] = set()
        self._stopped = False
        self.triton = ""

    def work(self, workers: int, done: Callable[[Outcome, int, int], None]) -> list[Outcome]:
        threads = [threading.Thread(target=self._run_thread, daemon=True) for _ in range(workers)]
        outcomes: dict[int, Outcome] = {}
        for thread in threads:
            thread.start()
        try:
            while len(outcomes) < len(self._jobs):
                news = self._news.get()
                if isinstance(news, BaseException):
                    raise news
                outcomes[news[0]] = news[1]
                done(news[1], len(outcomes), len(self._jobs))
        finally:
            self._stop()
            for thread in threads:
                thread.join()
        return [outcomes[index] for index in range(len(self._jobs))]

    def _stop(self) -> None:
        with self._lock:
            self._stopped = True
            for worker in self._running:
                worker.kill()

    def _run_thread(self) -> None:
        worker: _Worker | None = None
        try:
            for index in self._indices():
                if worker is None:
                    worker = self._start()
                build, target = self._jobs[index]
                answer = worker.ask({"build": asdict(build), "target": target})
                if answer is None:
                    self._news.put((index, Outcome(build, target, harness_error=self._retire(worker))))
                    worker = None
                else:
                    if "error" in answer:
                        answer["error"] = "\n".join([*worker.last_words(20), answer["error"]])
                    self._news.put((index, _outcome(build, target, answer)))
        except BaseException as error:
            self._news.put(error)
        finally:
            if worker is not None:
                self._retire(worker)

    def _indices(self) -> Iterator[int]:
        while True:
            with self._lock:
                index = None if self._stopped else next(self._todo, None)
            if index is None:
                return
            yield index

    def _start(self) -> _Worker:
        worker = _Worker(self._scratch, self._results, self._timeout_s)
        with self._lock:
            self._running.add(worker)
            if self._stopped:
                worker.kill()
        hello = worker.listen(_START_TIMEOUT_S)
        if hello is None:
            raise WorkerFailure(f"the process that compiles does not start: {self._retire(worker)}")
        self.triton = hello["triton"]
        return worker

    def _retire(self, worker: _Worker) -> str:
        with self._lock:
            self._running.discard(worker)
        return worker.end()


class _Worker:
    """One worker process, which answers one question at a time."""

    def __init__(self, scratch: Path, results: Path | None, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._timed_out = ""
        self._words: IO[bytes] = tempfile.TemporaryFile(dir=scratch)  # noqa: SIM115
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_CHANGES_COMPILING)}
        environment |= {
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "TMPDIR": str(scratch),
            "TRITON_CACHE_DIR": str(scratch / "triton"),
            "TRITON_ALWAYS_COMPILE": "1",  # from a cache would come no report of the assembler
            "TRITON_DUMP_PTXAS_LOG": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "kvsan.gpu_kernels.compile.worker", *([str(results)] if results else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            env=environment,
            process_group=0,  # an assembler that it has started ends with it
        )

    def ask(self, question: Message) -> Message | None:
        """Return the worker's answer; None if it died over the question."""
        assert self._process.stdin is not None
        self._words.seek(0)  # the process writes at the same offset
        self._words.truncate()
        with suppress(BrokenPipeError):  # it is dead, and listening says so
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
        return self.listen(self._timeout_s)

    def listen(self, timeout_s: float) -> Message | None:
        """Return what the worker says next; None at its end, which comes at the latest after ``timeout_s``."""
        assert self._process.stdout is not None
        with self._alarm(timeout_s):
            line = self._process.stdout.readline()
        answer: Message | None = json.loads(line) if line.endswith(b"\n") else None
        return answer

    def kill(self) -> None:
        """End it now; may be called from any thread."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> str:
        """End it and say how it ended, with its last words."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        code = self._process.wait()
        self._process.stdout.close()
        last = self.last_words(3)
        self._words.close()
        how = self._timed_out or (f"killed by signal {-code}" if code < 0 else f"exit code {code}")
        return ": ".join([how, *([" / ".join(last)] if last else [])])

    def last_words(self, lines: int) -> list[str]:
        """The last lines that it wrote to stderr since it was asked; call it when it has answered or ended."""
        size = self._words.seek(0, os.SEEK_END)
        self._words.seek(max(0, size - _LAST_WORDS_BYTES))
        return self._words.read().decode(errors="replace").strip().splitlines()[-lines:]

    @contextmanager
    def _alarm(self, timeout_s: float) -> Iterator[None]:
        def ring() -> None:
            self._timed_out = f"no answer in {timeout_s:g} s"
            self.kill()

        timer = threading.Timer(timeout_s, ring)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _outcome(build: Build, target: str, answer: Message) -> Outcome:
    resources = answer.pop("resources", None)
    return Outcome(build, target, Resources(**resources) if resources else None, **answer)
