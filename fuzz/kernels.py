"""Kernels by name: ``host``, ``triton``, or ``package.module:function``, a function of a user's own.

Nothing here is imported before it is asked for: torch takes a second, and Triton must not be imported before it is
decided whether its kernels are interpreted.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from kvsan.gpu_kernels.host import HostKernels
from kvsan.gpu_kernels.interface import Kernels, UnusableKernels
from kvsan.gpu_kernels.user_function import find_function
from kvsan.harness.configuration import HOST, TRITON

BUILT_IN = (HOST, TRITON)


def kernels_named(name: str) -> Kernels[Any]:
    """Return the kernels of a name, on a CUDA device if there is one; UnusableKernels if there are none."""
    if name == HOST:
        return HostKernels()
    if name == TRITON:
        if importlib.util.find_spec("triton") is None:
            raise UnusableKernels("kernels triton: Triton is not installed here; expected it, or --kernels host")
        interpret_without_device()
        return _triton_kernels()
    if ":" not in name:
        raise UnusableKernels(
            f"kernels {name!r}: unknown; expected {', '.join(BUILT_IN)}, or package.module:function for your own"
        )
    interpret_without_device()
    function = find_function(name)
    from kvsan.gpu_kernels.user_kernel import UserKernels

    if has_device():
        return UserKernels(function, _triton_kernels(), TRITON, "cuda")
    return UserKernels(function, HostKernels(), HOST, "cpu")


def has_device() -> bool:
    """Whether there is a CUDA device; without one Triton kernels are interpreted, which is slow."""
    import torch

    return torch.cuda.is_available()


def interpret_without_device() -> None:
    """Let Triton kernels be interpreted and checked if there is no device; a user's module may import Triton next.

    UnusableKernels if Triton was imported for compiling.
    """
    if not has_device() and importlib.util.find_spec("triton") is not None:
        from kvsan.gpu_kernels import interpreter

        try:
            interpreter.enable()
        except RuntimeError as error:
            raise UnusableKernels(f"kernels cannot be interpreted: {error}") from error
        from kvsan.invariants.proofs.kernels import preconditions

        preconditions.install()


def _triton_kernels() -> Kernels[Any]:
    from kvsan.gpu_kernels.triton_kernels import TritonKernels

    kernels: Kernels[Any] = TritonKernels()
    return kernels
