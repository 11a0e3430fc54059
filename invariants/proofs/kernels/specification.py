"""What a kernel may rely on and what it has to do: the language in which that is written.

A specification is a Python function of a launch ``k``, where ``k.NAME`` is an argument of the kernel (a constexpr is a
number, an integer argument an unknown)::

    def gather(k: Launch) -> Specification:
        blocks, rows = k.size("num_blocks"), k.size("num_rows")
        return Specification(
            grid=(rows,),
            tensors={
                "table": Tensor((rows,), (1,), contents=lambda block, row: within(0, block, blocks)),
                "cache": Tensor((blocks, k.WIDTH), (k.WIDTH, 1)),
                "out": Tensor((rows, k.WIDTH), (k.WIDTH, 1)),
            },
            accesses=(
                Load("table", lambda at: (at.program[0],)),
                Load("cache", lambda at: (k.read("table", at.program[0]), at.lane[0])),
                Store("out", lambda at: (at.program[0], at.lane[0])),
            ),
        )

Formulas use ``+ - * // %``, comparisons and the functions of `proofs.term`; ``if`` on constexprs only. They are functions
over Python ints too: what a launch may hold is checked on real launches by the same text (`known_launch`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from kvsan.invariants.proofs.kernels.execution import LOAD, STORE
from kvsan.invariants.proofs.kernels.ir import Rejected
from kvsan.invariants.proofs.term import Condition, Number

Index: TypeAlias = "tuple[Number, ...]"


class Launch(Protocol):
    """A launch of the kernel, known or unknown."""

    def __getattr__(self, name: str) -> Any:
        """An argument of the kernel that is an integer: int for a constexpr, `Number` otherwise."""

    def size(self, name: str, least: int = 1, most: int = ...) -> Number:
        """A size that is no argument of the kernel, such as ``num_blocks``; the first ones are the first made small."""

    def read(self, tensor: str, *index: Number) -> Number:
        """What an index tensor holds."""

    def shares(self, tensor: str, other: str) -> Condition:
        """Whether two tensors that are ``aliases`` are the same memory in this launch."""


class Several(tuple[Any, ...]):
    """Lanes or loops of one place in a kernel; Rejected where a formula asks for one that the kernel does not have there."""

    __slots__ = ()

    def __getitem__(self, number: Any) -> Any:
        try:
            return super().__getitem__(number)
        except IndexError:
            raise Rejected(
                f"a formula of the specification asks for dimension or loop {number} where the kernel has {len(self)}"
            ) from None


@dataclass(frozen=True, slots=True)
class At:
    """Where an access happens: ids of the program, index of the lane, and variables of the loops around it."""

    program: tuple[Any, Any, Any]
    lane: tuple[Any, ...] = ()
    loops: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "lane", Several(self.lane))
        object.__setattr__(self, "loops", Several(self.loops))

    @property
    def loop(self) -> Any:
        """Variable of the innermost loop."""
        return self.loops[-1]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor argument: ``shape`` and ``strides`` in elements.

    ``contents(value, *index)`` is what an index tensor promises of what it holds; a tensor without is data. ``pairs(index,
    value, other index, other value)`` what it promises of any two. Elements at different indexes are different memory,
    and so are two tensors, unless they are named as ``aliases``.
    """

    shape: tuple[Number, ...]
    strides: tuple[Number, ...]
    contents: Callable[..., Condition] | None = None
    pairs: Callable[[Index, Number, Index, Number], Condition] | None = None


def always(_: At) -> Condition:
    """In every lane of every program."""
    return True


@dataclass(frozen=True, slots=True)
class Access:
    """A load or store: ``index`` of the element, and ``where`` it happens, the conditions of an ``if`` around it included."""

    kind: str
    tensor: str
    index: Callable[[At], Index]
    where: Callable[[At], Condition] = always
    source: str | None = None


def Load(tensor: str, index: Callable[[At], Index], where: Callable[[At], Condition] = always) -> Access:
    """A load."""
    return Access(LOAD, tensor, index, where)


def Store(
    tensor: str, index: Callable[[At], Index], where: Callable[[At], Condition] = always, source: str | None = None
) -> Access:
    """A store; ``source``: the tensor whose elements are stored, lane by lane, where they are stored as they were loaded."""
    return Access(STORE, tensor, index, where, source)


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop from ``start`` to below ``stop`` by ``step``, each trip of which has ``step`` lanes for as many positions."""

    start: Callable[[At], Number]
    stop: Callable[[At], Number]
    step: int


@dataclass(frozen=True, slots=True)
class Guard:
    """A select between data, such as the mask of scores: ``where`` what the kernel computes is taken and not a constant.

    Of two constants, and of two that are none: ``where`` the first one is taken. ``otherwise`` is the constant, if it
    matters which.
    """

    where: Callable[[At], Condition]
    otherwise: float | None = None


@dataclass(frozen=True, slots=True)
class Theorem:
    """What follows from the specification: ``holds`` for all values of ``unknowns``."""

    statement: str
    unknowns: tuple[str, ...]
    holds: Callable[..., Condition]


@dataclass(frozen=True, slots=True)
class Complete:
    """Every element of a set is accessed: ``place(*unknowns)`` says by which program, lane and loop variable.

    ``given(*unknowns)`` is the set, ``index(*unknowns)`` the element; ``access`` is the number of the access among
    ``accesses``.
    """

    statement: str
    access: int
    unknowns: tuple[str, ...]
    given: Callable[..., Condition]
    index: Callable[..., Index]
    place: Callable[..., At]


@dataclass(frozen=True, slots=True)
class Specification:
    """All of it. ``assume``: what holds of sizes and arguments. ``notes``: the assumptions in words.

    ``accesses`` in the order of the kernel, one tensor and kind at a time; None: only bounds and races are shown, of
    addresses as the kernel computes them. ``loops`` and ``guards`` likewise, in the order of the kernel. ``any_two``: what
    holds of any two programs, beyond what contents promise. ``limits``: the largest sizes that are assumed, to be printed.
    """

    grid: tuple[Number, ...]
    tensors: Mapping[str, Tensor]
    accesses: Sequence[Access] | None = None
    assume: Sequence[Condition] = ()
    loops: Sequence[Loop] | None = None
    guards: Sequence[Guard] | None = None
    theorems: Sequence[Theorem | Complete] = ()
    aliases: Sequence[tuple[str, str]] = ()
    any_two: Callable[[At, At], Condition] | None = None
    notes: Sequence[str] = ()
    limits: Mapping[str, int] = field(default_factory=dict)


Specify: TypeAlias = Callable[[Any], Specification]
"""What a user's file gives: a function of a launch."""
