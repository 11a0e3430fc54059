"""One concrete launch of a kernel, run in the repaired interpreter over *imagined* memory: what each lane touches.

The kernel is the real one. Its tensors have addresses, shapes, strides and what index tensors hold, but no storage: a load
of data gives zeros, and stores are written down and lost. Addresses and masks never depend on data (proofs reject such a
kernel), so they are the same as in a real launch, and a pool of 2**31 elements costs nothing.

A process that interprets cannot compile, hence `Interpreter`: a process of its own, which takes launches one by one.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any

from kvsan.gpu_kernels.interface import KernelBug
from kvsan.harness.verdict import HarnessError

CHILD = "kvsan.invariants.proofs.kernels.interpreting"

Program = tuple[int, int, int]
Lane = tuple[int, ...]


class TooLarge(Exception):
    """A launch that spans more addresses than there are."""


@dataclass(frozen=True, slots=True)
class ConcreteTensor:
    """A tensor argument: ``shape`` and ``strides`` in elements; its type is in the launch's signature.

    ``contents`` of an index tensor by offset in elements, ``fill`` everywhere else. Tensors that name the same ``storage``
    share an address; "" is memory of its own.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    contents: Mapping[int, int] = field(default_factory=dict)
    fill: int = 0
    storage: str = ""


@dataclass(frozen=True, slots=True)
class ConcreteLaunch:
    """A launch: ``kernel`` is ``module:function``, found in ``folder`` too if that is not "".

    ``signature`` and ``constexprs`` as in a `Build`; ``scalars``: integer arguments (floats are 1.0); ``checked``: whether
    the interpreter looks for accesses out of bounds and races. Integer overflow is always looked for.
    """

    kernel: str
    signature: Mapping[str, str]
    constexprs: Mapping[str, Any]
    scalars: Mapping[str, int]
    tensors: Mapping[str, ConcreteTensor]
    grid: tuple[int, ...]
    folder: str = ""
    checked: bool = True


@dataclass(frozen=True, slots=True)
class Recorded:
    """The active lanes of one load, store or atomic of one program, ``offsets`` in elements of ``tensor``.

    ``loops``: variables of the loops over ``range`` around it, outermost first; ``place``: ``file:line``.
    """

    program: Program
    how: str
    tensor: str
    place: str
    loops: tuple[int, ...]
    shape: tuple[int, ...]
    lanes: tuple[Lane, ...]
    offsets: tuple[int, ...]

    def at(self, lane: Lane) -> int | None:
        """Offset of a lane; None if it is not active."""
        return self.offsets[self.lanes.index(lane)] if lane in self.lanes else None


@dataclass(frozen=True, slots=True)
class RecordedLoop:
    """A loop over ``range(start, stop, step)`` that was entered."""

    program: Program
    place: str
    loops: tuple[int, ...]
    start: int
    stop: int
    step: int


@dataclass(frozen=True, slots=True)
class RecordedGuard:
    """A select between floats: the lanes in which what the kernel computes was ``taken`` and not a constant (`Guard`)."""

    program: Program
    place: str
    loops: tuple[int, ...]
    shape: tuple[int, ...]
    taken: tuple[Lane, ...]


@dataclass(frozen=True, slots=True)
class Interpreted:
    """What a launch did: ``bug`` if the interpreter reported one, which ends it; ``error`` if the kernel raised."""

    accesses: tuple[Recorded, ...] = ()
    loops: tuple[RecordedLoop, ...] = ()
    guards: tuple[RecordedGuard, ...] = ()
    bug: KernelBug | None = None
    error: str = ""

    def lanes(self) -> Iterator[tuple[Program, str, str, Lane, int, str]]:
        """Program, how, tensor, lane, offset and place of every active lane, in order."""
        for one in self.accesses:
            for lane, offset in zip(one.lanes, one.offsets, strict=True):
                yield one.program, one.how, one.tensor, lane, offset, one.place


class Interpreter:
    """A process that interprets launches; a context manager, whose process starts with the first launch."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Interpreter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def run(
        self, launch: ConcreteLaunch, programs: tuple[Program, ...] | None = None, timeout_s: float = 120.0
    ) -> Interpreted:
        """Run a launch, only those ``programs`` of it unless None, in that order.

        HarnessError if the process fails or time is up; TooLarge if there are not enough addresses (see `interpreting`).
        """
        request = {"launch": asdict(launch), "programs": programs}
        for tensor in request["launch"]["tensors"].values():  # type: ignore[index,call-overload]
            tensor["contents"] = list(tensor["contents"].items())
        answer = json.loads(self._exchange(json.dumps(request).encode() + b"\n", timeout_s))
        if answer.get("too_large"):
            raise TooLarge(answer["failed"])
        if "failed" in answer:
            raise HarnessError(f"a launch of {launch.kernel} cannot be interpreted: {answer['failed']}")
        return _interpreted(answer)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _exchange(self, request: bytes, timeout_s: float) -> bytes:
        if self._process is None:
            environment = {**os.environ, "TRITON_INTERPRET": "1"}
            self._process = subprocess.Popen(
                [sys.executable, "-m", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
            )
        process, deadline = self._process, time.monotonic() + timeout_s
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(request)
            process.stdin.flush()
        except BrokenPipeError:
            self.close()
            raise HarnessError("the process that interprets kernels has ended") from None
        parts: list[bytes] = []
        while not parts or not parts[-1].endswith(b"\n"):
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            part = os.read(process.stdout.fileno(), 1 << 20) if ready else b""
            if not part:
                self.close()
                raise HarnessError(
                    "the process that interprets kernels " + ("has ended" if ready else f"took {timeout_s} s")
                )
            parts.append(part)
        return b"".join(parts)


def _interpreted(answer: dict[str, Any]) -> Interpreted:
    bug = answer["bug"]
    return Interpreted(
        tuple(
            Recorded(
                _program(one["program"]), one["how"], one["tensor"], one["place"], tuple(one["loops"]), tuple(one["shape"]),
                _lanes(one["lanes"]), tuple(one["offsets"]),
            )
            for one in answer["accesses"]
        ),
        tuple(
            RecordedLoop(_program(one["program"]), one["place"], tuple(one["loops"]), *one["range"]) for one in answer["loops"]
        ),
        tuple(
            RecordedGuard(_program(one["program"]), one["place"], tuple(one["loops"]), tuple(one["shape"]), _lanes(one["taken"]))
            for one in answer["guards"]
        ),
        None if bug is None else KernelBug(**{**bug, "program": tuple(bug["program"]), "lane": tuple(bug["lane"])}),
        answer["error"],
    )  # fmt: skip


def _program(ids: list[int]) -> Program:
    first, second, third = ids
    return first, second, third


def _lanes(lanes: list[list[int]]) -> tuple[Lane, ...]:
    return tuple(map(tuple, lanes))
