"""Every path that Python code can take on symbolic integers.

`explore` calls a function again and again. Whenever Python asks for a truth value both answers are tried, unless the
assumptions and what was answered before allow one only; a path is the list of answers, with what the function returned
or raised. A loop whose bound is symbolic has no last path: it is refused after ``most_decisions`` answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import z3

from kvsan.invariants.proofs.term import deciders

Result = TypeVar("Result")


class Unbounded(Exception):
    """A path that does not end: a loop whose bound is symbolic."""


@dataclass(frozen=True, slots=True)
class Path(Generic[Result]):
    """One way through a function: taken where all ``conditions`` hold; ``result`` is None if it raised ``error``."""

    conditions: tuple[z3.BoolRef, ...]
    result: Result | None
    error: Exception | None = None


def explore(
    function: Callable[[], Result],
    assumptions: Sequence[z3.BoolRef] = (),
    most_decisions: int = 64,
    most_paths: int = 4096,
) -> list[Path[Result]]:
    """Call ``function`` once for each path; their conditions exclude each other and together leave nothing out.

    The function must not keep state between calls. What it raises, Unbounded excepted, is part of the path. Unbounded
    beyond ``most_decisions`` on a path or ``most_paths`` in all.
    """
    paths: list[Path[Result]] = []
    todo: list[list[bool]] = [[]]
    while todo:
        if len(paths) + len(todo) > most_paths:
            raise Unbounded(f"more than {most_paths} paths")
        walk = _Walk(todo.pop(), assumptions, most_decisions)
        deciders.append(walk.decide)
        try:
            paths.append(walk.end(function))
        finally:
            deciders.pop()
        todo += walk.others
    return paths


_possible: dict[tuple[frozenset[int], int], tuple[bool, list[z3.BoolRef]]] = {}
"""What was found to be possible, with the expressions, because a number names one only as long as that lives."""


class _Walk:
    """One call: answers that are given, then the first possible one each time, while the other is noted for later."""

    def __init__(self, given: list[bool], assumptions: Sequence[z3.BoolRef], most_decisions: int) -> None:
        self._given = given
        self._most_decisions = most_decisions
        self._solver = z3.Solver()
        self._solver.set("timeout", 10_000)
        self._solver.add(*assumptions)
        self._assumptions = assumptions
        self._answers: list[bool] = []
        self.conditions: list[z3.BoolRef] = []
        self.others: list[list[bool]] = []

    def end(self, function: Callable[[], Result]) -> Path[Result]:
        try:
            result = function()
        except Unbounded:
            raise
        except Exception as error:
            return Path(tuple(self.conditions), None, error)
        return Path(tuple(self.conditions), result)

    def decide(self, condition: z3.BoolRef) -> bool:
        number = len(self._answers)
        if number >= self._most_decisions:
            raise Unbounded(f"more than {self._most_decisions} decisions on a path: a loop whose bound is symbolic?")
        if number < len(self._given):
            answer = self._given[number]
        else:
            answer = self._may(condition)
            if answer and self._may(z3.Not(condition)):
                self.others.append([*self._answers, False])
        self._answers.append(answer)
        taken = condition if answer else z3.Not(condition)
        self.conditions.append(taken)
        self._solver.add(taken)
        return answer

    def _may(self, condition: z3.BoolRef) -> bool:
        """Whether the condition is possible here; True too where the solver cannot say.

        Functions that go on in one third have paths in common, to the letter: what was found for one is known for all.
        """
        known = [*self._assumptions, *self.conditions]
        key = frozenset(one.get_id() for one in known), condition.get_id()
        if key not in _possible:
            _possible[key] = self._solver.check(condition) != z3.unsat, [*known, condition]
        return _possible[key][0]
