"""Work of the simulated device on CUDA streams: which events it waits for, and which it records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from kvsan.gpu_kernels.cuda_streams import _EVENTS_KEPT, CudaStreams

COMPUTE, COPY = 0, 1


class Recorder:
    """In place of ``torch.cuda`` where there is no GPU: writes down what is asked of it."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.streams = 0
        self.events = 0
        recorder = self

        class Stream:
            def __init__(self) -> None:
                recorder.streams += 1
                self.name = f"s{recorder.streams}"

            def wait_event(self, event: Event) -> None:
                recorder.log.append(f"{self.name} waits for {event.name}")

        class Event:
            def __init__(self) -> None:
                recorder.events += 1
                self.name = f"e{recorder.events}"

            def record(self, stream: Stream) -> None:
                recorder.log.append(f"{self.name} behind {stream.name}")

            def synchronize(self) -> None:
                recorder.log.append(f"host waits for {self.name}")

        self.Stream, self.Event = Stream, Event

    @contextmanager
    def stream(self, stream: object) -> Iterator[None]:
        self.log.append(f"on {stream.name}")  # type: ignore[attr-defined]
        yield


def test_work_waits_for_what_its_clock_names_and_for_nothing_else() -> None:
    cuda = Recorder()
    streams = CudaStreams(("compute", "copy"), cuda)
    for stream, clock in ((COMPUTE, (1, 0)), (COMPUTE, (2, 0)), (COPY, (1, 1))):
        with streams.work(stream, clock):
            cuda.log.append(f"work {clock}")
    assert cuda.log == [
        "on s1", "work (1, 0)", "e1 behind s1",
        "on s1", "work (2, 0)", "e2 behind s1",
        "s2 waits for e1", "on s2", "work (1, 1)", "e3 behind s2",
    ]  # fmt: skip


def test_a_clock_may_name_work_of_which_the_device_issued_less() -> None:
    cuda = Recorder()
    streams = CudaStreams(("compute", "copy"), cuda)
    with streams.work(COMPUTE, (1, 0)):
        pass
    with streams.work(COPY, (7, 1)):
        pass
    assert "s2 waits for e1" in cuda.log


def test_the_host_waits_for_the_last_work_that_it_has_seen() -> None:
    cuda = Recorder()
    streams = CudaStreams(("compute", "copy"), cuda)
    for sequence in (1, 2, 3):
        with streams.work(COMPUTE, (sequence, 0)):
            pass
    streams.synchronize((2, 0))
    assert cuda.log[-1] == "host waits for e2"


def test_events_do_not_pile_up() -> None:
    cuda = Recorder()
    streams = CudaStreams(("compute",), cuda)
    for sequence in range(1, _EVENTS_KEPT + 2):
        with streams.work(COMPUTE, (sequence,)):
            pass
    assert cuda.log[-1] == "host waits for e1"


@pytest.mark.gpu
def test_a_copy_on_a_second_stream_sees_what_the_first_has_written() -> None:
    streams = CudaStreams(("compute", "copy"))
    source = torch.zeros(1 << 24, device="cuda")
    destination = torch.empty_like(source)
    for round_number in range(1, 50):
        with streams.work(COMPUTE, (round_number, round_number - 1)):
            source.fill_(round_number)
        with streams.work(COPY, (round_number, round_number)):
            destination.copy_(source, non_blocking=True)
        streams.synchronize((round_number, round_number))
        assert torch.equal(destination.cpu(), torch.full_like(source, round_number).cpu())
