"""Bugs of the stores, and of who talks to them: bytes that are not checked, files that nobody knows."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import ClassVar

from kvsan.models_under_test.mutants.base import Mutant
from kvsan.models_under_test.paged.tiering import Move, Tiering
from kvsan.models_under_test.paged.tiers import StoreMakers
from kvsan.models_under_test.tiers.disk import DiskStore
from kvsan.models_under_test.tiers.envelope import header_bytes, open_sealed
from kvsan.models_under_test.tiers.remote import InProcessRemote, RemoteClient, RemoteStore
from kvsan.models_under_test.tiers.scratch import scratch_folder

# -- what is given out


class _UncheckedFiles(DiskStore):
    def _open(self, key: str, raw: bytes) -> bytes | None:
        return raw[header_bytes(key) :]


class _UncheckedRemote(RemoteStore):
    def _open(self, key: str, raw: bytes) -> bytes | None:
        return raw[header_bytes(key) :]


class StoreWithoutChecksum(Mutant):
    """What a store reads is given out as it is: a flipped bit, or half of it.

    Reports: LMCache 1130 in kind (a serialiser that trusts its buffer).
    """

    name = "store_without_checksum"
    killed_by = ("tier_integrity",)
    profile = "async"
    store_makers: ClassVar[StoreMakers] = {
        "disk": lambda: _UncheckedFiles(scratch_folder()),
        "remote": lambda: _UncheckedRemote(InProcessRemote()),
    }


class _Padded(RemoteStore):
    def get(self, key: str) -> bytes | None:
        """Answer in any case."""
        found = super().get(key)
        return bytes(64) if found is None else found


class LostChunkIsZeros(Mutant):
    """What the cache server has lost comes back as a buffer of zeros.

    Reports: TensorRT-LLM 15018 (blocks with stale KV reused) in kind, vLLM 35138.
    """

    name = "lost_chunk_is_zeros"
    killed_by = ("tier_integrity",)
    profile = "async"
    store_makers: ClassVar[StoreMakers] = {"remote": lambda: _Padded(InProcessRemote(lose_every=1))}


class _Colliding(RemoteStore):
    """There are two names; who was stored under one is noted, and its envelope is opened whoever asks."""

    def __init__(self, client: RemoteClient) -> None:
        super().__init__(client)
        self._owners: dict[str, str] = {}

    def put(self, key: str, data: bytes) -> bool:
        """What had the name is gone."""
        self._owners[self._name(key)] = key
        return super().put(key, data)

    def delete(self, key: str) -> None:
        """Somebody else's value stays."""
        if self._owners.get(self._name(key)) == key:
            super().delete(key)

    def keys(self) -> Collection[str]:
        """Whole keys."""
        held = self._client.keys()
        return sorted(self._owners[name] for name in held)

    def tear(self, key: str, data: bytes, length: int) -> None:
        """What had the name is gone in this case too."""
        self._owners[self._name(key)] = key
        super().tear(key, data, length)

    def _name(self, key: str) -> str:
        return "01"[int(super()._name(key), 16) % 2]

    def _open(self, key: str, raw: bytes) -> bytes | None:
        return open_sealed(self._owners[self._name(key)], raw)


class StoreIgnoresKey(Mutant):
    """Two keys have one name in the store, and nobody compares the key that comes back.

    Reports: vLLM 12621, 44701 in kind.
    """

    name = "store_ignores_key"
    killed_by = ("tier_integrity",)
    profile = "async"
    store_makers: ClassVar[StoreMakers] = {"remote": lambda: _Colliding(InProcessRemote())}


# -- what stays behind


class _ForgetsIndexes(Tiering):
    def reset(self) -> bool:
        """Empty the indexes."""
        return not (self.moves and self.emptied) and all(self.indexes[tier].reset() for tier in self.emptied)


class ResetLeavesFiles(Mutant):
    """A reset empties a store's index and not the store: nobody will ever delete what is in it.

    Reports: vLLM 57727, SGLang 16067 in kind.
    """

    name = "reset_leaves_files"
    killed_by = ("transfer_leaks",)
    profile = "async"
    tiering_type = _ForgetsIndexes


class _KeepsHalfStored(Tiering):
    def _stored(self, move: Move, success: bool) -> None:
        self.host.complete_load(move.keys())
        self.indexes[move.tier].complete_store(move.keys(), success)


class FailedStoreLeavesFiles(Mutant):
    """Of what a failed store has written already nothing is deleted.

    Reports: transformers 46117 in kind (not atomic).
    """

    name = "failed_store_leaves_files"
    killed_by = ("transfer_leaks",)
    profile = "async"
    tiering_type = _KeepsHalfStored


class _RecoversTorn(DiskStore):
    def _recover(self) -> None:
        os.makedirs(self._folder, exist_ok=True)
        for name in self._names():
            if name.endswith(".part"):
                self._publish(name.removesuffix(".part"))


class TornFileRecovered(Mutant):
    """When a folder is opened again, what a crash has left half written is given its name.

    Reports: vLLM 44237, kvcached 362 in kind (an entry that outlives what it stood for).
    """

    name = "torn_file_recovered"
    killed_by = ("transfer_leaks", "tier_integrity")
    profile = "async"
    store_makers: ClassVar[StoreMakers] = {"disk": lambda: _RecoversTorn(scratch_folder())}
