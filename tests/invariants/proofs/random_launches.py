"""Small random launches of a kernel: sizes, strides in any order with gaps, and contents that keep the specification's promises.

Strides are those that the specification's tensors ask for. What may hold anything (entries of a block table that no length
uses) holds anything.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import z3
from evaluation import evaluator

from kvsan.invariants.proofs.kernels.interpreted import ConcreteLaunch, ConcreteTensor
from kvsan.invariants.proofs.kernels.known_launch import KnownLaunch
from kvsan.invariants.proofs.kernels.prover import Subject
from kvsan.invariants.proofs.kernels.unknown_launch import UnknownLaunch
from kvsan.invariants.proofs.term import lift

GARBAGE = (-(2**31), -1, 10**6, 2**31 - 1)


@dataclass(frozen=True, slots=True)
class RandomLaunch:
    """``concrete`` is what the interpreter runs; ``given``: every argument, size and content function by name."""

    concrete: ConcreteLaunch
    given: Mapping[str, Any]


def random_launch(kernel: str, subject: Subject, draw: random.Random) -> RandomLaunch:
    """Draw a launch of ``kernel`` (module:function)."""
    launch = UnknownLaunch(subject.signature, subject.constexprs, subject.specify)
    sizes = {name: draw.randint(1, _LARGEST.get(name, 3)) for name in launch.sizes}
    scalars: dict[str, int] = {"span": draw.choice((1, 3, 8, 64))}
    contents = _Contents(subject.constexprs, sizes, scalars, draw)
    arrays = contents.of(kernel.partition(":")[2])
    scalars = {**scalars, **_strides(launch, {**sizes, **scalars}, draw)}
    arguments = {**subject.constexprs, **scalars, **arrays}
    known = KnownLaunch(arguments, sizes, subject.specify)
    for name, array in arrays.items():
        assert array.shape == tuple(map(int, known.specification.tensors[name].shape)), name
    _keep_promises(known, arrays)
    tensors = {
        name: ConcreteTensor(
            tuple(map(int, tensor.shape)),
            tuple(map(int, tensor.strides)),
            _by_offset(arrays[name], tuple(map(int, tensor.strides))) if name in arrays else {},
        )
        for name, tensor in known.specification.tensors.items()
    }
    unused = {name: ConcreteTensor((1,), (1,)) for name, kind in subject.signature.items() if kind.startswith("*")}
    integers = {name: scalars.get(name, 1) for name, kind in subject.signature.items() if kind in ("i32", "i64")}
    concrete = ConcreteLaunch(
        kernel,
        subject.signature,
        subject.constexprs,
        integers,
        {name: tensors.get(name, one) for name, one in unused.items()},
        tuple(map(int, known.specification.grid)),
    )
    return RandomLaunch(concrete, {**sizes, **integers, **{name: _Content(one) for name, one in arrays.items()}})


class _Content:
    """An index tensor as a function of its indexes, of any shape; outside of it there is nothing to see: -999."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __call__(self, *index: Any) -> Any:
        places = np.broadcast_arrays(*index)
        inside = np.ones(places[0].shape, dtype=bool)
        for place, size in zip(places, self._array.shape, strict=True):
            inside &= (place >= 0) & (place < size)
        found = self._array[tuple(np.where(inside, place, 0) for place in places)]
        return np.where(inside, found, -999)


_LARGEST = {"num_blocks": 6, "max_blocks": 5, "num_tokens": 9, "block_size": 12}


@dataclass(slots=True)
class _Contents:
    """Index tensors by name, and the scalars and sizes that go with them, which it sets."""

    constexprs: Mapping[str, Any]
    sizes: dict[str, int]
    scalars: dict[str, int]
    draw: random.Random

    def of(self, kernel: str) -> dict[str, np.ndarray]:
        if kernel in ("reshape_and_cache", "quantise_and_cache", "concat_and_cache"):
            return self._slots()
        if kernel == "gather_tokens":
            return self._gathered()
        if kernel == "move_blocks":
            return self._pairs()
        if kernel == "move_heads":
            self.scalars["num_blocks"] = self.draw.randint(1, 3)
            return {}
        if kernel == "merge_splits":
            self.scalars["stride_ph"] = self.constexprs["SPLITS"]
            self.scalars["stride_pt"] = self.constexprs["SPLITS"] * self.sizes["num_q_heads"]
            return {}
        return self._sequences(kernel)

    def _sequences(self, kernel: str) -> dict[str, np.ndarray]:
        rows, size, entries = self.sizes["num_rows"], self.constexprs["BLOCK_SIZE"], self.sizes["max_blocks"]
        lengths = [self.draw.choice((0, 1, self.draw.randint(0, entries * size), entries * size)) for _ in range(rows)]
        table = self._anything((rows, entries))
        for row, length in enumerate(lengths):
            for entry in range(-(-length // size)):
                table[row, entry] = self.draw.randrange(self.sizes["num_blocks"])
        found = {"block_tables": table, "seq_lens": np.array(lengths)}
        if kernel == "paged_prefill":
            queries = [self.draw.randint(0, min(length, 40)) for length in lengths]
            starts = np.cumsum([self.draw.randint(0, 3), *queries])
            self.sizes["num_tokens"] = max(1, int(starts[-1]) + self.draw.randint(0, 2))
            self.sizes["longest_query"] = max(1, *queries)
            found["query_start_loc"] = starts
        if "SPLITS" in self.constexprs:
            heads = self.sizes["num_kv_heads"] * self.constexprs["GROUP"]
            self.scalars |= {"stride_ph": self.constexprs["SPLITS"], "stride_pt": self.constexprs["SPLITS"] * heads}
        return found

    def _slots(self) -> dict[str, np.ndarray]:
        slots = self.sizes["num_blocks"] * self.constexprs["BLOCK_SIZE"]
        tokens = self.draw.randint(1, min(slots, 40))
        self.sizes["padded_tokens"] = tokens + self.draw.randint(0, 2)
        self.scalars["num_tokens"] = tokens
        chosen = self.draw.sample(range(slots), tokens)
        return {"slot_mapping": np.array([-1 if self.draw.random() < 0.2 else one for one in chosen])}

    def _gathered(self) -> dict[str, np.ndarray]:
        size, entries = self.constexprs["BLOCK_SIZE"], self.sizes["max_blocks"]
        self.scalars["start"] = self.draw.randrange(entries * size)
        self.scalars["stop"] = self.draw.randint(self.scalars["start"] + 1, entries * size)
        table = self._anything((entries,))
        for entry in range(self.scalars["start"] // size, -(-self.scalars["stop"] // size)):
            table[entry] = self.draw.randrange(self.sizes["num_blocks"])
        return {"table": table}

    def _pairs(self) -> dict[str, np.ndarray]:
        pairs = self.sizes["num_pairs"]
        for name in ("num_source_blocks", "num_target_blocks"):
            self.sizes[name] = 2 * pairs + self.draw.randint(0, 2)
        blocks = self.draw.sample(range(2 * pairs), 2 * pairs)
        self.scalars["stop"] = self.draw.randint(0, self.sizes["block_size"])
        self.scalars["start"] = self.draw.randint(0, self.scalars["stop"])
        return {"source_blocks": np.array(blocks[:pairs]), "target_blocks": np.array(blocks[pairs:])}

    def _anything(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.array(self.draw.choices(GARBAGE, k=int(np.prod(shape)))).reshape(shape)


def _strides(launch: UnknownLaunch, given: Mapping[str, int], draw: random.Random) -> dict[str, int]:
    """Strides of every tensor, dimensions in any order, with gaps."""
    found: dict[str, int] = {}
    for tensor in launch.specification.tensors.values():
        names = [lift(one) for one in tensor.strides]
        shape = [int(evaluator(lift(one))(given)) for one in tensor.shape]
        free = [axis for axis, one in enumerate(names) if z3.is_const(one) and not z3.is_int_value(one)]
        if any(names[axis].decl().name() in {**given, **found} for axis in free):
            continue
        reach = shape[-1] if len(free) < len(shape) else 1
        for axis in draw.sample(free, len(free)):
            found[names[axis].decl().name()] = reach + draw.choice((0, 0, 3))
            reach = found[names[axis].decl().name()] * shape[axis]
    return found


def _keep_promises(known: KnownLaunch, arrays: Mapping[str, np.ndarray]) -> None:
    """A launch that the specification does not allow would show nothing."""
    assert all(known.specification.assume), known.specification.assume
    for name, array in arrays.items():
        contents = known.specification.tensors[name].contents
        assert contents is not None
        for index in product(*map(range, array.shape)):
            assert contents(int(array[index]), *index), (name, index)


def _by_offset(array: np.ndarray, strides: Sequence[int]) -> dict[int, int]:
    return {int(np.dot(index, strides)): int(array[index]) for index in product(*map(range, array.shape))}
