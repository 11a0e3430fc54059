"""Replay: a trace from its configuration on, and what is bad input in a target."""

from __future__ import annotations

from typing import Any

import pytest

from kvsan.fuzz.journal import Journal
from kvsan.fuzz.replay import construct, open_session, replay, run
from kvsan.harness.configuration import Configuration
from kvsan.harness.operations import Finish, Fork, Launch, Operation, Retire, Schedule, Submit
from kvsan.harness.trace import Trace
from kvsan.harness.verdict import HarnessError, UsageError
from kvsan.models_under_test.paged import PagedManager, make_target

PREFILL: tuple[Operation, ...] = (Submit("r1", ((0, 6),)), Schedule("r1", 6), Launch("b1"), Retire("b1"))
SMALL = Configuration(num_units=8)


class Leaks(PagedManager):
    """Keeps the last block of what has ended, and says nothing."""

    def finish(self, name: str) -> None:
        self.requests[name].table.pop()
        super().finish(name)
        self.pool.num_free += 1


def leaks(configuration: Configuration) -> Leaks:
    return Leaks(configuration.num_units, configuration.block_size)


def test_a_clean_replay_counts_what_ran() -> None:
    done = replay(make_target, Trace(SMALL, (*PREFILL, Fork("r9", "r2"))))
    assert done.violation is None
    assert (done.step, done.ran) == (5, [0, 1, 2, 3])
    assert done.counts["Retire"] == 1


def test_a_violation_is_told_with_its_step_and_who_has_the_unit() -> None:
    done = replay(leaks, Trace(SMALL, (*PREFILL, Finish("r1"))))
    assert done.violation is not None
    assert done.step == 4
    assert done.ran == [0, 1, 2, 3, 4]


def test_a_violation_at_the_end_has_the_number_of_operations_for_a_step() -> None:
    done = replay(leaks, Trace(SMALL, PREFILL))
    assert done.violation is not None
    assert done.step == len(PREFILL)


def test_a_session_need_not_be_closed() -> None:
    session = open_session(leaks, SMALL, numbers=False)
    assert run(session, PREFILL, close=False).violation is None


def test_numbers_are_compared_unless_they_are_off() -> None:
    on, off = (open_session(make_target, SMALL, numbers=numbers) for numbers in (True, False))
    run(on, PREFILL)
    assert on.executor.numbers is not None
    assert on.executor.numbers.outputs_compared > 0
    assert off.executor.numbers is None


class Lines(Journal):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def start(self, run: int, configuration: Configuration) -> None:
        self.told.append(configuration)

    def next(self, operation: Operation) -> None:
        self.told.append(operation)

    def closing(self) -> None:
        self.told.append("closing")


def test_the_journal_hears_of_everything_before_it_happens() -> None:
    journal = Lines()
    replay(make_target, Trace(SMALL, PREFILL), journal=journal)
    assert journal.told == [SMALL, *PREFILL, "closing"]


# -- targets


def test_what_a_constructor_raises_is_bad_input() -> None:
    def factory(_configuration: Configuration) -> PagedManager:
        raise RuntimeError("two\nlines")

    with pytest.raises(UsageError) as caught:
        construct(factory, SMALL)
    assert str(caught.value) == "target paged: its constructor raised RuntimeError: two"


@pytest.mark.parametrize("error", [UsageError("as it is"), HarnessError("as it is")])
def test_errors_that_say_whose_they_are_are_passed_on(error: Exception) -> None:
    def factory(_configuration: Configuration) -> PagedManager:
        raise error

    with pytest.raises(type(error), match="as it is"):
        construct(factory, SMALL)


@pytest.mark.parametrize("made", [None, 7, "paged"])
def test_what_has_no_traits_is_no_target(made: Any) -> None:
    with pytest.raises(UsageError, match=r"expected a kvsan\.harness\.target\.Target"):
        construct(lambda _configuration: made, SMALL)


def test_a_target_whose_view_cannot_be_had_is_bad_input() -> None:
    class NoView(PagedManager):
        def view(self) -> Any:
            raise RuntimeError("nothing to see")

    with pytest.raises(UsageError, match="nothing to see"):
        open_session(lambda _configuration: NoView(8, 4), SMALL, numbers=False)
