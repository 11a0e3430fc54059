"""What proofs assume of a launch is asked of real launches: each kind of broken promise is noticed, a kept one is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kvsan.gpu_kernels import interpreter
from kvsan.gpu_kernels.copy import copy_blocks
from kvsan.gpu_kernels.decode import decode
from kvsan.gpu_kernels.interface import KernelBug
from kvsan.gpu_kernels.launching import Masking
from kvsan.gpu_kernels.layout import PagedCache, allocate_cache
from kvsan.gpu_kernels.prefill import prefill
from kvsan.gpu_kernels.write import write

pytestmark = pytest.mark.skipif(not interpreter.enabled(), reason="kernels of this process are compiled")


def cache(blocks: int = 4) -> PagedCache:
    return allocate_cache(blocks, 4, 2, 32, "float32")


def write_to(slots: list[int]) -> None:
    new = torch.zeros((len(slots), 2, 32))
    write(new, new, cache(), torch.tensor(slots))


def attend(table: list[list[int]], lengths: list[int], masking: Masking = Masking()) -> None:  # noqa: B008
    query = torch.zeros((len(lengths), 2, 32))
    decode(
        query, cache(), torch.tensor(table, dtype=torch.int32), torch.tensor(lengths, dtype=torch.int32), 1.0, masking
    )


def chunk(starts: list[int], lengths: list[int]) -> None:
    query = torch.zeros((8, 2, 32))
    tables = torch.zeros((len(lengths), 2), dtype=torch.int32)
    parts = [torch.tensor(numbers, dtype=torch.int32) for numbers in (starts, lengths)]
    prefill(query, parts[0], 8, cache(), tables, parts[1], 1.0)


def copied(pairs: list[tuple[int, int]]) -> None:
    copy_blocks(cache(), torch.tensor(pairs))


KEPT: list[tuple[Any, tuple[Any, ...]]] = [
    (write_to, ([0, -1, 15, 7, -1],)),
    (attend, ([[3, 99], [1, 2]], [4, 8])),
    (attend, ([[-7, 1]], [8], Masking(window=2))),
    (attend, ([[99]], [0])),
    (chunk, ([0, 2, 2], [3, 8])),
    (copied, ([(0, 1), (0, 2)],)),
]

BROKEN: list[tuple[Any, tuple[Any, ...], str]] = [
    (write_to, ([0, 16],), "slot_mapping[1] is 16"),
    (write_to, ([0, -2],), "slot_mapping[1] is -2"),
    (write_to, ([3, 5, 3],), "slot_mapping[0] is 3, slot_mapping[2] is 3"),
    (attend, ([[4]], [1]), "block_tables[0, 0] is 4"),
    (attend, ([[0, -1]], [5]), "block_tables[0, 1] is -1"),
    (attend, ([[0]], [5]), "seq_lens[0] is 5"),
    (attend, ([[0]], [-1]), "seq_lens[0] is -1"),
    (chunk, ([0, 5, 3], [5, 5]), "query_start_loc"),
    (chunk, ([0, 4], [3]), "seq_lens[0] is 3"),
    (copied, ([(0, 4)],), "target_blocks[0] is 4"),
    (copied, ([(0, 2), (1, 2)],), "target_blocks[0] is 2, target_blocks[1] is 2"),
    (copied, ([(0, 1), (1, 2)],), "programs"),
]


@pytest.mark.parametrize(("launch", "arguments"), KEPT)
def test_a_launch_that_keeps_its_promises_runs(launch: Any, arguments: tuple[Any, ...]) -> None:
    launch(*arguments)


@pytest.mark.parametrize(("launch", "arguments", "said"), BROKEN)
def test_a_promise_that_is_not_kept_is_told(launch: Any, arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(KernelBug, match="precondition") as raised:
        launch(*arguments)
    assert said in str(raised.value)


def test_unchecked_launches_are_not_asked() -> None:
    with interpreter.unchecked():
        write_to([3, 5, 3])
