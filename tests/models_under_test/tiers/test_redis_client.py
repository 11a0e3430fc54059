"""The store over a real Redis server, which is slow, full, gone and back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis_server import RedisServer, needs_redis

from kvsan.harness.tiers import Damage, Store
from kvsan.harness.verdict import UsageError
from kvsan.models_under_test.tiers.remote import RemoteStore

pytestmark = needs_redis

TIMEOUT_S = 0.2


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


def store_on(server: RedisServer, prefix: str) -> RemoteStore:
    from kvsan.models_under_test.tiers.redis_client import RedisClient

    return RemoteStore(RedisClient("127.0.0.1", server.port, prefix, TIMEOUT_S))


@pytest.fixture
def store(server: RedisServer, request: pytest.FixtureRequest) -> RemoteStore:
    """Names of each test are its own."""
    return store_on(server, "".join(letter if letter.isalnum() else "-" for letter in request.node.name) + ":")


def test_what_was_put_comes_back_and_a_deletion_forgets(store: Store) -> None:
    assert store.put("0a", b"old")
    assert store.put("0a", b"new\r\n\0")
    assert store.put("0b", b"")
    assert (store.get("0a"), store.get("0b"), list(store.keys())) == (b"new\r\n\0", b"", ["0a", "0b"])
    store.restart()
    assert store.get("0a") == b"new\r\n\0"

    store.delete("0a")

    assert (store.get("0a"), list(store.keys())) == (None, ["0b"])


def test_stores_of_two_prefixes_do_not_meet(server: RedisServer) -> None:
    first, second = store_on(server, "one:"), store_on(server, "one:two:")
    first.put("0a", b"first")
    second.put("0b", b"second")

    assert (first.keys(), second.keys(), second.get("0a")) == (["0a"], ["0b"], None)


@pytest.mark.parametrize("length", [0, 40, 100_000])
def test_a_client_that_dies_in_the_middle_of_a_command_changes_nothing(store: Store, length: int) -> None:
    store.put("0a", b"old")
    store.tear("0a", bytes(100_000), length)
    store.tear("0b", bytes(100_000), length)

    assert (store.get("0a"), store.get("0b"), list(store.keys())) == (b"old", None, ["0a"])


@pytest.mark.parametrize("how", ["flip", "truncate"])
def test_damage_is_real_and_refused(store: Store, how: Damage) -> None:
    for number in range(10):
        store.put(f"{number:02x}", b"data")
        assert store.damage(f"{number:02x}", how)

    assert [store.get(f"{number:02x}") for number in range(10)] == [None] * 10
    assert len(store.keys()) == 10
    assert not store.damage("0f", how)


def test_a_server_that_does_not_answer_is_a_miss_in_time_and_what_it_did_is_not_served(
    server: RedisServer, store: Store
) -> None:
    store.put("0a", b"old")
    server.pause()
    started = time.monotonic()
    try:
        while_silent = store.get("0a"), store.put("0b", b"late"), list(store.keys())
    finally:
        server.go_on()
    waited = time.monotonic() - started

    assert while_silent == (None, False, [])
    assert waited < 10 * TIMEOUT_S
    assert store.get("0b") is None
    assert store.get("0a") == b"old"
    assert store.put("0b", b"new")
    assert store.get("0b") == b"new"


def test_a_server_that_is_gone_is_a_miss_and_one_that_is_back_is_empty(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    try:
        store = store_on(server, "gone:")
        store.put("0a", b"data")
        server.kill()
        store.delete("0b")
        store.tear("0a", b"x", 1)
        while_gone = store.get("0a"), store.put("0c", b"x"), list(store.keys()), store.damage("0a", "flip")
        server.start()

        assert while_gone == (None, False, [], False)
        assert [store.get(key) for key in ("0a", "0b", "0c")] == [None] * 3
        assert store.put("0a", b"again")
        assert store.get("0a") == b"again"
    finally:
        server.kill()


@pytest.mark.parametrize("eviction", ["allkeys-lru", "noeviction"])
def test_a_full_server_loses_or_refuses_and_stays_exact(tmp_path: Path, eviction: str) -> None:
    server = RedisServer(tmp_path, max_memory="4mb", eviction=eviction)
    try:
        store = store_on(server, "full:")
        stored = {f"{n:02x}": store.put(f"{n:02x}", bytes((n,)) * 200_000) for n in range(40)}
        found = {key: data for key in stored if (data := store.get(key)) is not None}

        assert 0 < len(found) < 40
        assert all(stored[key] and data == bytes((int(key, 16),)) * 200_000 for key, data in found.items())
        assert all(stored.values()) == (eviction == "allkeys-lru")
    finally:
        server.kill()


@pytest.mark.parametrize("prefix", ["", "a*", "a b", "[x]"])
def test_a_prefix_that_would_be_a_pattern_is_refused(prefix: str) -> None:
    from kvsan.models_under_test.tiers.redis_client import RedisClient

    with pytest.raises(UsageError, match=r"prefix .* of a redis store: expected letters, digits"):
        RedisClient("127.0.0.1", 1, prefix)
