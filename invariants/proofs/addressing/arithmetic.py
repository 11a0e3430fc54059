"""Lemmas on whole numbers that are about no function of the code; z3 finds the rest more quickly with them."""

from __future__ import annotations

from kvsan.invariants.proofs.addressing.functions import Functions
from kvsan.invariants.proofs.addressing.theorem import theorem
from kvsan.invariants.proofs.term import Condition, Number, both, within


@theorem(lambda *, few, many, **_: few <= many, size=0, few=0, many=0)
def products_grow(f: Functions, size: Number, few: Number, many: Number) -> Condition:
    """A larger number of equal sizes is not less in all."""
    return few * size <= many * size


@theorem(lambda *, size, rest, **_: rest < size, size=1, whole=0, rest=0)
def quotients_are_read_back(f: Functions, size: Number, whole: Number, rest: Number) -> Condition:
    """Division of whole * size + rest gives back the whole and the rest."""
    number = whole * size + rest
    return both(number // size == whole, number % size == rest)


@theorem(size=1, count=1, number=0)
def divisions_combine(f: Functions, size: Number, count: Number, number: Number) -> Condition:
    """Division by one size, and of the result by another, is division by both."""
    return number // size // count == number // (count * size)


@theorem(lambda *, size, count, number: number < size * count, size=1, count=1, number=0)
def quotients_below(f: Functions, size: Number, count: Number, number: Number) -> Condition:
    """A number below count sizes is in one of these sizes."""
    return within(0, number // size, count)
