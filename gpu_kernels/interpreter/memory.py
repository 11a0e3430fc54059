"""Bounds and races of one launch under Triton's interpreter.

**Whose address it is.** A tensor argument's number is put into the 16 highest bits of its address, which no user address
has. The tag goes wherever arithmetic, selects, reshapes, casts and memory take the pointer, one tag a lane, and comes off
when an address is used. An access is then checked against the tensor that its pointer came from: one that lands in
another argument is a bug. Untagged addresses (an integer that the caller made of an address) may be in any argument. An
offset of 2**47 bytes and more reaches the tag, and the report may then name another argument.

**Who touches what.** Memory that arguments cover is split into regions that do not overlap, so that views of one storage
share one. A region has shadow arrays with one entry for each of its cells (as large as its smallest element)::

    writers     program that stored here, 0 for none
    readers     program that loaded here, MANY for several
    updaters    likewise for atomics

Programs of one launch run in any order, so a store where another program has loaded or stored, and a load where another
has stored, are races, as are two lanes of one store in one cell. Atomics race with loads and stores, not with atomics.
Order that a kernel makes by atomics (the last program to arrive reads what all have stored) is not understood.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from kvsan.gpu_kernels.interpreter.launch import Launch, lane_at
from kvsan.gpu_kernels.interpreter.views import Lanes, Offsets, View

TAG_SHIFT = np.uint64(48)
ADDRESS_BITS = np.uint64((1 << 48) - 1)
MANY = -1

Addresses = npt.NDArray[np.uint64]
Positions = npt.NDArray[np.intp]

LOAD, STORE, ATOMIC = "load", "store", "atomic"


class Region:
    """Shadow of addresses ``[start, stop)``: which programs touched each cell, and how."""

    def __init__(self, start: int, stop: int, cell_bytes: int) -> None:
        self.start = start
        self.cell_bytes = cell_bytes
        self._cells = -(-(stop - start) // cell_bytes)
        self._touched: dict[str, npt.NDArray[np.int32]] = {}
        self._lanes: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def cells(self, addresses: Offsets, size_bytes: int) -> Offsets:
        """Cells of accesses, ``[num_accesses, cells of each]``."""
        offsets = addresses - self.start
        if size_bytes % self.cell_bytes or (offsets % self.cell_bytes).any():
            self._refine()
        first = offsets // self.cell_bytes
        return first[:, None] + np.arange(size_bytes // self.cell_bytes)

    def _refine(self) -> None:
        """Make a cell of every byte, for accesses through pointers that were cast to another width."""
        self._touched = {how: np.repeat(shadow, self.cell_bytes) for how, shadow in self._touched.items()}
        self._cells *= self.cell_bytes
        self.cell_bytes = 1

    def twice(self, cells: Offsets) -> tuple[int, int] | None:
        """First two accesses that share a cell, None if none do."""
        if self._lanes.size != self._cells:
            self._lanes = np.empty(self._cells, dtype=np.int64)
        numbers = np.broadcast_to(np.arange(len(cells))[:, None], cells.shape)
        self._lanes[cells] = numbers
        shared = (self._lanes[cells] != numbers).any(axis=1)
        if not shared.any():
            return None
        first = int(np.argmax(shared))
        same = np.isin(cells, cells[first]).any(axis=1)
        return first, int(np.flatnonzero(same)[1])

    def touch(self, how: str, cells: Offsets, program: int) -> tuple[int, str, int] | None:
        """Record accesses of a program (numbered from 1).

        Returns the first access that races with another program's: its position, what the other did, and the other's
        number or MANY.
        """
        for other, shadow in self._touched.items():
            if _may_share(how, other):
                seen = shadow[cells]
                racing = (seen != 0) & (seen != program)
                if racing.any():
                    first = int(np.argmax(racing.any(axis=1)))
                    return first, other, int(seen[first][np.argmax(racing[first])])
        if how not in self._touched:
            self._touched[how] = np.zeros(self._cells, dtype=np.int32)
        shadow = self._touched[how]
        seen = shadow[cells]
        shadow[cells] = np.where((seen == 0) | (seen == program), program, MANY)
        return None


def _may_share(how: str, other: str) -> bool:
    """Whether two such accesses of one cell by two programs are a race."""
    return STORE in (how, other) or how != other


@dataclass(frozen=True, slots=True)
class _Access:
    """The active lanes of one load, store or atomic, one entry each in ``addresses`` and ``tags``."""

    launch: Launch
    how: str
    size_bytes: int
    active: Lanes
    addresses: Offsets
    tags: Offsets

    def lane(self, position: int) -> tuple[int, ...]:
        return lane_at(int(np.flatnonzero(self.active)[position]), self.active.shape)

    def report(self, kind: str, position: int, message: str) -> NoReturn:
        self.launch.report(kind, self.lane(position), message)


class Memory:
    """The tensor arguments of one launch, and the checks of every access to them."""

    def __init__(self) -> None:
        self._views: list[View] = []
        self._tags: dict[int, int] = {}
        self._kept: list[Any] = []
        self._regions: list[Region] = []

    def add(self, name: str, argument: Any) -> None:
        """Register an argument if it is a tensor, a tensor descriptor, or a tuple of such."""
        if hasattr(argument, "data_ptr"):
            self._kept.append(argument)  # an id is good only while its object lives
            self._views.append(View(name, getattr(argument, "base", argument)))
            self._tags[id(argument)] = len(self._views)
        elif isinstance(argument, tuple):
            for number, element in enumerate(argument):
                self.add(f"{name}[{number}]", element)
        elif hasattr(argument, "base"):
            self.add(name, argument.base)

    def tag(self, argument: Any) -> np.uint64:
        """Return what to add to a registered tensor's address."""
        return np.uint64(self._tags[id(argument)]) << TAG_SHIFT

    def check(self, launch: Launch, how: str, pointers: Addresses, mask: Any, size_bytes: int) -> Addresses:
        """Check the active lanes of one access; return the addresses without their tags.

        Raises KernelBug through the launch for the first lane out of bounds, else for the first that races.
        """
        everywhere, active = np.broadcast_arrays(pointers, np.asarray(mask, dtype=np.bool_))
        lanes = everywhere[active]
        if lanes.size:
            addresses, tags = (lanes & ADDRESS_BITS).astype(np.int64), (lanes >> TAG_SHIFT).astype(np.int64)
            access = _Access(launch, how, size_bytes, active, addresses, tags)
            for number, positions in self._check_bounds(access).items():
                self._check_races(access, self._regions[number], positions)
        return np.asarray(pointers & ADDRESS_BITS)

    def _check_bounds(self, access: _Access) -> dict[int, Positions]:
        """Report the first lane that is out of bounds; return the positions of lanes by number of region."""
        first, found = access.tags[0], list[tuple[View, Positions]]()
        strays: list[int] = []
        for tag in [int(first)] if (access.tags == first).all() else np.unique(access.tags).tolist():
            positions = np.flatnonzero(access.tags == tag)
            owner = self._owner(tag)
            for view in [owner] if owner else self._views if tag == 0 else []:
                inside = view.contains(access.addresses[positions] - view.address, access.size_bytes)
                found.append((view, positions[inside]))
                positions = positions[~inside]
            strays += positions[:1].tolist()
        if strays:
            position = min(strays)
            tag = int(access.tags[position])
            address = self._first_stray(tag, int(access.addresses[position]), access.size_bytes)
            access.report("out-of-bounds", position, f"{access.how} {self._place(tag, address)}")
        by_region: dict[int, list[Positions]] = {}
        for view, positions in found:
            if positions.size:
                by_region.setdefault(self._region_of(view), []).append(positions)
        return {number: np.sort(np.concatenate(parts)) for number, parts in by_region.items()}

    def _check_races(self, access: _Access, region: Region, positions: Positions) -> None:
        cells = region.cells(access.addresses[positions], access.size_bytes)
        shared = region.twice(cells) if access.how == STORE else None
        if shared is not None:
            first, second = (int(positions[one]) for one in shared)
            text = f"as lane {access.lane(second)} of the same store does"
            access.report("race", first, f"store of {self._place_of(access, first)}, {text}")
        race = region.touch(access.how, cells, access.launch.program_number() + 1)
        if race is not None:
            position = int(positions[race[0]])
            text = f"where {_whose(access.launch, race[2], race[1])}"
            access.report("race", position, f"{access.how} of {self._place_of(access, position)}, {text}")

    def _place_of(self, access: _Access, position: int) -> str:
        return self._place(int(access.tags[position]), int(access.addresses[position]))

    def _owner(self, tag: int) -> View | None:
        return self._views[tag - 1] if 1 <= tag <= len(self._views) else None

    def _first_stray(self, tag: int, address: int, size_bytes: int) -> int:
        """Address of the first byte of an access that is not its tensor's; of the first byte if it has no tensor."""
        owner = self._owner(tag)
        inside = owner.contains(address - owner.address + np.arange(size_bytes), 1) if owner else np.zeros(1, np.bool_)
        return address + int(np.argmin(inside))

    def _place(self, tag: int, address: int) -> str:
        owner = self._owner(tag)
        inside = [view for view in self._views if view.contains(np.array([address - view.address]), 1)[0]]
        if owner is None:
            return inside[0].place(address - inside[0].address) if inside else "in no tensor argument"
        place = owner.place(address - owner.address)
        strangers = [view for view in inside if owner not in inside]
        return f"{place}, in {strangers[0]}" if strangers else place

    def _region_of(self, view: View) -> int:
        if not self._regions:
            self._split()
        starts = [region.start for region in self._regions]
        return int(np.searchsorted(starts, view.address, side="right")) - 1

    def _split(self) -> None:
        views = sorted((view for view in self._views if view.stop), key=lambda view: view.address)
        while views:
            start, stop, count = views[0].address, 0, 0
            while count < len(views) and views[count].address < max(stop, start + 1):
                stop = max(stop, views[count].address + views[count].stop)
                count += 1
            sizes = [size for view in views[:count] for size in (view.itemsize, view.address - start)]
            self._regions.append(Region(start, stop, int(np.gcd.reduce(sizes))))
            views = views[count:]


def _whose(launch: Launch, number: int, how: str) -> str:
    done = {LOAD: "loads", STORE: "stores", ATOMIC: "does an atomic"}[how]
    return (
        f"program {launch.program_numbered(number - 1)} {done}" if number != MANY else f"more than one program {done}"
    )
