"""Whose error is it: the target's, its author's, or KVSan's own."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from kvsan.harness import launches, session
from kvsan.harness.configuration import Configuration
from kvsan.harness.operations import (
    Complete,
    Launch,
    Load,
    Offload,
    Operation,
    Preempt,
    ResetPrefixCache,
    Retire,
    Schedule,
    Submit,
)
from kvsan.harness.session import Session
from kvsan.harness.target import Admission, Target
from kvsan.harness.tiers import TierEntry, TierView
from kvsan.harness.verdict import HarnessError, UsageError, Violation
from kvsan.invariants import INVARIANTS
from kvsan.models_under_test.paged import PagedManager, manager_arguments
from kvsan.models_under_test.paged.view import PagedView
from kvsan.models_under_test.tiers.disk import DiskStore
from kvsan.models_under_test.tiers.scratch import scratch_folder

TRACE: tuple[Operation, ...] = (Submit("r1", ((0, 6),)), Schedule("r1", 6), Launch("b1"))


def drive(target: Target) -> None:
    session = Session(target, INVARIANTS)
    for operation in TRACE:
        session.step(operation)
    session.close()


class Raises(PagedManager):
    """Fails in one of its methods."""

    def launch(self, b: str) -> None:
        raise KeyError(f"no launch {b}\nand more")


class RaisesDeepInside(PagedManager):
    """Fails in somebody else's code that it calls."""

    def lookup(self, name: str) -> int:
        return int(f"{name} is no number")


class _RaisingView(PagedView):
    __slots__ = ()

    def tables(self, name: str) -> Any:
        raise LookupError(name)


class ViewRaises(PagedManager):
    """Fails when it is asked what it holds."""

    def __init__(self) -> None:
        super().__init__(8, 4)
        self._view = _RaisingView(self.pool, self.requests)


class RaisesAtTheEnd(PagedManager):
    """Fails when the session is closed."""

    def finish(self, name: str) -> None:
        raise RuntimeError("not today")


@pytest.mark.parametrize(
    ("target", "cause"),
    [
        (Raises(8, 4), "KeyError"),
        (RaisesDeepInside(8, 4), "ValueError"),
        (ViewRaises(), "LookupError"),
        (RaisesAtTheEnd(8, 4), "RuntimeError"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, PagedManager) else value,
)
def test_what_a_target_raises_is_a_crash_of_the_target(target: PagedManager, cause: str) -> None:
    with pytest.raises(Violation) as caught:
        drive(target)
    assert caught.value.kind == ("target.crash", cause)


def test_a_crash_tells_the_first_line_and_the_operation() -> None:
    with pytest.raises(Violation) as caught:
        drive(Raises(8, 4))
    assert caught.value.message == r"KeyError: 'no launch b1\nand more', in Launch(b='b1', at='p0')"


class RaisesToStore(DiskStore):
    """A store of somebody's who does not catch what the medium raises."""

    def put(self, key: str, data: bytes) -> bool:
        raise OSError("no space left on device")


class RaisesToFetch(DiskStore):
    """A store that is not reached."""

    def get(self, key: str) -> bytes | None:
        raise ConnectionError("reset by peer")


class RaisesToList(DiskStore):
    """A store that serves, and cannot be listed once it holds something."""

    def keys(self) -> Collection[str]:
        if held := super().keys():
            raise TimeoutError(f"{len(held)} keys")
        return held


class TiersRaise:
    """A view of tiers that is an object of its own, in a module of its own."""

    def __init__(self, view: TierView) -> None:
        self.tiers, self.entry, self.free_host_units = view.tiers, view.entry, view.free_host_units

    def entries(self, tier: str) -> Collection[TierEntry]:
        raise RuntimeError(f"{tier} is being rebuilt")


DOWN: tuple[Operation, ...] = (*TRACE, Retire("b1"), Offload("t1", "r1"), Complete("t1"), Offload("t2", "r1", "disk"))
UP: tuple[Operation, ...] = (Complete("t2"), ResetPrefixCache(), Preempt("r1"), Load("t3", "r1"), Complete("t3"))


def drive_tiers(store: type[DiskStore], view: type[TiersRaise] | None = None) -> None:
    """Send a request's blocks down to a store and fetch them, with a target that is the reference manager itself."""
    options = (("host_units", 8), ("reset_reaches", "host"), ("stores", "disk"))
    configuration = Configuration(num_units=8, block_size=1, options=options)
    manager = PagedManager(**manager_arguments(configuration, stores={"disk": lambda: store(scratch_folder())}))
    if view is not None:
        shown = view(manager.tier_view())
        setattr(manager, "tier_view", lambda: shown)  # noqa: B010 - mypy allows no assignment to a method
    session = Session(manager, INVARIANTS)
    for operation in (*DOWN, *UP):
        session.step(operation)
    session.close()


@pytest.mark.parametrize(
    ("store", "view", "cause"),
    [
        (RaisesToStore, None, "OSError"),
        (RaisesToFetch, None, "ConnectionError"),
        (RaisesToList, None, "TimeoutError"),
        (DiskStore, TiersRaise, "RuntimeError"),
    ],
)
def test_what_its_store_or_view_of_tiers_raises_is_a_crash_of_the_target(
    store: type[DiskStore], view: type[TiersRaise] | None, cause: str
) -> None:
    with pytest.raises(Violation) as caught:
        drive_tiers(store, view)
    assert caught.value.kind == ("target.crash", cause)


def test_a_store_that_raises_nothing_is_not_accused() -> None:
    drive_tiers(DiskStore)


class TooFewArguments(PagedManager):
    """Does not take what the protocol gives."""

    def schedule(self, name: str) -> Admission | None:  # type: ignore[override]
        return None


class Inherits(TooFewArguments):
    """Has the wrong method from its base class, whose name the message gives."""


class HitsNone(PagedManager):
    """Forgets to return a number."""

    def lookup(self, name: str) -> int:
        super().lookup(name)
        return None  # type: ignore[return-value]


class AdmitsTrue(PagedManager):
    """Says yes and no more."""

    def schedule(self, *arguments: Any) -> Any:
        return super().schedule(*arguments) is not None


@pytest.mark.parametrize("target", [TooFewArguments, Inherits, HitsNone, AdmitsTrue], ids=lambda kind: kind.__name__)
def test_a_target_that_does_not_follow_the_protocol_is_bad_input(target: type[PagedManager]) -> None:
    with pytest.raises(UsageError, match=target.__name__):
        drive(target(8, 4))


def test_what_kvsan_itself_raises_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> bool:
        raise IndexError("a mistake of the harness")

    monkeypatch.setitem(session.HANDLERS, Launch, broken)
    with pytest.raises(HarnessError, match=r"IndexError: a mistake of the harness, in Launch\(b='b1', at='p0'\)"):
        drive(PagedManager(8, 4))


def test_a_mistake_at_the_end_of_a_session_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Session) -> Any:
        raise ZeroDivisionError("a mistake of the harness")

    monkeypatch.setattr(launches, "closing_operations", broken)
    with pytest.raises(HarnessError, match="in the end of the session"):
        drive(PagedManager(8, 4))


def test_a_violation_is_passed_on_as_it_is() -> None:
    class Short(PagedManager):
        def blocks_needed(self, slots: int) -> int:
            return super().blocks_needed(slots) - 1

    with pytest.raises(Violation, match="table_covers"):
        drive(Short(8, 4))
