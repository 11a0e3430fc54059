"""The Triton kernels behind ``interface.Kernels``: on a GPU where there is one, else by the repaired interpreter.

Whoever constructs ``TritonKernels`` without a GPU has called ``interpreter.enable()`` before Triton was imported. What
kernels assume of slots, tables and lengths is checked here, on the host, before each launch: nothing is written if a
number is outside the pool.
"""

from __future__ import annotations

import numpy as np
import torch

from kvsan.gpu_kernels import copy, quant, write
from kvsan.gpu_kernels.addressing import PADDING_SLOT, IntArray, block_of, blocks_for, first_visible_block
from kvsan.gpu_kernels.decode import decode
from kvsan.gpu_kernels.interface import Attention, Bits, Float32Array, OutsidePool
from kvsan.gpu_kernels.launching import Attended, Masking
from kvsan.gpu_kernels.layout import LAYOUTS, TORCH_DTYPES, PagedCache, allocate_cache
from kvsan.gpu_kernels.prefill import prefill

_TORCH_BITS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}
_ROUNDOFF = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}
_NAN_CODE = 0x7F  # NaN in E4M3 and E5M2; INT8 and E2M1 have none, but their scales have
_MOST_SPLITS = 8

KEY_SCALE = 0.5
"""Scale of all K of a cache whose format has one for the tensor: not 1, and not that of V, so that a swap shows."""
VALUE_SCALE = 2.0
"""Scale of all V, likewise."""


class TritonKernels:
    """The kernels of ``interface.Kernels`` in Triton; scores are ``q . k``, sums unnormalised, caches of any format.

    For a quantised cache ``write`` takes and ``gather`` gives float32 bits. The layout follows from the size of the pool,
    and how many splits a decode has from its longest sequence, so that sessions meet all of them: splits come early where
    kernels are interpreted, and contexts short.
    """

    def __init__(self) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._tokens_of_split = 256 if self.device.type == "cuda" else 8

    def allocate(self, num_units: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: str) -> PagedCache:
        """Return a cache full of NaN, which these kernels promise not to multiply where nobody has written.

        See ``interface.Kernels.allocate``. ValueError on a bad dtype or size.
        """
        scales = (KEY_SCALE, VALUE_SCALE) if dtype in ("fp8_e4m3", "fp8_e5m2", "nvfp4") else (1.0, 1.0)
        cache = allocate_cache(
            num_units, block_size, num_kv_heads, head_dim, dtype, LAYOUTS[num_units % 2], self.device, *scales
        )
        for tensor in cache.tensors():
            tensor.fill_(float("nan") if tensor.is_floating_point() else _NAN_CODE)
        return cache

    def splits(self, longest: int) -> int:
        """Splits of a decode whose longest sequence has ``longest`` tokens."""
        return max(1, min(_MOST_SPLITS, longest // self._tokens_of_split))

    def weight_roundoff(self, dtype: str) -> float:
        """Unit roundoff of attention weights: that of the type in which dot products take V."""
        return _ROUNDOFF.get(dtype, _ROUNDOFF["bfloat16"])

    def write(self, cache: PagedCache, slots: IntArray, keys: Bits, values: Bits) -> None:
        """Write tokens through a slot mapping; see ``interface.Kernels.write``."""
        num_slots = cache.num_blocks * cache.block_size
        bad = np.flatnonzero((slots < PADDING_SLOT) | (slots >= num_slots))
        if len(bad):
            raise OutsidePool(f"slot {slots[bad[0]]} of token {bad[0]} is outside the pool of {num_slots} slots")
        launch = quant.write if cache.format.quantised else write.write
        launch(self._floats(cache, keys), self._floats(cache, values), cache, self._ints(slots))

    def decode(
        self, cache: PagedCache, queries: Float32Array, tables: IntArray, lengths: IntArray, window: int | None
    ) -> Attention:
        """Attend with one query a row; see ``interface.Kernels.decode``."""
        self._check(cache, tables, lengths - 1, lengths, window)
        attended = decode(
            self._queries(cache, queries),
            cache,
            self._ints(tables).int(),
            self._ints(lengths).int(),
            1.0,
            Masking(window),
            splits=self.splits(int(lengths.max(initial=0))),
            checked=True,
            output_dtype=torch.float32,
        )
        return _to_host(attended)

    def prefill(
        self,
        cache: PagedCache,
        queries: Float32Array,
        query_starts: IntArray,
        tables: IntArray,
        lengths: IntArray,
        window: int | None,
    ) -> Attention:
        """Attend causally with the last tokens of each row; see ``interface.Kernels.prefill``."""
        counts = np.diff(query_starts)
        self._check(cache, tables, lengths - counts, lengths, window)
        attended = prefill(
            self._queries(cache, queries),
            self._ints(query_starts).int(),
            int(counts.max(initial=0)),
            cache,
            self._ints(tables).int(),
            self._ints(lengths).int(),
            1.0,
            Masking(window),
            checked=True,
            output_dtype=torch.float32,
        )
        return _to_host(attended)

    def gather(self, cache: PagedCache, table: IntArray, start: int, stop: int, keys: Bits, values: Bits) -> None:
        """Read positions of one row; see ``interface.Kernels.gather``."""
        size = cache.block_size
        wanted = table[block_of(start, size) : blocks_for(stop, size)]
        bad = np.flatnonzero((wanted < 0) | (wanted >= cache.num_blocks))
        if len(table) < blocks_for(stop, size) or len(bad):
            block = block_of(start, size) + int(bad[0]) if len(bad) else len(table)
            raise OutsidePool(f"the block table names no unit of the pool for position {max(start, block * size)}")
        for result, found in zip((keys, values), quant.gather(cache, self._ints(table), start, stop), strict=True):
            result[: stop - start] = found.view(_TORCH_BITS[found.dtype]).cpu().numpy().view(result.dtype)

    def copy(self, cache: PagedCache, source: int, destination: int, start: int, stop: int) -> None:
        """Copy a part of a unit; see ``interface.Kernels.copy``."""
        self._check_part(cache, source, start, stop)
        self._check_part(cache, destination, start, stop)
        if source != destination:
            copy.copy_blocks(cache, torch.tensor([[source, destination]], device=self.device), start, stop)

    def zero(self, cache: PagedCache, unit: int, start: int, stop: int) -> None:
        """Zero a part of a unit; see ``interface.Kernels.zero``."""
        self._check_part(cache, unit, start, stop)
        for tensor in cache.tensors():
            tensor[unit, start:stop] = 0

    def _queries(self, cache: PagedCache, queries: Float32Array) -> torch.Tensor:
        """Queries on the device, those for codes in the type in which codes are multiplied."""
        tensor = torch.from_numpy(queries).to(self.device)
        return tensor.bfloat16() if cache.format.quantised else tensor

    def _ints(self, numbers: IntArray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(numbers)).to(self.device)

    def _floats(self, cache: PagedCache, bits: Bits) -> torch.Tensor:
        dtype = TORCH_DTYPES.get(cache.format.name, torch.float32)
        signed = np.int32 if dtype == torch.float32 else np.int16
        return torch.from_numpy(np.ascontiguousarray(bits).view(signed)).view(dtype).to(self.device)

    @staticmethod
    def _check_part(cache: PagedCache, unit: int, start: int, stop: int) -> None:
        if not (0 <= unit < cache.num_blocks and 0 <= start <= stop <= cache.block_size):
            raise OutsidePool(f"offsets [{start}, {stop}) of unit {unit}: outside the pool of {cache.num_blocks} units")

    @staticmethod
    def _check(cache: PagedCache, tables: IntArray, firsts: IntArray, lengths: IntArray, window: int | None) -> None:
        """Raise OutsidePool unless every block that a query sees is in the pool; ``firsts`` are their first queries."""
        size = cache.block_size
        for row, (first, length) in enumerate(zip(firsts.tolist(), lengths.tolist(), strict=True)):
            stop = blocks_for(length, size)
            seen = tables[row, first_visible_block(max(first, 0), window, size) : stop]
            if stop > tables.shape[1] or ((seen < 0) | (seen >= cache.num_blocks)).any():
                raise OutsidePool(f"the block table of row {row} names a unit outside the pool, or is too short")


def _to_host(attended: Attended) -> Attention:
    output, sums, row_sums = (one.cpu().numpy() for one in (attended.output, attended.sums, attended.row_sums))
    return Attention(output, sums, row_sums)
