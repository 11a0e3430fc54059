"""The kernels that problems are given to; broken variants take the place of single ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from kvsan.gpu_kernels import copy, decode, mla, prefill, quant, write
from kvsan.gpu_kernels.interface import KernelBug
from kvsan.gpu_kernels.launching import Attended


@dataclass(frozen=True, slots=True)
class KernelSet:
    """Launch functions, each with the signature of the one that is its default."""

    write: Callable[..., None] = write.write
    decode: Callable[..., Attended] = decode.decode
    prefill: Callable[..., Attended] = prefill.prefill
    copy_blocks: Callable[..., None] = copy.copy_blocks
    gather_blocks: Callable[..., list[torch.Tensor]] = copy.gather_blocks
    scatter_blocks: Callable[..., None] = copy.scatter_blocks
    reshard: Callable[..., torch.Tensor] = copy.reshard
    quant_write: Callable[..., None] = quant.write
    quant_gather: Callable[..., tuple[torch.Tensor, torch.Tensor]] = quant.gather
    mla_write: Callable[..., None] = mla.mla_write
    mla: Callable[..., Attended] = mla.mla


KERNELS = KernelSet()
"""The kernels of ``gpu_kernels``."""


class Failure(NamedTuple):
    """What a check saw.

    ``check`` is ``bytes`` (what was to be written, copied or read is not there, bit for bit), ``untouched`` (something
    else changed), ``reference`` (an output is farther from float64 than rounding explains), ``zero`` (sums of a zero
    query differ from integers), ``needle`` (a query that sees one position alone got something else than its V),
    ``lse`` (the log-sum-exp likewise), or ``interpreter: `` and the kind of a ``KernelBug``.
    """

    check: str
    what: str


@contextmanager
def watched(failures: list[Failure]) -> Iterator[None]:
    """Turn a ``KernelBug`` of the launch inside into a failure; what follows the launch inside is skipped then."""
    try:
        yield
    except KernelBug as bug:
        failures.append(Failure(f"interpreter: {bug.kind}", str(bug)))


def first_place(wrong: torch.Tensor) -> tuple[int, ...]:
    """Index of the first true element."""
    place: Any = torch.nonzero(wrong)[0].tolist()
    return tuple(place)
