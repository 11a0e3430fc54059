"""What a kernel does against what it has to do: obligations.

Each address, mask, guard and loop of the kernel is shown equal to the specification's formula. Everything else follows
from formulas alone: that elements are inside their tensors, that no two programs meet, that nothing is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import z3

from kvsan.invariants.proofs.kernels.cases import TWIN, index_name, read_name
from kvsan.invariants.proofs.kernels.execution import STORE, Access, Run, Scope
from kvsan.invariants.proofs.kernels.ir import Rejected
from kvsan.invariants.proofs.kernels.separate_elements import check_separate
from kvsan.invariants.proofs.kernels.specification import At, Complete, Loop, Tensor, Theorem
from kvsan.invariants.proofs.kernels.symbols import premises, unknowns
from kvsan.invariants.proofs.kernels.unknown_launch import UnknownLaunch, at, is_reserved
from kvsan.invariants.proofs.kernels.whole_blocks import check_lanes, check_positions
from kvsan.invariants.proofs.obligation import Obligation
from kvsan.invariants.proofs.term import Condition, Number, Term, condition_of, lift, within


def obligations(launch: UnknownLaunch, run: Run) -> Iterator[Obligation]:
    """Everything that is to be shown of a kernel, line by line: what fails first is where things go wrong.

    In a line the widths of integers come first, then where an access happens, then its address.
    """
    checker = _Checker(launch, run)
    checker.refuse_changed_contents()
    checker.refuse_overlaps()
    found = [*checker.demands()]
    found += checker.bounds() if launch.specification.accesses is None else checker.addresses()
    found += checker.control()
    yield from sorted(found, key=lambda one: (not one.line, one.line))


def theorems(launch: UnknownLaunch, run: Run) -> Iterator[Obligation]:
    """What follows from the specification, whatever the kernel is; races, where no accesses are specified, from the kernel."""
    checker = _Checker(launch, run)
    if launch.specification.accesses is not None:
        yield from checker.insides()
    yield from checker.aliases()
    yield from checker.races()
    for theorem in launch.specification.theorems:
        yield checker.complete(theorem) if isinstance(theorem, Complete) else checker.theorem(theorem)


@dataclass(frozen=True, slots=True)
class _Side:
    """One of two programs that access memory: where, whether, which element."""

    access: Access
    at: At
    known: list[z3.BoolRef]
    active: z3.BoolRef
    element: tuple[z3.ArithRef, ...]


class _Checker:
    def __init__(self, launch: UnknownLaunch, run: Run) -> None:
        self._launch = launch
        self._run = run
        self._programs = launch.programs
        self._base = [*launch.assumptions, *launch.in_grid(self._programs), *run.definitions]

    # -- the kernel's own

    def refuse_changed_contents(self) -> None:
        """Rejected if the kernel stores what it loads as contents: those are taken to be the same all along."""
        specification = self._launch.specification
        read = {one.tensor for one in self._run.accesses if one.kind != STORE}
        read = {one for one in read if self._tensor(one).contents is not None}
        for access in self._run.accesses:
            same = {access.tensor, *(one for pair in specification.aliases if access.tensor in pair for one in pair)}
            if access.kind == STORE and same & read:
                raise Rejected(f"line {access.line}: a store to {access.tensor}, whose contents the kernel relies on")

    def refuse_overlaps(self) -> None:
        """Rejected if two indexes of a tensor that the kernel stores to are one element by the strides alone."""
        if self._launch.specification.accesses is not None:  # else offsets are compared, and not indexes
            for name in {one.tensor for one in self._run.accesses if one.kind == STORE}:
                check_separate(name, self._tensor(name))

    def demands(self) -> Iterator[Obligation]:
        for one in self._run.demands:
            known = [*one.scope.known, *one.scope.conditions, *_ranges(one.lanes, one.shape)]
            yield self._obligation(one.what, known, one.holds, one.line, one.lanes, one.scope)

    def addresses(self) -> Iterator[Obligation]:
        """That every access is the specification's, and where it should be."""
        specification = self._launch.specification
        expected = Counter((one.kind, one.tensor) for one in specification.accesses or ())
        found = Counter((one.kind, one.tensor) for one in self._run.accesses)
        for key in expected | found:
            if expected[key] > found[key] or (self._launch.exact and expected[key] < found[key]):
                raise Rejected(
                    f"{found[key]} {key[0]}s of {key[1]} in the kernel, {expected[key]} in its specification"
                )
        for access in self._run.accesses:
            known = [*access.scope.known, *_ranges(access.lanes, access.shape)]
            active = z3.And(*access.scope.conditions, access.active)
            wanted = self._launch.expected(access)
            place = at(access, self._programs)
            index, where = wanted.index(place), condition_of(wanted.where(place))
            offset = lift(_offset(self._tensor(access.tensor), index))
            name = f"{access.kind} {access.tensor}"
            more = {"offset": access.offset, "expected_offset": offset, "happens": active, "expected_to_happen": where}
            yield self._obligation(
                f"{name}: where it happens", known, active == where, access.line, access.lanes, access.scope, more
            )
            more = {"offset": access.offset, "expected_offset": offset}
            yield self._obligation(
                f"{name}: the address",
                [*known, active],
                access.offset == offset,
                access.line,
                access.lanes,
                access.scope,
                more,
            )
            check_lanes(name, access.lanes, access.shape, where)
            if step := self._step(access.scope):
                check_positions(name, access.lanes, access.shape, access.scope, step, (*map(lift, index), where))

    def bounds(self) -> Iterator[Obligation]:
        """That every access is in its tensor, by its offset."""
        for access in self._run.accesses:
            tensor = self._tensor(access.tensor)
            last = _offset(tensor, tuple(size - 1 for size in tensor.shape))
            inside = z3.And(
                access.offset >= 0, access.offset <= lift(last), *(lift(size) >= 1 for size in tensor.shape)
            )
            known = [*access.scope.known, *_ranges(access.lanes, access.shape), *access.scope.conditions]
            yield self._obligation(
                f"{access.kind} {access.tensor}: out of bounds", [*known, access.active], inside, access.line, access.lanes,
                access.scope, {"offset": access.offset, "last_offset": lift(last)},
            )  # fmt: skip

    def control(self) -> Iterator[Obligation]:
        """Loops and guards."""
        specification = self._launch.specification
        for name, wanted, found in (
            ("loops", specification.loops, self._run.loops), ("guards", specification.guards, self._run.guards),
        ):  # fmt: skip
            if wanted is None and name == "loops" and found and specification.accesses is not None:
                raise Rejected(f"{len(found)} loops in the kernel: expected a specification of accesses to have them")
            if wanted is not None and len(wanted) != len(found):
                raise Rejected(f"{len(found)} {name} in the kernel, {len(wanted)} in its specification")
        for loop, expected in zip(self._run.loops, specification.loops or (), strict=False):
            place = At(_three(self._programs), (), tuple(map(Term, loop.scope.loops)))
            known = [*loop.scope.known, *loop.scope.conditions]
            for name, value, formula in (
                ("start", loop.start, expected.start(place)), ("stop", loop.stop, expected.stop(place)),
                ("step", loop.step, expected.step),
            ):  # fmt: skip
                more = {name: value, f"expected_{name}": lift(formula)}
                yield self._obligation(
                    f"a loop's {name}", known, value == lift(formula), loop.line, (), loop.scope, more
                )
            yield self._every_position(expected)
        for guard, expected_guard in zip(self._run.guards, specification.guards or (), strict=False):
            place = At(_three(self._programs), tuple(map(Term, guard.lanes)), tuple(map(Term, guard.scope.loops)))
            known = [*guard.scope.known, *guard.scope.conditions, *_ranges(guard.lanes, guard.shape)]
            where = condition_of(expected_guard.where(place))
            more = {"taken": guard.condition, "expected_to_be_taken": where}
            yield self._obligation(
                "a guard of data", known, guard.condition == where, guard.line, guard.lanes, guard.scope, more
            )
            if step := self._step(guard.scope):
                check_positions("a guard of data", guard.lanes, guard.shape, guard.scope, step, (where,))

    def _step(self, scope: Scope) -> int | None:
        """Step of the innermost loop around something, as specified; None where there is no such loop."""
        expected = self._expected_loop(scope.loops[-1]) if scope.loops else None
        return expected.step if expected else None

    def _expected_loop(self, variable: z3.ArithRef) -> Loop | None:
        """The specification's loop for the one of a variable; None for a ``while``, and where loops are not specified."""
        pairs = zip(self._run.loops, self._launch.specification.loops or (), strict=False)
        return next((wanted for found, wanted in pairs if found.variable.eq(variable)), None)

    def _every_position(self, loop: Loop) -> Obligation:
        """A loop by ``step`` with as many lanes has each position between its bounds once, and the lanes know which are."""
        position, start, stop, other, lane = z3.Ints("position start stop other_trip other_lane")
        step = loop.step
        trip = (position - start) / step
        known = [
            start <= position,
            position < stop,
            other >= 0,
            lane >= 0,
            lane < step,
            start + other * step + lane == position,
        ]
        goal = z3.And(trip >= 0, start + trip * step <= position, start + trip * step < stop, other == trip)
        return Obligation("a loop has each position between its bounds once", tuple(known), goal)

    # -- the specification's own

    def insides(self) -> Iterator[Obligation]:
        for side in self._sides(""):
            shape = self._tensor(side.access.tensor).shape
            inside = z3.And(
                *(condition_of(within(0, Term(one), size)) for one, size in zip(side.element, shape, strict=True))
            )
            yield self._obligation(
                f"{side.access.kind} {side.access.tensor}: outside of the tensor", [*side.known, side.active], inside,
                side.access.line, side.access.lanes, side.access.scope,
                {f"index{axis}": one for axis, one in enumerate(side.element)},
            )  # fmt: skip

    def aliases(self) -> Iterator[Obligation]:
        """That tensors have the same strides where they are the same memory: races are shown of indexes."""
        for first, second in self._launch.specification.aliases:
            strides = [self._tensor(name).strides for name in (first, second)]
            if len(strides[0]) != len(strides[1]):
                raise Rejected(f"{first} and {second} are aliases: expected as many dimensions of one as of the other")
            alike = z3.And(*(lift(one) == lift(other) for one, other in zip(*strides, strict=True)))
            known = [condition_of(self._launch.shares(first, second))]
            yield self._obligation(
                f"{first} and {second}: strides of the same memory differ", known, alike, 0, (), Scope()
            )

    def races(self) -> Iterator[Obligation]:
        """No element that a program stores is loaded or stored by another, nor stored twice by one."""
        mine, others = self._sides(""), self._sides(TWIN)
        for number, first in enumerate(mine):
            for second in others[number:]:
                if self._may_meet(first.access, second.access):
                    yield self._race(first, second)

    def _may_meet(self, first: Access, second: Access) -> bool:
        shared = first.tensor == second.tensor or bool(self._alias(first, second))
        return STORE in (first.kind, second.kind) and shared

    def _alias(self, first: Access, second: Access) -> tuple[str, str] | tuple[()]:
        """The two tensors, in the order of the specification, if they may be the same memory."""
        names = {first.tensor, second.tensor}
        return next((pair for pair in self._launch.specification.aliases if names == set(pair)), ())

    def _race(self, first: _Side, second: _Side) -> Obligation:
        known = [*first.known, *second.known, *self._launch.in_grid(self._launch.programs_named(TWIN))]
        known += [first.active, second.active]
        if first.access.tensor != second.access.tensor:
            known += [
                condition_of(self._launch.shares(*pair)) for pair in [self._alias(first.access, second.access)] if pair
            ]
        meet = z3.And(*(one == other for one, other in zip(first.element, second.element, strict=True)))
        if self._launch.specification.any_two is not None:
            two = z3.Or(
                *(lift(one) != lift(other) for one, other in zip(first.at.program, second.at.program, strict=True))
            )
            known += [
                z3.Implies(two, condition_of(self._launch.specification.any_two(*pair)))
                for pair in ((first.at, second.at), (second.at, first.at))
            ]
        alike = zip(_numbers(first.at), _numbers(second.at), strict=False)
        same_shape = len(_numbers(first.at)) == len(_numbers(second.at))
        twice = first.access is second.access or first.access.kind != second.access.kind
        goal = z3.And(*(one == other for one, other in alike)) if twice and same_shape else z3.BoolVal(False)
        name = f"{first.access.kind} {first.access.tensor}: race with {second.access.kind} {second.access.tensor}"
        more = {f"other_program{axis}": one for axis, one in enumerate(self._launch.programs_named(TWIN))}
        more |= {f"other_lane{axis}": one for axis, one in enumerate(map(lift, second.at.lane))}
        never = z3.Implies(meet, goal)
        return self._obligation(name, known, never, second.access.line, first.access.lanes, first.access.scope, more)

    def _sides(self, suffix: str) -> list[_Side]:
        """Every access of a program, of its twin with a suffix."""
        specification = self._launch.specification
        sides = []
        for access in self._run.accesses:
            conditions = z3.And(*access.scope.conditions, access.active)
            if specification.accesses is None:
                place, element, active = at(access, self._programs), (access.offset,), conditions
            else:
                wanted, place = self._launch.expected(access), at(access, self._programs)
                element, active = tuple(map(lift, wanted.index(place))), condition_of(wanted.where(place))
            known = [*self._run.definitions, *access.scope.known, *_ranges(access.lanes, access.shape)]
            parts = [*known, active, *element, *map(lift, (*place.program, *place.lane, *place.loops))]
            if suffix:
                parts = self._twins(parts)
            numbers = [Term(one) for one in parts[len(known) + 1 + len(element) :]]
            lanes = 3 + len(place.lane)
            moved = At((numbers[0], numbers[1], numbers[2]), tuple(numbers[3:lanes]), tuple(numbers[lanes:]))
            element = tuple(parts[len(known) + 1 : len(known) + 1 + len(element)])
            sides.append(_Side(access, moved, parts[: len(known)], parts[len(known)], element))
        return sides

    def _twins(self, expressions: list[z3.ExprRef]) -> list[z3.ExprRef]:
        """The same for another program: whatever is not an argument or a size gets another name."""
        shared = {*self._launch.sizes, *self._launch.scalar_names}
        names = {one for expression in expressions for one in unknowns(expression) if one not in shared}
        renaming = [(z3.Int(name), z3.Int(f"{name}{TWIN}")) for name in sorted(names)]
        return [z3.substitute(one, *renaming) for one in expressions]

    def _theorems_unknowns(self, theorem: Theorem | Complete) -> list[Term]:
        """Unknowns of a theorem; Rejected for a name that is somebody else's, of which more is known than the theorem says."""
        for name in theorem.unknowns:
            if name in self._launch.sizes or name in self._launch.scalar_names or is_reserved(name):
                raise Rejected(f"{theorem.statement!r} has an unknown {name}: expected a name that nothing else has")
        return [Term(z3.Int(name)) for name in theorem.unknowns]

    def theorem(self, theorem: Theorem) -> Obligation:
        names = self._theorems_unknowns(theorem)
        known, goal = premises(condition_of(theorem.holds(*names)))
        watch = {name: z3.Int(name) for name in theorem.unknowns}
        return self._obligation(theorem.statement, known, goal, 0, (), Scope(), watch)

    def complete(self, theorem: Complete) -> Obligation:
        specification = self._launch.specification
        assert specification.accesses is not None
        names = self._theorems_unknowns(theorem)
        wanted = specification.accesses[theorem.access]
        place = theorem.place(*names)
        access = next(one for one in self._run.accesses if self._launch.expected(one) is wanted)
        reached: list[Condition] = [wanted.where(place)]
        reached += [within(0, one, Term(size)) for one, size in zip(place.program, self._launch.grid, strict=True)]
        reached += [within(0, one, size) for one, size in zip(place.lane, access.shape, strict=True)]
        reached += self._reached(access, place)
        found, element = wanted.index(place), theorem.index(*names)
        reached += [one == other for one, other in zip(found, element, strict=True)]
        known = [condition_of(theorem.given(*names))]
        goal = z3.And(*map(condition_of, reached))
        watch = {name: z3.Int(name) for name in theorem.unknowns}
        return self._obligation(theorem.statement, known, goal, access.line, (), Scope(), watch)

    def _reached(self, access: Access, place: At) -> Iterator[Condition]:
        """That loops around an access have the trips of a place; Rejected if the specification does not say which loops."""
        if len(place.loops) != len(access.scope.loops):
            raise Rejected(f"a place in {len(place.loops)} loops, of an access in {len(access.scope.loops)}")
        for depth, (variable, value) in enumerate(zip(access.scope.loops, place.loops, strict=True)):
            loop = self._expected_loop(variable)
            if loop is None:
                raise Rejected(f"{access.kind} {access.tensor} is in a loop that the specification does not have")
            around = At(place.program, (), place.loops[:depth])
            start, stop = loop.start(around), loop.stop(around)
            yield from (within(start, value, stop), (value - start) % loop.step == 0)

    # -- shared

    def _tensor(self, name: str) -> Tensor:
        tensor = self._launch.specification.tensors.get(name)
        if tensor is None:
            raise Rejected(f"the kernel accesses {name}, which the specification does not know")
        return tensor

    def _obligation(
        self, what: str, known: list[z3.BoolRef], goal: z3.BoolRef, line: int, lanes: tuple[z3.ArithRef, ...], scope: Scope,
        more: Mapping[str, z3.ExprRef] | None = None,
    ) -> Obligation:  # fmt: skip
        hypotheses = [*self._base, *known]
        promised, reads = self._launch.promises([*hypotheses, goal])
        hypotheses += promised
        watch: dict[str, z3.ExprRef] = {name: lift(size) for name, size in self._launch.sizes.items()}
        watch |= {f"program{axis}": one for axis, one in enumerate(self._programs) if not z3.is_int_value(one)}
        watch |= {f"lane{axis}": one for axis, one in enumerate(lanes)}
        watch |= {f"loop{number}": one for number, one in enumerate(scope.loops)}
        watch |= {name: self._launch.scalar(name) for name in self._launch.scalar_names}
        watch |= more or {}
        small = len(watch)
        for number, read in enumerate(reads):
            name = read_name(read.decl().name(), number)
            watch |= {name: read, **{index_name(name, axis): index for axis, index in enumerate(read.children())}}
        return Obligation(what, tuple(hypotheses), goal, line, watch, small)


def _ranges(lanes: Iterable[z3.ArithRef], shape: Iterable[int]) -> list[z3.BoolRef]:
    return [z3.And(lane >= 0, lane < size) for lane, size in zip(lanes, shape, strict=True)]


def _offset(tensor: Tensor, index: tuple[Number, ...]) -> Number:
    if len(index) != len(tensor.strides):
        raise Rejected(f"an index of {len(index)} numbers into a tensor of {len(tensor.strides)} dimensions")
    offset: Number = 0
    for one, stride in zip(index, tensor.strides, strict=True):
        offset = offset + one * stride
    return offset


def _numbers(place: At) -> list[z3.ArithRef]:
    return [lift(one) for one in (*place.program, *place.lane, *place.loops)]


def _three(programs: tuple[z3.ArithRef, ...]) -> tuple[Term, Term, Term]:
    first, second, third = map(Term, programs)
    return first, second, third
