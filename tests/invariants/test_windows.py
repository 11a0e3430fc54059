"""Rules of cache groups with a window: what may be dropped, what may not, and what two groups may not share."""

from __future__ import annotations

from random import Random
from typing import cast

import pytest
from windowed import NULL, WindowedManager

from kvsan.fuzz.generate import Generator, draw_features
from kvsan.fuzz.profiles import DEFAULT
from kvsan.harness.operations import Launch, Operation, Outcome, Retire, Schedule, Submit
from kvsan.harness.session import Session
from kvsan.harness.target import Target
from kvsan.harness.verdict import Violation
from kvsan.invariants import INVARIANTS

PREFILL: tuple[Operation, ...] = (Submit("r1", ((0, 9),)), Schedule("r1", 9), Launch("b1"), Retire("b1"))
DECODE: tuple[Operation, ...] = (Schedule("r1", 1), Launch("b2"), Retire("b2"))


def drive(target: WindowedManager, *operations: Operation) -> Session:
    session = Session(cast(Target, target), INVARIANTS, sweep_every=1)
    for operation in operations:
        assert session.step(operation)
    return session


def kind_of(target: WindowedManager, *operations: Operation) -> tuple[str, str]:
    """Kind of the violation in which some operations end."""
    with pytest.raises(Violation) as caught:
        drive(target, *operations).close()
    return caught.value.kind


def test_blocks_that_the_window_has_passed_become_null() -> None:
    session = drive(WindowedManager(), *PREFILL, *DECODE[:1])
    # The query at 9 sees positions 6 to 9: blocks 0, 1 and 2 are behind it.
    assert session.requests["r1"].tables[1][:3] == [NULL] * 3
    assert NULL not in session.requests["r1"].tables[1][3:]


class DropsTooMuch(WindowedManager):
    """Takes the window for one token shorter than it is."""

    def passed_blocks(self, position: int) -> int:
        return super().passed_blocks(position + 1)


def test_a_block_that_the_window_still_sees_may_not_be_dropped() -> None:
    too_early = [Submit("r1", ((0, 8),)), Schedule("r1", 8), Launch("b1"), Retire("b1"), *DECODE]
    # The query at 8 sees positions 5 to 8, the first of them in block 2; a window one shorter begins in block 3.
    assert kind_of(DropsTooMuch(), *too_early) == ("append_only", "window not passed")
    drive(WindowedManager(), *too_early).close()


DRAFTS: tuple[Operation, ...] = (
    *PREFILL,
    Schedule("r1", 3),
    Launch("b2"),
    Schedule("r1", 1),
    Launch("b3"),
    Retire("b2", (Outcome("r1", 0, 0),)),
)


def test_a_window_may_pass_only_what_no_rejected_draft_can_bring_back() -> None:
    """vLLM 47282: window blocks freed by a count of tokens that includes drafts still to be judged."""
    # Row b3 is scheduled at position 12 and would see 9 to 12; two rejected drafts bring it back to 10: 7 to 10.
    assert kind_of(WindowedManager(max_drafts=2), *DRAFTS) == ("append_only", "window not passed")


class SharesBetweenGroups(WindowedManager):
    """Gives the unit of the full group's block to the sliding group too."""

    def schedule(self, name: str, *arguments: int) -> object:  # type: ignore[override]
        admission = super().schedule(name, *arguments)  # type: ignore[arg-type]
        full, sliding = self.known[name]
        self.give(sliding[-1:])
        sliding[-1] = full[-1]
        return admission


def test_a_unit_may_not_stand_in_two_groups() -> None:
    """vLLM 44409: an external allocation for one group takes blocks of the other."""
    assert kind_of(SharesBetweenGroups(), *PREFILL[:2]) == ("ownership", "two groups: full+sliding")


def test_a_group_that_gets_too_few_blocks_is_found() -> None:
    class Short(WindowedManager):
        def schedule(self, name: str, *arguments: int) -> object:  # type: ignore[override]
            admission = super().schedule(name, *arguments)  # type: ignore[arg-type]
            self.give([self.known[name][1].pop()])
            return admission

    assert kind_of(Short(), *PREFILL[:2]) == ("table_covers", "short")


@pytest.mark.parametrize("seed", range(6))
def test_a_correct_manager_with_a_window_is_clean(seed: int) -> None:
    random = Random(seed)
    session = Session(cast(Target, WindowedManager(24)), INVARIANTS, sweep_every=7)
    generator = Generator(session, DEFAULT, random, draw_features(random, DEFAULT))
    for _ in range(600):
        session.step(generator.next())
    session.close()
    assert session.counts["Retire"] > 0
