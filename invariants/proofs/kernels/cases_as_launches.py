"""A solver's case as a launch that can be run: sizes to shapes, contents to what index tensors hold.

A case says what was read where it matters. A program reads more than that: other entries of its table, other lanes' slots.
Those get values that keep the specification's promises, as soon as a run has read them; it is then run again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from kvsan.gpu_kernels.compile.build import Build
from kvsan.gpu_kernels.interface import KernelBug
from kvsan.invariants.proofs.kernels.cases import Case
from kvsan.invariants.proofs.kernels.execution import LOAD
from kvsan.invariants.proofs.kernels.interpreted import (
    ConcreteLaunch,
    ConcreteTensor,
    Interpreted,
    Interpreter,
    Lane,
    Program,
    Recorded,
)
from kvsan.invariants.proofs.kernels.known_launch import KnownLaunch
from kvsan.invariants.proofs.kernels.prover import Subject
from kvsan.invariants.proofs.kernels.specification import Access, At, Specification, Tensor

_RUNS = 32
_FEW = 64
"""How many small numbers are tried for an entry of which the case says nothing."""

Index = tuple[int, ...]


class Contradiction(Exception):
    """A case that no memory can hold: two entries at one address."""


class _Contents:
    """What an index tensor holds: what the case says, and else something that is allowed."""

    def __init__(self, name: str, given: dict[Index, int]) -> None:
        self.name = name
        self.known = given
        self._given = sorted(set(given.values()))
        self.tensor: Tensor | None = None
        self.width = 64

    def __getitem__(self, index: Index) -> int:
        if index not in self.known:
            self.known[index] = self._allowed(index)
        return self.known[index]

    def _allowed(self, index: Index) -> int:
        assert self.tensor is not None
        inside = all(0 <= one < size for one, size in zip(index, self.tensor.shape, strict=True))
        return next((one for one in self._candidates(index) if not inside or self._fits(index, one)), 0)

    def _candidates(self, index: Index) -> Iterator[int]:
        yield -1
        yield 0
        below = [value for place, value in self.known.items() if place < index]
        yield from (*below[-1:], *self._given, *range(1, _FEW))

    def _fits(self, index: Index, value: int) -> bool:
        assert self.tensor is not None
        assert self.tensor.contents is not None
        self.known[index] = value  # a promise may read the entry itself
        try:
            if not self.tensor.contents(value, *index):
                return False
            pairs = self.tensor.pairs
            return pairs is None or all(
                pairs(index, value, place, other) and pairs(place, other, index, value)
                for place, other in self.known.items()
                if place != index
            )
        finally:
            del self.known[index]


class CaseAsLaunch:
    """A case of a build's kernel, to be run in an interpreter; ``folder`` as in `ConcreteLaunch`."""

    def __init__(self, build: Build, subject: Subject, case: Case, interpreter: Interpreter, folder: str) -> None:
        self.name = build.name
        self._interpreter = interpreter
        self._contents = {name: _Contents(name, dict(entries)) for name, entries in case.contents.items()}
        scalars = {name: case.numbers.get(name, 0) for name, kind in subject.signature.items() if kind[0] in "iu"}
        pointers = [name for name, kind in subject.signature.items() if kind.startswith("*")]
        for name in pointers:
            self._contents.setdefault(name, _Contents(name, {}))
        known = KnownLaunch({**subject.constexprs, **scalars, **self._contents}, case.numbers, subject.specify)
        self.specification: Specification = known.specification
        self.tensors: dict[str, Tensor] = {}
        for name in pointers:
            tensor = self.specification.tensors.get(name, Tensor((1,), (1,)))
            shape, strides = _ints(tensor.shape), _ints(tensor.strides)
            self.tensors[name] = self._contents[name].tensor = replace(tensor, shape=shape, strides=strides)
        self.grid = _ints(self.specification.grid)
        self._launch = ConcreteLaunch(
            build.kernel, subject.signature, subject.constexprs, scalars, {}, self.grid, folder, checked=False
        )

    # -- running it

    def run(self, programs: Iterable[Program] | None) -> Interpreted:
        """Run programs, None: all; only overflow is looked for."""
        return self._filled(self._launch, programs)

    def report(self, programs: Iterable[Program]) -> KernelBug | None:
        """What the interpreter's checks say, where elements of tensors are different memory."""
        if not all(self.distinct(name) for name in self.tensors):
            return None
        return self._filled(replace(self._launch, checked=True), programs).bug

    def _filled(self, launch: ConcreteLaunch, programs: Iterable[Program] | None) -> Interpreted:
        chosen = None if programs is None else tuple(dict.fromkeys(programs))
        for _ in range(_RUNS):
            run = self._interpreter.run(replace(launch, tensors=self._concrete(launch.checked)), chosen)
            if not self._learn(run):
                return run
        raise Contradiction("the entries that the program reads depend on one another without end")

    def _learn(self, run: Interpreted) -> bool:
        """Give values to entries that were read and had none; whether there were such."""
        before = sum(len(one.known) for one in self._contents.values())
        for one in run.accesses:
            if one.how == LOAD and self.tensors[one.tensor].contents is not None:
                for offset in dict.fromkeys(one.offsets):
                    index = index_of(self.tensors[one.tensor], offset)
                    if index is not None:
                        self._contents[one.tensor][index]
        return sum(len(one.known) for one in self._contents.values()) > before

    def _concrete(self, shared: bool) -> dict[str, ConcreteTensor]:
        storages = {name: pair[0] for pair in self.specification.aliases for name in pair} if shared else {}
        found = {}
        for name, tensor in self.tensors.items():
            entries: dict[int, int] = {}
            for index, value in self._contents[name].known.items() if tensor.contents is not None else ():
                offset = self.offset_of(name, index)
                if entries.setdefault(offset, value) != value:
                    raise Contradiction(f"two entries of {name} are at one address in this case, with different values")
            found[name] = ConcreteTensor(_ints(tensor.shape), _ints(tensor.strides), entries, 0, storages.get(name, ""))
        return found

    # -- what the specification says of it

    def accesses(self, kind: str, tensor: str) -> list[Access]:
        """The specification's accesses of a kind to a tensor."""
        return [one for one in self.specification.accesses or () if (one.kind, one.tensor) == (kind, tensor)]

    def offset(self, access: Access, at: At) -> int:
        """Element that an access should be at."""
        return self.offset_of(access.tensor, access.index(at))

    def offset_of(self, tensor: str, index: Iterable[Any]) -> int:
        """Offset of an index."""
        return sum(int(one) * int(stride) for one, stride in zip(index, self.tensors[tensor].strides, strict=True))

    def last_offset(self, tensor: str) -> int:
        """Offset of the last element."""
        return self.offset_of(tensor, (size - 1 for size in _ints(self.tensors[tensor].shape)))

    def elements(self, kind: str, tensor: str, recorded: Recorded, lane: Lane) -> set[Index]:
        """Which element a lane is at: by index where the specification has accesses, else by offset."""
        offset = recorded.at(lane)
        assert offset is not None
        if self.specification.accesses is None:
            return {(offset,)}
        at = At(recorded.program, lane, recorded.loops)
        indexes = [_ints(one.index(at)) for one in self.accesses(kind, tensor) if one.where(at)]
        return {index for index in indexes if self.offset_of(tensor, index) == offset}

    def distinct(self, tensor: str) -> bool:
        """Whether elements at different indexes are different memory: each stride is larger than all that smaller ones span."""
        one = self.tensors[tensor]
        axes = sorted((int(stride), int(size)) for stride, size in zip(one.strides, one.shape, strict=True) if size > 1)
        spans = [0]
        for stride, size in axes:
            spans.append(spans[-1] + stride * (size - 1))
        return all(stride > span for (stride, _), span in zip(axes, spans, strict=False))

    def trips(self, at: At) -> int:
        """Trips of the specification's longest loop in a program."""
        loops = self.specification.loops or ()
        return max((-(-(int(one.stop(at)) - int(one.start(at))) // int(one.step)) for one in loops), default=0)


def index_of(tensor: Tensor, offset: int) -> Index | None:
    """Index of an element by its offset; None if there is none there."""
    index, rest = [0] * len(tensor.shape), offset
    axes = [axis for axis, size in enumerate(tensor.shape) if int(size) > 1 and int(tensor.strides[axis])]
    for axis in sorted(axes, key=lambda axis: -int(tensor.strides[axis])):
        index[axis], rest = divmod(rest, int(tensor.strides[axis]))
    inside = all(0 <= one < int(size) for one, size in zip(index, tensor.shape, strict=True))
    return tuple(index) if inside and rest == 0 else None


def _ints(numbers: Iterable[Any]) -> tuple[int, ...]:
    return tuple(map(int, numbers))
