"""Caches for problems: poisoned all over, twins to compare with, and what changed byte by byte.

A twin shares no memory with its original but has the same storages, offsets and strides. So there are three of each
cache: the one that kernels work on, the one that is expected afterwards, and one whose bytes say what may be written::

    found     storage  | K of block 0 | gap | V of block 0 | gap | K of block 1 ...      after the launch
    expected           | the same, written by plain indexing
    mask               | 0xFF where a written slot is, 0 elsewhere

Where ``found`` differs from ``expected`` the mask tells bytes that are wrong from bytes that should not have changed,
gaps between the parts of a page among them.

The blocks of a ``far`` cache span 2**31 elements, so that the last one is where an int32 offset cannot point. Of such a
storage only windows around blocks are ever touched; the rest costs addresses and, without a GPU, no memory.
"""

from __future__ import annotations

import torch

from kvsan.ci.kernels.kernel_set import Failure
from kvsan.ci.kernels.problems import CacheSpec
from kvsan.gpu_kernels import formats
from kvsan.gpu_kernels.formats import format_named
from kvsan.gpu_kernels.layout import PagedCache, allocate_cache

INTEGERS = {"int32": torch.int32, "int64": torch.int64}
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}

_GAP = 0xA5
_WHOLE_BYTES = 1 << 28
_FAR_ELEMENTS = 1 << 31
_FINITE = 12288.0
_POISONED_CODES = {
    "nan": {formats.INT8: 0x80, formats.E4M3: 0x7F, formats.E5M2: 0x7F, formats.E2M1: 0x77},
    "finite": {formats.INT8: 0x55, formats.E4M3: 0x7E, formats.E5M2: 0x7B, formats.E2M1: 0x77},
}


def make_cache(spec: CacheSpec, num_blocks: int, device: str | torch.device) -> PagedCache:
    """Allocate a cache full of poison."""
    place, layout = spec.storage.split()
    sizes = (num_blocks, spec.block_size, spec.kv_heads, spec.head_dim, spec.dtype, layout)
    cache = allocate_cache(*sizes, device, spec.key_scale, spec.value_scale)
    if place == "apart":
        cache = _with_tensors(cache, [_apart(tensor, layout) for tensor in cache.tensors()])
    elif place == "far":
        cache = _with_tensors(cache, [*far(cache.tensors()[:2]), *cache.tensors()[2:]])
    for store in stores(cache.tensors()):
        store.fill_(_GAP)
    elements, scales = poison_of(spec)
    for index, tensor in enumerate(cache.tensors()):
        tensor.fill_(scales if index >= 2 else elements)
    return cache


def _with_tensors(cache: PagedCache, tensors: list[torch.Tensor]) -> PagedCache:
    keys, values, *scales = tensors
    key_scales, value_scales = scales or (None, None)
    return PagedCache(
        cache.format, cache.head_dim, keys, values, key_scales, value_scales, cache.key_scale, cache.value_scale
    )


def _apart(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """Return a tensor of a storage of its own that is contiguous but for the order of slots and heads."""
    if layout == "NHD":
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    blocks, slots, heads, width = tensor.shape
    return torch.empty((blocks, heads, slots, width), dtype=tensor.dtype, device=tensor.device).transpose(1, 2)


def poison_of(spec: CacheSpec) -> tuple[float, float]:
    """What fills the elements of an unused slot, and its scales; numbers or codes, as the tensors hold them."""
    form = format_named(spec.dtype)
    number = float("nan") if spec.poison == "nan" else _FINITE
    if not form.quantised:
        return number, number
    scale = number if form.scale_bytes == 4 else _POISONED_CODES[spec.poison][formats.E4M3]
    return _POISONED_CODES[spec.poison][form.elements], scale


def far(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return tensors ``[num_blocks, ...]`` of one shape and type in one storage, their blocks far from each other."""
    first = tensors[0]
    block = first[0].numel() + 16
    stride = _FAR_ELEMENTS // max(1, len(first) - 1) // 16 * 16 + 16
    size = (len(first) - 1) * stride + len(tensors) * block
    whole = torch.empty(size, dtype=first.dtype, device=first.device)
    inner = torch.empty_like(first[0]).stride()
    return [whole.as_strided(one.shape, (stride, *inner), index * block) for index, one in enumerate(tensors)]


def stores(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the storages behind tensors, each once, as bytes; of a storage of far blocks, a window for each block."""
    return [window for flat, group in _by_storage(tensors) for window in _windows(flat, group)]


def _by_storage(tensors: list[torch.Tensor]) -> list[tuple[torch.Tensor, list[torch.Tensor]]]:
    """Group tensors by their storage, which comes along as bytes."""
    groups: dict[int, list[torch.Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.untyped_storage().data_ptr(), []).append(tensor)
    return [
        (torch.empty(0, dtype=torch.uint8, device=group[0].device).set_(group[0].untyped_storage()), group)
        for group in groups.values()
    ]


def _windows(flat: torch.Tensor, group: list[torch.Tensor]) -> list[torch.Tensor]:
    if len(flat) < _WHOLE_BYTES:
        return [flat]
    stride = group[0].stride(0) * group[0].element_size()
    stops = [
        (one.storage_offset() + sum((n - 1) * by for n, by in zip(one[0].shape, one[0].stride(), strict=True)) + 1)
        * one.element_size()
        for one in group
    ]
    return [flat[block * stride : block * stride + max(stops)] for block in range(len(group[0]))]


def twins(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copy storages, and return the same views of the copies."""
    copies = {}
    for flat, group in _by_storage(tensors):
        copy = torch.empty_like(flat)
        for window, original in zip(_windows(copy, group), _windows(flat, group), strict=True):
            window.copy_(original)
        copies[flat.data_ptr()] = copy
    return [
        torch.empty(0, dtype=one.dtype, device=one.device).set_(
            copies[one.untyped_storage().data_ptr()].untyped_storage(), one.storage_offset(), one.shape, one.stride()
        )
        for one in tensors
    ]


def twin(cache: PagedCache) -> PagedCache:
    """Copy a cache."""
    return _with_tensors(cache, twins(cache.tensors()))


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """View elements as integers, so that NaN equals itself and -0.0 does not equal 0.0."""
    return tensor.view(BITS[tensor.element_size()])


def compare(found: list[torch.Tensor], expected: list[torch.Tensor], mask: list[torch.Tensor]) -> list[Failure]:
    """Compare the storages of twins; the mask tells ``bytes`` from ``untouched``."""
    failures = []
    for index, (one, other, may) in enumerate(zip(stores(found), stores(expected), stores(mask), strict=True)):
        wrong = one != other
        for check, where in (("bytes", wrong & (may != 0)), ("untouched", wrong & (may == 0))):
            if where.any():
                at = int(torch.nonzero(where)[0])
                text = f"{int(where.sum())} bytes, the first at {at} of storage {index}"
                failures.append(Failure(check, f"{text}: {int(one[at]):#x}, expected {int(other[at]):#x}"))
    return failures


def clear(tensors: list[torch.Tensor]) -> None:
    """Zero storages, for a mask that marks nothing."""
    for store in stores(tensors):
        store.zero_()


class Untouched:
    """The bytes of tensors, and of a cache, before a launch that must not change them."""

    def __init__(self, cache: PagedCache | None = None, **tensors: torch.Tensor) -> None:
        parts = () if cache is None else cache.tensors()
        self._tensors = tensors | {f"tensor {index} of the cache": one for index, one in enumerate(parts)}
        self._before = {name: [store.clone() for store in stores([one])] for name, one in self._tensors.items()}

    def failures(self) -> list[Failure]:
        """Say which tensors changed."""
        changed = [
            name
            for name, one in self._tensors.items()
            if any(not torch.equal(now, old) for now, old in zip(stores([one]), self._before[name], strict=True))
        ]
        return [Failure("untouched", f"{name} was written to") for name in changed]
