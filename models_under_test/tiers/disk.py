"""A store of real files: one chunk a file, written beside its place and renamed into it.

::

    put   ->  <key>.part  --write, fsync if durable-->  --rename-->  <key>.chunk  --fsync of the folder if durable-->  True
    crash ->  <key>.part stays behind: never served, removed when the folder is opened again

A rename is atomic, so a file under its final name is an old version or a new one as a whole, as long as the machine runs.
Without ``durable`` a loss of power may leave a final name with an end that was never written; the envelope finds that.

One process at a time works on a folder: whoever opens it removes what looks torn.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress

from kvsan.harness.tiers import Damage
from kvsan.harness.verdict import UsageError
from kvsan.models_under_test.tiers.envelope import damaged, header_bytes, is_key, open_sealed, seal

_CHUNK = ".chunk"
_PART = ".part"


class DiskStore:
    """Implements ``kvsan.harness.tiers.Store`` in a folder of its own, which is made if need be.

    ``durable``: what ``put`` has said True to survives a loss of power. UsageError if the folder cannot be opened. A
    ``folder`` that is an object with a life (``scratch_folder``) lives as long as the store.
    """

    def __init__(self, folder: str | os.PathLike[str], durable: bool = False) -> None:
        self._owner = folder
        self._folder = os.fspath(folder)
        self._durable = durable
        try:
            self._recover()
        except OSError as error:
            raise UsageError(f"folder of a disk store: expected one that can be made and read: {error}") from error

    # -- the target's own

    def put(self, key: str, data: bytes) -> bool:
        """False if the file system refuses, be it full or gone; what was there before may be gone then as well."""
        raw = self._seal(key, data)
        try:
            self._write(self._temporary(key), raw)
            self._publish(key)
        except OSError:
            self._remove(self._temporary(key))
            return False
        return True

    def get(self, key: str) -> bytes | None:
        """None also for a file that cannot be read."""
        try:
            with open(self._final(key), "rb", buffering=0) as file:
                raw = file.readall()
        except OSError:
            return None
        return self._open(key, raw)

    def delete(self, key: str) -> None:
        """Remove the file."""
        self._remove(self._final(key))

    def keys(self) -> Collection[str]:
        """From the names in the folder; none if it is gone."""
        return [name.removesuffix(_CHUNK) for name in self._names() if name.endswith(_CHUNK)]

    # -- faults

    def tear(self, key: str, data: bytes, length: int) -> None:
        """The header and ``length`` bytes of ``data``, at most all of it, are written, and no rename follows."""
        assert length >= 0
        raw = self._seal(key, data)
        with suppress(OSError):  # a disk that is full tears the write earlier
            self._write(self._temporary(key), raw[: header_bytes(key) + length])

    def damage(self, key: str, how: Damage) -> bool:
        """Change the file in place, where ``envelope.damaged`` says; False for a file of no bytes, too."""
        with suppress(FileNotFoundError), open(self._final(key), "r+b") as file:
            if raw := file.read():
                file.seek(0)
                file.write(damaged(key, raw, how))
                file.truncate()
                return True
        return False

    def restart(self) -> None:
        """Open the folder again."""
        self._recover()

    # -- one decision each

    def _seal(self, key: str, data: bytes) -> bytes:
        return seal(key, data)

    def _open(self, key: str, raw: bytes) -> bytes | None:
        """Give out what was put under this key, and nothing else."""
        return open_sealed(key, raw)

    def _temporary(self, key: str) -> str:
        return self._path(key, _PART)

    def _final(self, key: str) -> str:
        return self._path(key, _CHUNK)

    def _write(self, path: str, raw: bytes) -> None:
        """Write all of it; when durable, it is on the medium before anybody can see it."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            rest = memoryview(raw)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            if self._durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _publish(self, key: str) -> None:
        """Give the file its name. A name that may not last is taken back: ``put`` will say that nothing was stored."""
        os.replace(self._temporary(key), self._final(key))
        if self._durable:
            try:
                self._sync_folder()
            except OSError:
                self._remove(self._final(key))
                raise

    def _sync_folder(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _recover(self) -> None:
        """Remove what a crash has left half written."""
        os.makedirs(self._folder, exist_ok=True)
        for name in self._names():
            if name.endswith(_PART):
                self._remove(os.path.join(self._folder, name))

    # -- the folder

    def _path(self, key: str, suffix: str) -> str:
        if not is_key(key):
            raise UsageError(f"key {key!r} of a chunk: expected 1 to 64 characters of 0-9a-f")
        return os.path.join(self._folder, key + suffix)

    def _names(self) -> list[str]:
        """Names of our files, in order; other people's files are left alone."""
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        return sorted(name for name in names if name.endswith((_CHUNK, _PART)) and is_key(name.rpartition(".")[0]))

    def _remove(self, path: str) -> None:
        """A file that is gone already is as good; so is one whose folder is."""
        with suppress(OSError):
            os.unlink(path)
