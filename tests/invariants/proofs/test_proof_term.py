"""Term against ints, and paths against what Python does: whatever is proved rests on these two."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import z3
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsan.invariants.proofs import term
from kvsan.invariants.proofs.paths import Path, Unbounded, explore
from kvsan.invariants.proofs.term import Term, lift, variable

INTEGERS = st.integers(-40, 40)
NAMES = ("x", "y", "z")
FEW = settings(max_examples=40, deadline=None)
"""An example asks z3 several times."""


def on_symbols(function: Callable[..., Any], numbers: tuple[int, ...]) -> Any:
    """Run a function on symbolic integers that are known to be some numbers: what it returns, or the error's type."""
    symbols = [variable(name) for name in NAMES[: len(numbers)]]
    known = [lift(symbol) == number for symbol, number in zip(symbols, numbers, strict=True)]
    (path,) = explore(lambda: function(*symbols), known)
    if path.error:
        return type(path.error)
    return value(path.result, numbers)


def value(result: Any, numbers: tuple[int, ...]) -> Any:
    """The number of a symbolic result, where variables are these numbers."""
    if isinstance(result, tuple):
        return tuple(value(one, numbers) for one in result)
    meaning = [(z3.Int(name), z3.IntVal(number)) for name, number in zip(NAMES, numbers, strict=False)]
    return z3.simplify(z3.substitute(lift(result), *meaning)).as_long()


def on_numbers(function: Callable[..., Any], numbers: tuple[int, ...]) -> Any:
    try:
        return function(*numbers)
    except ArithmeticError as error:
        return type(error)


TWO = {
    one.__name__: one
    for one in (
        operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, divmod,
        operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge, min, max,
    )
}  # fmt: skip
"""Operations of two integers, some of which divide."""


@pytest.mark.parametrize("name", TWO)
@FEW
@given(x=INTEGERS, y=INTEGERS)
def test_an_operation_is_pythons(name: str, x: int, y: int) -> None:
    assert on_symbols(TWO[name], (x, y)) == on_numbers(TWO[name], (x, y))


@pytest.mark.parametrize("name", TWO)
@FEW
@given(x=INTEGERS, y=INTEGERS)
def test_an_operation_with_a_number_is_pythons(name: str, x: int, y: int) -> None:
    expected = on_numbers(TWO[name], (x, y))

    assert on_symbols(lambda symbol: TWO[name](symbol, y), (x,)) == expected
    assert on_symbols(lambda symbol: TWO[name](x, symbol), (y,)) == expected


@FEW
@given(x=INTEGERS)
def test_signs_are_pythons(x: int) -> None:
    assert on_symbols(lambda x: (-x, +x, abs(x)), (x,)) == (-x, +x, abs(x))


def test_z3s_own_division_would_be_noticed() -> None:
    """Its remainder is never negative, whatever the divisor is: this is what Term is there to mend."""
    by_z3 = on_symbols(lambda x, y: Term(lift(x) / lift(y)), (7, -2))

    assert (by_z3, 7 // -2, on_symbols(operator.floordiv, (7, -2))) == (-3, -4, -4)


CONDITIONS: dict[str, Callable[[Any, Any], Any]] = {
    "a truth times a number": lambda x, y: (x > y) * x,
    "a number times a truth": lambda x, y: x * (x > y),
    "a truth times a truth": lambda x, y: (x > 0) * (y > 0),
    "truths are added": lambda x, y: (x > 0) + (y > 0) + 1,
    "truths are subtracted": lambda x, y: 3 - (x > 0) - (y > x),
    "a truth is divided": lambda x, y: (x > y) // 2 + (x > y) % 2,
    "by a truth": lambda x, y: x // (x > y),
    "truths are compared": lambda x, y: (x > 0) == (y > 0),
    "a truth is a number": lambda x, y: (x > y) == 1,
    "both": lambda x, y: (x > 0) & (y > 0),
    "one of them": lambda x, y: (x > 0) | (y > 0),
    "both, one is no symbol": lambda x, y: True & (y > 0),
    "one of them, one is no symbol": lambda x, y: False | (y > 0),
    "a share, 1 at least": lambda x, y: x + (x == 0),
}


@pytest.mark.parametrize("name", CONDITIONS)
@FEW
@given(x=INTEGERS, y=INTEGERS)
def test_truths_are_numbers_as_in_python(name: str, x: int, y: int) -> None:
    assert on_symbols(CONDITIONS[name], (x, y)) == on_numbers(CONDITIONS[name], (x, y))


FORMULAS: dict[str, Callable[[Any, Any], Any]] = {
    "minimum": term.minimum,
    "maximum": term.maximum,
    "ceil_div": term.ceil_div,
    "either": lambda x, y: term.either(x > y, x, 2 * y),
    "both": lambda x, y: term.both(x > 0, y > 0, True),
    "one_of": lambda x, y: term.one_of(x > 0, y > 0, False),
    "negation": lambda x, y: term.negation(x > y),
    "implies": lambda x, y: term.implies(x > 0, y > 0),
    "same": lambda x, y: term.same(x > 0, y > 0),
    "within": lambda x, y: term.within(0, x, y),
}


@pytest.mark.parametrize("name", FORMULAS)
@FEW
@given(x=INTEGERS, y=INTEGERS)
def test_a_formula_says_the_same_of_symbols_and_of_numbers(name: str, x: int, y: int) -> None:
    assert on_symbols(FORMULAS[name], (x, y)) == on_numbers(FORMULAS[name], (x, y))


@FEW
@given(x=INTEGERS, y=INTEGERS)
def test_formulas_are_what_their_names_say(x: int, y: int) -> None:
    assert term.minimum(x, y) == min(x, y)
    assert term.maximum(x, y) == max(x, y)
    assert term.implies(x > 0, y > 0) == (x <= 0 or y > 0)
    assert term.within(0, x, y) == (x in range(0, y))
    if y > 0:
        assert term.ceil_div(x, y) == (x + y - 1) // y


# -- what cannot be symbolic


REFUSED: dict[str, Callable[[Any], Any]] = {
    "the bound of a range": range,
    "an index": lambda x: [1, 2, 3][x],
    "a length of a slice": lambda x: [1, 2, 3][:x],
    "int()": int,
    "a key": lambda x: {x: 1},
    "a fraction": lambda x: x + 0.5,
    "compared with a string": lambda x: x == "1",
    "compared with None": lambda x: x == None,  # noqa: E711
    "divided as a fraction": lambda x: x / 2,
    "bits": lambda x: x >> 1,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_symbolic_is_refused(name: str) -> None:
    with pytest.raises(TypeError):
        REFUSED[name](variable("x"))


def test_a_truth_that_nobody_decides_is_refused() -> None:
    with pytest.raises(TypeError, match="and Python asks whether it is true"):
        bool(variable("x") > 0)


def test_a_refusal_is_part_of_a_path() -> None:
    (path,) = explore(lambda: range(variable("x")))  # type: ignore[call-overload]

    assert isinstance(path.error, TypeError)


# -- paths


def clamp(x: Any) -> Any:
    return 0 if x < 0 else 10 if x > 10 else x


def sort(x: Any, y: Any, z: Any) -> Any:
    return tuple(sorted([x, y, z]))


def quotient_or_none(x: Any, y: Any) -> Any:
    return x // y if x > 0 and y != 3 else -1


def count_down(x: Any) -> Any:
    steps = 0
    while x > 0:
        x -= 3
        steps += 1
    return steps


FUNCTIONS: dict[str, tuple[Callable[..., Any], int]] = {
    "clamp": (clamp, 1), "sort": (sort, 3), "quotient": (quotient_or_none, 2), "loop": (count_down, 1)
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
@FEW
@given(data=st.data())
def test_paths_leave_nothing_out_and_exclude_each_other(name: str, data: st.DataObject) -> None:
    """Exactly one path is taken of any numbers, and it returns, or raises, what Python does."""
    function, count = FUNCTIONS[name]
    numbers = tuple(data.draw(st.integers(-9, 13)) for _ in range(count))
    taken = [path for path in PATHS[name] if all(is_true(condition, numbers) for condition in path.conditions)]

    assert len(taken) == 1
    found = type(taken[0].error) if taken[0].error else value(taken[0].result, numbers)
    assert found == on_numbers(function, numbers)


def is_true(condition: z3.BoolRef, numbers: tuple[int, ...]) -> bool:
    meaning = [(z3.Int(name), z3.IntVal(number)) for name, number in zip(NAMES, numbers, strict=False)]
    return bool(z3.is_true(z3.simplify(z3.substitute(condition, *meaning))))


def paths_of(name: str) -> list[Path[Any]]:
    function, count = FUNCTIONS[name]
    symbols = [variable(one) for one in NAMES[:count]]
    bounds = [bound for symbol in symbols for bound in (lift(symbol) >= -9, lift(symbol) <= 13)]
    return explore(lambda: function(*symbols), bounds)


PATHS = {name: paths_of(name) for name in FUNCTIONS}


def test_there_are_as_many_paths_as_there_are_cases() -> None:
    assert {name: len(paths) for name, paths in PATHS.items()} == {"clamp": 3, "sort": 6, "quotient": 4, "loop": 6}


def test_division_by_zero_is_a_path() -> None:
    x = variable("x")
    raised = {type(path.error): path.conditions for path in explore(lambda: 7 // x)}

    assert raised.keys() == {ZeroDivisionError, type(None)}
    assert is_true(raised[ZeroDivisionError][0], (0,))


def test_division_that_assumptions_allow_is_no_path() -> None:
    x = variable("x")

    assert [path.error for path in explore(lambda: 7 % x, [lift(x) > 0])] == [None]


def test_a_loop_without_a_bound_is_refused() -> None:
    with pytest.raises(Unbounded, match="a loop whose bound is symbolic"):
        explore(lambda: count_down(variable("x")))


def test_more_paths_than_are_asked_for_are_refused() -> None:
    symbols = [variable(f"x{number}") for number in range(5)]

    with pytest.raises(Unbounded, match="more than 20 paths"):
        explore(lambda: sum(1 for symbol in symbols if symbol > 0), most_paths=20)


def test_paths_within_paths_are_their_own() -> None:
    x, y = variable("x"), variable("y")

    def inner() -> Any:
        return 1 if y > 0 else 2

    outer = explore(lambda: [len(explore(inner)), 5 if x > 0 else 6])

    assert sorted(map(str, (path.result for path in outer))) == ["[2, 5]", "[2, 6]"]
