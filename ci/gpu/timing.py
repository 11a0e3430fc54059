"""How calls are timed, and what is told of many times.

On a GPU one sample is one replay of a CUDA graph in which the call is made on each input set in turn, between two events.
Before it a buffer larger than the L2 cache is filled: that evicts what the last replay left there, and keeps the GPU busy
while the host gets ahead, so that no launch is waited for inside the events.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from kvsan.harness.clock import now_s

Call = Callable[[int], object]
"""Does the work on the input set of a number."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles of samples."""

    median: float
    low: float
    high: float
    samples: int


def spread(samples: list[float]) -> Spread:
    """Median and quartiles; ValueError without samples."""
    if not samples:
        raise ValueError("no samples: expected one at least")
    low, median, high = statistics.quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else samples * 3
    return Spread(median, low, high, len(samples))


class Timer(Protocol):
    """Makes samplers of calls."""

    def sampler(self, call: Call, sets: int) -> Callable[[], float]:
        """Return a function that makes the call on each of ``sets`` input sets and returns the seconds of one call."""


class ClockTimer:
    """Times by a clock of the host, for calls that have been done when they return."""

    def __init__(self, clock: Callable[[], float] = now_s) -> None:
        self._clock = clock

    def sampler(self, call: Call, sets: int) -> Callable[[], float]:
        """Return a sampler; see ``Timer.sampler``."""

        def sample() -> float:
            started = self._clock()
            for number in range(sets):
                call(number)
            return (self._clock() - started) / sets

        return sample


class CudaTimer:
    """Times replays of a CUDA graph by events."""

    def __init__(self, l2_bytes: int) -> None:
        self._filler = torch.empty(4 * l2_bytes, dtype=torch.uint8, device="cuda")

    def sampler(self, call: Call, sets: int) -> Callable[[], float]:
        """Return a sampler; see ``Timer.sampler``. Warms the call up first, so that kernels are compiled and loaded."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                for number in range(sets):
                    call(number)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for number in range(sets):
                call(number)
        started, stopped = _event(), _event()

        def sample() -> float:
            self._filler.fill_(1)
            started.record()
            graph.replay()
            stopped.record()
            stopped.synchronize()
            return float(started.elapsed_time(stopped)) / 1000 / sets

        for _ in range(3):
            sample()
        return sample


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
