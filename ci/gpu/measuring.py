"""Checks each contestant of a case on every input set, then times them in turns, torch's copy of as many bytes among them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kvsan.ci.gpu.cases import Case, Contestant
from kvsan.ci.gpu.timing import Spread, Timer, spread
from kvsan.harness.clock import now_s

COPY = "torch copy"


@dataclass(frozen=True, slots=True)
class Timed:
    """What one contestant of a case did; ``seconds`` is None where it was not timed, and ``note`` says why."""

    case: str
    contestant: str
    ours: bool
    seconds: Spread | None
    moved_bytes: int
    operations: int
    note: str = ""


def measure(
    case: Case, timer: Timer, device: str, l2_bytes: int, budget_s: float, most_samples: int = 200
) -> tuple[list[Timed], list[str]]:
    """Return what contestants did, the copy last, and what ours did wrong: then nothing of the case is timed.

    ``budget_s`` ends sampling, but each contestant is sampled once at least.
    """
    sides = [_Side(contestant, case.moved_bytes, case.operations) for contestant in case.contestants]
    for side in sides:
        side.note = side.note or _not_right(case, side.contestant)
    if sides[0].note:
        return [], [f"{case.name}: {sides[0].contestant.name}: {sides[0].note}"]
    copy, copied_bytes = copy_contestant(case.moved_bytes, l2_bytes, case.sets, device)
    sides.append(_Side(copy, copied_bytes, 0))
    for side in sides:
        side.prepare(timer, case.sets)
    if sides[0].note:
        return [], [f"{case.name}: {sides[0].contestant.name}: {sides[0].note}"]
    running = [side for side in sides if side.sample is not None]
    started = now_s()
    for _ in range(most_samples):
        for side in running:
            assert side.sample is not None
            side.seconds.append(side.sample())
        if now_s() - started > budget_s:
            break
    return [side.timed(case, side is sides[0]) for side in sides], []


class _Side:
    """One contestant while it is measured."""

    def __init__(self, contestant: Contestant, moved_bytes: int, operations: int) -> None:
        self.contestant = contestant
        self.note = contestant.note
        self.sample: Callable[[], float] | None = None
        self.seconds: list[float] = []
        self._moved_bytes = moved_bytes
        self._operations = operations

    def prepare(self, timer: Timer, sets: int) -> None:
        if self.note:
            return
        assert self.contestant.call is not None
        try:
            self.sample = timer.sampler(self.contestant.call, sets)
        except Exception as error:  # what torch or a rival cannot do is told beside what the others do
            self.note = _told(error)

    def timed(self, case: Case, ours: bool) -> Timed:
        seconds = spread(self.seconds) if self.seconds else None
        return Timed(case.name, self.contestant.name, ours, seconds, self._moved_bytes, self._operations, self.note)


def _not_right(case: Case, contestant: Contestant) -> str:
    """Call a contestant on every input set, what it writes poisoned before; say what is wrong first."""
    if contestant.call is None:
        return contestant.note or "cannot be called"
    for number in range(case.sets):
        case.poison(number)
        try:
            wrong = case.wrong(number, contestant.call(number))
        except Exception as error:
            wrong = _told(error)
        if wrong:
            return f"wrong on input set {number}: {wrong}"
    return ""


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def copy_contestant(moved_bytes: int, l2_bytes: int, sets: int, device: str) -> tuple[Contestant, int]:
    """Return a copy that reads and writes ``moved_bytes`` together, and how many it does: four L2 caches at least."""
    size = max(moved_bytes, 4 * l2_bytes) // 2
    sources = [torch.empty(size, dtype=torch.uint8, device=device).random_() for _ in range(sets)]
    target = torch.empty_like(sources[0])

    def call(number: int) -> None:
        target.copy_(sources[number])

    return Contestant(COPY, call), 2 * size
