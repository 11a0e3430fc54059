"""One checked launch under Triton's interpreter: which kernel and program run now, and where in the source they are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from kvsan.gpu_kernels.interface import KernelBug

_running: list[Launch] = []

Precondition = Callable[[str, Mapping[str, Any], Sequence[str], tuple[int, ...]], str]
"""Looks at a kernel's ``module:function``, a launch's arguments by name, which of them are constexprs, and the grid.

Says what is wrong with them, nothing if they are as they should be.
"""

preconditions: list[Precondition] = []
"""What every checked launch is asked before its first program runs."""


@dataclass(slots=True)
class Launch:
    """A launch that runs now.

    ``interpreter`` is Triton's interpreter module, ``function`` the rewritten kernel, ``memory`` what checks its accesses
    (``memory.Memory``); ``bug`` is what was reported, since Triton wraps exceptions that leave a kernel.
    """

    interpreter: Any
    function: Any
    memory: Any
    bug: KernelBug | None = field(default=None, init=False)

    def program(self) -> tuple[int, int, int]:
        """Ids of the program that runs."""
        x, y, z = self.interpreter.interpreter_builder.grid_idx
        return x, y, z

    def program_number(self) -> int:
        """Position of the program that runs among the launch's, from 0."""
        x, y, z = self.program()
        _, ny, nz = self.interpreter.interpreter_builder.grid_dim
        return int((x * ny + y) * nz + z)

    def program_numbered(self, number: int) -> tuple[int, int, int]:
        """Ids of a program by its position."""
        _, ny, nz = self.interpreter.interpreter_builder.grid_dim
        return number // (ny * nz), number // nz % ny, number % nz

    def report(self, kind: str, lane: tuple[int, ...], message: str) -> NoReturn:
        """Raise KernelBug for the source line that runs now."""
        file, line = self.source()
        self.bug = KernelBug(
            kind=kind,
            kernel=self.function.__name__,
            file=file,
            line=line,
            program=self.program(),
            lane=lane,
            message=message,
        )
        raise self.bug

    def check_arguments(self, arguments: Mapping[str, Any], constexprs: Sequence[str], grid: tuple[int, ...]) -> None:
        """Raise KernelBug, of kind ``precondition``, if the launch is given what its kernel does not allow."""
        name = f"{self.function.__module__}:{self.function.__name__}"
        for precondition in preconditions:
            if problem := precondition(name, arguments, constexprs, grid):
                code = self.function.__code__
                place = Path(code.co_filename).name, code.co_firstlineno
                self.bug = KernelBug("precondition", self.function.__name__, *place, (0, 0, 0), (), problem)
                raise self.bug

    def report_lanes(self, kind: str, bad: npt.NDArray[np.bool_], message: str) -> None:
        """Raise KernelBug for the first lane that is marked, if one is."""
        if bad.any():
            self.report(kind, lane_at(int(np.argmax(bad)), bad.shape), message)

    def source(self) -> tuple[str, int]:
        """File name and line of the innermost kernel or helper on the stack that is not Triton's own library."""
        # by identity: equal code objects may come from two files
        codes = {id(function.__code__) for function in self.interpreter.InterpretedFunction.rewritten_fn.values()}
        codes.add(id(self.function.__code__))
        library = Path(self.interpreter.__file__).parents[1]
        frame = sys._getframe()
        while id(frame.f_code) not in codes or Path(frame.f_code.co_filename).is_relative_to(library):
            assert frame.f_back is not None, "reported outside of a kernel"
            frame = frame.f_back
        return Path(frame.f_code.co_filename).name, frame.f_lineno


def lane_at(position: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Index in a block of what is at a flat position; () for scalars, which the interpreter keeps in shape [1]."""
    return () if shape in ((), (1,)) else tuple(int(index) for index in np.unravel_index(position, shape))


def running_launch() -> Launch | None:
    """Return the checked launch that runs now, if there is one."""
    return _running[-1] if _running else None


@contextmanager
def running(launch: Launch) -> Iterator[None]:
    """Make a launch the one that runs."""
    _running.append(launch)
    try:
        yield
    finally:
        _running.pop()
