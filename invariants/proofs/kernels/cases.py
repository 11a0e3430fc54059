"""One concrete case that breaks an obligation: sizes, arguments, contents, and where it happens.

Values come from the solver under names of their own; `case_of` sorts them. A content that was read has a name for itself and
one for each index: ``block_tables:0`` is what ``block_tables`` holds at ``block_tables:0:0``, ``block_tables:0:1``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kvsan.invariants.proofs.obligation import Values

TWIN = "'"
"""Behind the names of whatever belongs to the other of two programs."""


def read_name(tensor: str, number: int) -> str:
    """Name of the value of a content."""
    return f"{tensor}:{number}"


def index_name(name: str, axis: int) -> str:
    """Name of one of its indexes."""
    return f"{name}:{axis}"


@dataclass(frozen=True, slots=True)
class Case:
    """``contents`` by tensor and index; ``numbers``: all other values by name."""

    numbers: Mapping[str, int]
    contents: Mapping[str, Mapping[tuple[int, ...], int]]

    def values(self) -> dict[str, int]:
        """All of it, contents as ``block_tables[0, 3]``."""
        found = dict(self.numbers)
        for tensor, entries in self.contents.items():
            found |= {f"{tensor}[{', '.join(map(str, index))}]": value for index, value in sorted(entries.items())}
        return found

    def several(self, name: str) -> tuple[int, ...]:
        """``program``, ``lane``, ``loop`` and the like, as many numbers as there are."""
        found: list[int] = []
        while f"{name}{len(found)}" in self.numbers:
            found.append(self.numbers[f"{name}{len(found)}"])
        return tuple(found)


def case_of(values: Values) -> Case:
    """Sort a counterexample's values."""
    numbers = {name: value for name, value in values.items() if ":" not in name}
    contents: dict[str, dict[tuple[int, ...], int]] = {}
    for name in _reads(values):
        index: list[int] = []
        while index_name(name, len(index)) in values:
            index.append(values[index_name(name, len(index))])
        contents.setdefault(name.partition(":")[0], {})[tuple(index)] = values[name]
    return Case(numbers, contents)


def _reads(values: Iterable[str]) -> list[str]:
    return [name for name in values if name.count(":") == 1]
