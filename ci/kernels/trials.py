"""Seeded random problems for broken variants, until one is caught.

Memory that a launch function allocates, and leaves as it is, holds what was there before: results of the launch before,
and right ones often enough. During trials it holds NaN and the largest integers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import torch

from kvsan.ci.kernels.any_codes import AnyCodesProblem, check_any_codes, draw_any_codes
from kvsan.ci.kernels.checks import check
from kvsan.ci.kernels.draws import (
    PLAIN,
    QUANTISED,
    TINY,
    Seeded,
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
from kvsan.ci.kernels.far_rows import (
    FarBatchProblem,
    FarRowsProblem,
    check_far_batch,
    check_far_rows,
    draw_far_batch,
    draw_far_rows,
)
from kvsan.ci.kernels.kernel_set import Failure, KernelSet
from kvsan.ci.kernels.problems import (
    CopyProblem,
    DecodeProblem,
    GatherProblem,
    LatentDecodeProblem,
    LatentWriteProblem,
    Problem,
    TransferProblem,
    WriteProblem,
)
from kvsan.ci.kernels.variants_attention import ATTENTION
from kvsan.ci.kernels.variants_pages import PAGES
from kvsan.gpu_kernels.formats import FORMATS

VARIANTS = (*ATTENTION, *PAGES)
"""All broken variants."""

Trial = Problem | AnyCodesProblem | FarBatchProblem | FarRowsProblem
"""What a variant is given."""


_LONG_CHUNKS = replace(TINY, queries=TINY.length, kv_heads=2, group=1)
"""Tiles of many queries, of which the last see nothing of what the first do."""


def _far(kinds: tuple[type[Problem], ...], source: Seeded) -> Problem:
    return source.choice([problem for problem in FAR_PROBLEMS if isinstance(problem, kinds)])


STREAMS: dict[str, Callable[[Seeded], Trial]] = {
    "write": functools.partial(draw_write, dtypes=PLAIN),
    "quantised write": functools.partial(draw_write, dtypes=QUANTISED),
    "read": functools.partial(draw_gather, dtypes=tuple(FORMATS)),
    "read any codes": draw_any_codes,
    "decode": functools.partial(draw_decode, dtypes=PLAIN),
    "quantised decode": functools.partial(draw_decode, dtypes=QUANTISED),
    "prefill": functools.partial(draw_prefill, dtypes=PLAIN),
    "windowed prefill": functools.partial(draw_prefill, limits=_LONG_CHUNKS, dtypes=PLAIN, masks=("window", "chunk")),
    "latent write": draw_latent_write,
    "latent decode": draw_latent_decode,
    "copy": draw_copy,
    "transfer": draw_transfer,
    "reshard": draw_reshard,
    "far write": functools.partial(_far, (WriteProblem,)),
    "far read": functools.partial(_far, (GatherProblem,)),
    "far decode": functools.partial(_far, (DecodeProblem,)),
    "far copy": functools.partial(_far, (CopyProblem, TransferProblem)),
    "far latent": functools.partial(_far, (LatentWriteProblem, LatentDecodeProblem)),
    "far batch": draw_far_batch,
    "far rows": draw_far_rows,
}
"""What problems are drawn from, by name."""


def trial_of(stream: str, seed: int, number: int) -> Trial:
    """Draw problem ``number``, from 0, of a stream."""
    return STREAMS[stream](Seeded(seed * 100_000 + number))


def failures_of(trial: Trial, kernels: KernelSet, device: str | torch.device = "cpu") -> list[Failure]:
    """Give a problem to kernels whose scratch memory is poisoned; return what fails."""
    launches = {field.name: _with_poisoned_scratch(getattr(kernels, field.name)) for field in fields(kernels)}
    poisoned = replace(kernels, **launches)
    if isinstance(trial, AnyCodesProblem):
        return check_any_codes(trial, poisoned, device)
    if isinstance(trial, FarBatchProblem):
        return check_far_batch(trial, poisoned, device)
    if isinstance(trial, FarRowsProblem):
        return check_far_rows(trial, poisoned, device)
    return check(trial, poisoned, device)


def _with_poisoned_scratch(launch: Callable[..., Any]) -> Callable[..., Any]:
    def launched(*args: Any, **options: Any) -> Any:
        with _poisoned_scratch():
            return launch(*args, **options)

    return launched


@contextmanager
def _poisoned_scratch() -> Iterator[None]:
    """Let ``torch.empty`` and its like return NaN and the largest integers inside."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
