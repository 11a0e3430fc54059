"""Real pools: made from a counterexample's values, stepped by the real code, and held to the clauses.

The view of a real pool is the same as that of an unknown one, with numbers in the place of unknowns, so that the same clauses
judge both.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import z3

from kvsan.invariants.proofs.protocol.bench import Bench, Parts
from kvsan.invariants.proofs.protocol.clauses import CLAUSES
from kvsan.invariants.proofs.protocol.flights import flights, publications, requests_hold
from kvsan.invariants.proofs.protocol.state import NOT_QUEUED, Holding, View
from kvsan.invariants.proofs.term import lift

Numbers = Callable[[z3.ArithRef], z3.ArithRef]


def pool_of(values: Mapping[str, int], pool_type: type[Any]) -> Any:
    """Make a real pool in the state that a counterexample names, the links of which are shown plus one."""
    units = values["units"]
    pool = pool_type(units)
    pool.references = array("i", [values[f"references[{unit}]"] for unit in range(units)])
    pool._next = array("i", [values[f"next[{unit}]"] - 1 for unit in range(units + 1)])
    pool._previous = array("i", [values[f"previous[{unit}]"] - 1 for unit in range(units + 1)])
    pool.keys = [values[f"key[{unit}]"] if values.get(f"keyed[{unit}]") else None for unit in range(units)]
    pool.num_free = sum(link != NOT_QUEUED for link in pool._next[1:units])
    for key in (1, 2, 3):
        found = [values[f"entry[{key},{position}]"] for position in range(values[f"length[{key}]"])]
        if found:
            pool.by_key[key] = found[0] if len(found) == 1 else found
    return pool


def replayed(scenario: Callable[[Bench], None], values: Mapping[str, int], parts: Parts) -> tuple[list[str], list[str]]:
    """What the real code breaks from a counterexample's state: names before the step (none, if it is a state) and after."""
    bench = Bench(parts, values, pool_of(values, parts.pool))
    keys_before = [*bench.pool.keys]
    queue = pool_of(values, parts.pool).queue()
    rest = {unit: values.get(f"rest[{unit}]", 0) for unit in range(values["units"])}
    tail = {unit for unit in rest if values.get(f"tail[{unit}]")}
    before: list[str] = []

    def began() -> None:
        before.extend(broken_clauses(view_of(bench.pool, bench.holdings(), rest, tail), bench.pool))

    bench.began = began
    try:
        scenario(bench)
    except Exception as error:
        return before, [f"error ({type(error).__name__}: {error})"]
    # A block that joined the queue was touched last when it did.
    joined = reversed([unit for unit in dict.fromkeys(reversed(bench.pool.touched)) if unit not in queue])
    order = [*queue, *joined]
    after = [*broken_clauses(view_of(bench.pool, bench.holdings(), rest, tail, order), bench.pool)]
    after += [one.name for one in bench.expected if z3.is_false(z3.simplify(one.condition))]
    newly = [unit for unit, key in enumerate(bench.pool.keys) if key is not None and keys_before[unit] is None]
    newly = newly if bench.computed else []
    requests = z3.And(*([] if bench.is_part else requests_hold(bench.manager)))
    judged = [
        ("requests", requests),
        ("in flight", flights(bench)),
        *(("computed", publications(bench, z3.IntVal(unit))) for unit in newly),
    ]
    after += [name for name, condition in judged if z3.is_false(z3.simplify(condition))]
    return before, [*dict.fromkeys(after)]


def view_of(
    pool: Any,
    holdings: Iterable[Holding],
    rest: Mapping[int, int] | None = None,
    tail: Iterable[int] = (),
    earlier: Sequence[int] = (),
) -> View:
    """View of a real pool; ``rest`` counts entries of tables that are not among the holdings.

    ``earlier`` is the queue before the step, and what has joined since in that order, as far as it is known: blocks must stand
    in the queue in this order, and before all others.
    """
    joined = (unit for unit in pool.queue() if unit not in earlier)
    order = {unit: position for position, unit in enumerate([*earlier, *joined])}
    entries = {key: pool.published(key) for key in pool.by_key}
    others, tails = rest or {}, {*tail}

    def column(get: Callable[[int], int], size: int) -> Numbers:
        return lambda index: z3.IntVal(get(_number(index)) if 0 <= _number(index) < size else NOT_QUEUED)

    def places(unit: z3.ArithRef) -> list[z3.ArithRef]:
        under = entries.get(pool.keys[_number(unit)], ()) if 0 < _number(unit) < pool.num_units else ()
        return [z3.IntVal(position) for position, one in enumerate(under) if one == _number(unit)]

    def entry(key: z3.ArithRef, position: z3.ArithRef) -> z3.ArithRef:
        under = entries.get(_number(key), ())
        return z3.IntVal(under[_number(position)] if 0 <= _number(position) < len(under) else NOT_QUEUED)

    units = pool.num_units
    return View(
        units=z3.IntVal(units),
        references=column(lambda unit: pool.references[unit], units),
        following=column(lambda unit: pool._next[unit], units + 1),
        preceding=column(lambda unit: pool._previous[unit], units + 1),
        keyed=lambda unit: z3.BoolVal(0 <= _number(unit) < units and pool.keys[_number(unit)] is not None),
        key=column(lambda unit: pool.keys[unit] or 0, units),
        length=lambda key: z3.IntVal(len(entries.get(_number(key), ()))),
        listed=lambda key: z3.BoolVal(isinstance(pool.by_key.get(_number(key)), list)),
        entry=entry,
        places=places,
        stamp=lambda unit: z3.IntVal(order.get(_number(unit), 0)),
        num_free=z3.IntVal(pool.num_free),
        queued=z3.IntVal(sum(pool._next[unit] != NOT_QUEUED for unit in range(1, units))),
        holdings=tuple(holdings),
        rest=lambda unit: z3.IntVal(others.get(_number(unit), 0)),
        rest_tail=lambda unit: z3.BoolVal(_number(unit) in tails),
    )


def broken_clauses(view: View, pool: Any) -> Iterator[str]:
    """Names of clauses that do not hold of a real pool."""
    units = range(pool.num_units + 1)
    keys = {*pool.by_key, *(key for key in pool.keys if key is not None)}
    positions = range(max((len(pool.published(key)) for key in keys), default=1))
    arguments: dict[str, Any] = {
        "pool": [()],
        "block": [(unit,) for unit in units],
        "key": [*product(keys, positions, positions)],
    }
    for clause in CLAUSES:
        chosen: Any
        for chosen in arguments[clause.about]:
            if not z3.is_true(z3.simplify(clause.holds(view, *map(lift, chosen)))):
                yield clause.name
                break


def _number(index: z3.ArithRef) -> int:
    number: int = (index if z3.is_int_value(index) else z3.simplify(index)).as_long()
    return number
