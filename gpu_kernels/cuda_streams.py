"""The simulated device's streams and events as real ones: CUDA streams, ordered by CUDA events.

The simulation decides in which order work is issued; with this, it is issued to streams of the GPU that nothing else orders, so
that copies and kernels really overlap as far as their vector clocks allow. Each piece of work waits for the events that its
clock names, and records one behind itself. Not yet run on a GPU.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

_EVENTS_KEPT = 1024


class Cuda(Protocol):
    """The part of ``torch.cuda`` that is used."""

    Stream: Any
    Event: Any

    def stream(self, stream: Any) -> AbstractContextManager[Any]:
        """Make a stream the current one, on which kernels are launched."""


class CudaStreams:
    """One CUDA stream for each stream of the simulated device.

    Work is named by (stream, sequence) from 1, ascending in each stream, and ``clock[s]`` is the last work of stream s that is
    ordered before it, as in ``kvsan.harness.device``.
    """

    def __init__(self, streams: Sequence[str], cuda: Cuda | None = None) -> None:
        if cuda is None:
            import torch

            cuda = torch.cuda
        self._cuda = cuda
        self._streams = [cuda.Stream() for _ in streams]
        self._events: list[deque[tuple[int, Any]]] = [deque() for _ in streams]

    @contextmanager
    def work(self, stream: int, clock: Sequence[int]) -> Iterator[None]:
        """Launch what is launched inside on a stream, behind everything that the clock names."""
        own = self._streams[stream]
        for other, upto in enumerate(clock):
            event = None if other == stream else self._event(other, upto)
            if event is not None:
                own.wait_event(event)
        with self._cuda.stream(own):
            yield
        behind = self._cuda.Event()
        behind.record(own)
        events = self._events[stream]
        events.append((clock[stream], behind))
        if len(events) > _EVENTS_KEPT:
            events.popleft()[1].synchronize()

    def synchronize(self, clock: Sequence[int]) -> None:
        """Let the host wait until the last work of each stream that the clock names is done."""
        for stream, upto in enumerate(clock):
            event = self._event(stream, upto)
            if event is not None:
                event.synchronize()

    def _event(self, stream: int, upto: int) -> Any:
        """Event behind the last work of a stream up to a sequence; None if there is none, or its end has been waited for."""
        return next((event for sequence, event in reversed(self._events[stream]) if sequence <= upto), None)
