"""Mutants of the text of a kernel's IR: one small mistake each, of the kind that people and compilers make.

An operator reads one line of the generic form and gives other lines for it. Mutants are made where the mistake can reach an
address, a mask, a loop, a branch or a guard (`slices`), and kept only if Triton's own parser and verifier take them
(`verifier`): text that no compiler would accept says nothing about a prover.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kvsan.ci.proofs.slices import Slice
from kvsan.invariants.proofs.kernels.ir import Function, Type

_LINE = re.compile(r'^(\s*)(?:(%\w+(?::\d+)?) = )?"([\w.]+)"\(([^)]*)\)(.*)$')
_TYPES = re.compile(r" : \((.*)\) -> (.*)$")


@dataclass(frozen=True, slots=True)
class Mutant:
    """``text`` with one mistake: in ``line`` (from 1), made by ``operator``; ``change`` says what was changed."""

    operator: str
    line: int
    change: str
    text: str


@dataclass(frozen=True, slots=True)
class Line:
    """One operation's line: ``rest`` has its properties and types. ``number`` from 1."""

    number: int
    indent: str
    result: str
    name: str
    operands: tuple[str, ...]
    rest: str

    def __str__(self) -> str:
        result = f"{self.result} = " if self.result else ""
        return f'{self.indent}{result}"{self.name}"({", ".join(self.operands)}){self.rest}'

    def renamed(self, name: str) -> Line:
        """Another operation of the same operands."""
        return replace(self, name=name)

    def with_operands(self, *operands: str) -> Line:
        """The same operation of other operands."""
        return replace(self, operands=operands)

    def edited(self, pattern: str, new: str) -> Line:
        """With the first match in its properties replaced."""
        return replace(self, rest=re.sub(pattern, new, self.rest, count=1))


@dataclass(frozen=True, slots=True)
class Module:
    """A kernel's text by lines, its IR and what of it matters."""

    lines: tuple[str, ...]
    function: Function
    slice: Slice

    def operations(self) -> Iterator[Line]:
        """Lines that have an operation."""
        for number, line in enumerate(self.lines, 1):
            if found := _LINE.match(line):
                indent, result, name, operands, rest = found.groups()
                yield Line(number, indent, result or "", name, tuple(filter(None, operands.split(", "))), rest)

    def with_lines(self, number: int, new: Sequence[Line]) -> str:
        """The text with other lines for one."""
        return "\n".join([*self.lines[: number - 1], *map(str, new), *self.lines[number:]]) + "\n"


Operator = Callable[[Module, Line], "Iterator[list[Line]]"]


def mutants(module: Module) -> Iterator[Mutant]:
    """Every mutant of a kernel, in the order of its lines, none twice; types are not checked here."""
    seen = {"\n".join(module.lines) + "\n"}
    for line in module.operations():
        for operator, make in OPERATORS.items():
            for new in make(module, line):
                text = module.with_lines(line.number, new)
                if text not in seen:
                    seen.add(text)
                    change = f"{_short(line)}  ->  {'; '.join(map(_short, new)) or 'nothing'}"
                    yield Mutant(operator, line.number, change, text)


def _short(line: Line) -> str:
    return f"{line.name}({', '.join(line.operands)}){line.rest.partition(' : (')[0]}"


def _where_it_matters(make: Operator) -> Operator:
    def made(module: Module, line: Line) -> Iterator[list[Line]]:
        if module.slice.makes(line.number):
            yield from make(module, line)

    return made


@_where_it_matters
def _constant(_: Module, line: Line) -> Iterator[list[Line]]:
    found = (
        re.search(r"value = (dense<)?(-?\d+)(>?) : (?!.*i1>?}>)", line.rest) if line.name == "arith.constant" else None
    )
    for step in (1, -1) if found else ():
        assert found is not None
        new = f"value = {found[1] or ''}{int(found[2]) + step}{found[3]} : "
        yield [replace(line, rest=line.rest.replace(found[0], new, 1))]


def _renaming(names: Mapping[str, tuple[str, ...]]) -> Operator:
    def make(_: Module, line: Line) -> Iterator[list[Line]]:
        for name in names.get(line.name, ()):
            new = line.renamed(name)
            if name in _WITH_FLAGS and line.name not in _WITH_FLAGS:
                new = replace(new, rest=f" <{{overflowFlags = #arith.overflow<none>}}>{line.rest}")
            elif name not in _WITH_FLAGS and line.name in _WITH_FLAGS:
                new = new.edited(r" <\{overflowFlags = #arith.overflow<\w+>\}>", "")
            yield [new]

    return _where_it_matters(make)


_WITH_FLAGS = ("arith.addi", "arith.subi", "arith.muli")
_ARITHMETIC = {
    "arith.addi": ("arith.subi", "arith.muli"),
    "arith.subi": ("arith.addi",),
    "arith.muli": ("arith.addi",),
    "arith.divsi": ("arith.remsi", "arith.muli"),
    "arith.remsi": ("arith.divsi", "arith.addi"),
    "arith.minsi": ("arith.maxsi",),
    "arith.maxsi": ("arith.minsi",),
}
_LOGIC = {"arith.andi": ("arith.ori",), "arith.ori": ("arith.andi",), "arith.xori": ("arith.ori",)}
_PREDICATES = {0: (1,), 1: (0,), 2: (3, 5), 3: (2, 4), 4: (5, 3), 5: (4, 2)}


@_where_it_matters
def _comparison(_: Module, line: Line) -> Iterator[list[Line]]:
    found = re.search(r"predicate = (\d+)", line.rest) if line.name == "arith.cmpi" else None
    for predicate in _PREDICATES.get(int(found[1]), ()) if found else ():
        yield [line.edited(r"predicate = \d+", f"predicate = {predicate}")]


@_where_it_matters
def _conjunct(_: Module, line: Line) -> Iterator[list[Line]]:
    if line.name in ("arith.andi", "arith.ori", "arith.minsi", "arith.maxsi"):
        for one in line.operands:
            yield [line.with_operands(one, one)]


@_where_it_matters
def _term(_: Module, line: Line) -> Iterator[list[Line]]:
    if line.name == "arith.addi":
        for one in line.operands:
            yield [line.with_operands(one, one)]


def _mask(_: Module, line: Line) -> Iterator[list[Line]]:
    found = _TYPES.search(line.rest)
    if not found or line.name not in ("tt.load", "tt.store"):
        return
    types = _split(found[1])
    kept = 1 if line.name == "tt.load" else 2
    if len(line.operands) > kept:
        rest = line.rest.replace(found[0], f" : ({', '.join(types[:kept])}) -> {found[2]}")
        rest = rest.replace("operandSegmentSizes = array<i32: 1, 1, 1>", "operandSegmentSizes = array<i32: 1, 0, 0>")
        rest = rest.replace("operandSegmentSizes = array<i32: 1, 1, 0>", "operandSegmentSizes = array<i32: 1, 0, 0>")
        yield [replace(line, operands=line.operands[:kept], rest=rest)]


def _store(_: Module, line: Line) -> Iterator[list[Line]]:
    """A store left out, or made twice."""
    if line.name == "tt.store":
        yield from ([], [line, line])


@_where_it_matters
def _program(_: Module, line: Line) -> Iterator[list[Line]]:
    found = re.search(r"axis = (\d)", line.rest) if line.name == "tt.get_program_id" else None
    for axis in (0, 1, 2) if found else ():
        yield [line.edited(r"axis = \d", f"axis = {axis}")]


def _argument(module: Module, line: Line) -> Iterator[list[Line]]:
    """Another argument of the same type: the next one, and the one before."""
    arguments = module.function.body.arguments
    if not (module.slice.makes(line.number) or line.name in ("tt.load", "tt.store", "scf.for")):
        return
    for place, operand in enumerate(line.operands):
        found = re.fullmatch(r"%arg(\d+)", operand)
        if not found or int(found[1]) >= len(arguments) or not _same(arguments[int(found[1])].type, line.name):
            continue
        alike = [number for number, one in enumerate(arguments) if one.type == arguments[int(found[1])].type]
        position = alike.index(int(found[1]))
        for other in {alike[(position + 1) % len(alike)], alike[position - 1]} - {int(found[1])}:
            yield [line.with_operands(*line.operands[:place], f"%arg{other}", *line.operands[place + 1 :])]


def _same(type: Type, name: str) -> bool:
    return type.kind != "other" and name != "scf.yield"


@_where_it_matters
def _order(_: Module, line: Line) -> Iterator[list[Line]]:
    if line.name in ("arith.subi", "arith.divsi", "arith.remsi", "arith.cmpi"):
        yield [line.with_operands(line.operands[1], line.operands[0])]


@_where_it_matters
def _range(_: Module, line: Line) -> Iterator[list[Line]]:
    found = re.search(r"end = (\d+) : i32, start = (\d+)", line.rest) if line.name == "tt.make_range" else None
    if found:
        yield [
            line.edited(
                r"end = \d+ : i32, start = \d+", f"end = {int(found[1]) + 1} : i32, start = {int(found[2]) + 1}"
            )
        ]


@_where_it_matters
def _width(_: Module, line: Line) -> Iterator[list[Line]]:
    """A product made in int32, and made wide only then."""
    found = _TYPES.search(line.rest)
    if line.name != "arith.muli" or not found or "i64" not in found[2]:
        return
    wide, narrow = found[2], found[2].replace("i64", "i32")
    names = [f"%narrow{number}" for number in range(3)]
    shortened = [
        Line(
            line.number,
            line.indent,
            name,
            "arith.trunci",
            (operand,),
            f" <{{overflowFlags = #arith.overflow<none>}}> : ({wide}) -> {narrow}",
        )
        for name, operand in zip(names, line.operands, strict=False)
    ]
    product = replace(line, result=names[2], operands=(names[0], names[1]), rest=line.rest.replace("i64", "i32"))
    yield [
        *shortened,
        product,
        Line(line.number, line.indent, line.result, "arith.extsi", (names[2],), f" : ({narrow}) -> {wide}"),
    ]


def _arms(module: Module, line: Line) -> Iterator[list[Line]]:
    if line.name == "arith.select" and (module.slice.makes(line.number) or module.slice.is_guard(line.number)):
        yield [line.with_operands(line.operands[0], line.operands[2], line.operands[1])]


def _loop(module: Module, line: Line) -> Iterator[list[Line]]:
    """Another bound or step: one of the other two, a program's id, an argument."""
    if line.name != "scf.for":
        return
    width = module.slice.operations[line.number].operands[0].type.width
    others = [f"%arg{number}" for number, one in enumerate(module.function.body.arguments) if one.type.width == width][
        :1
    ]
    others += [
        one.result for one in module.operations() if one.name == "tt.get_program_id" and one.number < line.number
    ][:1]
    for place in range(3):
        for other in [*line.operands[:3], *others]:
            if other != line.operands[place]:
                yield [line.with_operands(*line.operands[:place], other, *line.operands[place + 1 :])]


def _split(types: str) -> list[str]:
    """Types between commas that are not inside of brackets."""
    found, depth, start = [], 0, 0
    for place, letter in enumerate(types):
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            found.append(types[start:place].strip())
            start = place + 1
    return [*found, types[start:].strip()]


OPERATORS: dict[str, Operator] = {
    "constant": _constant,
    "arithmetic": _renaming(_ARITHMETIC),
    "and/or": _renaming(_LOGIC),
    "comparison": _comparison,
    "conjunct": _conjunct,
    "term": _term,
    "mask": _mask,
    "store": _store,
    "program": _program,
    "argument": _argument,
    "order": _order,
    "range": _range,
    "width": _width,
    "arms": _arms,
    "loop": _loop,
}
"""By name, in the order in which they are tried on a line."""
