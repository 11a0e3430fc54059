"""A theorem is a Python function over numbers that returns a condition: one text, used in three ways.

- Run on symbolic integers, path by path, it becomes the obligations that z3 is asked to show.
- Run on the integers of a counterexample it is the replay: it must be false there, or an error must be raised.
- Run on all small integers it is a test that it says what it seems to say.

What it says of an address it computes with the real functions, which it gets as its first argument.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import TypeAlias

import z3

from kvsan.invariants.proofs.addressing.functions import NAMES, Functions, recorded
from kvsan.invariants.proofs.obligation import Counterexample, Obligation, Values
from kvsan.invariants.proofs.paths import explore
from kvsan.invariants.proofs.term import Condition, Number, condition_of, implies, variable

Numbers: TypeAlias = Mapping[str, Number]


class NotReplayed(Exception):
    """A counterexample on which the property holds after all: the proof system is wrong, not the code."""


@dataclass(frozen=True, slots=True, eq=False)
class Theorem:
    """``holds(functions, **numbers)`` is true of all integers that are ``lowest`` or more and of which ``given`` is true.

    ``lowest`` names the variables, in the order in which counterexamples make them small. ``lemmas`` are theorems that
    may be used, each with a function that says which numbers it is used of; they are proved too.
    """

    what: str
    holds: Callable[..., Condition]
    lowest: Mapping[str, int]
    given: Callable[..., Condition] | None = None
    lemmas: tuple[tuple[Theorem, Callable[..., Numbers]], ...] = ()

    @property
    def name(self) -> str:
        """Name of the function."""
        return self.holds.__name__

    @property
    def about(self) -> set[str]:
        """Names of the functions that it calls, by itself or through functions of its module."""
        names: set[str] = set()
        todo = [self.holds.__code__]
        while todo:
            code = todo.pop()
            called = [self.holds.__globals__.get(name) for name in code.co_names if name not in names]
            names |= set(code.co_names)
            todo += [one.__code__ for one in called if isinstance(one, FunctionType)]
            todo += [one for one in code.co_consts if isinstance(one, CodeType)]
        return names & set(NAMES)

    def assumed(self, numbers: Numbers) -> list[Condition]:
        """What is assumed of its variables."""
        conditions: list[Condition] = [numbers[name] >= low for name, low in self.lowest.items()]
        return conditions if self.given is None else [*conditions, self.given(**numbers)]

    def closure(self) -> list[Theorem]:
        """Its lemmas, theirs, and itself; a lemma comes before what uses it."""
        found: list[Theorem] = []
        for lemma, _ in self.lemmas:
            found += [one for one in lemma.closure() if one not in found]
        return [*found, self]

    def variables(self) -> dict[str, Number]:
        """A symbolic integer for each variable."""
        return {name: variable(name) for name in self.lowest}

    def hypotheses(self) -> list[z3.BoolRef]:
        """What is assumed, of symbolic integers."""
        return [condition_of(condition) for condition in self.assumed(self.variables())]

    def obligations(self, functions: Functions) -> Iterator[Obligation]:
        """One for each path and each condition that is stated; that no path ends in an error is an obligation too."""
        numbers = self.variables()
        assumed = self.hypotheses()
        watch = {name: z3.Int(name) for name in self.lowest}
        for path in explore(lambda: self.holds(functions, **numbers), assumed):
            if path.error:
                what = f"{self.what} Here {type(path.error).__name__} is raised: {path.error}."
                yield Obligation(what, (*assumed, *path.conditions), z3.BoolVal(False), 0, watch)
                continue
            assert path.result is not None, f"{self.name} states nothing"
            goals = _conjuncts(condition_of(path.result))
            for used in explore(lambda: self._used(functions, numbers), [*assumed, *path.conditions]):
                known = (*path.conditions, *used.conditions, *(used.result or ()))
                for goal in goals:
                    yield Obligation(self.what, (*assumed, *known), goal, 0, watch)

    def replayed(self, functions: Functions, values: Values, what: str = "") -> Counterexample:
        """Run the theorem on a counterexample, of which ``what`` says what does not hold; NotReplayed if it does."""
        calls: list[str] = []
        if not all(self.assumed(values)):
            raise NotReplayed(f"{self.name}: {dict(values)} is not what was assumed")
        try:
            held = bool(self.holds(recorded(functions, calls), **values))
            shown = "run again on these numbers: it is false"
        except Exception as error:  # whatever the code raises is what is wrong with it
            held, shown = False, f"run again on these numbers: {type(error).__name__}: {error}"
        if held:
            raise NotReplayed(f"{self.name}: {dict(values)} is no counterexample: {'; '.join(calls)}")
        failed = what or self.what
        return Counterexample(failed, 0, values, (f"This does not hold: {failed}", *calls), shown)

    def _used(self, functions: Functions, numbers: Numbers) -> list[z3.BoolRef]:
        instances = []
        for lemma, of in self.lemmas:
            chosen = of(functions, **numbers)
            premises = lemma.assumed(chosen)
            instance: Condition = lemma.holds(functions, **chosen)
            for premise in reversed(premises):
                instance = implies(premise, instance)
            instances.append(condition_of(instance))
        return instances


def _conjuncts(goal: z3.BoolRef) -> list[z3.BoolRef]:
    """Conditions that together are the goal: z3 shows them more quickly one by one."""
    if not z3.is_and(goal):
        return [goal]
    return [one for child in goal.children() for one in _conjuncts(child)]


def theorem(
    given: Callable[..., Condition] | None = None,
    /,
    *lemmas: tuple[Theorem, Callable[..., Numbers]],
    **lowest: int,
) -> Callable[[Callable[..., Condition]], Theorem]:
    """Make a function with a docstring a theorem; ``given`` and keywords as `Theorem` has them, keywords the lowest."""

    def make(holds: Callable[..., Condition]) -> Theorem:
        parameters = list(inspect.signature(holds).parameters)[1:]
        if parameters != list(lowest):
            raise TypeError(f"{holds.__name__}: lowest values of {list(lowest)}; expected those of {parameters}")
        what = " ".join((holds.__doc__ or "").split())
        if not what:
            raise TypeError(f"{holds.__name__}: expected a docstring that says what holds")
        return Theorem(what, holds, lowest, given, lemmas)

    return make


@dataclass(frozen=True, slots=True)
class Statement:
    """A claim in the making: theorems that belong together; ``limits`` are numbers that it holds up to."""

    name: str
    says: str
    theorems: tuple[Theorem, ...]
    assumptions: tuple[str, ...] = ()
    limits: Callable[[], Mapping[str, int]] | None = None
