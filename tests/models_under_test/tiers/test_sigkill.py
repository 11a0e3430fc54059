"""A process that stores is killed at random moments: what it leaves is whole or refused, and nothing is leaked."""

from __future__ import annotations

import os
import random
import select
import signal
import struct
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest
import storing_child
from redis_server import RedisServer, needs_redis
from storing_child import CAPACITY, MAX_BYTES, NUM_KEYS, content, key_of, version_of

from kvsan.harness.tiers import Store
from kvsan.models_under_test.tiers.disk import DiskStore
from kvsan.models_under_test.tiers.envelope import header_bytes, open_sealed

PATIENCE_S = 20.0


class Ledger:
    """What the children have said: versions begun of each key, the last one acknowledged, and keys that may be deleted."""

    def __init__(self) -> None:
        self.begun: dict[str, set[int]] = defaultdict(set)
        self.acknowledged: dict[str, int] = {}

    def read(self, said: bytes) -> None:
        for line in said.decode().splitlines():
            match line.split():
                case ["S", key, version]:
                    self.begun[key].add(int(version))
                case ["P", key, version]:
                    self.acknowledged[key] = int(version)
                case ["D", key]:
                    self.acknowledged.pop(key, None)

    def judge(self, store: Store) -> list[str]:
        """What is wrong with what a store gives out."""
        wrong = []
        for key in sorted({*self.begun, *store.keys()}):
            data = store.get(key)
            least = self.acknowledged.get(key)
            if data is None:
                wrong += [f"{key}: version {least} was acknowledged and is gone"] if least is not None else []
            elif version_of(data) not in self.begun[key] or data != content(key, version_of(data)):
                wrong.append(f"{key}: {len(data)} bytes that were never put")
            elif least is not None and version_of(data) < least:
                wrong.append(f"{key}: version {version_of(data)}, older than {least}, which was acknowledged")
        return wrong


def start_child(kind: str, place: str, first_version: int) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    command = [sys.executable, storing_child.__file__, kind, place, str(first_version)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert child.stdout is not None
    return child, child.stdout


def kill_child(child: subprocess.Popen[bytes], pipe: IO[bytes]) -> bytes:
    """Return what it had still said."""
    child.kill()
    said = pipe.read()
    pipe.close()
    assert child.wait() == -signal.SIGKILL
    return said


def store_and_die(kind: str, place: str, round_number: int, ledger: Ledger) -> None:
    """Let a child store into ``place``; kill it a random number of lines and a random time after it has opened it."""
    draw = random.Random(round_number)
    lines = draw.randrange(1, 30)
    child, pipe = start_child(kind, place, (round_number + 1) * 1_000_000)
    said = b""
    try:
        said = read_until(pipe, lambda said: said.partition(b"R\n")[2].count(b"\n") >= lines)
        # The random moment: not a wait for anything, the child is busy all the while.
        time.sleep(draw.random() * 0.004)
    finally:
        said += kill_child(child, pipe)
    ledger.read(said)


def read_until(pipe: IO[bytes], enough: Callable[[bytes], bool], said: bytes = b"") -> bytes:
    """Read more than ``said`` until it is enough."""
    deadline = time.monotonic() + PATIENCE_S
    while not enough(said):
        ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"the child says nothing more: {said[-200:]!r}"
        piece = os.read(pipe.fileno(), 1 << 16)
        assert piece, f"the child has ended: {said[-200:]!r}"
        said += piece
    return said


def torn_files(folder: Path) -> tuple[int, list[str]]:
    """How many files have some of their bytes and not all, and those of them that would pass for whole."""
    half, wrong = 0, []
    for path in folder.glob("*.part"):
        raw, start = path.read_bytes(), header_bytes(path.stem)
        promised = struct.unpack(">Q", raw[8:16])[0] if len(raw) >= start else None
        if raw and (promised is None or len(raw) < start + promised):
            half += 1
            if open_sealed(path.stem, raw) is not None:
                wrong.append(f"{path.name}: half written, and served")
    return half, wrong


def kill_disk(folder: Path, kind: str, kills: int) -> int:
    """Kill and judge; return how many kills hit a half-written file."""
    ledger, torn = Ledger(), 0
    for round_number in range(kills):
        store_and_die(kind, str(folder), round_number, ledger)
        half, wrong = torn_files(folder)
        torn += half
        assert wrong == []

        assert ledger.judge(DiskStore(folder)) == []
        files = list(folder.iterdir())
        assert [path.name for path in files if path.suffix != ".chunk"] == []
        assert len(files) <= CAPACITY
        assert sum(path.stat().st_size for path in files) <= CAPACITY * (MAX_BYTES + 200)
    return torn


@pytest.mark.parametrize("kind", ["plain", "durable"])
def test_a_killed_process_leaves_whole_chunks_only(tmp_path: Path, kind: str) -> None:
    kill_disk(tmp_path, kind, kills=5)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["plain", "durable"])
def test_a_hundred_kills_hit_files_that_are_half_written(tmp_path: Path, kind: str) -> None:
    torn = kill_disk(tmp_path, kind, kills=100)

    print(f"{kind}: {torn} of 100 kills hit a half-written file")
    assert torn > 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_kills_would_show_a_store_that_writes_in_place(tmp_path: Path) -> None:
    ledger, wrong = Ledger(), []
    for round_number in range(200):
        store_and_die("in place", str(tmp_path), round_number, ledger)
        if wrong := ledger.judge(storing_child.open_store("in place", str(tmp_path))):
            break

    assert any("bytes that were never put" in line for line in wrong)


def test_the_judge_sees_a_version_that_nobody_put_and_one_that_is_gone(tmp_path: Path) -> None:
    store, ledger = DiskStore(tmp_path), Ledger()
    ledger.read(b"S 0a 7\nP 0a 7\nS 0b 8\nP 0b 8\nS 0c 5\nS 0c 9\nP 0c 9\nS 0d 6\nP 0d 6\nD 0d\n")
    store.put("0a", content("0a", 7)[:-1])
    store.put("0c", content("0c", 5))

    assert [line[:12] for line in ledger.judge(store)] == ["0a: " + str(len(content("0a", 7)) - 1) + " b", *(
        ["0b: version ", "0c: version "])]  # fmt: skip


@needs_redis
@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(300)])])
def test_a_killed_client_leaves_whole_values_only(tmp_path: Path, kills: int) -> None:
    server, ledger = RedisServer(tmp_path), Ledger()
    try:
        store = storing_child.open_store("redis", str(server.port))
        for round_number in range(kills):
            store_and_die("redis", str(server.port), round_number, ledger)

            assert ledger.judge(store) == []
            assert len(store.keys()) <= CAPACITY
    finally:
        server.kill()


@needs_redis
def test_a_killed_server_loses_everything_and_serves_nothing_wrong(tmp_path: Path) -> None:
    server, ledger = RedisServer(tmp_path), Ledger()
    try:
        store = storing_child.open_store("redis", str(server.port))
        child, pipe = start_child("redis", str(server.port), 1)
        said = b""
        try:
            said = read_until(pipe, lambda said: said.count(b"P ") >= 20)
            server.kill()
            said = read_until(pipe, lambda said: b"F " in said, said)
            while_down = [store.get(key_of(number)) for number in range(NUM_KEYS)], list(store.keys())
            server.start()
            said = read_until(pipe, lambda said: said.partition(b"F ")[2].count(b"P ") >= 20, said)
        finally:
            said += kill_child(child, pipe)
        ledger.read(said)
        ledger.acknowledged.clear()  # the server may forget; that what it has is right is judged all the same

        assert while_down == ([None] * NUM_KEYS, [])
        assert ledger.judge(store) == []
        assert 0 < len(store.keys()) <= CAPACITY
    finally:
        server.kill()
