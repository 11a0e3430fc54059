"""Gives a problem to kernels and returns what fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kvsan.ci.kernels.check_attention import check_decode, check_prefill
from kvsan.ci.kernels.check_copy import check_copy, check_reshard, check_transfer
from kvsan.ci.kernels.check_mla import check_latent_decode, check_latent_write
from kvsan.ci.kernels.check_write import check_gather, check_write
from kvsan.ci.kernels.kernel_set import KERNELS, Failure, KernelSet
from kvsan.ci.kernels.problems import (
    CopyProblem,
    DecodeProblem,
    GatherProblem,
    LatentDecodeProblem,
    LatentWriteProblem,
    PrefillProblem,
    Problem,
    ReshardProblem,
    TransferProblem,
    WriteProblem,
)

_CHECKS: dict[type, Callable[[Any, KernelSet, str | torch.device], list[Failure]]] = {
    WriteProblem: check_write,
    GatherProblem: check_gather,
    DecodeProblem: check_decode,
    PrefillProblem: check_prefill,
    CopyProblem: check_copy,
    TransferProblem: check_transfer,
    ReshardProblem: check_reshard,
    LatentWriteProblem: check_latent_write,
    LatentDecodeProblem: check_latent_decode,
}


def check(problem: Problem, kernels: KernelSet = KERNELS, device: str | torch.device | None = None) -> list[Failure]:
    """Give a problem to kernels on a device and return what fails; an empty list if nothing does.

    ``device`` is the CUDA device if there is one, unless given. On ``"cpu"`` Triton kernels need a process in which
    ``interpreter.enable()`` came first. ValueError if the kernels refuse the problem.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return _CHECKS[type(problem)](problem, kernels, device)
