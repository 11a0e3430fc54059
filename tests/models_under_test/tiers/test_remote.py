"""The store over a key-value service, and the service in this process."""

from __future__ import annotations

import importlib
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsan.harness.tiers import Damage, Store
from kvsan.harness.verdict import UsageError
from kvsan.models_under_test.tiers.remote import InProcessRemote, RemoteStore

KEYS = st.sampled_from(["0a", "0b", "0c", "0d"])
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, st.binary(max_size=40)),
        st.tuples(st.just("tear"), KEYS, st.binary(max_size=40), st.integers(0, 39)),
        st.tuples(st.just("damage"), KEYS, st.sampled_from(["flip", "truncate"])),
        st.tuples(st.just("delete"), KEYS),
        st.tuples(st.just("restart")),
    ),
    max_size=40,
)


class Unreliable(InProcessRemote):
    """Runs what it is asked and does not answer while ``silent``; while ``deaf`` it does not run it either."""

    silent = deaf = False

    def set(self, name: str, value: bytes) -> bool:
        return (self.deaf or super().set(name, value)) and not self.silent

    def delete(self, name: str) -> bool:
        return not self.deaf and not self.silent and super().delete(name)


@given(calls=CALLS, lose_every=st.integers(0, 4), max_entries=st.integers(1, 4))
def test_a_store_gives_out_what_was_put_last_or_nothing(
    calls: list[tuple[object, ...]], lose_every: int, max_entries: int
) -> None:
    remote = InProcessRemote(max_bytes=400, max_entries=max_entries, lose_every=lose_every)
    store: Store = RemoteStore(remote)
    last: dict[object, object] = {}
    for name, *arguments in calls:
        result = getattr(store, str(name))(*arguments)
        whole = name == "tear" and len(arguments[1]) <= arguments[2]  # type: ignore[operator,arg-type]
        if whole or (name == "put" and result):
            last[arguments[0]] = arguments[1]
        elif name == "delete":
            last.pop(arguments[0], None)

        found = {key: data for key in ("0a", "0b", "0c", "0d") if (data := store.get(key)) is not None}
        assert found.items() <= last.items()
        assert len(remote.keys()) <= max_entries
        assert remote.size_bytes == sum(len(remote._values[name]) for name in remote._values) <= 400


def test_what_was_put_comes_back_and_a_deletion_forgets() -> None:
    store = RemoteStore(InProcessRemote())
    assert store.put("0a", b"old")
    assert store.put("0a", b"new")
    assert (store.get("0a"), store.keys()) == (b"new", ["0a"])

    store.delete("0a")

    assert (store.get("0a"), store.keys()) == (None, [])


@pytest.mark.parametrize("how", ["flip", "truncate"])
def test_damage_is_real_and_refused(how: Damage) -> None:
    remote = InProcessRemote()
    store = RemoteStore(remote)
    store.put("0a", b"data")
    before = remote.get("0a")

    assert (store.damage("0a", how), store.damage("0b", how)) == (True, False)
    assert remote.get("0a") != before
    assert (store.get("0a"), store.keys()) == (None, ["0a"])


def test_a_torn_write_is_refused() -> None:
    remote = InProcessRemote()
    store = RemoteStore(remote)
    store.tear("0a", b"data", 2)

    assert (remote.get("0a") or b"").endswith(b"da")
    assert store.get("0a") is None


def test_a_write_that_may_have_happened_is_not_served_until_that_is_settled() -> None:
    remote = Unreliable()
    store = RemoteStore(remote)
    remote.silent = True
    assert not store.put("0a", b"data")
    assert remote.get("0a") is not None
    assert store.get("0a") is None

    remote.silent = False

    assert store.get("0a") is None
    assert remote.get("0a") is None
    assert store.put("0a", b"again")
    assert store.get("0a") == b"again"


def test_a_deletion_that_nobody_heard_of_is_caught_up_with() -> None:
    remote = Unreliable()
    store = RemoteStore(remote)
    store.put("0a", b"data")
    remote.deaf = True
    store.delete("0a")
    store.restart()  # an in-process server would lose everything; what is in doubt stays in doubt
    remote.deaf = False
    remote.set("0a", store._seal("0a", b"data"))

    assert store.get("0a") is None
    assert remote.keys() == []


def test_a_refused_put_forgets_the_old_version() -> None:
    store = RemoteStore(InProcessRemote(max_bytes=100))
    store.put("0a", b"small")

    assert not store.put("0a", bytes(200))
    assert store.get("0a") is None


def test_a_full_service_drops_the_least_recently_used() -> None:
    remote = InProcessRemote(max_bytes=10, max_entries=2)
    for name, value in (("a", b"1"), ("b", b"1"), ("c", b"1")):
        remote.set(name, value)
    assert remote.keys() == ["b", "c"]
    remote.get("b")

    remote.set("d", bytes(9))

    assert (remote.keys(), remote.size_bytes) == (["b", "d"], 10)


def test_a_service_loses_the_same_things_each_time() -> None:
    def survivors() -> list[str]:
        remote = InProcessRemote(lose_every=3)
        for number in range(30):
            remote.set(f"{number:02x}", b"x")
        return list(remote.keys())

    assert survivors() == survivors()
    assert len(survivors()) == 20


def test_other_names_of_the_service_are_not_keys() -> None:
    remote = InProcessRemote()
    remote.set("not ours", b"x")

    assert RemoteStore(remote).keys() == []


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="max_entries 0 of a cache server: expected at least 1"):
        InProcessRemote(max_entries=0)
    for call in (RemoteStore(InProcessRemote()).get, RemoteStore(InProcessRemote()).delete):
        with pytest.raises(UsageError, match="expected 1 to 64 characters"):
            call("NO KEY")


def test_without_the_package_the_redis_client_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "kvsan.models_under_test.tiers.redis_client"
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "redis", None)

    with pytest.raises(UsageError, match=r"needs the package redis: install kvsan\[redis\]"):
        importlib.import_module(name)
