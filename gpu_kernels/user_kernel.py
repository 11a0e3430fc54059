"""Kernels of which a user's own function serves one role, and a base serves the others over the same memory.

What a legal kernel may rely on, and what a wrong one runs into:

- A call for writing ends with two padding tokens, slot -1, whose K and V are NaN.
- Block tables have a column more than any row uses, and entries behind the last block of a row name a block far outside
  the pool, the last one whose elements an int32 still counts. A kernel may load such an entry; it may not follow it.
  Entries before a window are what the target says they are.
- Outputs are NaN before the call, in the cache's dtype. q heads come in groups of a power of two.
- Blocks are copied whole, as engines do. Where the harness wants a part, the rest of the destination is put back: the
  kernel runs in every copy, and what is judged is the part.

On a CPU the tensors share the memory of ``HostKernels``' cache. On a device K and V are contiguous tensors of their own,
which ``TritonKernels`` take as they take any others.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kvsan.gpu_kernels.addressing import IntArray, blocks_for, first_visible_block
from kvsan.gpu_kernels.formats import format_named
from kvsan.gpu_kernels.host import HostKernels
from kvsan.gpu_kernels.interface import Attention, Bits, Float32Array, KernelBug, KernelRaised, Kernels, OutsidePool
from kvsan.gpu_kernels.layout import TORCH_DTYPES, PagedCache
from kvsan.gpu_kernels.user_function import ATTENTION, COPY, WRITE, UserFunction

_WEIGHT_ROUNDOFF = {"float32": 2.0**-11, "float16": 2.0**-11, "bfloat16": 2.0**-8}
_OUTPUT_ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
_PADDING_TOKENS = 2
_MESSAGE_LENGTH = 300


@dataclass(frozen=True, slots=True)
class UserCache:
    """``keys, values``: tensors ``[num_units, block_size, num_kv_heads, head_dim]`` over the memory of ``base``."""

    base: Any
    keys: torch.Tensor
    values: torch.Tensor
    dtype: str

    @property
    def block_size(self) -> int:
        """Slots of a unit."""
        return self.keys.shape[1]


class UserKernels:
    """Implements ``interface.Kernels`` and ``interface.CountsCalls``.

    ``calls`` counts by role and by who served it. Weights may be TF32 for float32, as tensor cores take them.
    """

    def __init__(self, function: UserFunction, base: Kernels[Any], base_name: str, device: str) -> None:
        self._function = function
        self._base = base
        self._base_name = base_name
        self._device = device
        self.calls: Counter[str] = Counter()

    def weight_roundoff(self, dtype: str) -> float:
        """Half a unit in the last place of what a dot product on tensor cores takes."""
        return _WEIGHT_ROUNDOFF[dtype]

    def allocate(self, num_units: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: str) -> UserCache:
        """Return a zeroed cache; see ``interface.Kernels.allocate``."""
        shape = (num_units, block_size, num_kv_heads, head_dim)
        if isinstance(self._base, HostKernels):
            host = self._base.allocate(*shape, dtype)
            keys, values = (_tensor(bits, dtype).view(shape) for bits in (host.keys, host.values))
            return UserCache(host, keys, values, dtype)
        keys, values = (torch.zeros(shape, dtype=TORCH_DTYPES[dtype], device=self._device) for _ in range(2))
        return UserCache(PagedCache(format_named(dtype), head_dim, keys, values), keys, values, dtype)

    def write(self, cache: UserCache, slots: IntArray, keys: Bits, values: Bits) -> None:
        """Write tokens through a slot mapping; see ``interface.Kernels.write``."""
        if self._function.role != WRITE:
            self._on_base("write")
            self._base.write(cache.base, slots, keys, values)
            return
        bad = np.flatnonzero((slots < -1) | (slots >= len(cache.keys) * cache.block_size))
        if len(bad):
            raise OutsidePool(f"slot {slots[bad[0]]} of token {bad[0]} is outside the pool")
        mapping = np.concatenate([slots, np.full(_PADDING_TOKENS, -1, np.int64)])
        self._call(
            "write",
            key=self._padded(keys, cache.dtype),
            value=self._padded(values, cache.dtype),
            key_cache=cache.keys,
            value_cache=cache.values,
            slot_mapping=torch.from_numpy(mapping).to(self._device),
        )

    def decode(
        self, cache: UserCache, queries: Float32Array, tables: IntArray, lengths: IntArray, window: int | None
    ) -> Attention:
        """Attend with one query a row; see ``interface.Kernels.decode``."""
        if self._serves("decode", window):
            return self._attend("decode", cache, queries, np.arange(len(lengths) + 1), tables, lengths, window)
        return self._base.decode(cache.base, queries, tables, lengths, window)

    def prefill(
        self,
        cache: UserCache,
        queries: Float32Array,
        query_starts: IntArray,
        tables: IntArray,
        lengths: IntArray,
        window: int | None,
    ) -> Attention:
        """Attend causally with the last tokens of each row; see ``interface.Kernels.prefill``."""
        if self._serves("prefill", window):
            return self._attend("prefill", cache, queries, query_starts, tables, lengths, window)
        return self._base.prefill(cache.base, queries, query_starts, tables, lengths, window)

    def gather(self, cache: UserCache, table: IntArray, start: int, stop: int, keys: Bits, values: Bits) -> None:
        """Read positions of one row; see ``interface.Kernels.gather``."""
        self._base.gather(cache.base, table, start, stop, keys, values)

    def copy(self, cache: UserCache, source: int, destination: int, start: int, stop: int) -> None:
        """Copy a part of a unit; see ``interface.Kernels.copy``."""
        if self._function.role != COPY:
            self._on_base("copy")
            self._base.copy(cache.base, source, destination, start, stop)
            return
        if min(source, destination) < 0 or max(source, destination) >= len(cache.keys):
            raise OutsidePool(f"unit {source} or {destination} is outside the pool of {len(cache.keys)} units")
        before = [one[destination].clone() for one in (cache.keys, cache.values)]
        pair = torch.tensor([[source, destination]], dtype=torch.int64, device=self._device)
        self._call("copy", key_cache=cache.keys, value_cache=cache.values, block_mapping=pair)
        for now, old in zip((cache.keys, cache.values), before, strict=True):
            now[destination, :start] = old[:start]
            now[destination, stop:] = old[stop:]

    def zero(self, cache: UserCache, unit: int, start: int, stop: int) -> None:
        """Zero a part of a unit; see ``interface.Kernels.zero``."""
        self._base.zero(cache.base, unit, start, stop)

    # -- who serves what

    def _serves(self, what: str, window: int | None) -> bool:
        """Whether the user's function serves an attention launch; counted as the base's if it does not."""
        asked = self._function.parameters
        if self._function.role != ATTENTION or (what == "prefill" and "query_start_loc" not in asked):
            self._on_base(what)
        elif window is not None and "window" not in asked:
            self._on_base(f"{what} with a window", f" ({self._function.name} has no parameter window)")
        else:
            return True
        return False

    def _on_base(self, what: str, why: str = "") -> None:
        self.calls[f"{what} by {self._base_name}{why}"] += 1

    # -- calling the user's function

    def _attend(
        self,
        what: str,
        cache: UserCache,
        queries: Float32Array,
        query_starts: IntArray,
        tables: IntArray,
        lengths: IntArray,
        window: int | None,
    ) -> Attention:
        num_tokens, num_q_heads, head_dim = queries.shape
        kv_heads = cache.keys.shape[2]
        group = num_q_heads // kv_heads
        wide = 1 << (group - 1).bit_length()
        grouped = queries.reshape(num_tokens, kv_heads, group, head_dim)
        grouped = np.concatenate([grouped, np.repeat(grouped[:, :, :1], wide - group, axis=2)], axis=2)
        query = torch.from_numpy(grouped.reshape(num_tokens, kv_heads * wide, head_dim))
        query = query.to(device=self._device, dtype=cache.keys.dtype)
        poisoned = _poisoned_tables(cache, query_starts, tables, lengths, window)
        output = torch.full_like(query, torch.nan)
        checked = {}
        if "sums" in self._function.parameters:
            checked["sums"] = torch.full_like(output, torch.nan, dtype=torch.float32)
            checked["row_sums"] = torch.full_like(output[..., 0], torch.nan, dtype=torch.float32)
        self._call(
            what,
            output=output,
            query=query,
            key_cache=cache.keys,
            value_cache=cache.values,
            block_tables=self._int32(poisoned),
            seq_lens=self._int32(lengths),
            query_start_loc=self._int32(query_starts),
            scale=1.0,
            window=window,
            **checked,
        )

        def found(tensor: torch.Tensor) -> Float32Array:
            """Give what was computed, without the heads that fill a group up."""
            heads = tensor.float().view(num_tokens, kv_heads, wide, *tensor.shape[2:])[:, :, :group]
            array: Float32Array = heads.flatten(1, 2).cpu().numpy()
            return array

        roundoff = _OUTPUT_ROUNDOFF[cache.dtype]
        if not checked:
            return Attention(found(output), None, None, roundoff)
        return Attention(found(output), found(checked["sums"]), found(checked["row_sums"]), roundoff)

    def _call(self, what: str, **arguments: Any) -> None:
        """Call the user's function with what it asks for; KernelBug or KernelRaised if it raises."""
        function = self._function
        self.calls[f"{what} by {function.name}"] += 1
        try:
            function.call(**{name: value for name, value in arguments.items() if name in function.parameters})
            if self._device == "cuda":
                torch.cuda.synchronize()
        except Exception as error:
            if (bug := _bug_in(error)) is not None:
                raise bug from None
            raised = _raised(function.name, what, error)
            if self._device == "cuda":
                end_process_without_device(str(raised))
            raise raised from error

    def _padded(self, bits: Bits, dtype: str) -> torch.Tensor:
        """Give K or V of tokens, and behind them that of padding."""
        tokens = torch.full((len(bits) + _PADDING_TOKENS, *bits.shape[1:]), torch.nan, dtype=TORCH_DTYPES[dtype])
        tokens[: len(bits)] = _tensor(bits, dtype)
        return tokens.to(self._device)

    def _int32(self, array: IntArray) -> torch.Tensor:
        return torch.from_numpy(array.astype(np.int32)).to(self._device)


def end_process_without_device(words: str) -> None:
    """End this process, as a crash that a fresh one can repeat, if nothing on the device works in it any more.

    So it is after an illegal access: every later call would fail, whoever makes it.
    """
    try:
        torch.cuda.synchronize()
    except Exception:
        print(words, file=sys.stderr, flush=True)
        os.abort()


def _tensor(bits: Bits, dtype: str) -> torch.Tensor:
    """Give bits as a tensor of a cache's dtype over the same memory."""
    signed = bits.view(np.int32 if bits.itemsize == 4 else np.int16)
    return torch.from_numpy(signed).view(TORCH_DTYPES[dtype])


def _poisoned_tables(
    cache: UserCache, query_starts: IntArray, tables: IntArray, lengths: IntArray, window: int | None
) -> IntArray:
    """Block tables in which every entry behind a row's last block is outside the pool.

    OutsidePool if a block that some query sees is not in the pool, or not in the table.
    """
    num_units, block_size = cache.keys.shape[:2]
    outside = max(num_units, (1 << 31) // cache.keys[0].numel() - 1)
    poisoned = np.full((len(tables), tables.shape[1] + 1), outside, np.int64)
    for row, length in enumerate(lengths.tolist()):
        used = blocks_for(length, block_size)
        first = first_visible_block(length - int(query_starts[row + 1] - query_starts[row]), window, block_size)
        seen = tables[row, first:used]
        if used > tables.shape[1] or ((seen < 0) | (seen >= num_units)).any():
            raise OutsidePool(f"the block table of row {row} names a unit outside the pool, or is too short")
        poisoned[row, :used] = tables[row, :used]
    return poisoned


def _bug_in(error: BaseException) -> KernelBug | None:
    """Find what a sanitizer raised; the interpreter may have wrapped it."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, KernelBug):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


def _raised(name: str, what: str, error: Exception) -> KernelRaised:
    """Tell what a user's function raised, and where: the last line outside of the libraries that it calls."""
    text = f"{type(error).__name__}: {error}".splitlines()[0][:_MESSAGE_LENGTH]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__)[1:] if "site-packages" not in frame.filename]
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return KernelRaised(type(error).__name__, f"{name} raised {text}{where}, in {what}")
