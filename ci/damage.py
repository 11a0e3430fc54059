"""Kinds of corruption: what is done to the physical cache behind a block table, and how it is repaired."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kvsan.ci.pages import KEYS, VALUES, CodeArray, Pages
from kvsan.gpu_kernels.addressing import IntArray, blocks_for, slots_of
from kvsan.gpu_kernels.formats import format_named
from kvsan.gpu_kernels.interface import Kernels
from kvsan.harness.execution import BoundRow
from kvsan.harness.numbers import Numbers

MAX_CONTEXT = 8192
HEAD_DIM = 32
_BLOCK_SIZE = 16
_STEPS = (1.0, 2.0, 4.0, 8.0)
_TRIES = 200
NUM_ROWS = 3


class Specimen:
    """A pool with a few long requests, intact between cases."""

    def __init__(self, dtype: str, max_context: int = MAX_CONTEXT, kernels: Kernels[Any] | None = None) -> None:
        blocks = blocks_for(max_context, _BLOCK_SIZE)
        self.numbers = Numbers(NUM_ROWS * blocks, _BLOCK_SIZE, dtype, kernels, head_dim=HEAD_DIM)
        self.pages = Pages(self.numbers.cache, _BLOCK_SIZE, dtype)
        self.max_context = max_context
        rng = np.random.default_rng(0)
        tables = rng.permutation(NUM_ROWS * blocks).reshape(NUM_ROWS, blocks).astype(np.int64)
        self.rows = [
            BoundRow(
                name=f"r{index}",
                group=0,
                table=tables[index],
                start=max_context - 1,
                stop=max_context,
                window=None,
                low=0,
                identity=rng.integers(-(1 << 63), 1 << 63, max_context, dtype=np.int64),
                cache={},
            )
            for index in range(NUM_ROWS)
        ]
        self.slots = [slots_of(row.table, 0, max_context, _BLOCK_SIZE) for row in self.rows]
        for row, slots in zip(self.rows, self.slots, strict=True):
            self.numbers.write_external(slots, row.identity)


@dataclass(slots=True)
class Damage:
    """One case: where damage may be done, a source of randomness, and what repairs it."""

    specimen: Specimen
    rng: np.random.Generator
    visible: IntArray
    """Slots that the read sees."""
    other: int
    """A slot with another identity than any of them."""
    saved: list[tuple[int, int, CodeArray]] = field(default_factory=list)
    """Part, slot, and what was there."""
    intact: Any = None
    """The cache, if a whole one was put in its place."""

    @property
    def pages(self) -> Pages:
        """The cache's arrays."""
        return self.specimen.pages

    def choose(self, count: int = 1) -> list[int]:
        """Choose distinct visible slots, and remember what they hold."""
        return [self.remember(int(slot)) for slot in self.rng.choice(self.visible, count, replace=False)]

    def anywhere(self) -> int:
        """Choose a slot of any request."""
        return int(self.rng.choice(self.specimen.slots[int(self.rng.integers(NUM_ROWS))]))

    def remember(self, slot: int) -> int:
        """Remember what a slot holds, to be put back by ``repair``."""
        self.saved += [(part, slot, self.pages.at(part, slot).copy()) for part in range(len(self.pages.arrays))]
        return slot

    def element(self) -> tuple[int, int]:
        """Choose a kv head and an element of it."""
        return int(self.rng.integers(self.pages.arrays[KEYS].shape[2])), int(self.rng.integers(HEAD_DIM))

    def side(self) -> int:
        """Choose K or V."""
        return int(self.rng.integers(2))

    def copy_other(self, slot: int, side: int) -> None:
        """Let a slot's K or V be the other slot's, scales included."""
        for part in range(side, len(self.pages.arrays), 2):
            self.pages.at(part, slot)[:] = self.pages.at(part, self.other)

    def repair(self) -> None:
        """Put back what the chosen slots held."""
        for part, slot, held in reversed(self.saved):
            self.pages.at(part, slot)[:] = held
        if self.intact is not None:
            self.specimen.numbers.cache = self.intact


def other_provenance(damage: Damage) -> None:
    """Overwrite a slot with another token's K and V."""
    (slot,) = damage.choose()
    for side in (KEYS, VALUES):
        damage.copy_other(slot, side)


def keys_only(damage: Damage) -> None:
    """Overwrite a slot's K with another token's."""
    (slot,) = damage.choose()
    damage.copy_other(slot, KEYS)


def values_only(damage: Damage) -> None:
    """Overwrite a slot's V with another token's."""
    (slot,) = damage.choose()
    damage.copy_other(slot, VALUES)


def one_grid_step(damage: Damage) -> None:
    """Change one element to a neighbour on the payload's grid: V by 1 or as little as there is, K to its negative."""
    (slot,) = damage.choose()
    head, d = damage.element()
    pages = damage.pages
    if damage.side() == KEYS:
        pages.store(KEYS, slot, head, d, -pages.number(KEYS, slot, head, d))
        return
    number = pages.number(VALUES, slot, head, d)
    sign = float(damage.rng.choice((-1.0, 1.0)))
    neighbours = [number + signed for step in _STEPS for signed in (sign * step, -sign * step)]
    assert any(pages.store(VALUES, slot, head, d, other) for other in neighbours), number


def one_bit(damage: Damage) -> None:
    """Flip one bit of one element of K or V."""
    (slot,) = damage.choose()
    codes = damage.pages.at(damage.side(), slot)
    flipped = int(damage.rng.integers(8 * codes.itemsize))
    place = int(damage.rng.integers(codes.shape[0])), int(damage.rng.integers(codes.shape[1]))
    codes[place] ^= codes.dtype.type(1 << flipped)


def swapped(damage: Damage) -> None:
    """Swap K and V of two visible slots."""
    one, two = damage.choose(2)
    for part in range(len(damage.pages.arrays)):
        held = damage.pages.at(part, one).copy()
        damage.pages.at(part, one)[:] = damage.pages.at(part, two)
        damage.pages.at(part, two)[:] = held


def cancelling(damage: Damage) -> None:
    """Add something to an element of one V and take it from the same element of another."""
    one, two = damage.choose(2)
    pages = damage.pages
    for _ in range(_TRIES):
        head, d = damage.element()
        first, second = (pages.number(VALUES, slot, head, d) for slot in (one, two))
        for step in _STEPS:
            for signed in damage.rng.permutation((-step, step)).tolist():
                if pages.store(VALUES, one, head, d, first + signed):
                    if pages.store(VALUES, two, head, d, second - signed):
                        return
                    assert pages.store(VALUES, one, head, d, first)
    raise AssertionError("no element of two tokens can change by the same number")


def scales_swapped(damage: Damage) -> None:
    """Swap a scale: of two tokens where the page has scales, of K and V where the tensor has one."""
    if not damage.pages.form.scale_bytes:
        key_scale, value_scale = damage.pages.tensor_scales
        _rescale(damage, key_scale=value_scale, value_scale=key_scale)
        return
    (one,) = damage.choose()
    for _ in range(_TRIES):
        part, two = 2 + damage.side(), damage.remember(damage.anywhere())
        first, second = damage.pages.at(part, one), damage.pages.at(part, two)
        differing = np.argwhere(first != second)
        if len(differing):
            place = tuple(damage.rng.choice(differing))
            first[place], second[place] = second[place].copy(), first[place].copy()
            return
    raise AssertionError("no two tokens differ in a scale")


def scale_stale(damage: Damage) -> None:
    """Leave the scales of a slot's last owner, or those of another calibration of the tensor."""
    pages = damage.pages
    if not pages.form.scale_bytes:
        _rescale(damage, **{("key_scale", "value_scale")[damage.side()]: 1.25})
        return
    (slot,) = damage.choose()
    for _ in range(_TRIES):
        part, owner = 2 + damage.side(), damage.anywhere()
        if (pages.at(part, slot) != pages.at(part, owner)).any():
            pages.at(part, slot)[:] = pages.at(part, owner)
            return
    raise AssertionError("no two tokens differ in their scales")


def scale_off(damage: Damage) -> None:
    """Double or halve a scale."""
    pages, side = damage.pages, damage.side()
    up = bool(damage.rng.integers(2))
    if not pages.form.scale_bytes:
        name = ("key_scale", "value_scale")[side]
        _rescale(damage, **{name: pages.tensor_scales[side] * (2.0 if up else 0.5)})
        return
    (slot,) = damage.choose()
    scales = pages.at(2 + side, slot)
    place = int(damage.rng.integers(scales.shape[0])), int(damage.rng.integers(scales.shape[1]))
    exponent = scales.dtype.type(1 << 23 if scales.itemsize == 4 else 1 << 3)
    scales[place] = scales[place] + exponent if up else scales[place] - exponent


def _rescale(damage: Damage, **scales: float) -> None:
    damage.intact = damage.specimen.numbers.cache
    damage.specimen.numbers.cache = replace(damage.intact, **scales)


Kind = Callable[[Damage], None]

KINDS: dict[str, Kind] = {
    "slot of another token": other_provenance,
    "K of another token": keys_only,
    "V of another token": values_only,
    "one element, one grid step": one_grid_step,
    "one bit flipped": one_bit,
    "two slots swapped": swapped,
    "two changes that cancel": cancelling,
}
"""Kinds of every dtype."""

SCALE_KINDS: dict[str, Kind] = {
    "two scales swapped": scales_swapped,
    "scale of the last owner": scale_stale,
    "scale off by a power of two": scale_off,
}
"""Kinds of quantised dtypes."""

_NEED_TWO = (swapped, cancelling, scales_swapped)


def kinds_of(dtype: str) -> dict[str, Kind]:
    """Return the kinds that a dtype can suffer."""
    return KINDS | SCALE_KINDS if format_named(dtype).quantised else KINDS


def verdicts(specimen: Specimen, kind: Kind, seed: tuple[int, ...]) -> tuple[int, frozenset[str]]:
    """Run one case: the length of the context in tokens, and the causes that the checks gave."""
    rng = np.random.default_rng(seed)
    shortest = 2 if kind in _NEED_TWO else 1
    length = max(shortest, int(np.exp(rng.uniform(0.0, np.log(specimen.max_context + 1)))))
    which, neighbour = (int(row) for row in rng.choice(NUM_ROWS, 2, replace=False))
    row = specimen.rows[which]
    row.start, row.stop = length - 1, length
    damage = Damage(specimen, rng, specimen.slots[which][:length], int(rng.choice(specimen.slots[neighbour])))
    try:
        kind(damage)
        found = specimen.numbers.mismatches([row], step=int(rng.integers(1 << 40)))
    finally:
        damage.repair()
    return length, frozenset(mismatch.cause for mismatch in found)
