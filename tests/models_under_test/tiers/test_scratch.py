"""Scratch folders go with their store, with their process, and with nobody else's."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kvsan.models_under_test.tiers import scratch
from kvsan.models_under_test.tiers.disk import DiskStore
from kvsan.models_under_test.tiers.scratch import scratch_folder, sweep


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(scratch, "_swept_by", None)
    return tmp_path


def left_by_a_dead_process(temporary: Path) -> str:
    """A folder of a real process that ended by ``os._exit`` while its store was alive."""
    program = (
        "import os\nfrom kvsan.models_under_test.tiers.disk import DiskStore\n"
        "from kvsan.models_under_test.tiers.scratch import scratch_folder\n"
        "store = DiskStore(scratch_folder())\nstore.put('0a', b'x')\nos._exit(0)\n"
    )
    subprocess.run(
        [sys.executable, "-c", program], check=True, env={**os.environ, "TMPDIR": str(temporary)}, timeout=30
    )
    (name,) = os.listdir(temporary)
    return name


def test_each_store_has_its_own_folder_and_takes_it_along(temporary: Path) -> None:
    first, second = DiskStore(scratch_folder()), DiskStore(scratch_folder())
    first.put("0a", b"x")
    assert (second.get("0a"), len(os.listdir(temporary))) == (None, 2)
    assert all(name.startswith(f"kvsan-disk-{os.getpid()}-") for name in os.listdir(temporary))

    del first
    gc.collect()
    assert len(os.listdir(temporary)) == 1
    del second
    gc.collect()

    assert os.listdir(temporary) == []


def test_what_a_dead_process_left_is_swept_by_the_next_one(temporary: Path) -> None:
    left = left_by_a_dead_process(temporary)
    assert os.listdir(temporary / left) == ["0a.chunk"]

    folder = scratch_folder()

    assert os.listdir(temporary) == [os.path.basename(folder.path)]


def test_a_sweep_spares_the_living_and_what_is_not_ours(temporary: Path) -> None:
    dead = left_by_a_dead_process(temporary)
    pid = dead.split("-")[2]
    living = scratch_folder()  # sweeps
    (temporary / "kvsan-disk-notes").mkdir()
    (temporary / f"kvsan-disk-{pid}-link").symlink_to(living.path)
    (temporary / f"kvsan-disk-{pid}-file").touch()
    (temporary / f"kvsan-disk-{'9' * 30}-x").mkdir()
    (temporary / f"kvsan-disk-{os.getppid()}-x").mkdir()
    (temporary / f"kvsan-disk-{pid}-x").mkdir()

    assert sweep() == [f"kvsan-disk-{pid}-x"]
    assert len(os.listdir(temporary)) == 6


def test_a_forked_child_does_not_take_the_folder_along(temporary: Path) -> None:
    program = (
        "import os\nfrom kvsan.models_under_test.tiers.disk import DiskStore\n"
        "from kvsan.models_under_test.tiers.scratch import scratch_folder\n"
        "store = DiskStore(scratch_folder())\nstore.put('0a', b'x')\nchild = os.fork()\n"
        "if child: os.waitpid(child, 0); print(store.get('0a'))\n"  # the child leaves through every exit handler
    )
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    ended = subprocess.run(command, check=True, env=environment, timeout=30, capture_output=True, text=True)

    assert (ended.stdout, os.listdir(temporary)) == ("b'x'\n", [])
