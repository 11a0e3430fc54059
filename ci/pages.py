"""The physical cache of any kernels, open to damage: codes by slot, what they stand for, and how to change one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kvsan.ci.kernels import small_floats
from kvsan.gpu_kernels import formats
from kvsan.gpu_kernels.formats import format_named
from kvsan.gpu_kernels.host import HostCache
from kvsan.gpu_kernels.interface import decode_bits, encode

CodeArray = npt.NDArray[Any]

KEYS, VALUES = 0, 1


class Pages:
    """The arrays behind a cache on the CPU, which they share memory with.

    ``arrays`` are unsigned ``[num_units, block_size, num_kv_heads, width]``: K, V, and their scales where the page has
    some. ``tensor_scales`` are those of all K and of all V.
    """

    def __init__(self, cache: Any, block_size: int, dtype: str) -> None:
        self.dtype = dtype
        self.form = format_named(dtype)
        self.block_size = block_size
        self.tensor_scales = (1.0, 1.0)
        self.arrays: list[CodeArray] = []
        if isinstance(cache, HostCache):
            shape = (-1, block_size, *cache.keys.shape[1:])
            self.arrays = [cache.keys.reshape(shape), cache.values.reshape(shape)]
        else:
            import torch  # a table of host kernels needs none

            self.tensor_scales = (cache.key_scale, cache.value_scale)
            signed = {1: torch.int8, 2: torch.int16, 4: torch.int32}
            for tensor in cache.tensors():
                array = tensor.view(signed[tensor.element_size()]).numpy()
                self.arrays.append(array.view(f"u{array.itemsize}"))

    def at(self, part: int, slot: int) -> CodeArray:
        """Return what one of ``arrays`` has in a slot, ``[num_kv_heads, width]``, to be read and changed."""
        place: CodeArray = self.arrays[part][slot // self.block_size, slot % self.block_size]
        return place

    def units(self, side: int, slot: int) -> npt.NDArray[np.float64]:
        """Return what codes of a slot's K or V are multiplied by, ``[num_kv_heads, head_dim or 1]``."""
        scale = self.tensor_scales[side]
        if not self.form.scale_bytes:
            return np.full((self.arrays[side].shape[2], 1), scale)
        codes = np.ascontiguousarray(self.at(2 + side, slot))
        if self.form.format == formats.NVFP4:
            return np.repeat(small_floats.decode(codes, formats.E4M3), self.form.scale_block, axis=-1) * scale
        return codes.view(np.float32).astype(np.float64)

    def number(self, side: int, slot: int, head: int, d: int) -> float:
        """Return what one element of K or V stands for."""
        place = d // self.form.elements_per_byte
        code = self.at(side, slot)[head, place : place + 1]
        if not self.form.quantised:
            return float(decode_bits(code, self.dtype)[0])
        if self.form.elements_per_byte == 2:
            code = code >> (d % 2 * 4) & 0xF
        unit = self.units(side, slot)[head]
        return float(small_floats.decode(code, self.form.elements)[0]) * float(unit[d % len(unit)])

    def store(self, side: int, slot: int, head: int, d: int, number: float) -> bool:
        """Let one element of K or V stand for a number; False, and nothing is changed, if no code does exactly."""
        place = self.at(side, slot)
        if not self.form.quantised:
            place[head, d] = encode(number, self.dtype)
            return True
        units = self.units(side, slot)[head]
        unit = float(units[d % len(units)])
        code = small_floats.encode(np.array([number / unit], np.float32), self.form.elements)
        if float(small_floats.decode(code, self.form.elements)[0]) * unit != number:
            return False
        if self.form.elements_per_byte == 2:
            shift = d % 2 * 4
            place[head, d // 2] = (int(place[head, d // 2]) & ~(0xF << shift)) | int(code[0]) << shift
        else:
            place[head, d] = code[0]
        return True
