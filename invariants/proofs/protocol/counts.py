"""Counts are defined, and this is what the definition gives: lemmas about sums over tables, proved by induction.

- ``count(n, u)``: entries among the first ``n`` of a table that name block ``u``: ``count(0, u) = 0``, ``count(n + 1, u) =
  count(n, u) + [table(n) = u]``.
- ``total(o, u)``: the same of the first ``o`` tables: ``total(0, u) = 0``, ``total(o + 1, u) = total(o, u) + entries(o, u)``,
  where ``entries(o, u)`` is the count of the whole of table ``o``.
- ``queued(n)``: blocks among the first ``n`` that are in the free queue, counted in the same way.

A view's `holders` is a total that is split up: tables that a step has to do with, entry by entry, and the rest. The lemmas say
that this may be done: a write, an append and a removal change the total by the entries concerned and nothing else, a table that
moves from a request to a launch changes nothing, and two entries that name a block count two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import z3

from kvsan.invariants.proofs.obligation import Obligation

_INT, _BOOL = z3.IntSort(), z3.BoolSort()
_n, _m, _u, _v, _i, _j, _d = z3.Ints("n m u v i j d")


@dataclass(frozen=True, slots=True)
class Lemma:
    """Proved where all ``obligations`` are: of an induction the beginning and the step."""

    name: str
    statement: str
    obligations: tuple[Obligation, ...]


def _one_if(condition: z3.BoolRef) -> z3.ArithRef:
    return z3.If(condition, z3.IntVal(1), z3.IntVal(0))


class _Sum:
    """A sum over the first numbers, by its definition: ``of(n, u)``, with ``summand(n, u)`` added at ``n``."""

    def __init__(self, name: str, summand: Callable[[z3.ArithRef, z3.ArithRef], z3.ArithRef]) -> None:
        self.of = z3.Function(name, _INT, _INT, _INT)
        self._summand = summand

    def begins(self, u: z3.ArithRef) -> z3.BoolRef:
        return self.of(0, u) == 0

    def goes_on(self, n: z3.ArithRef, u: z3.ArithRef) -> z3.BoolRef:
        return self.of(n + 1, u) == self.of(n, u) + self._summand(n, u)


def _induction(
    what: str, sums: tuple[_Sum, ...], claim: Callable[[z3.ArithRef], z3.BoolRef], *given: z3.BoolRef
) -> tuple[Obligation, ...]:
    """The claim holds of 0, and of ``n + 1`` where it does of ``n``; the sums are unfolded once."""
    zero, begins = z3.IntVal(0), [one.begins(_u) for one in sums]
    goes_on = [one.goes_on(_n, _u) for one in sums]
    return (
        Obligation(f"{what}, of nothing", (*given, *begins), claim(zero)),
        Obligation(f"{what}, of one more", (*given, _n >= 0, claim(_n), *goes_on), claim(_n + 1)),
    )


def _named(table: z3.FuncDeclRef) -> Callable[[z3.ArithRef, z3.ArithRef], z3.ArithRef]:
    return lambda n, u: _one_if(table(n) == u)


def lemmas() -> tuple[Lemma, ...]:
    """Everything that the other proofs take from the definition of a count."""
    return (_write(), _append(), _pop(), _two_places(), _one_table(), _moved(), _queue_write(), _latest())


def _write() -> Lemma:
    table = z3.Function("table", _INT, _INT)
    counts = _Sum("count", _named(table))
    written = _Sum("count after", lambda n, u: _one_if(z3.If(n == _i, _v, table(n)) == u))

    def claim(n: z3.ArithRef) -> z3.BoolRef:
        change = _one_if(_v == _u) - _one_if(table(_i) == _u)
        return written.of(n, _u) == counts.of(n, _u) + z3.If(z3.And(_i >= 0, _i < n), change, 0)

    text = "writing an entry adds one to its new block's count and takes one from its old block's"
    return Lemma("write", text, _induction(text, (counts, written), claim))


def _append() -> Lemma:
    table = z3.Function("table", _INT, _INT)
    counts = _Sum("count", _named(table))
    longer = _Sum("count after", lambda n, u: _one_if(z3.If(n == _m, _v, table(n)) == u))
    text = "an entry behind the others adds one to its block's count"
    same = _induction(
        "what lies before is counted as before",
        (counts, longer),
        lambda n: z3.Implies(n <= _m, longer.of(n, _u) == counts.of(n, _u)),
    )
    given = (_m >= 0, longer.of(_m, _u) == counts.of(_m, _u), longer.goes_on(_m, _u))
    goal = longer.of(_m + 1, _u) == counts.of(_m, _u) + _one_if(_v == _u)
    return Lemma("append", text, (*same, Obligation(text, given, goal)))


def _pop() -> Lemma:
    table = z3.Function("table", _INT, _INT)
    counts = _Sum("count", _named(table))
    text = "a table without its last entry counts one less for that entry's block"
    goal = counts.of(_m, _u) == counts.of(_m + 1, _u) - _one_if(table(_m) == _u)
    return Lemma("pop", text, (Obligation(text, (_m >= 0, counts.goes_on(_m, _u)), goal),))


def _two_places() -> Lemma:
    table = z3.Function("table", _INT, _INT)
    counts = _Sum("count", _named(table))

    def claim(n: z3.ArithRef) -> z3.BoolRef:
        def there(i: z3.ArithRef) -> z3.ArithRef:
            return _one_if(z3.And(i >= 0, i < n, table(i) == _u))

        return counts.of(n, _u) >= there(_i) + there(_j)

    text = "a block's count is at least the number of places at which it is known to stand"
    return Lemma("places", text, _induction(text, (counts,), claim, _i != _j))


def _one_table() -> Lemma:
    entries, changed = z3.Function("entries", _INT, _INT, _INT), z3.Function("entries after", _INT, _INT, _INT)
    totals = _Sum("total", entries)
    others = _Sum("total after", lambda o, u: z3.If(o == _i, changed(o, u), entries(o, u)))

    def claim(o: z3.ArithRef) -> z3.BoolRef:
        change = changed(_i, _u) - entries(_i, _u)
        return others.of(o, _u) == totals.of(o, _u) + z3.If(z3.And(_i >= 0, _i < o), change, 0)

    text = "when one table changes, joins or goes, the total changes by that table's count, and the rest stays"
    return Lemma("one-table", text, _induction(text, (totals, others), claim))


def _moved() -> Lemma:
    entries, elsewhere = z3.Function("entries", _INT, _INT, _INT), z3.Function("entries after", _INT, _INT, _INT)
    totals = _Sum("total", entries)
    swapped = _Sum(
        "total after", lambda o, u: z3.If(o == _i, elsewhere(_i, u), z3.If(o == _j, elsewhere(_j, u), entries(o, u)))
    )

    def claim(o: z3.ArithRef) -> z3.BoolRef:
        def gained(at: z3.ArithRef) -> z3.ArithRef:
            return z3.If(z3.And(at >= 0, at < o), elsewhere(at, _u) - entries(at, _u), 0)

        return swapped.of(o, _u) == totals.of(o, _u) + gained(_i) + gained(_j)

    text = "a table that moves from one owner to another takes its count with it"
    induction = _induction("two owners change", (totals, swapped), claim, _i != _j)
    moved = (elsewhere(_i, _u) == 0, entries(_j, _u) == 0, elsewhere(_j, _u) == entries(_i, _u))
    given = (_i != _j, _i >= 0, _i < _n, _j >= 0, _j < _n, claim(_n), *moved)
    return Lemma("moved", text, (*induction, Obligation(text, given, swapped.of(_n, _u) == totals.of(_n, _u))))


def _queue_write() -> Lemma:
    link = z3.Function("next", _INT, _INT)
    before = _Sum("queued", lambda n, _: _one_if(z3.And(n > 0, link(n) != -1)))
    after = _Sum("queued after", lambda n, _: _one_if(z3.And(n > 0, z3.If(n == _i, _v, link(n)) != -1)))

    def claim(n: z3.ArithRef) -> z3.BoolRef:
        change = _one_if(_v != -1) - _one_if(link(_i) != -1)
        return after.of(n, _u) == before.of(n, _u) + z3.If(z3.And(_i > 0, _i < n), change, 0)

    text = "writing one link changes the number of queued blocks by that block"
    return Lemma("queue-write", text, _induction(text, (before, after), claim))


def _latest() -> Lemma:
    """Where blocks are queued, one of them has the largest stamp: shown with that one carried along."""
    link, stamp = z3.Function("next", _INT, _INT), z3.Function("stamp", _INT, _INT)
    queued = _Sum("queued", lambda n, _: _one_if(z3.And(n > 0, link(n) != -1)))

    def is_queued(n: z3.ArithRef, unit: z3.ArithRef) -> z3.BoolRef:
        return z3.And(unit > 0, unit < n, link(unit) != -1)

    def claim(n: z3.ArithRef, last: z3.ArithRef) -> z3.BoolRef:
        some = z3.Implies(queued.of(n, _u) >= 1, is_queued(n, last))
        largest = z3.Implies(is_queued(n, _i), z3.And(queued.of(n, _u) >= 1, stamp(_i) <= stamp(last)))
        return z3.And(queued.of(n, _u) >= 0, some, largest)

    takes_over = z3.And(_n > 0, link(_n) != -1, z3.Or(queued.of(_n, _u) == 0, stamp(_n) > stamp(_d)))
    next_last = z3.If(takes_over, _n, _d)
    text = "where the queue is not empty, one of its blocks has joined last"
    step = (_n >= 0, claim(_n, _d), queued.goes_on(_n, _u))
    return Lemma(
        "latest",
        text,
        (
            Obligation(f"{text}, of nothing", (queued.begins(_u),), claim(z3.IntVal(0), _d)),
            Obligation(f"{text}, of one more", step, claim(_n + 1, next_last)),
        ),
    )
