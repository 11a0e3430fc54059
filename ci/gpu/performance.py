"""Which cases are timed on a GPU, and tiny ones that show on a CPU that they are timed and checked as they should be."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch

from kvsan.ci.gpu.attention_cases import attention_case
from kvsan.ci.gpu.cases import Case
from kvsan.ci.gpu.graph_cases import graph_case
from kvsan.ci.gpu.inputs import Shape
from kvsan.ci.gpu.measuring import Timed, measure
from kvsan.ci.gpu.memory_cases import Moved, copy_case, write_case
from kvsan.ci.gpu.timing import ClockTimer, CudaTimer, Timer
from kvsan.ci.kernels.kernel_set import KernelSet

_UNKNOWN_L2_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Work:
    """The sizes of all cases, and the seconds that each is sampled."""

    attention: tuple[Shape, ...]
    replayed: tuple[Shape, ...]
    written: tuple[Moved, ...]
    copied: tuple[Moved, ...]
    budget_s: float


GPU_WORK = Work(
    attention=(
        Shape(64, 4096, 1, 32, 8, 128, 16),
        Shape(1, 65536, 1, 32, 8, 128, 16),
        Shape(4, 2048, 2048, 32, 8, 128, 16),
        Shape(4, 8192, 512, 32, 8, 128, 16),
        Shape(64, 4096, 1, 32, 8, 128, 16, "fp8_e4m3"),
        Shape(64, 4096, 1, 32, 8, 128, 16, "int8_per_token_head"),
        Shape(64, 4096, 1, 32, 8, 128, 16, "nvfp4"),
    ),
    replayed=(Shape(64, 4096, 1, 32, 8, 128, 16),),
    written=(Moved(32768, 8, 128, 16),),
    copied=(Moved(4096, 8, 128, 16),),
    budget_s=2.0,
)
"""Heads as in an 8-billion-parameter model with grouped queries; each case moves hundreds of megabytes."""

TINY_WORK = Work(
    attention=(Shape(2, 40, 1, 4, 2, 32, 16), Shape(1, 40, 7, 4, 2, 32, 16), Shape(2, 20, 1, 4, 2, 32, 16, "nvfp4")),
    replayed=(Shape(2, 40, 1, 4, 2, 32, 16),),
    written=(Moved(20, 2, 32, 16),),
    copied=(Moved(3, 2, 32, 16),),
    budget_s=0.0,
)
"""For the interpreter."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Where cases are timed: torch's device, its L2 cache and multiprocessors, and a timer."""

    device: str
    l2_bytes: int
    processors: int
    timer: Timer


def gpu_machine() -> Machine:
    """Return the GPU that PyTorch uses."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    l2_bytes = getattr(properties, "L2_cache_size", 0) or _UNKNOWN_L2_BYTES
    return Machine("cuda", l2_bytes, properties.multi_processor_count, CudaTimer(l2_bytes))


def host_machine() -> Machine:
    """Return the CPU, for cases that the interpreter can afford."""
    return Machine("cpu", 1024, 2, ClockTimer())


def makers(work: Work, kernels: KernelSet, machine: Machine) -> Iterable[Callable[[], Case]]:
    """Yield one function for each case that makes it, input sets and all: only one case is in memory at a time."""
    device, l2_bytes = machine.device, machine.l2_bytes
    for shape in work.attention:
        yield partial(attention_case, shape, kernels, device, l2_bytes, machine.processors)
    for shape in work.replayed:
        yield partial(graph_case, shape, kernels, device, machine.processors)
    for moved in work.written:
        yield partial(write_case, moved, kernels, device, l2_bytes)
    for moved in work.copied:
        yield partial(copy_case, moved, kernels, device, l2_bytes)


def measure_all(
    work: Work, kernels: KernelSet, machine: Machine, tell: Callable[[str], None]
) -> tuple[list[Timed], list[str]]:
    """Measure every case; return times, and what ours did wrong."""
    torch.manual_seed(0)
    found: list[Timed] = []
    failures: list[str] = []
    for make in makers(work, kernels, machine):
        case = make()
        tell(f"  {case.name}: {case.sets} input sets")
        timed, wrong = measure(case, machine.timer, machine.device, machine.l2_bytes, work.budget_s)
        found += timed
        failures += wrong
        del case
        if machine.device == "cuda":
            torch.cuda.empty_cache()
    return found, failures
