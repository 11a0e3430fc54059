"""Which kind of corruption which check of the numbers oracle catches, measured.

    python -m kvsan.ci.corruption_table --cases 10000

Each case takes a request of random length in an intact pool, damages the physical cache behind the block table, reads
the request's last token in all five ways, each judged by itself, and repairs the damage. Lengths are log-uniform up to
8,192 tokens. Every case must be caught by at least one check: exit code 1 otherwise.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvsan.gpu_kernels.addressing import IntArray, blocks_for, slots_of
from kvsan.gpu_kernels.host import HostCache
from kvsan.gpu_kernels.interface import Bits, encode
from kvsan.harness.configuration import DTYPES
from kvsan.harness.execution import BoundRow
from kvsan.harness.numbers import Numbers

MAX_CONTEXT = 8192
_BLOCK_SIZE = 16
_NUM_ROWS = 3


class Specimen:
    """A pool with a few long requests, intact between cases."""

    def __init__(self, dtype: str, max_context: int = MAX_CONTEXT) -> None:
        blocks = blocks_for(max_context, _BLOCK_SIZE)
        self.numbers = Numbers(_NUM_ROWS * blocks, _BLOCK_SIZE, dtype)
        self.cache: HostCache = self.numbers.cache
        self.max_context = max_context
        self.code_bits = encode(np.arange(-8, 8), dtype)
        rng = np.random.default_rng(0)
        tables = rng.permutation(_NUM_ROWS * blocks).reshape(_NUM_ROWS, blocks).astype(np.int64)
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
            for index in range(_NUM_ROWS)
        ]
        self.slots = [slots_of(row.table, 0, max_context, _BLOCK_SIZE) for row in self.rows]
        for row, slots in zip(self.rows, self.slots, strict=True):
            self.numbers.write_external(slots, row.identity)

    def code(self, bits: np.unsignedinteger[Any]) -> int:
        """Return the small integer that an intact element's bits stand for."""
        return int(np.flatnonzero(self.code_bits == bits)[0]) - 8


@dataclass(slots=True)
class Damage:
    """One case: where damage may be done, a source of randomness, and what repairs it."""

    specimen: Specimen
    rng: np.random.Generator
    visible: IntArray
    """Slots that the read sees."""
    other: int
    """A slot with another identity than any of them."""
    saved: list[tuple[int, Bits, Bits]] = field(default_factory=list)

    def choose(self, count: int = 1) -> list[int]:
        """Choose distinct visible slots, and remember what they hold."""
        slots = [int(slot) for slot in self.rng.choice(self.visible, count, replace=False)]
        cache = self.specimen.cache
        self.saved += [(slot, cache.keys[slot].copy(), cache.values[slot].copy()) for slot in slots]
        return slots

    def element(self) -> tuple[int, int]:
        """Choose a kv head and an element of it."""
        shape = self.specimen.cache.keys.shape
        return int(self.rng.integers(shape[1])), int(self.rng.integers(shape[2]))

    def repair(self) -> None:
        """Put back what the chosen slots held."""
        for slot, keys, values in self.saved:
            self.specimen.cache.keys[slot] = keys
            self.specimen.cache.values[slot] = values


def other_provenance(damage: Damage) -> None:
    """Overwrite a slot with another token's K and V."""
    keys_only(damage)
    damage.specimen.cache.values[damage.saved[0][0]] = damage.specimen.cache.values[damage.other]


def keys_only(damage: Damage) -> None:
    """Overwrite a slot's K with another token's."""
    (slot,) = damage.choose()
    damage.specimen.cache.keys[slot] = damage.specimen.cache.keys[damage.other]


def values_only(damage: Damage) -> None:
    """Overwrite a slot's V with another token's."""
    (slot,) = damage.choose()
    damage.specimen.cache.values[slot] = damage.specimen.cache.values[damage.other]


def one_grid_step(damage: Damage) -> None:
    """Change one element to a neighbour on the payload's grid: V by 1, K to its negative."""
    (slot,) = damage.choose()
    head, d = damage.element()
    specimen = damage.specimen
    if damage.rng.integers(2):
        code = specimen.code(specimen.cache.values[slot, head, d])
        step = -1 if code == 7 or (code > -8 and damage.rng.integers(2)) else 1
        specimen.cache.values[slot, head, d] = specimen.code_bits[code + step + 8]
    else:
        code = specimen.code(specimen.cache.keys[slot, head, d])
        specimen.cache.keys[slot, head, d] = specimen.code_bits[-code + 8]


def one_bit(damage: Damage) -> None:
    """Flip one bit of one element of K or V."""
    (slot,) = damage.choose()
    cache = damage.specimen.cache
    bits = cache.values if damage.rng.integers(2) else cache.keys
    flipped = int(damage.rng.integers(8 * bits.itemsize))
    bits[(slot, *damage.element())] ^= bits.dtype.type(1 << flipped)


def swapped(damage: Damage) -> None:
    """Swap K and V of two visible slots."""
    one, two = damage.choose(2)
    for bits in (damage.specimen.cache.keys, damage.specimen.cache.values):
        bits[[one, two]] = bits[[two, one]]


def cancelling(damage: Damage) -> None:
    """Add 1 to an element of one V and take 1 from the same element of another."""
    one, two = damage.choose(2)
    specimen = damage.specimen
    values = specimen.cache.values
    while True:
        head, d = damage.element()
        first, second = (specimen.code(values[slot, head, d]) for slot in (one, two))
        steps = [s for s in (-1, 1) if -8 <= first + s <= 7 and -8 <= second - s <= 7]
        if steps:
            break
    step = int(damage.rng.choice(steps))
    values[one, head, d] = specimen.code_bits[first + step + 8]
    values[two, head, d] = specimen.code_bits[second - step + 8]


KINDS: dict[str, Callable[[Damage], None]] = {
    "slot of another token": other_provenance,
    "K of another token": keys_only,
    "V of another token": values_only,
    "one element, one grid step": one_grid_step,
    "one bit flipped": one_bit,
    "two slots swapped": swapped,
    "two changes that cancel": cancelling,
}
_NEED_TWO = (swapped, cancelling)
_REPORTED = ("random", "zero", "needle", "key-bytes", "value-bytes")


def verdicts(specimen: Specimen, kind: Callable[[Damage], None], seed: Sequence[int]) -> tuple[int, frozenset[str]]:
    """Run one case: the length of the context in tokens, and the causes that the checks gave."""
    rng = np.random.default_rng(seed)
    shortest = 2 if kind in _NEED_TWO else 1
    length = max(shortest, int(np.exp(rng.uniform(0.0, np.log(specimen.max_context + 1)))))
    which, neighbour = (int(row) for row in rng.choice(_NUM_ROWS, 2, replace=False))
    row = specimen.rows[which]
    row.start, row.stop = length - 1, length
    damage = Damage(specimen, rng, specimen.slots[which][:length], int(rng.choice(specimen.slots[neighbour])))
    kind(damage)
    try:
        found = specimen.numbers.mismatches([row], step=int(rng.integers(1 << 40)))
    finally:
        damage.repair()
    return length, frozenset(mismatch.cause for mismatch in found)


def count_caught(specimen: Specimen, kind: Callable[[Damage], None], cases: int, seed: Sequence[int]) -> Counter[str]:
    """Run many cases: how often each cause was given, and under ``"any"`` how often at least one was."""
    caught: Counter[str] = Counter()
    for case in range(cases):
        _, causes = verdicts(specimen, kind, (*seed, case))
        caught.update(causes)
        caught["any"] += bool(causes)
    return caught


def percent(part: int, whole: int) -> str:
    """Write a share so that 100 means all of them and 0 none."""
    if part in (0, whole):
        return "100" if part else "0"
    return f"{min(max(100 * part / whole, 0.01), 99.99):.2f}"


def table(cases: int, seed: int, dtypes: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Yield the lines of the markdown table, each with whether all of its cases were caught."""
    yield "| corruption | dtype | " + " | ".join((*_REPORTED, "any")) + " |", True
    yield "| --- " * (len(_REPORTED) + 3) + "|", True
    specimens = {dtype: Specimen(dtype) for dtype in dtypes}
    for number, (name, kind) in enumerate(KINDS.items()):
        for dtype, specimen in specimens.items():
            caught = count_caught(specimen, kind, cases, (seed, number, DTYPES.index(dtype)))
            shares = [percent(caught[cause], cases) for cause in (*_REPORTED, "any")]
            yield f"| {name} | {dtype} | " + " | ".join(shares) + " |", caught["any"] == cases


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 1 if a case was caught by nothing, else 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000, help="cases for each kind and dtype (default 10000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=DTYPES, action="append", help="only this cache dtype; may be repeated")
    options = parser.parse_args(arguments)
    if options.cases < 1:
        parser.error("--cases: expected 1 or more")
    complete = True
    for line, all_caught in table(options.cases, options.seed, options.dtype or DTYPES):
        print(line, flush=True)
        if not sys.stdout.isatty():
            print(line, file=sys.stderr, flush=True)  # the table goes to a file: show how far it is
        complete &= all_caught
    return 0 if complete else 1


if __name__ == "__main__":
    raise SystemExit(main())
