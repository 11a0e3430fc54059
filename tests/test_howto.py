"""The manager that docs/your-own-manager.md shows does what the page says, on the command line and under pytest."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[1] / "docs" / "your-own-manager.md"
LEAK = ("self.free.extend(self.table.pop(name))", "self.free.extend(self.table.pop(name)[1:])")


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


def write_manager(folder: Path, *changes: tuple[str, str]) -> None:
    source = blocks()[0]
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    (folder / "mypool.py").write_text(source, "utf-8")


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


def fuzz(folder: Path) -> subprocess.CompletedProcess[str]:
    return run(folder, "kvsan.cli", "fuzz", "--target", "mypool:MyPool", "--steps", "3000")


def test_the_manager_is_clean(tmp_path: Path) -> None:
    write_manager(tmp_path)
    done = fuzz(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_leak_in_it_is_found(tmp_path: Path) -> None:
    write_manager(tmp_path, LEAK)
    done = fuzz(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "held by nobody" in done.stdout


@pytest.mark.parametrize(("changes", "expected"), [((), 0), ((LEAK,), 1)], ids=["clean", "leak"])
def test_it_runs_under_pytest(tmp_path: Path, changes: tuple[tuple[str, str], ...], expected: int) -> None:
    write_manager(tmp_path, *changes)
    (tmp_path / "test_mypool.py").write_text(blocks()[1], "utf-8")
    done = run(tmp_path, "pytest", "-q", "-p", "no:cacheprovider", "test_mypool.py")
    assert done.returncode == expected, done.stdout + done.stderr
