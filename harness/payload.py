"""What is in the cache: K and V as functions of content identity, and what is derived from them for each request.

K elements are +1 or -1, V elements one of 16 small integers: exact in every cache dtype (``grid``). Both are cut from
streams of 64-bit words, word w being ``mix(identity + constant of w)`` with an invertible mix::

    K: 1 bit an element    word 0                          | word 1 ...      element e of a token = head * head_dim + d
       e =                 0 1 2 ................... 62 63 | 64 ...          K[e] = sign bit e % 64 of word e // 64
    V: 4 bits an element   word 0       | word 1           | word 2 ...      V[e] = value of nibble e % 16 of word e // 16
       e =                 0 1 ..... 15 | 16 .......... 31 | 32 ...

Markers, where the dtype has some, keep the sign that they would have had and draw their magnitude from a word of the
scale group's own.

A token with 64 elements or more therefore holds its identity twice, and can be asked whose it is: no two identities
have the same K, or the same V, and bytes found in a wrong place name their owner.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, product
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsan.gpu_kernels.interface import Bits, bits_dtype, encode
from kvsan.gpu_kernels.jit import compiled
from kvsan.gpu_kernels.reference import Codes, SumArray, extend_prefix_sums
from kvsan.harness.execution import BoundRow
from kvsan.harness.grid import Grid, grid_of
from kvsan.harness.target import IntArray

_WORD = (1 << 64) - 1
_MOST_GUESSES = 1024
_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLY_1 = 0xBF58476D1CE4E5B9
_MULTIPLY_2 = 0x94D049BB133111EB

_U1, _U3, _U15, _U27, _U30, _U31 = (np.uint64(shift) for shift in (1, 3, 15, 27, 30, 31))
_UGOLDEN, _UMULTIPLY_1, _UMULTIPLY_2 = np.uint64(_GOLDEN), np.uint64(_MULTIPLY_1), np.uint64(_MULTIPLY_2)


@dataclass(frozen=True, slots=True)
class PayloadShape:
    """K or V of one token: ``[num_kv_heads, head_dim]`` elements of a cache dtype; ``grid`` follows from it."""

    num_kv_heads: int
    head_dim: int
    dtype: str
    grid: Grid = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "grid", grid_of(self.dtype, self.head_dim))


@compiled
def mix(x: np.uint64) -> np.uint64:
    """Finaliser of splitmix64: a bijection of 64-bit words whose output bits each depend on all input bits."""
    x = (x ^ (x >> _U30)) * _UMULTIPLY_1
    x = (x ^ (x >> _U27)) * _UMULTIPLY_2
    return x ^ (x >> _U31)


def _unmix(x: int) -> int:
    """Inverse of ``mix``."""
    x = _unshift(x, 31) * pow(_MULTIPLY_2, -1, 1 << 64) & _WORD
    x = _unshift(x, 27) * pow(_MULTIPLY_1, -1, 1 << 64) & _WORD
    return _unshift(x, 30)


def _unshift(x: int, shift: int) -> int:
    """Inverse of ``x ^ (x >> shift)``."""
    result = x
    for _ in range(64 // shift):
        result = x ^ (result >> shift)
    return result


@compiled
def _derive(
    identity: IntArray,
    start: int,
    stop: int,
    table: Codes,
    group: int,
    bits_of_code: Bits,
    key_codes: Codes,
    value_codes: Codes,
    key_bits: Bits,
    value_bits: Bits,
) -> None:
    """Fill ``[start, stop)`` of the four arrays ``[num_tokens, num_kv_heads, head_dim]`` from identities.

    ``table`` and ``group`` are those of a grid; ``bits_of_code`` has the bits of -128 to 127.
    """
    head_dim = key_codes.shape[2]
    elements = key_codes.shape[1] * head_dim
    for position in range(start, stop):
        token = np.uint64(identity[position])
        key_word = np.uint64(0)
        value_word = np.uint64(0)
        factor = np.int64(1)
        for element in range(elements):
            if element % 64 == 0:
                key_word = mix(token + _UGOLDEN * np.uint64(2 * (element // 64) + 1))
            if element % 16 == 0:
                value_word = mix(token + _UGOLDEN * np.uint64(2 * (element // 16) + 2))
            head, d = element // head_dim, element % head_dim
            key = np.int64((key_word >> np.uint64(element % 64)) & _U1) * 2 - 1
            value = np.int64(table[np.int64((value_word >> np.uint64(element % 16 * 4)) & _U15)])
            if group > 0 and d % group == 0:
                word = mix(token ^ (_UGOLDEN * np.uint64(element + 1)))
                key *= table[16 + np.int64(word & _U3)]
                marker = np.int64(table[20 + np.int64(word >> np.uint64(2) & _U3)])
                value = -marker if value < 0 else marker
                factor = marker // table[24] if table[24] > 0 else np.int64(1)
            else:
                value *= factor
            key_codes[position, head, d] = key
            value_codes[position, head, d] = value
            key_bits[position, head, d] = bits_of_code[key + 128]
            value_bits[position, head, d] = bits_of_code[value + 128]


@compiled
def _agreement(a: IntArray, b: IntArray, length: int) -> int:
    """Length of the common prefix of two arrays, at most ``length``."""
    for position in range(length):
        if a[position] != b[position]:
            return position
    return length


def identity_of_keys(elements: npt.NDArray[Any], shape: PayloadShape) -> int | None:
    """Identity whose K elements ``[num_kv_heads * head_dim]`` these are; None if nobody's, or fewer than 64."""
    if len(elements) < 64 or not (np.abs(elements) >= 1).all():
        return None
    word = sum(int(element > 0) << index for index, element in enumerate(elements[:64]))
    identity = _signed(_unmix(word) - _GOLDEN)
    probe = Payload(shape)
    probe.follow(np.array([identity], np.int64), 1)
    return identity if np.array_equal(probe.key_codes[0].ravel(), elements) else None


def identity_of_values(elements: npt.NDArray[Any], first: int, shape: PayloadShape) -> int | None:
    """Identity whose V elements, flat from element ``first`` on, these are; None if nobody's, or fewer than 16.

    ``first`` is a multiple of 16: whole words are what can be inverted.
    """
    if len(elements) < 16:
        return None
    probe = Payload(shape)
    for nibbles in islice(_nibbles(elements[:16], first, shape), _MOST_GUESSES):
        word = sum(nibble << 4 * index for index, nibble in enumerate(nibbles))
        identity = _signed(_unmix(word) - _GOLDEN * (2 * (first // 16) + 2))
        probe.follow(np.array([identity], np.int64), 1)
        if np.array_equal(probe.value_codes[0].ravel()[first : first + len(elements)], elements):
            return identity
    return None


def _nibbles(elements: npt.NDArray[Any], first: int, shape: PayloadShape) -> Iterator[tuple[int, ...]]:
    """Yield the words, nibble by nibble, that V elements may have come from; a marker tells the sign of its own alone."""
    grid = shape.grid
    factor = abs(float(elements[0])) / min(grid.value_markers) if grid.scaled else 1
    choices = []
    for index, element in enumerate(elements.tolist()):
        if grid.group and (first + index) % shape.head_dim % grid.group == 0:
            choices.append([n for n, value in enumerate(grid.values) if (value < 0) == (element < 0)])
        else:
            choices.append([n for n, value in enumerate(grid.values) if value * factor == element])
    return product(*choices)


def _signed(word: int) -> int:
    word &= _WORD
    return word - (1 << 64) if word >> 63 else word


class Payload:
    """K and V of the positions of one request, kept as long as their identities stay what they were.

    ``key_codes, value_codes``: int8 ``[capacity, num_kv_heads, head_dim]``; ``key_bits, value_bits``: the same in the
    cache's dtype; ``value_sums``: int32 ``[capacity + 1, num_kv_heads, head_dim]``, prefix sums of V. Positions below
    the last ``stop`` given to ``follow`` are valid.
    """

    def __init__(self, shape: PayloadShape) -> None:
        self.shape = shape
        self._length = 0
        self._bits_of_code = encode(np.arange(-128, 128), shape.grid.element_dtype)
        self._table = shape.grid.table()
        self._allocate(0)

    def follow(self, identity: IntArray, stop: int) -> None:
        """Make positions ``[0, stop)`` those of ``identity``, int64; what agrees with the last call is kept."""
        known = _agreement(self._identity, identity, min(self._length, stop))
        if known == stop:
            return
        if stop > len(self._identity):
            self._grow(stop, known)
        self._identity[known:stop] = identity[known:stop]
        _derive(
            self._identity,
            known,
            stop,
            self._table,
            self.shape.grid.group,
            self._bits_of_code,
            self.key_codes,
            self.value_codes,
            self.key_bits,
            self.value_bits,
        )
        extend_prefix_sums(self.value_codes, self.value_sums, known, stop)
        self._length = stop

    def position_of(self, identity: int) -> int | None:
        """Position that has an identity, or None."""
        found = np.flatnonzero(self._identity[: self._length] == identity)
        return int(found[0]) if len(found) else None

    def _allocate(self, capacity: int) -> None:
        shape = (capacity, self.shape.num_kv_heads, self.shape.head_dim)
        bits = bits_dtype(self.shape.grid.element_dtype)
        self._identity: IntArray = np.empty(capacity, np.int64)
        self.key_codes: Codes = np.empty(shape, np.int8)
        self.value_codes: Codes = np.empty(shape, np.int8)
        self.key_bits: Bits = np.empty(shape, bits)
        self.value_bits: Bits = np.empty(shape, bits)
        self.value_sums: SumArray = np.zeros((capacity + 1, *shape[1:]), np.int32)

    def _grow(self, capacity: int, keep: int) -> None:
        names = ("_identity", "key_codes", "value_codes", "key_bits", "value_bits", "value_sums")
        old = {name: getattr(self, name) for name in names}
        self._allocate(max(64, capacity, 2 * len(self._identity)))
        for name, array in old.items():
            getattr(self, name)[: keep + (name == "value_sums")] = array[: keep + (name == "value_sums")]


def payload_of(row: BoundRow, shape: PayloadShape) -> Payload:
    """Payload of a row's positions ``[0, stop)``, kept in the row's cache under its group."""
    payload = row.cache.get(row.group)
    if not isinstance(payload, Payload) or payload.shape is not shape:
        payload = Payload(shape)
        row.cache[row.group] = payload
    payload.follow(row.identity, row.stop)
    return payload
