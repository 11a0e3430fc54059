"""Whole sessions whose remote tier is a real Redis server: searched, broken on purpose, and killed in the middle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from redis_server import RedisServer, needs_redis

from kvsan.fuzz.known import KnownFindings
from kvsan.fuzz.profiles import ASYNC
from kvsan.fuzz.search import Reporter, Search, SearchSettings, SearchSummary
from kvsan.harness.configuration import Configuration
from kvsan.harness.tiers import Store
from kvsan.models_under_test.paged import PagedManager, manager_arguments
from kvsan.models_under_test.tiers.remote import RemoteStore

pytestmark = needs_redis

REMOTE_ALONE = replace(
    ASYNC, options=tuple((name, ("remote",) if name == "stores" else values) for name, values in ASYNC.options)
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


def over(server: RedisServer, letter: str) -> Callable[[Configuration], PagedManager]:
    """Make managers whose remote store is on this server; names of each are its own."""
    from kvsan.models_under_test.tiers.redis_client import RedisClient

    numbers = count()

    def make(configuration: Configuration) -> PagedManager:
        def store() -> Store:
            return RemoteStore(RedisClient("127.0.0.1", server.port, f"{letter}{next(numbers)}:", timeout_s=0.2))

        return PagedManager(**manager_arguments(configuration, stores={"remote": store}))

    return make


def search(make: Callable[[Configuration], PagedManager], steps: int, reporter: Reporter) -> SearchSummary:
    settings = SearchSettings(Configuration(), REMOTE_ALONE, steps=steps, numbers=0.5)
    return Search(make, settings, KnownFindings(), reporter).run()


def test_sessions_over_redis_are_clean_whatever_goes_wrong_on_the_way(server: RedisServer) -> None:
    summary = search(over(server, "a"), 20_000, Reporter())
    assert [finding.message for finding in summary.findings] == []
    for event in ("offload to remote", "load from remote", "Spoil", "Restart"):
        assert summary.counts[event] > 0, event


class _Killer(Reporter):
    """Kills the server when some runs are done, and starts it again, empty, some runs later."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.runs = 0

    def run_done(self, summary: SearchSummary) -> None:
        self.runs += 1
        if self.runs == 10:
            self.server.kill()
        elif self.runs == 25:
            self.server.start()


def test_a_server_that_dies_is_a_miss_and_no_finding(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    try:
        summary = search(over(server, "b"), 12_000, _Killer(server))
        assert summary.runs > 25
        assert [finding.message for finding in summary.findings] == []
        assert summary.counts["transfer refused"] > 0
    finally:
        server.kill()
