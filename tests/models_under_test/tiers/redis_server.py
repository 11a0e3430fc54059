"""A Redis server of a test's own: on loopback, with a free port, bounded memory, and nothing on disk."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

START_TIMEOUT_S = 10.0

needs_redis = pytest.mark.skipif(
    shutil.which("redis-server") is None or importlib.util.find_spec("redis") is None,
    reason="needs redis-server on PATH and the package redis",
)


class RedisServer:
    """Started on construction; ``kill`` ends it as a crash would, ``start`` brings it back on the same port, empty."""

    def __init__(self, folder: Path, max_memory: str = "64mb", eviction: str = "allkeys-lru") -> None:
        self.folder, self.max_memory, self.eviction = folder, max_memory, eviction
        self.port = free_port()
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        arguments = {"bind": "127.0.0.1", "port": str(self.port), "save": "", "appendonly": "no", "dir": str(self.folder),
                     "maxmemory": self.max_memory, "maxmemory-policy": self.eviction, "daemonize": "no"}  # fmt: skip
        command = ["redis-server", *(word for name, value in arguments.items() for word in (f"--{name}", value))]
        with open(self.folder / "redis.log", "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                pytest.fail(f"redis-server did not start: {(self.folder / 'redis.log').read_text()}")
            time.sleep(0.01)  # a listening socket cannot be waited for
        return self.process

    def answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False

    def pause(self) -> None:
        """From now on it does not answer, and its connections stay."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
