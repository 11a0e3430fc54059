"""What a reader finds who takes the source's layout for another: shadow memory and bytes must say the same."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsan.gpu_kernels.conversion import Side, plan, read_piece
from kvsan.gpu_kernels.host import HostKernels
from kvsan.gpu_kernels.interface import OutsidePool
from kvsan.gpu_kernels.sharded import ShardedCache, ShardedKernels
from kvsan.gpu_kernels.sharding import Layout
from kvsan.harness.pull import PullWork, Route, look_at, slots_at
from kvsan.harness.verdict import Violation

sys.path.append(str(Path(__file__).parents[1] / "gpu_kernels"))

from wrong_layouts import CLASSES, OTHER_FIELDS, wrong

UNITS, TOKENS, HEAD_DIM = 9, 20, 4
TABLE = np.array([3, 7, 1, 5, 2, 8, 4, 6], np.int64)
WRONG = [kind.__name__ for kind in CLASSES] + list(OTHER_FIELDS)
LAYOUTS = [
    Layout(tp, dcp, pcp, interleave, 4, heads, memory)
    for heads, tp in ((2, 1), (2, 4), (4, 2), (4, 8))
    for dcp, pcp, interleave in ((1, 1, 4), (2, 1, 1), (2, 2, 2))
    for memory in ("NHD", "HND")
]


def filled(layout: Layout) -> tuple[ShardedKernels[Any], ShardedCache[Any]]:
    """A cache in which each head of each slot holds a number of its own, as bits."""
    kernels = ShardedKernels(HostKernels(), layout)
    cache = kernels.allocate(UNITS, layout.unit_tokens, layout.num_kv_heads, HEAD_DIM, "float32")
    slots = np.arange(UNITS * layout.unit_tokens, dtype=np.int64)
    keys, values = cache.buffers(len(slots), layout.num_kv_heads)
    keys[:] = values[:] = numbers(slots[:, None], np.arange(layout.num_kv_heads), layout)[:, :, None]
    kernels.write(cache, slots, keys, values)
    return kernels, cache


def numbers(slots: Any, heads: Any, layout: Layout) -> Any:
    return slots * layout.num_kv_heads + heads


@pytest.mark.parametrize("name", [None, *WRONG])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_shadow_says_what_the_bytes_are(layout: Layout, name: str | None) -> None:
    side = Side(*filled(layout), TABLE)
    assumed = layout if name is None else wrong(name, layout)
    planned = plan(assumed, replace(layout, tp=1, dcp=1, pcp=1, interleave=1), 0, TOKENS)
    for piece in planned.pieces:
        work = PullWork("t1", Route(planned, TABLE, TABLE, 0, TOKENS), piece)
        try:
            found = read_piece(planned, piece, side).keys[:, :, 0]
        except OutsidePool:
            with pytest.raises(Violation):
                look_at(work, layout, UNITS)
            continue
        at = look_at(work, layout, UNITS)
        assert np.array_equal(found, numbers(at.slots, at.heads, layout))
        if name is None:
            wanted = slots_at(TABLE, piece.positions, layout.unit_tokens)[:, None]
            assert np.array_equal(found, numbers(wanted, at.wanted, layout))
