"""Reading back pages of any bytes: every code a format has, NaN and infinities among them, with any scales."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kvsan.ci.kernels.caches import make_cache, stores
from kvsan.ci.kernels.check_write import dequantised
from kvsan.ci.kernels.draws import QUANTISED, TINY, Source, draw_cache
from kvsan.ci.kernels.kernel_set import Failure, KernelSet, first_place, watched
from kvsan.ci.kernels.problems import CacheSpec


@dataclass(frozen=True, slots=True)
class AnyCodesProblem:
    """Read all positions of ``blocks`` blocks of a quantised cache whose bytes are random."""

    cache: CacheSpec
    blocks: int
    seed: int = 0


def draw_any_codes(source: Source) -> AnyCodesProblem:
    """Draw a quantised cache of a few blocks."""
    cache = draw_cache(source, TINY, QUANTISED, largest_block=32)
    return AnyCodesProblem(cache, source.integer(1, 3), source.integer(0, 999_999))


def check_any_codes(problem: AnyCodesProblem, kernels: KernelSet, device: str | torch.device) -> list[Failure]:
    """Read, and say what differs as a number; NaN equals NaN."""
    rng = np.random.default_rng(problem.seed)
    cache = make_cache(problem.cache, problem.blocks, device)
    for store in stores(cache.tensors()):
        store.copy_(torch.from_numpy(rng.integers(0, 256, len(store), np.uint8)))
    table = torch.from_numpy(rng.permutation(problem.blocks)).to(device)
    held = [tensor[table].flatten(0, 1).cpu() for tensor in cache.tensors()]
    failures: list[Failure] = []
    with watched(failures):
        found = kernels.quant_gather(cache, table, 0, problem.blocks * cache.block_size)
        for side, (name, scale) in enumerate((("keys", cache.key_scale), ("values", cache.value_scale))):
            wanted = dequantised(cache, scale, (held[side], held[2 + side] if len(held) > 2 else None))
            one = found[side].cpu()
            wrong = (one != wanted) & ~(torch.isnan(one) & torch.isnan(wanted))
            if wrong.any():
                failures.append(Failure("bytes", f"{name} of position, head and element {first_place(wrong)}"))
    return failures
