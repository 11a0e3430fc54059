"""z3's integers and conditions as Python functions: what an expression is for given numbers, in all lanes at once.

Expressions become Python source, one statement a node, over ints or numpy arrays; shared parts are computed once. z3's
division is Euclid's: the remainder is never negative, whatever the divisor's sign is. That differs from Python's floor
division for negative divisors, and from C's truncation for negative dividends. Both arms of an ``If`` are computed, so what
may be divided by zero in one must not be asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import z3

Environment: TypeAlias = "Mapping[str, Any]"
"""Values by name: ints or integer arrays for unknowns, functions for the contents of index tensors."""


class NotEvaluable(Exception):
    """An expression has something that is neither integer nor logic."""


def evaluator(expression: z3.ExprRef) -> Callable[[Environment], Any]:
    """A function that gives an expression's value; KeyError if the environment lacks a name."""
    source = source_of(expression)
    names: dict[str, Any] = dict(_FUNCTIONS)
    exec(source, names)
    made: Callable[[Environment], Any] = names["evaluate"]
    return made


def source_of(expression: z3.ExprRef) -> str:
    """Python source of a function ``evaluate(given)``; NotEvaluable if there is no such."""
    lines: list[str] = []
    known: dict[int, str] = {}
    todo = [expression]
    while todo:
        current = todo[-1]
        if current.get_id() in known:
            todo.pop()
            continue
        missing = [one for one in current.children() if one.get_id() not in known]
        if missing:
            todo += missing
            continue
        text = _text(current, [known[one.get_id()] for one in current.children()])
        known[current.get_id()] = f"v{len(lines)}"
        lines.append(f"    v{len(lines)} = {text}")
    return "\n".join(["def evaluate(given):", *lines, f"    return {known[expression.get_id()]}", ""])


def divide(dividend: Any, divisor: Any) -> Any:
    """z3's ``div``: the remainder is 0 or more; ZeroDivisionError for 0, of which z3 says nothing."""
    if np.any(np.equal(divisor, 0)):
        raise ZeroDivisionError("division by zero, which has no value in z3 either")
    return _sign(divisor) * (dividend // abs(divisor))


def modulo(dividend: Any, divisor: Any) -> Any:
    """z3's ``mod``, 0 or more."""
    if np.any(np.equal(divisor, 0)):
        raise ZeroDivisionError("a remainder of division by zero, which has no value in z3 either")
    return dividend % abs(divisor)


def _text(node: z3.ExprRef, operands: list[str]) -> str:
    if z3.is_int_value(node):
        return str(node.as_long())
    kind = node.decl().kind()
    if kind == z3.Z3_OP_UNINTERPRETED:
        name = f"given[{node.decl().name()!r}]"
        return f"{name}({', '.join(operands)})" if operands else name
    if kind in (z3.Z3_OP_TRUE, z3.Z3_OP_FALSE):
        return str(kind == z3.Z3_OP_TRUE)
    if kind == z3.Z3_OP_UMINUS:
        return f"-{operands[0]}"
    if kind in _BETWEEN:
        return f" {_BETWEEN[kind]} ".join(operands)
    if kind == z3.Z3_OP_DISTINCT and len(operands) == 2:
        return f"{operands[0]} != {operands[1]}"
    if kind in _CALLED:
        return f"{_CALLED[kind]}({', '.join(operands)})"
    raise NotEvaluable(f"{node.decl().name()} of {len(operands)} operands in {node.sexpr()[:80]}")


_BETWEEN = {
    z3.Z3_OP_ADD: "+",
    z3.Z3_OP_SUB: "-",
    z3.Z3_OP_MUL: "*",
    z3.Z3_OP_LE: "<=",
    z3.Z3_OP_LT: "<",
    z3.Z3_OP_GE: ">=",
    z3.Z3_OP_GT: ">",
    z3.Z3_OP_EQ: "==",
    z3.Z3_OP_XOR: "!=",
}
_CALLED = {
    z3.Z3_OP_IDIV: "_divide",
    z3.Z3_OP_MOD: "_modulo",
    z3.Z3_OP_ITE: "_choose",
    z3.Z3_OP_AND: "_all",
    z3.Z3_OP_OR: "_any",
    z3.Z3_OP_NOT: "_not",
    z3.Z3_OP_IMPLIES: "_implies",
}


def _sign(number: Any) -> Any:
    return np.sign(number) if isinstance(number, np.ndarray) else (number > 0) - (number < 0)


def _choose(condition: Any, then: Any, otherwise: Any) -> Any:
    if isinstance(condition, np.ndarray):
        return np.where(condition, then, otherwise)
    return then if condition else otherwise


def _all(*conditions: Any) -> Any:
    if any(isinstance(one, np.ndarray) for one in conditions):
        found = conditions[0]
        for one in conditions[1:]:
            found = np.logical_and(found, one)
        return found
    return all(conditions)


def _any(*conditions: Any) -> Any:
    return _not(_all(*map(_not, conditions)))


def _not(condition: Any) -> Any:
    return np.logical_not(condition) if isinstance(condition, np.ndarray) else not condition


def _implies(premise: Any, conclusion: Any) -> Any:
    return _any(_not(premise), conclusion)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "_divide": divide,
    "_modulo": modulo,
    "_choose": _choose,
    "_all": _all,
    "_any": _any,
    "_not": _not,
    "_implies": _implies,
}
