"""Each step keeps every clause: a step is run on all its paths, and what it leaves is held to the clauses.

The state before is any in which the clauses hold. On each path everything that must come of it is asked at once: every clause
for a block, a key and positions that can be any; that every index was within its column; that nothing was raised; and what the
scenario expects besides. What fails is looked for again in a small pool, and shown as it is there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import z3

from kvsan.invariants.proofs.obligation import PROVED, REFUTED, REJECTED, UNKNOWN, Obligation, Status
from kvsan.invariants.proofs.paths import Path, Unbounded, explore
from kvsan.invariants.proofs.protocol import state
from kvsan.invariants.proofs.protocol.bench import Bench, Parts
from kvsan.invariants.proofs.protocol.clauses import CLAUSES
from kvsan.invariants.proofs.protocol.columns import Infeasible
from kvsan.invariants.proofs.protocol.flights import COMPUTED, IN_FLIGHT, REQUESTS, flights, publications, requests_hold
from kvsan.invariants.proofs.protocol.instances import KEYS, instances, of_known, small_pool
from kvsan.invariants.proofs.solver import Limits, satisfiable, solve

Scenario = Callable[[Bench], None]

SMALL_POOLS = (2, 3, 4, 5, 6)
_NOT_UNDERSTOOD = (TypeError, AttributeError)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the protocol.

    ``methods`` are those of the pool's and manager's that are run (``pool.touch``, ``manager.fork``); ``scenarios`` are the
    states that it is run from: together every one, unless ``assumptions`` say otherwise.
    """

    name: str
    statement: str
    methods: tuple[str, ...]
    scenarios: tuple[Scenario, ...]
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Goal:
    """Something that must have come of a step."""

    name: str
    statement: str
    condition: z3.BoolRef


@dataclass(frozen=True, slots=True)
class Broken:
    """What a step breaks, in which scenario, and the values of a state from which it does."""

    scenario: Scenario
    goal: Goal
    values: dict[str, int]

    @property
    def about(self) -> str:
        """What the goal is a statement of, if it is a clause."""
        return next((clause.about for clause in CLAUSES if clause.name == self.goal.name), "pool")


@dataclass(frozen=True, slots=True)
class Shown:
    """What became of a step: ``broken`` if refuted, ``reason`` if neither that nor proved."""

    status: Status
    obligations: int
    seconds: float
    broken: Broken | None = None
    reason: str = ""


def show(step: Step, parts: Parts, limits: Limits = Limits()) -> Shown:  # noqa: B008
    """Prove one step, or find a state from which it breaks a clause."""
    started = time.monotonic()
    obligations = 0
    for scenario in step.scenarios:
        reached = False
        try:
            assumed = assumptions_of(scenario, parts)
            paths = explore(lambda scenario=scenario: _run(scenario, parts), assumed, most_paths=1024)  # type: ignore[misc]
        except Unbounded as error:
            return Shown(UNKNOWN, obligations, time.monotonic() - started, reason=f"{scenario.__name__}: {error}")
        for path in paths:
            if path.result is None:
                if isinstance(path.error, Infeasible):
                    continue
                raise path.error or RuntimeError(f"a path of {step.name} has neither result nor error")
            goals = goals_of(path.result)
            obligations += len(goals)
            found = _show_path(scenario, path, path.result, goals, limits)
            if found.status != PROVED:
                return Shown(found.status, obligations, time.monotonic() - started, found.broken, found.reason)
            reached = reached or (path.result.error is None and _possible(path, path.result, limits))
        if not reached:
            reason = f"vacuous: no state of a small pool gets through {scenario.__name__}"
            return Shown(UNKNOWN, obligations, time.monotonic() - started, reason=reason)
    return Shown(PROVED, obligations, time.monotonic() - started)


class _Begun(Exception):
    """The state before a step is complete, and nothing else was wanted."""


def _stop() -> None:
    raise _Begun


def assumptions_of(scenario: Scenario, parts: Parts) -> list[z3.BoolRef]:
    """Clauses for the blocks and keys that a scenario begins with: paths that they exclude are not gone into."""
    bench = Bench(parts)
    bench.began = _stop
    with contextlib.suppress(_Begun):
        scenario(bench)
    units = [z3.Int(name) for name in bench.unit_names]
    keys = [z3.Int(name) for name in bench.key_names]
    return [*bench.requirements, *of_known(state.before(bench.at_start), units, keys, bench.leaves_first)]


def _run(scenario: Scenario, parts: Parts) -> Bench:
    bench = Bench(parts)
    try:
        scenario(bench)
    except (Infeasible, Unbounded):
        raise
    except Exception as error:
        bench.error = error
    return bench


def goals_of(bench: Bench) -> list[Goal]:
    """Everything that must have come of a step."""
    if bench.error is not None:
        error = f"{type(bench.error).__name__}: {bench.error}"
        return [Goal("error", f"nothing is raised ({error})", z3.BoolVal(False))]
    view = state.after(bench.pool, bench.holdings())
    u, k, i, j = (z3.Int(name) for name in ("any block", "any key", "any position", "another position"))
    arguments = {"pool": (), "block": (u,), "key": (k, i, j)}
    goals = [
        Goal(clause.name, clause.statement, clause.holds(view, *arguments[clause.about]))
        for clause in CLAUSES
        if not clause.reads or any(getattr(bench.pool, column).writes for column in clause.reads)
    ]
    goals += [Goal(one.name, one.statement, one.condition) for one in bench.expected]
    if not bench.is_part:
        goals.append(Goal("requests", REQUESTS, z3.And(*requests_hold(bench.manager))))
    if bench.uses:
        goals.append(Goal("in flight", IN_FLIGHT, flights(bench)))
    if bench.computed:
        newly = z3.And(view.keyed(u), z3.Not(state.keyed(u)))
        goals.append(Goal("computed", COMPUTED, z3.Implies(newly, publications(bench, u))))
    within = z3.And(*(access.within for access in bench.accesses))
    return [*goals, Goal("index", "every index is within its column", within)]


def _domain(view: state.View) -> list[z3.BoolRef]:
    """What any block and any key may be: also the null block and the sentinel, which some clauses are about."""
    u = z3.Int("any block")
    return [view.units >= 2, u >= 0, u <= view.units]


def _show_path(scenario: Scenario, path: Path[Bench], bench: Bench, goals: list[Goal], limits: Limits) -> Shown:
    view = state.before(bench.at_start)
    conditions = [*path.conditions, *bench.requirements, *_domain(view)]
    wanted = z3.And(*(goal.condition for goal in goals))
    known = instances(view, [*conditions, wanted], bench.leaves_first)
    answer = solve(Obligation("", (*conditions, *known), wanted), limits)
    if answer.status == PROVED:
        return Shown(PROVED, len(goals), answer.seconds)
    for units in SMALL_POOLS:
        pool = [*path.conditions, *bench.requirements, *_domain(view), *small_pool(view, units, bench.key_names)]
        pool += [z3.Int("any key") >= 1, z3.Int("any key") <= KEYS, z3.Int("any position") <= units]
        if not satisfiable([*pool, z3.Not(wanted)], limits):
            continue
        if isinstance(bench.error, _NOT_UNDERSTOOD):
            return Shown(REJECTED, 0, 0.0, reason=f"{scenario.__name__}: {bench.error}")
        for goal in goals:
            found = solve(Obligation(goal.name, tuple(pool), goal.condition, watch=watched(bench, units)), limits)
            if found.status == REFUTED:
                return Shown(REFUTED, 0, 0.0, Broken(scenario, goal, dict(found.values)))
    reason = answer.reason or "no proof from the clauses of the blocks involved, and no counterexample in a small pool"
    return Shown(UNKNOWN, 0, 0.0, reason=f"{scenario.__name__}: {reason}")


def _possible(path: Path[Bench], bench: Bench, limits: Limits) -> bool:
    """Whether some small pool, with every clause for every block, gets through this path."""
    view = state.before(bench.at_start)
    given = [*path.conditions, *bench.requirements, z3.Int("block_size") == 4]
    least = min(max(3, len(bench.unit_names) + 1), 6)
    sizes = (*range(least, 7), *range(3, least))  # the step's blocks may be one and the same, but most often are not
    return any(satisfiable([*given, *small_pool(view, units, bench.key_names)], limits) for units in sizes)


def watched(bench: Bench, units: int) -> dict[str, z3.ExprRef]:
    """Values that make a state: the scenario's own, then the pool's columns."""
    found: dict[str, z3.ExprRef] = {"units": state.UNITS, **bench.numbers}
    found |= _columns(units)
    return found


def _columns(units: int) -> dict[str, z3.ExprRef]:
    return dict(_column_values(units))


def _column_values(units: int) -> Iterator[tuple[str, z3.ExprRef]]:
    for unit in range(1, units):
        yield f"rest[{unit}]", state.rest(unit)
        yield f"tail[{unit}]", state.tail(unit)
        yield f"keyed[{unit}]", state.keyed(unit)
    for unit in range(units):
        yield f"references[{unit}]", state.references(unit)
        yield f"key[{unit}]", state.key(unit)
    for unit in range(units + 1):
        yield f"next[{unit}]", state.following(unit) + 1
        yield f"previous[{unit}]", state.preceding(unit) + 1
    for key in (1, 2, 3):
        yield f"length[{key}]", state.length(key)
        for position in range(units):
            yield f"entry[{key},{position}]", state.entry(key, position)
    yield "any block", z3.Int("any block")
    yield "any key", z3.Int("any key")
