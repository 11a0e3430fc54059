"""Where sequences lie: block tables with holes, shared blocks and garbage, and what queries of each see.

    sequence 0    block 0 | block 1 | block 2 (last, in part)   garbage ...        its table
    sequence 1    block 0 | block 1 | own                       garbage ...        shares whole blocks with sequence 0
    windowed      garbage | garbage | block 2 | block 3         garbage ...        nobody reads before the window

Blocks are a random part of the pool, in no order. Slots that no query sees keep the cache's poison.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kvsan.gpu_kernels.addressing import IntArray, blocks_for, full_blocks

_GARBAGE = (-1, -(1 << 31), (1 << 31) - 1, -7)


@dataclass(frozen=True, slots=True)
class Sequences:
    """``lengths`` in tokens; ``firsts``: the first position that a query sees; ``shared`` tokens are those of sequence 0.

    ``tables`` int64 ``[num_rows, max_blocks]``, garbage included; ``num_blocks`` of the pool.
    """

    lengths: tuple[int, ...]
    firsts: tuple[int, ...]
    shared: tuple[int, ...]
    tables: IntArray
    num_blocks: int
    block_size: int

    def table_tensor(self, dtype: torch.dtype, device: str | torch.device) -> torch.Tensor:
        """Return the tables on a device, as a slice of wider ones."""
        rows, width = self.tables.shape
        wider = torch.full((rows, width + 3), _GARBAGE[0], dtype=dtype, device=device)
        wider[:, :width] = torch.from_numpy(self.tables).to(dtype).to(device)
        return wider[:, :width]

    def slots(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return block and place in it of positions ``[firsts[row], lengths[row])``."""
        positions = np.arange(self.firsts[row], self.lengths[row])
        blocks = self.tables[row, positions // self.block_size]
        return torch.from_numpy(blocks), torch.from_numpy(positions % self.block_size)


def place_sequences(
    lengths: tuple[int, ...],
    firsts: tuple[int, ...],
    block_size: int,
    shared_blocks: int,
    spare_blocks: int,
    spare_entries: int,
    rng: np.random.Generator,
) -> Sequences:
    """Give blocks to sequences; ``shared_blocks``, ``spare_blocks`` and ``spare_entries`` as in ``Attending``."""
    needed = [blocks_for(length, block_size) for length in lengths]
    shared = [min(shared_blocks, full_blocks(length, block_size)) for length in lengths]
    shared = [0, *(min(one, shared[0]) for one in shared[1:])][: len(lengths)]
    num_blocks = max(1, sum(needed) - sum(shared) + spare_blocks)
    free = rng.permutation(num_blocks)
    width = max(1, max(needed, default=0) + spare_entries)
    tables = rng.choice(np.array((*_GARBAGE, num_blocks, int(free[-1])), np.int64), (len(lengths), width))
    own_of_first: IntArray = free[:0]
    for row, (count, common) in enumerate(zip(needed, shared, strict=True)):
        own, free = free[: count - common], free[count - common :]
        blocks = np.concatenate((own_of_first[:common], own))
        own_of_first = blocks if row == 0 else own_of_first
        low = min(firsts[row] // block_size, count)
        tables[row, low:count] = blocks[low:]
    tokens = tuple(one * block_size for one in shared)
    return Sequences(lengths, firsts, tokens, tables, num_blocks, block_size)
