"""Every form that a target may take by its protocol: none of them is an alarm."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from kvsan.fuzz.generate import Generator, draw_features
from kvsan.fuzz.profiles import DEFAULT, small_scope
from kvsan.harness.operations import OPERATIONS
from kvsan.harness.session import Session
from kvsan.harness.target import RequestState, SessionState, Target, Traits, anything_goes
from kvsan.invariants import INVARIANTS
from kvsan.models_under_test.paged import PagedManager


class NoDelta(PagedManager):
    """Keeps no track of what changes."""

    def delta(self) -> Any:
        super().delta()


class _Tuples:
    """A view whose tables are tuples."""

    def __init__(self, view: Any) -> None:
        self._view = view

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)

    def tables(self, name: str) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(table) for table in self._view.tables(name))


class TupleTables(PagedManager):
    """Shows its tables as tuples."""

    def __init__(self, num_units: int, block_size: int) -> None:
        super().__init__(num_units, block_size)
        self._view = _Tuples(self._view)  # type: ignore[assignment]


class NamesUnitsTwice(PagedManager):
    """Tells more than has changed: every request, and every unit twice."""

    def delta(self) -> Any:
        delta = super().delta()
        everybody = [name for name in self.requests if name not in delta.requests]
        return delta._replace(requests=[*delta.requests, *everybody], units=[*delta.units, *delta.units])


def reserving(num_units: int, block_size: int) -> PagedManager:
    """Leave more units free than there are, so that nothing is ever admitted."""
    return PagedManager(num_units, block_size, watermark=num_units + 3)


FORMS = [NoDelta, TupleTables, NamesUnitsTwice, reserving]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_a_legal_form_is_no_alarm(form: Any, seed: int) -> None:
    target: Target = form(8, 2)
    session = Session(target, INVARIANTS)
    random = Random(seed)
    profile = small_scope(DEFAULT)
    generator = Generator(session, profile, random, draw_features(random, profile))
    for _ in range(300):
        session.step(generator.next())
    session.close()
    assert session.counts["refusal"] > 0


def test_a_target_that_says_no_more_promises_every_operation() -> None:
    traits = Traits(8, 4)
    assert traits.operations == frozenset(OPERATIONS)
    assert traits.allows is anything_goes
    state = RequestState(0, 0, 0, False, False, False)
    assert all(anything_goes(state, SessionState(0, 0, None), kind) for kind in OPERATIONS)  # type: ignore[arg-type]
