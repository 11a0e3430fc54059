"""Clauses for the blocks that a formula speaks of, and for every block of a small pool.

z3 is never given a quantifier. A clause that holds for all blocks is assumed for each block that occurs in the formula (and
for their neighbours, which the clauses bring in): consequences of the clause, so that what is proved from them is proved.
Where that fails, a pool of a few blocks is looked for in which the clauses hold for *every* block and the goal does not: a
state that is a counterexample as it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product

import z3

from kvsan.invariants.proofs.protocol import state
from kvsan.invariants.proofs.protocol.clauses import CLAUSES, Clause
from kvsan.invariants.proofs.protocol.state import View

_UNIT_FUNCTIONS = {function.name() for function in state.OF_UNITS}
_KEY_FUNCTIONS = {function.name() for function in state.OF_KEYS}
_ENTRY = state.entry.name()

Terms = dict[int, z3.ExprRef]
PARAMETERS = {"pool": 0, "block": 1, "key": 2}
KEYS = 3
"""Keys that a small pool has."""


class Ground:
    """Blocks, keys and positions that some formulas speak of."""

    def __init__(self) -> None:
        self.units: Terms = {}
        self.keys: Terms = {}
        self.positions: Terms = {}
        self._seen: Terms = {}

    def take_in(self, formulas: Iterable[z3.ExprRef]) -> None:
        """Go through formulas."""
        todo = list(formulas)
        while todo:
            formula = todo.pop()
            if formula.get_id() in self._seen:
                continue
            self._seen[formula.get_id()] = formula
            name, arguments = _parts(formula)
            todo += arguments
            if name in _UNIT_FUNCTIONS:
                self.units[arguments[0].get_id()] = arguments[0]
            elif name in _KEY_FUNCTIONS:
                self.keys[arguments[0].get_id()] = arguments[0]
            elif name == _ENTRY:
                self.keys[arguments[0].get_id()] = arguments[0]
                self.positions[arguments[1].get_id()] = arguments[1]


_parts_of: dict[int, tuple[z3.ExprRef, str, list[z3.ExprRef]]] = {}


def _parts(formula: z3.ExprRef) -> tuple[str, list[z3.ExprRef]]:
    """What is applied to what; remembered, as the paths of a step have most of their formulas in common."""
    known = _parts_of.get(formula.get_id())
    if known is None:
        arguments = formula.children()
        known = _parts_of[formula.get_id()] = formula, formula.decl().name() if arguments else "", arguments
    return known[1:]


def instances(view: View, formulas: list[z3.BoolRef], leaves_first: z3.ArithRef | None = None) -> list[z3.BoolRef]:
    """Clauses before a step, for all that the formulas speak of."""
    ground = Ground()
    last = view.following(state.LATEST)
    ground.take_in([*formulas, view.following(view.units), view.following(last)])
    if leaves_first is not None:
        ground.take_in([view.following(leaves_first), view.following(view.following(state.SECOND))])
    units = [*ground.units.values()]
    found = [*_of_all(view, units, [*ground.keys.values()], [*ground.positions.values()])]
    return [*found, *queue_facts(view, units, leaves_first)]


def of_known(
    view: View, units: list[z3.ArithRef], keys: list[z3.ArithRef], leaves_first: z3.ArithRef | None = None
) -> Iterator[z3.BoolRef]:
    """Clauses for blocks and keys that a step begins with, for the front of the queue, and for what joined it last."""
    last = state.LATEST
    if leaves_first is not None:
        front = view.following(view.units)
        units = [*units, leaves_first, state.SECOND, view.following(state.SECOND), view.following(front)]
    keys = [*keys, *(view.key(unit) for unit in units)]
    units = [*units, view.following(view.units), last, view.following(last)]
    yield from _of_all(view, units, keys, [z3.IntVal(0)])
    yield from queue_facts(view, units, leaves_first)


def queue_facts(
    view: View, units: Iterable[z3.ExprRef], leaves_first: z3.ArithRef | None = None
) -> Iterator[z3.BoolRef]:
    """What the number of queued blocks says, by the lemmas of `counts`: where it is not 0 there is one that joined last.

    The same of the queue without ``leaves_first``, which is one shorter.
    """
    last, unit = state.LATEST, z3.Var(0, z3.IntSort())
    yield state.QUEUED >= 0
    yield z3.Implies(state.QUEUED >= 1, view.is_queued(last))
    facts = z3.Implies(view.is_queued(unit), z3.And(state.QUEUED >= 1, view.stamp(unit) <= view.stamp(last)))
    if leaves_first is not None:
        second = state.SECOND
        two = z3.And(view.is_queued(leaves_first), state.QUEUED >= 2)
        yield z3.Implies(two, z3.And(view.is_queued(second), second != leaves_first))
        largest = z3.Implies(unit != leaves_first, view.stamp(unit) <= view.stamp(second))
        facts = z3.And(facts, z3.Implies(z3.And(two, view.is_queued(unit)), largest))
    yield from (z3.substitute_vars(facts, one) for one in units)


def small_pool(view: View, units: int, key_names: Iterable[str]) -> list[z3.BoolRef]:
    """Clauses for every block, key and position of a pool of ``units`` blocks."""
    blocks = [z3.IntVal(unit) for unit in range(units + 1)]
    keys = [z3.IntVal(key) for key in range(1, KEYS + 1)]
    unit, key = z3.Var(0, z3.IntSort()), z3.Var(0, z3.IntSort())
    small = [view.key(unit) >= 1, view.key(unit) <= KEYS, view.rest(unit) <= 2]
    for function in (state.place, state.stamp, state.following, state.preceding):
        small += [function(unit) >= -1, function(unit) <= units]
    of_unit, of_key = z3.And(*small), view.length(key) <= units
    return [
        view.units == units,
        *_of_all(view, blocks, keys, blocks[:-1]),
        *(z3.substitute_vars(of_unit, block) for block in blocks),
        *(z3.substitute_vars(of_key, one) for one in keys),
        *(z3.And(z3.Int(name) >= 1, z3.Int(name) <= KEYS) for name in key_names),
        view.queued == z3.Sum(*(z3.If(view.is_queued(block), 1, 0) for block in blocks)),
    ]


def _of_all(
    view: View, units: Sequence[z3.ExprRef], keys: Sequence[z3.ExprRef], positions: Sequence[z3.ExprRef]
) -> Iterator[z3.BoolRef]:
    positions = positions or [z3.IntVal(0)]
    arguments: dict[str, list[tuple[z3.ExprRef, ...]]] = {
        "pool": [()],
        "block": [(unit,) for unit in units],
        "key": [*product(keys, positions)],
    }
    for clause, condition in _templates(view):
        yield from (_instance(condition, chosen) for chosen in arguments[clause.about])


_instances: dict[tuple[int, ...], tuple[z3.BoolRef, z3.BoolRef, tuple[z3.ExprRef, ...]]] = {}


def _instance(condition: z3.BoolRef, chosen: tuple[z3.ExprRef, ...]) -> z3.BoolRef:
    """A clause of one block or key; remembered with all that its numbers stand for, so that they stand for nothing else."""
    key = (condition.get_id(), *(one.get_id() for one in chosen))
    if key not in _instances:
        _instances[key] = z3.substitute_vars(condition, *chosen) if chosen else condition, condition, chosen
    return _instances[key][0]


_known: dict[tuple[int, ...], tuple[View, list[tuple[Clause, z3.BoolRef]]]] = {}


def _templates(view: View) -> list[tuple[Clause, z3.BoolRef]]:
    """Every clause about variables, to be replaced by blocks and keys; remembered, as many paths begin in one state."""
    key = tuple(part.get_id() for holding in view.holdings for part in holding)
    if key not in _known:
        variables = [z3.Var(number, z3.IntSort()) for number in range(2)]
        found = [(clause, clause.holds(view, *variables[: PARAMETERS[clause.about]])) for clause in CLAUSES]
        _known[key] = view, found
    return _known[key][1]
