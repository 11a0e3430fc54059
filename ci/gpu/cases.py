"""What is timed: a case, whoever does its work, and what makes a result wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kvsan.ci.gpu.timing import Call


@dataclass(frozen=True, slots=True)
class Contestant:
    """Somebody who does the work of a case; ``call`` is None where it cannot be done, and ``note`` says why."""

    name: str
    call: Call | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """One piece of work on ``sets`` input sets, the first contestant ours.

    ``moved_bytes``: the least that one call reads and writes; ``operations``: its floating-point operations, 0 where they
    do not count. ``poison`` spoils what a call on a set will write; ``wrong`` says what is wrong with a call's result, or
    with what it wrote, and nothing if all is well.
    """

    name: str
    sets: int
    moved_bytes: int
    contestants: tuple[Contestant, ...]
    poison: Callable[[int], None]
    wrong: Callable[[int, object], str]
    operations: int = 0


def leave_poison(*sizes: int, device: str | torch.device) -> None:
    """Fill memory with NaN and free it: what allocates so many float32 elements next finds it there.

    PyTorch's allocator hands a freed block to the next request that fits it best, which is how outputs that a kernel
    allocates for itself are poisoned.
    """
    spoilt = [torch.full((size,), float("nan"), dtype=torch.float32, device=device) for size in sizes]
    del spoilt


def sets_beyond(l2_bytes: int, set_bytes: int) -> int:
    """How many input sets are together four times the L2 cache; 2 to 16."""
    return max(2, min(16, -(-4 * l2_bytes // set_bytes)))
