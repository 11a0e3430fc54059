"""A store behind a key-value service, and such a service in this process.

A remote service is a cache: it may lose what it was given at any time. What it may not do is answer with something else,
and that is not left to it: values travel in envelopes.

A service that cannot be reached is a miss, not a crash. The difficult case is a write or a deletion *that may have
happened*: the caller was told that it failed, so what it would have stored must not be served. Such keys are in doubt: they
are asked for once more to be deleted, and until that has been answered ``get`` says None. The doubt lives as long as the
store object; a process that dies takes it along. That does not harm a cache whose keys stand for their content.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from hashlib import blake2b
from typing import Protocol

from kvsan.harness.tiers import Damage
from kvsan.harness.verdict import UsageError
from kvsan.models_under_test.tiers.envelope import damaged, header_bytes, is_key, open_sealed, seal


class RemoteClient(Protocol):
    """Connection to a key-value service; names and values are as given, and no method raises when it is out of reach."""

    def get(self, name: str) -> bytes | None:
        """Value, or None: not there, or not to be had."""

    def set(self, name: str, value: bytes) -> bool:
        """Replace a value; False if it was refused or nobody answered: it may have happened or not."""

    def delete(self, name: str) -> bool:
        """Remove a value; False if nobody answered. True also if there was none."""

    def keys(self) -> Collection[str]:
        """Names that are there; none if nobody answers."""

    def set_partially(self, name: str, value: bytes, length: int) -> None:
        """Fault: begin to set a value, and die when ``length`` bytes of it are on their way."""

    def restart(self) -> None:
        """Fault: what the connection or the service can lose is lost."""


class RemoteStore:
    """Implements ``kvsan.harness.tiers.Store`` over a client."""

    def __init__(self, client: RemoteClient) -> None:
        self._client = client
        self._doubtful: set[str] = set()

    # -- the target's own

    def put(self, key: str, data: bytes) -> bool:
        """False if the service refused or did not answer; what was there before is forgotten then."""
        if self._client.set(self._name(key), self._seal(key, data)):
            self._doubtful.discard(key)
            return True
        self._forget(key)
        return False

    def get(self, key: str) -> bytes | None:
        """None also when the service is out of reach, or what it has is in doubt."""
        if key in self._doubtful:
            self._forget(key)
            return None
        raw = self._client.get(self._name(key))
        return None if raw is None else self._open(key, raw)

    def delete(self, key: str) -> None:
        """Not served again, whether the service hears of it or not."""
        self._forget(key)

    def keys(self) -> Collection[str]:
        """What the service says it has; other names than keys are not ours."""
        return sorted(filter(is_key, self._client.keys()))

    # -- faults

    def tear(self, key: str, data: bytes, length: int) -> None:
        """The header and ``length`` bytes of ``data``, at most all of it, leave the client."""
        assert length >= 0
        self._client.set_partially(self._name(key), self._seal(key, data), header_bytes(key) + length)

    def damage(self, key: str, how: Damage) -> bool:
        """The service's value becomes what ``envelope.damaged`` makes of it; False if it cannot be had or replaced."""
        raw = self._client.get(self._name(key))
        return self._client.set(self._name(key), damaged(key, raw, how)) if raw else False

    def restart(self) -> None:
        """What is in doubt stays so: the process has not died."""
        self._client.restart()

    # -- one decision each

    def _seal(self, key: str, data: bytes) -> bytes:
        return seal(key, data)

    def _open(self, key: str, raw: bytes) -> bytes | None:
        """Give out what was put under this key, and nothing else."""
        return open_sealed(key, raw)

    def _name(self, key: str) -> str:
        if not is_key(key):
            raise UsageError(f"key {key!r} of a chunk: expected 1 to 64 characters of 0-9a-f")
        return key

    def _forget(self, key: str) -> None:
        """Delete, and doubt until that has been answered."""
        if self._client.delete(self._name(key)):
            self._doubtful.discard(key)
        else:
            self._doubtful.add(key)


class InProcessRemote:
    """A key-value cache server in this process; implements ``RemoteClient``.

    It holds at most ``max_entries`` values of ``max_bytes`` in all, and makes room by dropping the least recently used. With
    ``lose_every=n`` each n-th request costs one entry besides, drawn by the number of the request: deterministic, and no
    client can foresee it. Values arrive in pieces: a client that dies leaves the beginning of one. Memory is all it has: a
    restart loses everything.
    """

    def __init__(self, max_bytes: int = 1 << 26, max_entries: int = 1 << 16, lose_every: int = 0) -> None:
        for name, value, least in (
            ("max_bytes", max_bytes, 1), ("max_entries", max_entries, 1), ("lose_every", lose_every, 0)
        ):  # fmt: skip
            if value < least:
                raise UsageError(f"{name} {value} of a cache server: expected at least {least}")
        self._max_bytes, self._max_entries, self._lose_every = max_bytes, max_entries, lose_every
        self._values: OrderedDict[str, bytes] = OrderedDict()
        self._requests = 0
        self.size_bytes = 0

    def get(self, name: str) -> bytes | None:
        """A value that is read is used."""
        self._take_request()
        if name in self._values:
            self._values.move_to_end(name)
        return self._values.get(name)

    def set(self, name: str, value: bytes) -> bool:
        """False, and the old value gone, if it is larger than everything that fits."""
        self._take_request()
        self._discard(name)
        if len(value) > self._max_bytes:
            return False
        self._values[name] = value
        self.size_bytes += len(value)
        while len(self._values) > self._max_entries or self.size_bytes > self._max_bytes:
            self._discard(next(iter(self._values)))
        return True

    def delete(self, name: str) -> bool:
        """It always answers."""
        self._take_request()
        self._discard(name)
        return True

    def keys(self) -> Collection[str]:
        """Least recently used first."""
        return list(self._values)

    def set_partially(self, name: str, value: bytes, length: int) -> None:
        """What has arrived replaces the old value."""
        self.set(name, value[:length])

    def restart(self) -> None:
        """Everything is gone."""
        self._values.clear()
        self.size_bytes = 0

    def _take_request(self) -> None:
        self._requests += 1
        if self._lose_every and self._values and self._requests % self._lose_every == 0:
            draw = int.from_bytes(blake2b(self._requests.to_bytes(8, "big"), digest_size=8).digest(), "big")
            self._discard(list(self._values)[draw % len(self._values)])

    def _discard(self, name: str) -> None:
        self.size_bytes -= len(self._values.pop(name, b""))
