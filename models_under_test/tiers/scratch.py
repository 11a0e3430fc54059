"""Folders that do not outlive their user.

A worker process ends by ``os._exit`` or is killed, so nothing of it can be trusted to clean up. The name of a folder says
whose it is: the first scratch folder that a process makes removes those of processes that are gone.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import weakref
from pathlib import Path

_NAME = re.compile(r"kvsan-disk-(\d+)-.+")
_swept_by: int | None = None


class ScratchFolder:
    """An empty temporary folder, removed when this object dies; a path wherever one is expected."""

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix=f"kvsan-disk-{os.getpid()}-")
        weakref.finalize(self, _remove_own, self.path, os.getpid())

    def __fspath__(self) -> str:
        return self.path


def scratch_folder() -> ScratchFolder:
    """Make a folder under ``tempfile.gettempdir()``; ``DiskStore(scratch_folder())`` keeps it as long as itself."""
    global _swept_by
    if _swept_by != os.getpid():
        _swept_by = os.getpid()
        sweep()
    return ScratchFolder()


def sweep() -> list[str]:
    """Remove the scratch folders that belong to our user and to no living process; return their names.

    A number that another process has by now keeps a folder until that one has ended, too.
    """
    removed = []
    for path in sorted(Path(tempfile.gettempdir()).glob("kvsan-disk-*")):
        named = _NAME.fullmatch(path.name)
        if named and not _is_alive(int(named[1])) and _is_own_folder(path):
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path.name)
    return removed


def _remove_own(path: str, pid: int) -> None:
    """A forked child has a copy of the object, and not the folder."""
    if os.getpid() == pid:
        shutil.rmtree(path, ignore_errors=True)


def _is_own_folder(path: Path) -> bool:
    """Whether it is a real folder of ours; another sweep may have been faster."""
    try:
        return path.is_dir() and not path.is_symlink() and path.stat().st_uid == os.geteuid()
    except FileNotFoundError:
        return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True  # somebody else's, or no number that a process can have: not for us to remove
    return True
