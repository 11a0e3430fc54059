"""Whose error is it? An exception that comes out of a target's code is the target's; everything else is KVSan's own."""

from __future__ import annotations

from types import TracebackType

from kvsan.harness.operations import Operation
from kvsan.harness.target import Target, View
from kvsan.harness.verdict import CRASH, HarnessError, UsageError, Violation

_MESSAGE_LENGTH = 300
_NOBODY = frozenset({"builtins", "typing"})
"""Modules of base classes that no target's author wrote."""


def blame_of(error: Exception, target: Target, view: View, operation: Operation | None, *others: object) -> Exception:
    """Return what to raise in place of ``error``: a ``target.crash`` violation, a UsageError or a HarnessError.

    ``others`` are further objects of the target's.
    """
    if isinstance(error, UsageError | HarnessError):
        return error
    text = f"{type(error).__name__}: {error}".splitlines()[0][:_MESSAGE_LENGTH]
    doing = "the end of the session" if operation is None else repr(operation)
    all_kinds = [kind for part in (target, view, *others) for kind in type(part).__mro__]
    kinds = [kind for kind in all_kinds if kind.__module__ not in _NOBODY]
    if _passes_through(error.__traceback__, {kind.__module__ for kind in kinds}):
        return Violation(CRASH, type(error).__name__, f"{text}, in {doing}")
    if isinstance(error, TypeError | AttributeError) and any(kind.__name__ in str(error) for kind in kinds):
        return UsageError(f"{type(target).__name__} does not implement kvsan.harness.target.Target: {text}")
    return HarnessError(f"{text}, in {doing}")


def _passes_through(traceback: TracebackType | None, modules: set[str]) -> bool:
    while traceback is not None:
        if traceback.tb_frame.f_globals.get("__name__") in modules:
            return True
        traceback = traceback.tb_next
    return False
