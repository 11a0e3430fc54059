"""What kernels do wrong while they run, told as violations: a sanitizer's report, an exception of a user's kernel,
or ranks that hold different bits for one head."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from kvsan.gpu_kernels.interface import KernelBug, KernelRaised
from kvsan.gpu_kernels.sharded import RanksDisagree
from kvsan.harness.verdict import CRASH, KERNEL, KERNEL_CRASH, NUMBERS, Violation

P = ParamSpec("P")
R = TypeVar("R")


def runs_kernels(method: Callable[P, R]) -> Callable[P, R]:
    """Let a method raise Violation for what its kernels did."""

    @wraps(method)
    def judged(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except KernelBug as bug:
            raise Violation(KERNEL, bug.kind, str(bug)) from bug
        except KernelRaised as error:
            raise Violation(CRASH, KERNEL_CRASH + error.kind, str(error)) from error
        except RanksDisagree as error:
            raise Violation(NUMBERS, "replicas", str(error)) from error

    return judged
