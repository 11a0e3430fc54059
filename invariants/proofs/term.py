"""Symbolic integers that ordinary Python code runs on: `Term`, with Python's semantics over z3's integers.

z3's own terms refuse ``//``, and their ``%`` is not Python's for negative divisors; a `Term` has Python's floor semantics.
Where Python asks for a truth value (``if``, ``while``, ``and``, ``min``), `paths.explore` decides, once for each answer
that is possible. What cannot be symbolic (an index, the bound of a ``range``) is refused with TypeError.

`minimum`, `implies` and the other functions work on ints too, so that one formula serves proofs and running code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, TypeAlias

import z3

Number: TypeAlias = "int | Term"
"""What formulas are written over."""

deciders: list[Callable[[z3.BoolRef], bool]] = []
"""Who answers when Python asks for the truth of a condition; the innermost last (`paths`)."""


class Term:
    """A symbolic integer; ``expression`` is what z3 has of it."""

    __slots__ = ("expression",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, expression: z3.ArithRef) -> None:
        self.expression = expression

    def __repr__(self) -> str:
        return f"Term({self.expression})"

    # -- arithmetic

    def __add__(self, other: Number) -> Term:
        return Term(self.expression + lift(other))

    def __radd__(self, other: Number) -> Term:
        return Term(lift(other) + self.expression)

    def __sub__(self, other: Number) -> Term:
        return Term(self.expression - lift(other))

    def __rsub__(self, other: Number) -> Term:
        return Term(lift(other) - self.expression)

    def __mul__(self, other: Number) -> Term:
        if isinstance(other, Truth):
            return other * self
        return Term(self.expression * lift(other))

    def __rmul__(self, other: Number) -> Term:
        return self * other

    def __neg__(self) -> Term:
        return Term(-self.expression)

    def __pos__(self) -> Term:
        return self

    def __abs__(self) -> Term:
        return Term(z3.If(self.expression < 0, -self.expression, self.expression))

    def __floordiv__(self, other: Number) -> Term:
        return Term(floor_div(self.expression, _divisor(lift(other))))

    def __rfloordiv__(self, other: Number) -> Term:
        return Term(floor_div(lift(other), _divisor(self.expression)))

    def __mod__(self, other: Number) -> Term:
        return Term(floor_mod(self.expression, _divisor(lift(other))))

    def __rmod__(self, other: Number) -> Term:
        return Term(floor_mod(lift(other), _divisor(self.expression)))

    def __divmod__(self, other: Number) -> tuple[Term, Term]:
        return self // other, self % other

    def __rdivmod__(self, other: Number) -> tuple[Term, Term]:
        return other // self, other % self

    # -- comparisons

    def __eq__(self, other: object) -> Truth:  # type: ignore[override]
        return Truth(self.expression == _lift_any(other))

    def __ne__(self, other: object) -> Truth:  # type: ignore[override]
        return Truth(self.expression != _lift_any(other))

    def __lt__(self, other: Number) -> Truth:
        return Truth(self.expression < lift(other))

    def __le__(self, other: Number) -> Truth:
        return Truth(self.expression <= lift(other))

    def __gt__(self, other: Number) -> Truth:
        return Truth(self.expression > lift(other))

    def __ge__(self, other: Number) -> Truth:
        return Truth(self.expression >= lift(other))

    # -- where Python wants something concrete

    def __bool__(self) -> bool:
        return decide(self.expression != 0)

    def __index__(self) -> NoReturn:
        raise TypeError(f"{self!r} is symbolic: it cannot be an index or the bound of a loop")

    __int__ = __index__


class Truth(Term):
    """A symbolic bool: a number, 0 or 1, as Python's are; ``condition`` is what z3 has of it."""

    __slots__ = ("condition",)

    def __init__(self, condition: z3.BoolRef) -> None:
        self.condition = condition
        self.expression = z3.If(condition, z3.IntVal(1), z3.IntVal(0))

    def __repr__(self) -> str:
        return f"Truth({self.condition})"

    def __bool__(self) -> bool:
        return decide(self.condition)

    def __mul__(self, other: Number) -> Term:
        return Term(z3.If(self.condition, lift(other), z3.IntVal(0)))

    def __rmul__(self, other: Number) -> Term:
        return self * other

    def __and__(self, other: bool | Truth) -> Truth:
        return Truth(z3.And(self.condition, condition_of(other)))

    def __rand__(self, other: bool) -> Truth:
        return self & other

    def __or__(self, other: bool | Truth) -> Truth:
        return Truth(z3.Or(self.condition, condition_of(other)))

    def __ror__(self, other: bool) -> Truth:
        return self | other


Condition: TypeAlias = "bool | Truth"
"""What formulas state."""


def variable(name: str) -> Term:
    """An unknown integer."""
    return Term(z3.Int(name))


def lift(number: Number) -> z3.ArithRef:
    """What z3 has of a number; TypeError for what is neither an int nor a `Term`."""
    if isinstance(number, Term):
        return number.expression
    if isinstance(number, int):
        return z3.IntVal(int(number))
    raise TypeError(f"{number!r}: expected an int or a Term")


def condition_of(condition: bool | Truth | Term) -> z3.BoolRef:
    """What z3 has of a condition."""
    if isinstance(condition, Truth):
        return condition.condition
    if isinstance(condition, Term):
        return condition.expression != 0
    return z3.BoolVal(bool(condition))


def decide(condition: z3.BoolRef) -> bool:
    """Answer for ``if``: at once where the condition is constant, else by `paths.explore`; TypeError outside of it."""
    simple = z3.simplify(condition)
    if z3.is_true(simple) or z3.is_false(simple):
        return bool(z3.is_true(simple))
    if not deciders:
        raise TypeError(
            f"{simple} is symbolic, and Python asks whether it is true: write both(...), one_of(...), either(...) of "
            "proofs.term for `and`, `or`, `if`; only paths.explore can answer"
        )
    return deciders[-1](simple)


def floor_div(dividend: z3.ArithRef, divisor: z3.ArithRef) -> z3.ArithRef:
    """Python's ``//``. z3's ``div`` leaves a remainder of 0 or more, hence rounds down where the divisor is positive."""
    if z3.is_int_value(divisor):
        return dividend / divisor if divisor.as_long() > 0 else (-dividend) / (-divisor)
    return z3.If(divisor > 0, dividend / divisor, (-dividend) / (-divisor))


def floor_mod(dividend: z3.ArithRef, divisor: z3.ArithRef) -> z3.ArithRef:
    """Python's ``%``: the sign of the divisor."""
    if z3.is_int_value(divisor):
        return dividend % divisor if divisor.as_long() > 0 else -((-dividend) % (-divisor))
    return z3.If(divisor > 0, dividend % divisor, -((-dividend) % (-divisor)))


def _divisor(divisor: z3.ArithRef) -> z3.ArithRef:
    """A divisor; ZeroDivisionError on the path where it is 0, if one is explored."""
    if z3.is_int_value(divisor):
        if divisor.as_long() == 0:
            raise ZeroDivisionError("integer division or modulo by zero")
    elif deciders and deciders[-1](divisor == 0):
        raise ZeroDivisionError("integer division or modulo by zero")
    return divisor


def _lift_any(value: object) -> z3.ArithRef:
    if isinstance(value, Term | int):
        return lift(value)
    raise TypeError(f"{value!r} compared with a symbolic integer: expected an int")


# -- formulas over ints and Terms


def minimum(first: Number, second: Number) -> Number:
    """The smaller of two."""
    if isinstance(first, Term) or isinstance(second, Term):
        return Term(z3.If(lift(first) < lift(second), lift(first), lift(second)))
    return min(first, second)


def maximum(first: Number, second: Number) -> Number:
    """The larger of two."""
    if isinstance(first, Term) or isinstance(second, Term):
        return Term(z3.If(lift(first) < lift(second), lift(second), lift(first)))
    return max(first, second)


def ceil_div(dividend: Number, divisor: Number) -> Number:
    """Quotient rounded up, of a positive divisor."""
    return -(-dividend // divisor)


def either(condition: Condition, then: Number, otherwise: Number) -> Number:
    """``then if condition else otherwise``."""
    if isinstance(condition, Term):
        return Term(z3.If(condition_of(condition), lift(then), lift(otherwise)))
    return then if condition else otherwise


def both(*conditions: Condition) -> Condition:
    """Whether all hold."""
    if any(isinstance(one, Term) for one in conditions):
        return Truth(z3.And(*map(condition_of, conditions)))
    return all(conditions)


def one_of(*conditions: Condition) -> Condition:
    """Whether one holds at least."""
    if any(isinstance(one, Term) for one in conditions):
        return Truth(z3.Or(*map(condition_of, conditions)))
    return any(conditions)


def negation(condition: Condition) -> Condition:
    """Whether it does not hold."""
    return Truth(z3.Not(condition_of(condition))) if isinstance(condition, Term) else not condition


def implies(premise: Condition, conclusion: Condition) -> Condition:
    """Whether the second holds where the first does."""
    return one_of(negation(premise), conclusion)


def same(first: Condition, second: Condition) -> Condition:
    """Whether both hold or neither."""
    if isinstance(first, Term) or isinstance(second, Term):
        return Truth(condition_of(first) == condition_of(second))
    return bool(first) == bool(second)


def within(low: Number, number: Number, high: Number) -> Condition:
    """``low <= number < high``."""
    return both(low <= number, number < high)
