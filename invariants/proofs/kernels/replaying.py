"""A refutation's concrete case, run: does the real kernel do in the interpreter what the solver says it does?

The case becomes a launch (`cases_as_launches`), the program it names is interpreted, and the access, loop or guard that it
is about is looked up in what was recorded. A replay that shows something else is an error of the proofs, HarnessError, and
never one of the kernel. What no access, loop or select can show is said to be *not replayed*, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from math import prod

from kvsan.gpu_kernels.compile.build import Build
from kvsan.harness.verdict import HarnessError
from kvsan.invariants.proofs.kernels.cases import Case
from kvsan.invariants.proofs.kernels.cases_as_launches import CaseAsLaunch, Contradiction
from kvsan.invariants.proofs.kernels.interpreted import Interpreted, Interpreter, Lane, Program, Recorded, TooLarge
from kvsan.invariants.proofs.kernels.prover import Subject, Verdict
from kvsan.invariants.proofs.kernels.specification import Access, At, Complete

LARGEST_GRID = 256
"""Programs up to which a whole launch is run, to see that something is left out."""

LARGEST_TRIPS = 2048
"""Trips of a loop up to which a program is run."""

_OVERFLOW = re.compile(r"^overflow of int(\d+: the result of (addi|subi|muli)|32: a number made narrower)$")
"""What the interpreter looks for too."""

_ACCESS = re.compile(r"^(load|store) (\w+): (.*)$")


def replay(
    build: Build, subject: Subject, verdict: Verdict, interpreter: Interpreter | None = None, folder: str = ""
) -> str:
    """Run the case of a refuted verdict; one sentence, which begins with "replayed: " or "not replayed: ".

    It ends with the tensors whose elements share memory in the case, if some do: then no case in which they do not is known.
    ``interpreter`` to share a process; ``folder`` is where the module of ``build.kernel`` is, if not among the installed ones.
    HarnessError if the kernel does something other than the verdict says.
    """
    if verdict.failed is None or verdict.case is None:
        raise HarnessError(f"a verdict that is {verdict.status}: expected a refuted one, with its case")
    if interpreter is None:
        with Interpreter() as own:
            return replay(build, subject, verdict, own, folder)
    case = CaseAsLaunch(build, subject, verdict.case, interpreter, folder)
    try:
        shown = _Replay(case, verdict.failed.what, verdict.place, verdict.case).shown()
    except (TooLarge, Contradiction) as error:
        return f"not replayed: {error}"
    shared = [name for name in case.tensors if not case.distinct(name)]
    return shown + (f"; elements of {', '.join(shared)} share memory in this case" if shared else "")


class _Replay:
    def __init__(self, launch: CaseAsLaunch, what: str, place: str, case: Case) -> None:
        self._launch = launch
        self._what = what
        self._place = place
        self._case = case
        self._numbers = case.numbers
        self._lane: Lane = case.several("lane")
        self._loops = case.several("loop")
        self._program = _three(case.several("program"))

    def shown(self) -> str:
        """What the replay shows."""
        what = self._what
        if (trips := self._launch.trips(At(self._program))) > LARGEST_TRIPS:
            return f"not replayed: a loop of {trips} trips"
        if found := _ACCESS.match(what):
            kind, tensor, rest = found.groups()
            if "race with" in rest:
                return self._race(kind, tensor, *rest.removeprefix("race with ").split())
            about: dict[str, Callable[[str, str], str]] = {
                "the address": self._address, "where it happens": self._mask, "out of bounds": self._bounds,
                "outside of the tensor": self._outside,
            }  # fmt: skip
            if rest in about:
                return about[rest](kind, tensor)
        if _OVERFLOW.match(what):
            return self._overflow()
        if what in ("a loop's start", "a loop's stop", "a loop's step"):
            return self._bound(what.rpartition(" ")[2])
        if what == "a guard of data":
            return self._guard()
        for theorem in self._launch.specification.theorems:
            if isinstance(theorem, Complete) and theorem.statement == what:
                return self._left_out(theorem)
        return f"not replayed: no access shows it ({what})"

    # -- one program

    def _address(self, kind: str, tensor: str) -> str:
        offset, expected = self._numbers["offset"], self._numbers["expected_offset"]
        self._agree(kind, tensor, lambda one, at: self._launch.offset(one, at) == expected, f"element {expected}")
        run = self._run()
        self._expect(run, kind, tensor, self._lane, offset)
        text = f"{self._who()} {kind}s {tensor} at element {offset}; the specification has {expected}"
        return f"replayed: {text}{self._reported()}"

    def _mask(self, kind: str, tensor: str) -> str:
        happens, expected = bool(self._numbers["happens"]), bool(self._numbers["expected_to_happen"])
        self._agree(
            kind,
            tensor,
            lambda one, at: bool(one.where(at)) == expected,
            f"that it does{'' if expected else ' not'} happen",
        )
        run = self._run()
        found = {one.at(self._lane) for one in self._records(run, kind, tensor)} - {None}
        if happens:
            self._expect(run, kind, tensor, self._lane, self._numbers["offset"])
            text = f"{kind}s {tensor} at element {self._numbers['offset']}, where the specification has no access"
        else:
            if self._numbers["expected_offset"] in found or run.bug or run.error:
                raise self._wrong(f"{kind}s {tensor} at {sorted(found, key=str)}", run)
            text = f"does not {kind} {tensor} at element {self._numbers['expected_offset']}, as the specification does"
        return f"replayed: {self._who()} {text}{self._reported()}"

    def _bounds(self, kind: str, tensor: str) -> str:
        offset, last = self._numbers["offset"], self._numbers["last_offset"]
        self._expect(self._run(), kind, tensor, self._lane, offset)
        if self._launch.last_offset(tensor) != last:
            raise self._wrong(f"has a tensor that ends at {self._launch.last_offset(tensor)}")
        text = f"{self._who()} {kind}s {tensor} at element {offset}, of 0 to {last}"
        return f"replayed: {text}{self._reported()}"

    def _outside(self, kind: str, tensor: str) -> str:
        index = self._case.several("index")
        self._agree(kind, tensor, lambda one, at: tuple(map(int, one.index(at))) == index, f"element {list(index)}")
        offset = self._launch.offset_of(tensor, index)
        self._expect(self._run(), kind, tensor, self._lane, offset)
        shape = list(self._launch.tensors[tensor].shape)
        return f"replayed: {self._who()} {kind}s element {list(index)} of {tensor} {shape}{self._reported()}"

    def _overflow(self) -> str:
        run = self._run()
        if run.bug is None or run.bug.kind != "overflow":
            raise self._wrong("overflows nowhere", run)
        elsewhere = f", for {self._place}" if self._place and f"{run.bug.file}:{run.bug.line}" != self._place else ""
        return f"replayed: the interpreter reports {run.bug}{elsewhere}"

    def _bound(self, name: str) -> str:
        value, expected = self._numbers[name], self._numbers[f"expected_{name}"]
        run = self._run()
        found = [getattr(one, name) for one in run.loops if one.place == self._place and one.loops == self._loops]
        if value not in found:
            raise self._wrong(f"has loops whose {name} is {found}", run)
        text = f"{self._who()}: the {name} of the loop is {value}; the specification has {expected}"
        return f"replayed: {text}{self._reported()}"

    def _guard(self) -> str:
        taken, expected = bool(self._numbers["taken"]), bool(self._numbers["expected_to_be_taken"])
        run = self._run()
        here = [one for one in run.guards if one.place == self._place and self._same_loops(one.loops)]
        if not any((self._lane in one.taken) == taken for one in here if len(one.shape) == len(self._lane)):
            raise self._wrong(f"has {len(here)} selects there, none of which is so", run)
        words = {True: "takes", False: "masks out"}
        return f"replayed: {self._who()} {words[taken]} what the specification {words[expected]}{self._reported()}"

    # -- several programs

    def _race(self, kind: str, tensor: str, other_kind: str, other_tensor: str) -> str:
        other = _three(self._case.several("other_program"))
        run = self._launch.run((self._program, other) if other != self._program else (self._program,))
        sides = [
            (self._program, kind, tensor, self._lane),
            (other, other_kind, other_tensor, self._case.several("other_lane")),
        ]
        found = [
            {
                element
                for one in run.accesses
                if (one.program, one.how, one.tensor) == (program, how, name) and one.at(lane) is not None
                for element in self._launch.elements(how, name, one, lane)
            }
            for program, how, name, lane in sides
        ]
        shared = found[0] & found[1]
        if not shared:
            raise self._wrong(f"and program {other} meet nowhere", run)
        element = min(shared)
        meets = f"where program {other}, lane {sides[1][3]} {other_kind}s"
        text = f"{self._who()} {kind}s element {_element(element)} of {tensor}, {meets}"
        bug = self._launch.report((self._program, other))
        seen = f"; the interpreter reports {bug}" if bug else ""
        return f"replayed: {text}{seen}"

    def _left_out(self, theorem: Complete) -> str:
        grid = self._launch.grid
        if prod(grid) > LARGEST_GRID:
            return f"not replayed: a launch of {prod(grid)} programs"
        access = (self._launch.specification.accesses or ())[theorem.access]
        unknowns = [self._numbers[name] for name in theorem.unknowns]
        index = tuple(int(one) for one in theorem.index(*unknowns))
        if not theorem.given(*unknowns):
            raise HarnessError(
                f"replay: {self._launch.name}: element {list(index)} need not be accessed ({self._what})"
            )
        run = self._launch.run(None)
        offset = self._launch.offset_of(access.tensor, index)
        done = any(
            (one.how, one.tensor) == (access.kind, access.tensor) and offset in one.offsets for one in run.accesses
        )
        if run.bug or run.error or (done and self._launch.distinct(access.tensor)):
            raise self._wrong(f"{access.kind}s that element", run)
        if done:
            return f"not replayed: elements of {access.tensor} share memory in this case"
        return f"replayed: no program of {prod(grid)} {access.kind}s element {list(index)} of {access.tensor}"

    # -- shared

    def _run(self) -> Interpreted:
        return self._launch.run((self._program,))

    def _reported(self) -> str:
        """What the interpreter's own checks say of that program, if they say something."""
        bug = self._launch.report((self._program,))
        return f"; the interpreter reports {bug}" if bug else ""

    def _records(self, run: Interpreted, kind: str, tensor: str) -> list[Recorded]:
        """Accesses of the program that may be the one: of its place, where places agree at all."""
        alike = [one for one in run.accesses if (one.program, one.how, one.tensor) == (self._program, kind, tensor)]
        there = [one for one in alike if one.place == self._place] or alike
        return [one for one in there if self._same_loops(one.loops)]

    def _same_loops(self, loops: tuple[int, ...]) -> bool:
        """Loops that are no ``range`` (``while``) leave no variable."""
        return len(loops) != len(self._loops) or loops == self._loops

    def _expect(self, run: Interpreted, kind: str, tensor: str, lane: Lane, offset: int) -> None:
        found = [one.at(lane) for one in self._records(run, kind, tensor)]
        if offset not in found:
            raise self._wrong(f"{kind}s {tensor} at {found}", run)

    def _agree(self, kind: str, tensor: str, holds: Callable[[Access, At], bool], what: str) -> None:
        """The specification, on ints, must say what it said on unknowns."""
        at = At(self._program, self._lane, self._loops)
        if not any(holds(one, at) for one in self._launch.accesses(kind, tensor)):
            raise HarnessError(
                f"replay: the specification of {self._launch.name} does not say {what} here ({self._what})"
            )

    def _who(self) -> str:
        loops = f", loop {', '.join(map(str, self._loops))}" if self._loops else ""
        return f"program {self._program}" + (f", lane {self._lane}" if self._lane else "") + loops

    def _wrong(self, does: str, run: Interpreted | None = None) -> HarnessError:
        said = "" if run is None else "; ".join(filter(None, (str(run.bug or ""), run.error)))
        return HarnessError(
            f"replay: {self._launch.name}: {self._what} ({self._place}): the solver's case is not what the kernel does: "
            f"{self._who()} {does}{f' ({said})' if said else ''}; {dict(self._case.values())}"
        )


def _three(ids: Iterable[int]) -> Program:
    first, second, third = [*ids, 0, 0, 0][:3]
    return first, second, third


def _element(index: tuple[int, ...]) -> object:
    return index[0] if len(index) == 1 else list(index)
