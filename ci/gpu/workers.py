"""Comparisons in several processes: nearly every problem compiles kernels of its own, and a lost GPU context loses one.

A process that crashes or hangs fails the problem that it had announced last.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from kvsan.ci.gpu.comparisons import Outcome
from kvsan.harness.clock import now_s

WORKER = (sys.executable, "-m", "kvsan.ci.gpu.worker")
_SEEDS_APART = 1_000_003


def compare_in_processes(
    processes: int,
    seed: int,
    seconds: float,
    interpret: bool,
    far: bool,
    grace_s: float = 60.0,
    command: Sequence[str] = WORKER,
) -> list[Outcome]:
    """Run ``processes`` workers for ``seconds``, and one more for far problems if asked; kill who needs ``grace_s`` more.

    ``command`` is what starts one, without its options.
    """
    environment = os.environ | {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    with TemporaryDirectory() as folder:
        running = []
        for number in range(processes + far):
            out, err = (Path(folder) / f"{number}.{name}" for name in ("out", "err"))
            options = ["--seed", str(seed * _SEEDS_APART + number), "--seconds", str(seconds)]
            options += ["--interpret"] * interpret + ["--far"] * (number == processes)
            with out.open("w") as stdout, err.open("w") as stderr:
                process = subprocess.Popen([*command, *options], stdout=stdout, stderr=stderr, env=environment)
            running.append((process, out, err))
        deadline = now_s() + seconds + grace_s
        found = []
        for process, out, err in running:
            try:
                end = f"exit code {process.wait(timeout=max(0.1, deadline - now_s()))}"
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                end = f"no end after {seconds + grace_s:.0f} s"
            found += read_outcomes(out.read_text("utf-8"), end, err.read_text("utf-8", "replace"))
        return found


def read_outcomes(text: str, end: str, errors: str) -> list[Outcome]:
    """Read what a worker printed; ``end`` says how it ended, ``errors`` is its standard error."""
    found: list[Outcome] = []
    announced = None
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except ValueError:  # cut off by the end of the process
            continue
        if "failures" in record:
            found.append(Outcome(record["kind"], record["problem"], tuple(record["failures"]), record["share"]))
            announced = None
        else:
            announced = record
    if end != "exit code 0":
        last_words = errors.strip().splitlines()[-1:] or ["nothing on standard error"]
        kind, problem = (announced["kind"], announced["problem"]) if announced else ("start of a process", "no problem")
        found.append(Outcome(kind, problem, (f"did not return: {end}; {last_words[0][:400]}",)))
    return found
