"""The checked interpreter asks, before each launch of this repository's kernels, whether it keeps what proofs assume.

Nothing of the proofs is imported before such a launch: a session starts its process again and again while it shrinks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvsan.gpu_kernels.interpreter.launch import preconditions

_FOLDER = "kvsan.gpu_kernels."
_INTEGERS = {"torch.int32": "*i32", "torch.int64": "*i64"}


def install() -> None:
    """Let every checked launch of this process be asked; the interpreter is enabled already."""
    if problem_of not in preconditions:
        preconditions.append(problem_of)


def problem_of(name: str, arguments: Mapping[str, Any], constexprs: Sequence[str], grid: tuple[int, ...]) -> str:
    """What a launch of a kernel does not keep of its specification; nothing for kernels that have none."""
    if not name.startswith(_FOLDER):
        return ""
    from kvsan.invariants.proofs.kernels.catalogue import specification_of
    from kvsan.invariants.proofs.kernels.known_launch import broken_promises

    try:
        specify = specification_of(name.rpartition(":")[2])
    except KeyError:
        return ""
    constants = {one: arguments[one] for one in constexprs}
    signature = {one: _type(value) for one, value in arguments.items() if one not in constants}
    return next(broken_promises(signature, constants, arguments, grid, specify), "")


def _type(value: Any) -> str:
    if hasattr(value, "dtype"):
        return _INTEGERS.get(str(value.dtype), "*fp32")
    return "i64" if isinstance(value, int) else "fp32"
