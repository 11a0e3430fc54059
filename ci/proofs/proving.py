"""Claims on several processes: work travels as keys, results as data; a process that dies is an error of the harness."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace

from kvsan.harness.verdict import HarnessError, UsageError
from kvsan.invariants.proofs.obligation import PROVED, Outcome
from kvsan.invariants.proofs.solver import Limits

Prove = Callable[[str, int, int], Outcome]
"""Proves the claim of a key, with a time limit for each obligation in ms and a number of seeds."""

_SLOW_FIRST = ("kernel", "protocol", "addressing")


def with_seeds(prove: Callable[[Limits], Outcome], timeout_ms: int, seeds: int) -> Outcome:
    """Prove once with each of the solver's seeds; the first outcome that is no proof counts, seconds are those of all."""
    outcome = prove(Limits(timeout_ms, 0))
    seconds = outcome.seconds
    for seed in range(1, seeds):
        if outcome.status != PROVED:
            break
        outcome = prove(Limits(timeout_ms, seed))
        seconds += outcome.seconds
    return replace(outcome, seconds=seconds)


def prove_all(
    keys: Sequence[str], prove: Prove, processes: int, timeout_ms: int, seeds: int
) -> Iterator[tuple[str, Outcome]]:
    """Prove claims, and give each with its key as soon as it is done.

    ``prove`` is a function at the outermost level of a module. HarnessError if a process dies or a proof raises. Whoever
    stops early, by an interrupt for instance, leaves no process behind.
    """
    waiting = sorted(keys, key=_rank)
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_begin)
    try:
        futures = {pool.submit(prove, key, timeout_ms, seeds): key for key in waiting}
        for future in as_completed(futures):
            yield futures[future], _result(future, futures[future])
    except BrokenProcessPool as error:
        raise HarnessError(f"a process that proves died: {error}") from error
    finally:
        _stop(pool)


def _rank(key: str) -> int:
    """Slow parts first; keys that name no part, such as those of a user's kernel, are all alike."""
    part = key.partition("/")[0]
    return _SLOW_FIRST.index(part) if part in _SLOW_FIRST else 0


def _begin() -> None:
    """Kernels are compiled here, so nothing may interpret them; an interrupt is the parent's to handle."""
    os.environ.pop("TRITON_INTERPRET", None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _result(future: Future[Outcome], key: str) -> Outcome:
    try:
        return future.result()
    except (BrokenProcessPool, HarnessError, UsageError):
        raise
    except Exception as error:
        raise HarnessError(f"proving {key}: {type(error).__name__}: {error}") from error


def _stop(pool: ProcessPoolExecutor) -> None:
    """End what still runs: a proof cannot be asked to stop, and nothing of it is kept."""
    processes: Iterable[multiprocessing.process.BaseProcess] = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        if process.is_alive():
            process.terminate()
    for process in processes:
        process.join()
