"""The store of files: exact bytes or nothing, after every kind of accident that a file system has."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvsan.harness.tiers import Damage, Store
from kvsan.harness.verdict import UsageError
from kvsan.models_under_test.tiers.disk import DiskStore
from kvsan.models_under_test.tiers.envelope import header_bytes, open_sealed

KEYS = st.text("0123456789abcdef", min_size=1, max_size=64)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@given(key=KEYS, data=st.binary(max_size=2000), durable=st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
def test_what_was_put_comes_back_after_a_restart(tmp_path: Path, key: str, data: bytes, durable: bool) -> None:
    store: Store = DiskStore(tmp_path, durable)
    assert store.put(key, data)
    store.restart()

    assert store.get(key) == data
    assert DiskStore(tmp_path).get(key) == data
    assert {key} <= set(DiskStore(tmp_path).keys())


def test_a_put_replaces_and_a_deletion_forgets(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    store.put("0a", b"old")
    store.put("0a", b"new")
    store.put("0b", b"other")
    assert (store.get("0a"), sorted(store.keys())) == (b"new", ["0a", "0b"])

    store.delete("0a")
    store.delete("0a")

    assert (store.get("0a"), store.keys()) == (None, ["0b"])


@pytest.mark.parametrize("length", [0, 1, 50, 100])
def test_a_torn_write_leaves_the_old_version_and_nothing_after_recovery(tmp_path: Path, length: int) -> None:
    store = DiskStore(tmp_path)
    store.put("0a", b"old")
    store.tear("0a", bytes(100), length)
    store.tear("0b", bytes(100), length)
    sizes = [(tmp_path / f"{key}.part").stat().st_size for key in ("0a", "0b")]
    assert (sizes, names(tmp_path)) == ([header_bytes("0a") + length] * 2, ["0a.chunk", "0a.part", "0b.part"])
    assert (store.get("0a"), store.get("0b"), store.keys()) == (b"old", None, ["0a"])

    store.restart()

    assert (store.get("0a"), store.get("0b"), names(tmp_path)) == (b"old", None, ["0a.chunk"])


def test_a_torn_write_does_not_stand_in_the_way_of_the_next(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    store.tear("0a", bytes(100), 100)

    assert store.put("0a", b"new")
    assert (store.get("0a"), names(tmp_path)) == (b"new", ["0a.chunk"])


@pytest.mark.parametrize("how", ["flip", "truncate"])
def test_damage_is_real_and_refused(tmp_path: Path, how: Damage) -> None:
    store = DiskStore(tmp_path)
    for number in range(20):
        key = f"{number:02x}"
        store.put(key, bytes(100))
        before = (tmp_path / f"{key}.chunk").read_bytes()

        assert store.damage(key, how)
        after = (tmp_path / f"{key}.chunk").read_bytes()
        changed = sum((a ^ b).bit_count() for a, b in zip(before, after, strict=how == "flip"))
        assert changed == (how == "flip")
        assert (len(after) == len(before)) == (how == "flip")
        assert store.get(key) is None
    assert len(store.keys()) == 20


def test_there_is_nothing_to_damage_where_nothing_is(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    (tmp_path / "0b.chunk").touch()

    assert [store.damage(key, "flip") for key in ("0a", "0b")] == [False, False]


def test_a_file_under_another_key_is_refused(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    store.put("0a", b"data")
    os.link(tmp_path / "0a.chunk", tmp_path / "0b.chunk")

    assert (store.get("0a"), store.get("0b")) == (b"data", None)


def test_other_peoples_files_stay_and_are_not_ours(tmp_path: Path) -> None:
    for name in ("notes.txt", "README.chunk", "UPPER.part"):
        (tmp_path / name).write_text("mine")
    store = DiskStore(tmp_path)

    assert store.keys() == []
    assert names(tmp_path) == ["README.chunk", "UPPER.part", "notes.txt"]


def test_a_folder_that_goes_away_is_a_miss_and_a_refusal_until_it_is_opened_again(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    store = DiskStore(folder)
    store.put("0a", b"data")
    (folder / "0a.chunk").unlink()
    folder.rmdir()
    assert (store.put("0b", b"x"), store.get("0a"), list(store.keys()), store.damage("0a", "flip")) == (
        False,
        None,
        [],
        False,
    )
    store.tear("0b", b"x", 1)
    store.delete("0a")

    store.restart()

    assert store.put("0b", b"x")


@pytest.mark.parametrize("durable", [False, True])
def test_a_full_disk_refuses_and_leaves_nothing(tmp_path: Path, durable: bool) -> None:
    """A real refusal of the kernel in the middle of a write: the limit on the size of files, as EFBIG instead of ENOSPC."""
    store = DiskStore(tmp_path, durable)
    store.put("0a", b"small")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
    try:
        stored = store.put("0b", bytes(10_000)), store.put("0a", bytes(10_000))
        store.tear("0c", bytes(10_000), 10_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert stored == (False, False)
    assert (store.get("0a"), store.get("0b"), names(tmp_path)) == (b"small", None, ["0a.chunk", "0c.part"])


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_no_space_left_is_a_refusal(tmp_path: Path) -> None:
    """ENOSPC from the kernel itself, by way of the device that is always full."""

    class OnFullDevice(DiskStore):
        def _temporary(self, key: str) -> str:
            (tmp_path / f"{key}.part").unlink(missing_ok=True)
            (tmp_path / f"{key}.part").symlink_to("/dev/full")
            return super()._temporary(key)

    assert not OnFullDevice(tmp_path).put("0a", bytes(100))
    assert not os.path.exists(tmp_path / "0a.chunk")


def test_a_name_that_may_not_last_is_taken_back(tmp_path: Path) -> None:
    class FolderThatCannotBeSynced(DiskStore):
        def _sync_folder(self) -> None:
            raise OSError(errno.EIO, "the medium is failing")

    store = FolderThatCannotBeSynced(tmp_path, durable=True)

    assert (store.put("0a", b"data"), store.get("0a"), names(tmp_path)) == (False, None, [])


def test_what_is_not_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(UsageError, match="folder of a disk store: expected one that can be made and read"):
        DiskStore(tmp_path / "file")


@pytest.mark.parametrize("key", ["../escape", "", "A0"])
def test_a_key_cannot_name_a_file_elsewhere(tmp_path: Path, key: str) -> None:
    store = DiskStore(tmp_path)
    for call in (
        lambda: store.put(key, b""),
        lambda: store.get(key),
        lambda: store.delete(key),
        lambda: store.tear(key, b"", 0),
    ):
        with pytest.raises(UsageError, match="expected 1 to 64 characters"):
            call()


def test_a_store_that_writes_in_place_and_trusts_would_serve_a_torn_chunk(tmp_path: Path) -> None:
    """The two safeguards together are what these tests see: without both, the same accident is served."""

    class InPlace(DiskStore):
        def _temporary(self, key: str) -> str:
            return self._final(key)

    class InPlaceAndTrusting(InPlace):
        def _open(self, key: str, raw: bytes) -> bytes | None:
            return raw[header_bytes(key) :]

    checked, trusting = InPlace(tmp_path / "checked"), InPlaceAndTrusting(tmp_path / "trusting")
    for store in (checked, trusting):
        store.tear("0a", b"whole", 2)

    assert (checked.get("0a"), trusting.get("0a")) == (None, b"wh")
    assert open_sealed("0a", (tmp_path / "trusting" / "0a.chunk").read_bytes()) is None
