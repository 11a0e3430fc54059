"""A launch of which nothing is known but what its specification says: arguments, programs and contents are unknowns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from typing import Any

import z3

from kvsan.invariants.proofs.kernels.execution import LOAD
from kvsan.invariants.proofs.kernels.execution import Access as Accessed
from kvsan.invariants.proofs.kernels.ir import Rejected
from kvsan.invariants.proofs.kernels.semantics import fits
from kvsan.invariants.proofs.kernels.specification import Access, At, Complete, Specification, Specify
from kvsan.invariants.proofs.kernels.symbols import parts_of
from kvsan.invariants.proofs.term import Number, Term, Truth, condition_of, lift, within

LARGEST_SIZE = 2**31 - 1
_DIMENSIONS = 3
_DEPTH = 3
"""How often what contents promise is spelled out for contents that such a promise mentions."""

_RESERVED = re.compile(r"(program|lane)\d+|.*[^\w].*")
"""Names that an execution gives its unknowns."""


class UnknownLaunch:
    """Implements `specification.Launch`, and `execution.Surroundings` once the specification is there."""

    def __init__(
        self, signature: Mapping[str, str], constexprs: Mapping[str, Any], specify: Specify, exact: bool = True
    ) -> None:
        self.exact = exact
        self._signature = signature
        self._constexprs = constexprs
        self.sizes: dict[str, Term] = {}
        self.assumptions: list[z3.BoolRef] = []
        self._scalars: dict[str, Term] = {}
        self._functions: dict[str, z3.FuncDeclRef] = {}
        self._names: dict[str, str] = {}
        self._known_reads: dict[int, tuple[z3.ExprRef, list[z3.ExprRef]]] = {}
        self._known_promises: dict[int, tuple[z3.ExprRef, z3.BoolRef]] = {}
        for name, kind in signature.items():
            if kind in ("i32", "i64"):
                self._scalars[name] = Term(z3.Int(name))
                self.assumptions.append(fits(z3.Int(name), int(kind[1:])))
        self.specification: Specification = specify(self)
        if not isinstance(self.specification, Specification):
            raise Rejected(f"a specification that is {self.specification!r}: expected a Specification")
        needing = [one for one in self.specification.theorems if isinstance(one, Complete)]
        if needing and self.specification.accesses is None:
            raise Rejected(f"{needing[0].statement!r} is about an access: expected a specification with accesses")
        self.assumptions += [condition_of(one) for one in self.specification.assume]
        self.grid = self._three([lift(one) for one in self.specification.grid], z3.IntVal(1))

    # -- what a specification asks

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self._constexprs:
            return self._constexprs[name]
        if name in self._scalars:
            return self._scalars[name]
        raise Rejected(f"the specification asks for {name}: expected an integer argument of the kernel")

    def size(self, name: str, least: int = 1, most: int = LARGEST_SIZE) -> Number:
        """A size, from ``least`` to ``most``."""
        if name not in self.sizes:
            if name in self._scalars or is_reserved(name):
                raise Rejected(
                    f"a size {name}: expected a name that is neither an argument's nor a program's or lane's"
                )
            self.sizes[name] = Term(z3.Int(name))
            self.assumptions.append(condition_of(within(least, self.sizes[name], most + 1)))
        return self.sizes[name]

    def read(self, tensor: str, *index: Number) -> Number:
        """What an index tensor holds at an index."""
        if tensor not in self._functions:
            sorts = [z3.IntSort()] * (len(index) + 1)
            self._functions[tensor] = z3.Function(tensor, *sorts)
            self._names[self._functions[tensor].name()] = tensor
        return Term(self._functions[tensor](*map(lift, index)))

    def shares(self, tensor: str, other: str) -> Truth:
        """Whether two tensors are the same memory."""
        return Truth(z3.Bool(f"{tensor} shares {other}"))

    # -- what an execution asks

    @property
    def programs(self) -> tuple[z3.ArithRef, z3.ArithRef, z3.ArithRef]:
        """Ids of any program."""
        return self.programs_named("")

    def programs_named(self, suffix: str) -> tuple[z3.ArithRef, z3.ArithRef, z3.ArithRef]:
        """Ids of any program, another for each suffix."""
        given = [z3.Int(f"program{axis}{suffix}") for axis in range(len(self.specification.grid))]
        return self._three(given, z3.IntVal(0))

    def in_grid(self, programs: Iterable[z3.ArithRef]) -> list[z3.BoolRef]:
        """That a program is one of the launch's."""
        return [z3.And(one >= 0, one < size) for one, size in zip(programs, self.grid, strict=True)]

    @property
    def scalar_names(self) -> tuple[str, ...]:
        """Arguments that are integers."""
        return tuple(self._scalars)

    def scalar(self, name: str) -> z3.ArithRef:
        """An integer argument."""
        return lift(getattr(self, name))

    def content(self, access: Accessed) -> z3.ArithRef | None:
        """What an index tensor holds where a load should look; where it does look is shown apart."""
        tensor = self.specification.tensors.get(access.tensor)
        if tensor is None:
            raise Rejected(f"line {access.line}: a load from {access.tensor}, which the specification does not know")
        if tensor.contents is None:
            return None
        if self.specification.accesses is None:
            if len(tensor.shape) != 1 or not isinstance(tensor.strides[0], int) or tensor.strides[0] != 1:
                raise Rejected(
                    f"{access.tensor}: an index tensor that is not one contiguous dimension needs accesses in its specification"
                )
            return lift(self.read(access.tensor, Term(access.offset)))
        expected = self.expected(access)
        return lift(self.read(access.tensor, *expected.index(at(access, self.programs))))

    def expected(self, access: Accessed) -> Access:
        """The specification's access for one of the kernel's; Rejected if there is none.

        If not ``exact``, loads that come again are taken for the last of their tensor.
        """
        alike = [
            one for one in self.specification.accesses or () if (one.kind, one.tensor) == (access.kind, access.tensor)
        ]
        if alike and not self.exact and access.kind == LOAD:
            return alike[min(access.number, len(alike) - 1)]
        if access.number >= len(alike):
            raise Rejected(
                f"line {access.line}: {access.kind} {access.number + 1} of {access.tensor}: the specification has {len(alike)}"
            )
        return alike[access.number]

    # -- what contents promise

    def promises(self, expressions: Iterable[z3.ExprRef]) -> tuple[list[z3.BoolRef], list[z3.ExprRef]]:
        """What is known of every content that expressions mention, and of any two of one tensor; and those contents."""
        found: dict[int, z3.ExprRef] = {}
        said: list[z3.BoolRef] = []
        fresh = list(expressions)
        for _ in range(_DEPTH):
            new = {one.get_id(): one for expression in fresh for one in self._reads(expression)}
            new = {key: one for key, one in new.items() if key not in found}
            if not new:
                break
            found |= new
            fresh = [self._promise(one) for one in new.values()]
            said += fresh
        by_tensor: dict[str, list[z3.ExprRef]] = {}
        for one in found.values():
            by_tensor.setdefault(self._names[one.decl().name()], []).append(one)
        for name, reads in by_tensor.items():
            if self.specification.tensors[name].pairs is not None:
                said += [self._pair(name, *two) for two in combinations(reads, 2)]
        return said, list(found.values())

    def _reads(self, expression: z3.ExprRef) -> list[z3.ExprRef]:
        """Contents that an expression mentions; remembered, since hypotheses come again and again."""
        known = self._known_reads.get(expression.get_id())
        if known is None:
            known = self._known_reads[expression.get_id()] = (expression, list(self._find_reads(expression)))
        return known[1]

    def _find_reads(self, expression: z3.ExprRef) -> Iterator[z3.ExprRef]:
        for part in parts_of(expression):
            if part.num_args() and part.decl().kind() == z3.Z3_OP_UNINTERPRETED and part.decl().name() in self._names:
                yield part

    def _promise(self, read: z3.ExprRef) -> z3.BoolRef:
        known = self._known_promises.get(read.get_id())
        if known is None:
            known = self._known_promises[read.get_id()] = (read, self._made_promise(read))
        return known[1]

    def _made_promise(self, read: z3.ExprRef) -> z3.BoolRef:
        name = self._names[read.decl().name()]
        tensor = self.specification.tensors[name]
        index = [Term(one) for one in read.children()]
        there = [condition_of(within(0, one, size)) for one, size in zip(index, tensor.shape, strict=True)]
        width = int(self._signature[name].removeprefix("*i"))
        assert tensor.contents is not None
        return z3.And(fits(read, width), z3.Implies(z3.And(there), condition_of(tensor.contents(Term(read), *index))))

    def _pair(self, name: str, first: z3.ExprRef, second: z3.ExprRef) -> z3.BoolRef:
        tensor = self.specification.tensors[name]
        assert tensor.pairs is not None
        sides = [(tuple(map(Term, one.children())), Term(one)) for one in (first, second)]
        there = [
            condition_of(within(0, one, size))
            for index, _ in sides
            for one, size in zip(index, tensor.shape, strict=True)
        ]
        both_ways = [condition_of(tensor.pairs(*sides[0], *sides[1])), condition_of(tensor.pairs(*sides[1], *sides[0]))]
        other = z3.Or([one != another for one, another in zip(first.children(), second.children(), strict=True)])
        return z3.Implies(z3.And(*there, other), z3.And(both_ways))

    @staticmethod
    def _three(given: list[z3.ArithRef], filler: z3.ArithRef) -> tuple[z3.ArithRef, z3.ArithRef, z3.ArithRef]:
        if not 1 <= len(given) <= _DIMENSIONS:
            raise Rejected(f"a grid of {len(given)} dimensions: expected 1 to 3")
        first, second, third = [*given, *[filler] * (_DIMENSIONS - len(given))]
        return first, second, third


def is_reserved(name: str) -> bool:
    """Whether a name may be that of a program, a lane, or what a loop changes."""
    return _RESERVED.fullmatch(name) is not None


def at(access: Accessed, programs: tuple[z3.ArithRef, ...]) -> At:
    """Where an access happens, for a specification's formulas."""
    first, second, third = map(Term, programs)
    return At((first, second, third), tuple(map(Term, access.lanes)), tuple(map(Term, access.scope.loops)))
