"""A Redis server as the service behind a ``RemoteStore``; needs the extra ``redis``.

What a torn write can look like here: a server runs a command when all of it has arrived, so a client that dies in the middle
leaves the old value, and nothing of the new one. Half a value comes from elsewhere (an append-only file that was cut, a
proxy that buffers), and then it is damage: ``RemoteStore.damage`` really overwrites the server's value.

A command that ran into the timeout may still be run by the server. Its connection is closed, and whoever asks next asks on a
new one, so a server that was only slow may in principle run the old command after the new; ``RemoteStore`` refuses the
value as far as it can know, and the envelope the rest that is not whole.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Collection
from contextlib import suppress
from typing import cast

from kvsan.harness.verdict import UsageError

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ModuleNotFoundError as error:
    raise UsageError("the redis store needs the package redis: install kvsan[redis]") from error

_PREFIX = re.compile(r"[0-9A-Za-z:_-]+")


class RedisClient:
    """Implements ``RemoteClient`` with names below ``prefix``; a server that does not answer in ``timeout_s`` is out of reach.

    UsageError for a prefix with characters that mean something in a pattern.
    """

    def __init__(self, host: str, port: int, prefix: str, timeout_s: float = 0.5) -> None:
        if not _PREFIX.fullmatch(prefix):
            raise UsageError(f"prefix {prefix!r} of a redis store: expected letters, digits, ':', '_' and '-'")
        self._address = (host, port)
        self._prefix = prefix
        self._timeout_s = timeout_s
        # No retries: to the manager above a server that is slow is a miss, and its time is better spent on computing.
        self._redis = redis.Redis(
            host=host,
            port=port,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
        )

    def get(self, name: str) -> bytes | None:
        """None if there is no answer."""
        with suppress(redis.RedisError):
            return cast("bytes | None", self._redis.get(self._prefix + name))
        return None

    def set(self, name: str, value: bytes) -> bool:
        """False if there is no answer, or no memory left."""
        with suppress(redis.RedisError):
            return bool(self._redis.set(self._prefix + name, value))
        return False

    def delete(self, name: str) -> bool:
        """False if there is no answer."""
        with suppress(redis.RedisError):
            self._redis.delete(self._prefix + name)
            return True
        return False

    def keys(self) -> Collection[str]:
        """Walk the server's names; names that come or go meanwhile may be missed."""
        with suppress(redis.RedisError):
            found = cast("list[bytes]", list(self._redis.scan_iter(match=self._prefix + "*", count=1000)))
            return sorted({name.decode().removeprefix(self._prefix) for name in found})
        return []

    def set_partially(self, name: str, value: bytes, length: int) -> None:
        """Send a SET that ends after ``length`` bytes of its value, on a connection of its own, and hang up.

        With all of the value only the end of the command is missing.
        """
        parts = [b"SET", (self._prefix + name).encode(), value]
        command = b"*3\r\n" + b"\r\n".join(b"$%d\r\n%b" % (len(part), part) for part in parts)
        with suppress(OSError), socket.create_connection(self._address, self._timeout_s) as connection:
            connection.sendall(command[: len(command) - max(0, len(value) - length)])
            connection.shutdown(socket.SHUT_WR)
            # Hanging up with unread bytes would reset the connection, and could take the command away from the server.
            while connection.recv(4096):
                pass

    def restart(self) -> None:
        """Every connection is made anew; the server's life is not the client's to take."""
        self._redis.connection_pool.disconnect()
