"""The configuration of a trace: which target, how large, which cache groups, which numbers."""

from __future__ import annotations

from dataclasses import dataclass

from kvsan.gpu_kernels.formats import FORMATS
from kvsan.harness.target import Group
from kvsan.harness.verdict import UsageError

OptionValue = str | int | bool

DTYPES = tuple(FORMATS)
"""Of K and V; those with scales need the ``triton`` kernels."""
HOST = "host"
"""Name of the kernels that run on the CPU, the default."""
TRITON = "triton"
"""Name of KVSan's own Triton kernels."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """Everything besides the operations that decides what a trace does.

    ``groups`` are written ``full`` or ``sliding:W`` with the window W in tokens (``sliding`` alone: four blocks).
    ``options`` are the target's own, sorted by name. ``hash_seed`` is the PYTHONHASHSEED of an engine's worker process.
    ``kernels`` are those of the numbers oracle: ``host``, ``triton``, or ``package.module:function``, a user's own.
    """

    target: str = "paged"
    num_units: int = 64
    block_size: int = 4
    groups: tuple[str, ...] = ("full",)
    dtype: str = "float32"
    options: tuple[tuple[str, OptionValue], ...] = ()
    hash_seed: int = 0
    kernels: str = HOST

    def option(self, name: str, default: OptionValue) -> OptionValue:
        """Value of one of the target's options, or ``default``; UsageError if its type is another."""
        for key, value in self.options:
            if key == name:
                if type(value) is not type(default):
                    expected = type(default).__name__
                    raise UsageError(f"option {name}: expected {expected}, got {value!r}")
                return value
        return default

    def parsed_groups(self) -> tuple[Group, ...]:
        """The cache groups; UsageError on a word that is none."""
        return tuple(parse_group(word, self.block_size) for word in self.groups)


def is_users_own(kernels: str) -> bool:
    """Whether a name of kernels is ``package.module:function``."""
    return ":" in kernels


def parse_group(word: str, block_size: int) -> Group:
    """Read ``full``, ``sliding`` or ``sliding:W``."""
    kind, _, window = word.partition(":")
    if kind == "full" and not window:
        return Group()
    if kind == "sliding" and (not window or (window.isascii() and window.isdigit() and 0 < int(window) < 1 << 20)):
        return Group("sliding", int(window) if window else 4 * block_size)
    raise UsageError(f"cache group {word!r}: expected 'full', 'sliding' or 'sliding:TOKENS'")
