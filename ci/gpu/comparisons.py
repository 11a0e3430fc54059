"""Random problems for every kernel, for a share of time: how many, what failed, how near they came to their bounds.

Kinds of problems take turns, so that each gets as many as any other; the first turn is taken whatever the time. Far
problems, in which offsets need 64 bits, are a fixed list and a few draws: they take memory and not time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from kvsan.ci.kernels.checks import check
from kvsan.ci.kernels.draws import (
    QUANTISED,
    Limits,
    Seeded,
    Source,
    draw_copy,
    draw_decode,
    draw_gather,
    draw_latent_decode,
    draw_latent_write,
    draw_prefill,
    draw_reshard,
    draw_transfer,
    draw_write,
)
from kvsan.ci.kernels.far_problems import FAR_PROBLEMS
from kvsan.ci.kernels.far_rows import check_far_batch, check_far_rows, draw_far_batch, draw_far_rows
from kvsan.ci.kernels.judging import noted_shares
from kvsan.ci.kernels.kernel_set import KERNELS, Failure, KernelSet
from kvsan.ci.kernels.problems import Problem
from kvsan.harness.clock import now_s


def _reshard(source: Source, limits: Limits) -> Problem:
    return draw_reshard(source)


KINDS: dict[str, Callable[[Source, Limits], Problem]] = {
    "write": draw_write,
    "quantised write": partial(draw_write, dtypes=QUANTISED),
    "gather": draw_gather,
    "quantised gather": partial(draw_gather, dtypes=QUANTISED),
    "decode": draw_decode,
    "quantised decode": partial(draw_decode, dtypes=QUANTISED),
    "prefill": draw_prefill,
    "quantised prefill": partial(draw_prefill, dtypes=QUANTISED),
    "block copy": draw_copy,
    "block transfer": draw_transfer,
    "re-sharding": _reshard,
    "latent write": draw_latent_write,
    "latent decode": draw_latent_decode,
}
"""Kinds of problems by name; together they ask every kernel of a ``KernelSet``."""

FAR_KINDS = ("far blocks", "far batch", "far rows")
"""Kinds of problems that take memory between what is used: blocks, tokens of a batch, rows of a table."""
FAR_BYTES = 32 << 30
"""What they need at most, three copies of a cache among it."""

_FAR_DRAWS = 4

Announce = Callable[[str, str], None]
"""Is given kind and problem before the launch, for the case that it never returns."""

Check = Callable[[Any, KernelSet, str], list[Failure]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one problem.

    ``problem`` is the line of Python that makes it again; ``failures`` are empty if it passed; ``share``: its worst
    error as a share of the bound, None where results are compared bit for bit.
    """

    kind: str
    problem: str
    failures: tuple[str, ...]
    share: float | None = None


@dataclass(slots=True)
class Tally:
    """Outcomes of one kind; ``worst`` is the largest share, ``failed`` the problems that did not pass."""

    kind: str
    problems: int = 0
    failed: list[Outcome] = field(default_factory=list)
    worst: float | None = None


def outcomes(
    seed: int,
    seconds: float,
    limits: Limits,
    device: str,
    kernels: KernelSet = KERNELS,
    announce: Announce | None = None,
) -> Iterator[Outcome]:
    """Draw and check problems until ``seconds`` are over; stop early where the device is lost."""
    source = Seeded(seed)
    started = now_s()
    turn = 0
    while turn == 0 or now_s() - started < seconds:
        for kind, draw in KINDS.items():
            if turn and now_s() - started >= seconds:
                return
            problem = draw(source, limits)
            if announce is not None:
                announce(kind, repr(problem))
            outcome = checked(kind, problem, kernels, device)
            yield outcome
            if outcome.failures and device_lost(device):
                return
        turn += 1


def far_outcomes(
    seed: int, device: str, kernels: KernelSet = KERNELS, announce: Announce | None = None
) -> Iterator[Outcome]:
    """Check the far problems, ``FAR_BYTES`` at most at a time; stop early where the device is lost."""
    source = Seeded(seed)
    todo: list[tuple[str, Any, Check]] = [("far blocks", problem, check) for problem in FAR_PROBLEMS]
    for _ in range(_FAR_DRAWS):
        todo.append(("far batch", draw_far_batch(source), check_far_batch))
        todo.append(("far rows", draw_far_rows(source), check_far_rows))
    for kind, problem, how in todo:
        if announce is not None:
            announce(kind, repr(problem))
        outcome = checked(kind, problem, kernels, device, how)
        yield outcome
        if outcome.failures and device_lost(device):
            return


def checked(kind: str, problem: Any, kernels: KernelSet, device: str, how: Check = check) -> Outcome:
    """Check one problem; an exception is a failure too, whoever's it is, since the problem is what brings it back."""
    with noted_shares() as shares:
        try:
            failures = tuple(f"{failure.check}: {failure.what}" for failure in how(problem, kernels, device))
        except Exception as error:
            failures = (f"raised {type(error).__name__}: {' '.join(str(error).split())[:400]}",)
    return Outcome(kind, repr(problem), failures, worst_of(shares) if shares else None)


def worst_of(shares: Sequence[float]) -> float:
    """Return the largest share; NaN is worse than any."""
    return math.nan if any(math.isnan(share) for share in shares) else max(shares)


def device_lost(device: str) -> bool:
    """Whether a GPU answers nothing any more, as after an illegal access."""
    if not device.startswith("cuda"):
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def tallied(found: Iterable[Outcome]) -> list[Tally]:
    """Add outcomes up by kind, kinds without any problem included."""
    tallies = {kind: Tally(kind) for kind in (*KINDS, *FAR_KINDS)}
    for outcome in found:
        tally = tallies.setdefault(outcome.kind, Tally(outcome.kind))
        tally.problems += 1
        if outcome.failures:
            tally.failed.append(outcome)
        if outcome.share is not None:
            shares = [share for share in (tally.worst, outcome.share) if share is not None]
            tally.worst = worst_of(shares)
    return list(tallies.values())
