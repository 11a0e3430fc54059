"""One layer's decode step as a captured CUDA graph: the write of new tokens and attention, over static tensors.

A graph launches the same kernels on the same addresses with the same grids whenever it is replayed. What changes from step to
step is therefore copied into static tensors before, on the stream that replays, and a batch of fewer sequences is padded: slot
-1 (not written) and length 0 (nothing is read). ``harness/graphs.py`` judges runners that do this.

Not yet run on a GPU: so far the interpreter has run the step, on the static tensors, without a graph around it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvsan.gpu_kernels.addressing import PADDING_SLOT
from kvsan.gpu_kernels.decode import decode
from kvsan.gpu_kernels.launching import Attended
from kvsan.gpu_kernels.layout import PagedCache
from kvsan.gpu_kernels.write import write

_WARM_UPS = 2


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """A step of ``num_rows`` sequences, or the static tensors of a graph.

    ``query`` ``[num_rows, num_q_heads, head_dim]``; ``key, value`` ``[num_rows, num_kv_heads, head_dim]``; ``tables`` int32
    ``[num_rows, blocks]``; ``lengths`` int32 ``[num_rows]``, tokens with the new one; ``slots`` int64 ``[num_rows]``.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    tables: torch.Tensor
    lengths: torch.Tensor
    slots: torch.Tensor


def step(batch: DecodeBatch, cache: PagedCache, scale: float, splits: int = 1) -> Attended:
    """Write the new tokens through the slot mapping, then attend to all that the tables and lengths say."""
    write(batch.key, batch.value, cache, batch.slots)
    return decode(batch.query, cache, batch.tables, batch.lengths, scale, splits=splits)


class DecodeGraph:
    """Replays ``step`` for up to ``rows`` sequences of up to ``blocks`` blocks; captured when it is made.

    On a CPU, where kernels are interpreted and nothing can be captured, a replay runs the step on the static tensors.
    """

    def __init__(self, cache: PagedCache, rows: int, blocks: int, q_heads: int, scale: float, splits: int = 1) -> None:
        device = cache.keys.device
        token = (rows, cache.num_kv_heads, cache.head_dim)
        self.cache = cache
        self.static = DecodeBatch(
            torch.zeros((rows, q_heads, cache.head_dim), dtype=cache.keys.dtype, device=device),
            torch.zeros(token, dtype=cache.keys.dtype, device=device),
            torch.zeros(token, dtype=cache.keys.dtype, device=device),
            torch.zeros((rows, blocks), dtype=torch.int32, device=device),
            torch.zeros(rows, dtype=torch.int32, device=device),
            torch.full((rows,), PADDING_SLOT, dtype=torch.int64, device=device),
        )
        self._scale = scale
        self._splits = splits
        self._captured = self._capture() if cache.keys.is_cuda else None

    def _step(self) -> Attended:
        return step(self.static, self.cache, self._scale, self._splits)

    def _capture(self) -> tuple[torch.cuda.CUDAGraph, Attended]:
        """Run the step on padding alone until its kernels are compiled, then capture it; its outputs are static too."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            attended = self._step()
        return graph, attended

    def fill(self, batch: DecodeBatch) -> None:
        """Copy a batch into the static tensors and pad it; ValueError if it does not fit."""
        static, rows = self.static, len(batch.lengths)
        most, blocks = static.tables.shape
        if rows > most or batch.tables.shape[1] > blocks:
            raise ValueError(
                f"{rows} rows of {batch.tables.shape[1]} blocks: expected at most {most} of {blocks}, as were captured"
            )
        for name in ("query", "key", "value", "lengths", "slots"):
            getattr(static, name)[:rows].copy_(getattr(batch, name))
        static.tables[:rows, : batch.tables.shape[1]].copy_(batch.tables)
        static.lengths[rows:] = 0
        static.slots[rows:] = PADDING_SLOT

    def replay(self, batch: DecodeBatch) -> torch.Tensor:
        """Run the step for a batch; its outputs, ``[num_rows, num_q_heads, head_dim]``, until the next replay.

        Inside another capture, which can hold no replay, the step becomes part of that one.
        """
        self.fill(batch)
        if self._captured is None or torch.cuda.is_current_stream_capturing():
            return self._step().output[: len(batch.lengths)]
        graph, attended = self._captured
        graph.replay()
        return attended.output[: len(batch.lengths)]
