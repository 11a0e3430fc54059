"""A launch of which everything is known: what its specification assumes, checked on real arguments.

Proofs rest on what lengths, tables and slots may contain. Whoever launches a kernel must keep that; this is where it shows
if not. The same specification is read, over Python ints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations, product
from typing import Any

import z3

from kvsan.invariants.proofs.kernels.ir import Rejected
from kvsan.invariants.proofs.kernels.specification import At, Specification, Specify, Tensor
from kvsan.invariants.proofs.kernels.unknown_launch import LARGEST_SIZE, UnknownLaunch
from kvsan.invariants.proofs.term import lift

MOST_PAIRS = 4096
"""Pairs of entries, or of programs, beyond which a property of any two is not checked."""

GRID = ""
"""Stands for the grid where sizes are looked for in shapes."""


class KnownLaunch:
    """Implements `specification.Launch` over real arguments.

    ``arguments`` by name: ints, and index tensors, which take a tuple of indexes; ``sizes`` by name.
    """

    def __init__(self, arguments: Mapping[str, Any], sizes: Mapping[str, int], specify: Specify) -> None:
        self._arguments = arguments
        self._sizes = sizes
        self.ranges: dict[str, tuple[int, int]] = {}
        self.specification: Specification = specify(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._arguments:
            raise Rejected(f"the specification asks for {name}: expected an argument of the kernel")
        return self._arguments[name]

    def size(self, name: str, least: int = 1, most: int = LARGEST_SIZE) -> int:
        """A size."""
        if name not in self._sizes:
            raise Rejected(f"the specification has a size {name}: expected a dimension of a tensor or of the grid")
        self.ranges[name] = least, most
        return self._sizes[name]

    def read(self, tensor: str, *index: int) -> int:
        """What an index tensor holds."""
        return int(self._arguments[tensor][tuple(map(int, index))])

    def shares(self, tensor: str, other: str) -> bool:
        """Whether two tensors are of one storage; not in a launch that is made up, whose tensors have none."""
        found: list[Any] = [self._arguments.get(one) for one in (tensor, other)]
        if not all(hasattr(one, "untyped_storage") for one in found):
            return False
        return len({one.untyped_storage().data_ptr() for one in found}) == 1


def broken_promises(
    signature: Mapping[str, str],
    constexprs: Mapping[str, Any],
    arguments: Mapping[str, Any],
    grid: Sequence[int],
    specify: Specify,
) -> Iterator[str]:
    """What a launch does not keep of its specification, in words.

    ``signature`` and ``constexprs`` as of a `Build`; ``arguments``: ints and torch tensors by name, constexprs among
    them; Rejected if the specification does not fit them.
    """
    shapes: dict[str, Sequence[int]] = {GRID: grid}
    shapes |= {name: tuple(one.shape) for name, one in arguments.items() if hasattr(one, "stride")}
    sizes: dict[str, int] = {}
    for place, axis, name in _places_of_sizes(tuple(signature.items()), tuple(constexprs.items()), specify):
        if axis < len(shapes.get(place, ())):
            sizes.setdefault(name, int(shapes[place][axis]))
    launch = KnownLaunch(arguments, sizes, specify)
    for name, (least, most) in launch.ranges.items():
        if not least <= sizes[name] <= most:
            yield f"{name} is {sizes[name]}: expected {least} to {most}"
    for number, holds in enumerate(launch.specification.assume, 1):
        if not holds:
            yield f"assumption {number} of the specification does not hold"
    given, wanted = ((*one, 1, 1)[:3] for one in (grid, map(int, launch.specification.grid)))
    if given != wanted:
        yield f"the grid is {given}: expected {wanted}"
    accessed = {one.tensor for one in launch.specification.accesses or ()}
    for name, tensor in launch.specification.tensors.items():
        if name in accessed:
            yield from _tensor(launch, name, tensor, arguments[name])
    yield from _any_two(launch)


@lru_cache(maxsize=256)
def _places_of_sizes(
    signature: tuple[tuple[str, str], ...], constexprs: tuple[tuple[str, Any], ...], specify: Specify
) -> list[tuple[str, int, str]]:
    """Tensor (or the grid), dimension and name of each size that is a dimension as it is."""
    unknown = UnknownLaunch(dict(signature), dict(constexprs), specify)
    shapes = {name: tensor.shape for name, tensor in unknown.specification.tensors.items()}
    found = []
    for name, shape in {**shapes, GRID: unknown.specification.grid}.items():
        for axis, dimension in enumerate(map(lift, shape)):
            if z3.is_const(dimension) and dimension.decl().name() in unknown.sizes:
                found.append((name, axis, dimension.decl().name()))
    return found


def _tensor(launch: KnownLaunch, name: str, tensor: Tensor, real: Any) -> Iterator[str]:
    shape, strides = tuple(map(int, tensor.shape)), tuple(map(int, tensor.strides))
    if tuple(real.shape) != shape:
        yield f"{name} has shape {tuple(real.shape)}: expected {shape}"
        return
    if any(size > 1 and one != other for size, one, other in zip(shape, real.stride(), strides, strict=True)):
        yield f"{name} has strides {real.stride()}: expected {strides}"
    if tensor.contents is None:
        return
    entries = list(product(*map(range, shape)))
    for index in entries:
        if not tensor.contents(launch.read(name, *index), *index):
            yield f"{name}{list(index)} is {launch.read(name, *index)}, which the specification does not allow"
            return
    if tensor.pairs is not None and len(entries) ** 2 <= MOST_PAIRS:
        for one, other in combinations(entries, 2):
            values = launch.read(name, *one), launch.read(name, *other)
            if not (tensor.pairs(one, values[0], other, values[1]) and tensor.pairs(other, values[1], one, values[0])):
                yield f"{name}{list(one)} is {values[0]}, {name}{list(other)} is {values[1]}: the specification allows one only"
                return


def _any_two(launch: KnownLaunch) -> Iterator[str]:
    holds = launch.specification.any_two
    if holds is None:
        return
    programs = [_program(one) for one in product(*(range(int(size)) for size in launch.specification.grid))]
    if len(programs) ** 2 <= MOST_PAIRS:
        for one, other in combinations(programs, 2):
            if not (holds(one, other) and holds(other, one)):
                yield f"programs {one.program} and {other.program} are given what the specification allows one only"
                return


def _program(ids: tuple[int, ...]) -> At:
    first, second, third = [*ids, 0, 0, 0][:3]
    return At((first, second, third), (0, 0, 0))
