"""A manager of two cache groups, full and sliding window, as small as one can be: no cache, no sharing, no fork.

Blocks that the window has passed become null before a chunk is scheduled, and their units may go to the other group at once.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence

import numpy as np

from kvsan.gpu_kernels.addressing import blocks_for, first_visible
from kvsan.harness.operations import Abort, Advance, Finish, Launch, Preempt, Retire, Schedule, Submit
from kvsan.harness.target import Admission, Delta, Effects, Group, IntArray, Request, Result, Traits

NULL = 0
WINDOW = 4
Tables = tuple[list[int], list[int]]


class WindowedManager:
    """Target and view in one. Relies on the order of the compute stream: what is freed is free at once."""

    def __init__(self, num_units: int = 16, block_size: int = 2, max_drafts: int = 0) -> None:
        self.traits = Traits(
            num_units,
            block_size,
            (Group(), Group("sliding", WINDOW)),
            null_unit=NULL,
            operations=frozenset({Submit, Schedule, Launch, Retire, Advance, Finish, Abort, Preempt}),
            counts_references=False,
            max_in_flight=2,
            max_drafts=max_drafts,
            atomic_refusal=False,
        )
        self.free = list(range(1, num_units))
        self.known: dict[str, Tables] = {}
        self.computed: dict[str, int] = {}
        self.changed: list[str] = []
        self.units: list[int] = []

    # -- decisions

    def submit(self, request: Request) -> None:
        self.known[request.name] = ([], [])
        self.computed[request.name] = 0

    def lookup(self, _name: str) -> int:
        return 0

    def schedule(self, name: str, n: int, lookahead: int, _external: int, _delayed: bool) -> Admission | None:
        self.changed.append(name)
        self.drop_passed(name)
        needed = blocks_for(self.computed[name] + n + lookahead, self.traits.block_size)
        fresh = sum(max(0, needed - len(table)) for table in self.known[name])
        if fresh > len(self.free):
            return None
        for table in self.known[name]:
            table += [self.take() for _ in range(needed - len(table))]
        self.computed[name] += n
        return Admission(0)

    def drop_passed(self, name: str) -> None:
        """Free the blocks of the sliding group that no query to come will see."""
        table = self.known[name][1]
        passed = self.passed_blocks(self.computed[name])
        for block in reversed(range(min(passed, len(table)))):
            self.give([table[block]])
            table[block] = NULL

    def passed_blocks(self, position: int) -> int:
        """Blocks that end before the first position that a query at ``position`` sees."""
        return first_visible(position, WINDOW) // self.traits.block_size

    def take(self) -> int:
        self.units.append(self.free[0])
        return self.free.pop(0)

    def give(self, units: Sequence[int]) -> None:
        for unit in reversed(units):
            if unit != NULL:
                self.units.append(unit)
                self.free.append(unit)

    def launch(self, b: str) -> None:
        pass

    def retire(self, _b: str, results: Sequence[Result]) -> Effects:
        for result in results:
            self.computed[result.name] -= result.rejected
        return ()

    def finish(self, name: str) -> None:
        self.preempt(name)
        del self.known[name]

    abort = finish

    def preempt(self, name: str) -> None:
        self.changed.append(name)
        for table in self.known[name]:
            self.give(table)
            table.clear()
        self.computed[name] = 0

    # -- testimony

    def view(self) -> WindowedManager:
        return self

    def delta(self) -> Delta:
        delta = Delta(self.changed, self.units)
        self.changed, self.units = [], []
        return delta

    def tables(self, name: str) -> Tables:
        return self.known[name]

    def requests(self) -> Collection[str]:
        return list(self.known)

    def key(self, _unit: int) -> Hashable | None:
        return None

    def published(self, _key: Hashable) -> Collection[int]:
        return ()

    def keys(self) -> Collection[Hashable]:
        return ()

    def is_free(self, unit: int) -> bool:
        return unit in self.free

    def num_free(self) -> int:
        return len(self.free)

    def free_queue(self) -> Sequence[int]:
        return self.free

    def free_front(self) -> int | None:
        return self.free[0] if self.free else None

    def ref_count(self, _unit: int) -> int:
        raise NotImplementedError

    def ref_counts(self) -> IntArray:
        return np.empty(0, np.int64)
