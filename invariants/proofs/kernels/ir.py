"""The part of MLIR that kernels are made of, as plain data: operations in order, values by name, types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

POINTER, INTEGER, OTHER = "pointer", "integer", "other"


class Rejected(Exception):
    """The IR has something that proofs do not know: nothing is claimed about such a kernel."""


@dataclass(frozen=True, slots=True)
class Type:
    """A scalar or a block: ``shape`` () for scalars; ``kind`` of its elements.

    ``width`` in bits of integers (1: a bool), else 0; ``element`` is what a pointer points to, or the name of the type.
    """

    shape: tuple[int, ...]
    kind: str
    width: int = 0
    element: str = ""

    @property
    def is_integer(self) -> bool:
        """Whether its elements are integers, bools among them."""
        return self.kind == INTEGER


@dataclass(frozen=True, slots=True)
class Value:
    """One value: ``name`` is unique in a function."""

    name: int
    type: Type


@dataclass(frozen=True, slots=True)
class Block:
    """Operations in the order in which they run, and the values that come in."""

    arguments: tuple[Value, ...]
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation; ``line`` of the IR text, counted from 1; ``attributes`` as Python values where those exist."""

    name: str
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    regions: tuple[Block, ...] = ()
    line: int = 0


@dataclass(frozen=True, slots=True)
class Function:
    """One kernel."""

    name: str
    body: Block
