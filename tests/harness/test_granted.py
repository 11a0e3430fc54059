"""What a target with tiers hands over that is not what the protocol says is bad input, and names the method and the value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tiered import BLOCK, PROMPT, computed, only_in, run

from kvsan.fuzz.replay import open_session
from kvsan.harness.configuration import Configuration
from kvsan.harness.operations import Load, Offload, Submit
from kvsan.harness.session import Session
from kvsan.harness.target import Loading, Offloading
from kvsan.harness.tiers import Store
from kvsan.harness.verdict import UsageError, Violation
from kvsan.models_under_test.paged import PagedManager, manager_arguments
from kvsan.models_under_test.tiers.disk import DiskStore
from kvsan.models_under_test.tiers.scratch import scratch_folder

CONFIGURATION = Configuration(num_units=12, block_size=BLOCK, options=(("host_units", 8), ("stores", "disk")))


def session_of(target: Callable[[Configuration], PagedManager]) -> Session:
    session = open_session(target, CONFIGURATION, numbers=False)
    assert isinstance(session, Session)
    return session


def granting(method: str, change: Callable[[Any], Any]) -> Session:
    """Open a session with a manager that changes what a method grants."""

    class Grants(PagedManager):
        def offload(self, t: str, name: str, tier: str) -> Offloading | None:
            granted = super().offload(t, name, tier)
            return change(granted) if method == "offload" else granted  # type: ignore[no-any-return]

        def load(self, t: str, name: str) -> Loading | None:
            granted = super().load(t, name)
            return change(granted) if method == "load" else granted  # type: ignore[no-any-return]

    return session_of(lambda configuration: Grants(**manager_arguments(configuration)))


def begin(session: Session, method: str) -> None:
    if method == "offload":
        run(session, [*computed("r"), Offload("t", "r")])
    else:
        run(session, [*only_in("host"), Submit("r", PROMPT), Load("t", "r")])


def chunks(**fields: object) -> Callable[[Any], Any]:
    return lambda granted: granted._replace(chunks=[chunk._replace(**fields) for chunk in granted.chunks])


BOTH: list[tuple[Callable[[Any], Any], str]] = [
    (lambda _: True, r"returned True; expected (Offloading|Loading) or None"),
    (lambda granted: granted._replace(chunks=None), "returned chunks None; expected a sequence"),
    (lambda granted: granted._replace(chunks=[tuple(one) for one in granted.chunks]), "expected a .*Chunk"),
    (lambda granted: granted._replace(effects=None), "returned effects None; expected a sequence"),
    (lambda granted: granted._replace(effects=[1]), "returned effect 1; expected one of Copy, Zero, Put, Get, Fill"),
    (chunks(key=7), "expected a key that is a str"),
    (chunks(block=None), "expected a block that is an int"),
    (chunks(units=[12]), "expected units that are a tuple of ints"),
    (chunks(units=("12",)), "expected units that are a tuple of ints"),
    (chunks(tier="nowhere"), "expected a tier of the target's traits: host, disk"),
]


@pytest.mark.parametrize("method", ["offload", "load"])
@pytest.mark.parametrize(("change", "message"), BOTH)
def test_nonsense_from_either_is_bad_input(method: str, change: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(UsageError, match=rf"Grants\.{method} returned.*{message.removeprefix('returned ')}"):
        begin(granting(method, change), method)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hit": None}, "hit None; expected a number of tokens"),
        ({"hit": -1}, "hit -1; expected a number of tokens"),
        ({"tokens": 0}, "tokens 0; expected a number of tokens, at least 1"),
        ({"tokens": "2"}, "tokens '2'; expected a number of tokens, at least 1"),
    ],
)
def test_counts_of_a_load_are_numbers(fields: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        begin(granting("load", lambda granted: granted._replace(**fields)), "load")


def test_a_load_begins_no_further_on_than_the_look_up_said() -> None:
    with pytest.raises(Violation, match="the look-up gave 0 tokens, loading begins behind 2") as caught:
        begin(granting("load", lambda granted: granted._replace(hit=2)), "load")
    assert caught.value.kind == ("hit_bounds", "grew")


# -- the start of a session


def _raises() -> Any:
    raise ConnectionError("refused")


@pytest.mark.parametrize(
    ("method", "answer", "message"),
    [
        ("stores", lambda: None, "stores returned None; expected a store for each of disk"),
        ("stores", dict, "stores returned none; expected a store for each of disk"),
        ("stores", lambda: {"disk": 1, "tape": 2}, "stores returned 'disk', 'tape'; expected a store for each of disk"),
        ("stores", lambda: {"disk": {}}, "which has no method put; expected a kvsan.harness.tiers.Store"),
        ("stores", _raises, "stores raised ConnectionError: refused"),
        ("tier_view", lambda: None, "tier_view returned None, which has no method tiers; expected a .*TierView"),
        ("tier_view", _raises, "tier_view raised ConnectionError: refused"),
    ],
)
def test_what_a_new_target_shows_of_its_tiers_is_checked(method: str, answer: Callable[[], Any], message: str) -> None:
    def make(configuration: Configuration) -> PagedManager:
        manager = PagedManager(**manager_arguments(configuration))
        setattr(manager, method, answer)
        return manager

    with pytest.raises(UsageError, match=message):
        session_of(make)


def over(*stores: Store) -> Callable[[Configuration], PagedManager]:
    """Make managers that take these stores, one after the other."""
    left = iter(stores)
    return lambda configuration: PagedManager(**manager_arguments(configuration, stores={"disk": lambda: next(left)}))


def test_a_store_that_outlives_a_session_is_refused_by_the_next_one() -> None:
    store = DiskStore(scratch_folder())
    make = over(store, store)
    assert session_of(make)
    store.put("0a", b"page")
    with pytest.raises(UsageError, match="store 'disk' already holds 1 keys; expected an empty one for each target"):
        session_of(make)


@pytest.mark.parametrize(
    ("keys", "message"),
    [(_raises, "its keys.. raised ConnectionError: refused"), (lambda: None, "keys.. returned None")],
)
def test_a_store_that_cannot_say_what_it_holds_is_refused(keys: Callable[[], Any], message: str) -> None:
    store = DiskStore(scratch_folder())
    setattr(store, "keys", keys)  # noqa: B010 - mypy allows no assignment
    with pytest.raises(UsageError, match=message):
        session_of(over(store))


@pytest.mark.parametrize(
    ("traits", "message"),
    [
        ({"tiers": ("disk", "host")}, r"tiers \('disk', 'host'\); expected host and then stores, each once"),
        ({"tiers": ("host", "disk", "disk")}, "expected host and then stores, each once"),
        ({"chunk_blocks": 0}, "chunk_blocks 0; expected at least 1"),
        ({"host_units": 0}, "host_units 0; expected at least chunk_blocks, 1"),
        ({"chunk_blocks": 9}, "host_units 8; expected at least chunk_blocks, 9"),
        ({"streams": ("compute",)}, r"streams \('compute',\); expected compute, copy and others, each once"),
        ({"streams": ("copy", "compute", "offload", "load", "disk")}, "expected compute, copy and others"),
        ({"streams": ("compute", "copy", "load", "load")}, "expected compute, copy and others, each once"),
    ],
)
def test_traits_that_no_device_can_follow_are_refused(traits: dict[str, Any], message: str) -> None:
    def make(configuration: Configuration) -> PagedManager:
        manager = PagedManager(**manager_arguments(configuration))
        manager.traits = replace(manager.traits, **traits)
        return manager

    with pytest.raises(UsageError, match=f"target paged: its traits .*{message}"):
        session_of(make)
