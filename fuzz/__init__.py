"""How targets are searched: generator, search loop, Hypothesis machine, shrinker, corpus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvsan.fuzz.machine import machine_for

__all__ = ["machine_for"]


def __getattr__(name: str) -> Any:
    """Import the machine, and Hypothesis with it, only for those who ask for it."""
    if name == "machine_for":
        from kvsan.fuzz.machine import machine_for

        return machine_for
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
