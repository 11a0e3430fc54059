"""The manager and the kernel that the how-to pages show do what the pages say, on the command line and under pytest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvsan.gpu_kernels.user_function import OPTIONAL, REQUIRED

DOCS = Path(__file__).resolve().parents[1] / "docs"
MANAGER, KERNEL = DOCS / "your-own-manager.md", DOCS / "your-own-kernel.md"
WRONG_BLOCK = ("stride_table + block)", "stride_table + tl.maximum(block - 1, 0))")
ONE_MORE = ("range(0, tl.cdiv(length, BLOCK_SIZE))", "range(0, tl.cdiv(length, BLOCK_SIZE) + 1)")
BEYOND = (ONE_MORE, ("mask = inside[:, None]", "mask = (inside | True)[:, None]"))
SERVED_TOO_SOON = ("self.index.complete_store(keys, success)", "self.index.complete_store(keys, True)")
LEAK = ("self.free.extend(self.table.pop(name))", "self.free.extend(self.table.pop(name)[1:])")


def blocks(page: Path = MANAGER) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)


def write_source(path: Path, source: str, changes: tuple[tuple[str, str], ...]) -> None:
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    path.write_text(source, "utf-8")


def write_manager(folder: Path, *changes: tuple[str, str]) -> None:
    write_source(folder / "mypool.py", blocks()[0], changes)


def write_tiers(folder: Path, *changes: tuple[str, str]) -> None:
    write_manager(folder)
    write_source(folder / "mytiers.py", blocks()[2], changes)


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a module as a user does, who has told Triton nothing."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def fuzz(folder: Path, target: str = "mypool:MyPool", *options: str) -> subprocess.CompletedProcess[str]:
    return run(folder, "kvsan.cli", "fuzz", "--target", target, "--steps", "3000", *options)


def test_the_manager_is_clean(tmp_path: Path) -> None:
    write_manager(tmp_path)
    done = fuzz(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_leak_in_it_is_found(tmp_path: Path) -> None:
    write_manager(tmp_path, LEAK)
    done = fuzz(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "held by nobody" in done.stdout


@pytest.mark.parametrize(
    ("changes", "expected", "words"),
    [((), 0, "load from host"), ((SERVED_TOO_SOON,), 1, "VIOLATION")],
    ids=["clean", "failed offload is served"],
)
def test_the_manager_with_tiers(
    tmp_path: Path, changes: tuple[tuple[str, str], ...], expected: int, words: str
) -> None:
    write_tiers(tmp_path, *changes)
    done = fuzz(tmp_path, "mytiers:MyTiers", "--profile", "async")
    assert done.returncode == expected, done.stdout + done.stderr
    assert words in done.stdout


def test_a_summary_says_when_tiers_were_left_alone(tmp_path: Path) -> None:
    write_tiers(tmp_path)
    done = fuzz(tmp_path, "mytiers:MyTiers")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not exercised; use --profile async" in done.stdout


def test_a_manager_without_tiers_is_given_no_transfers(tmp_path: Path) -> None:
    write_manager(tmp_path)
    done = fuzz(tmp_path, "mypool:MyPool", "--profile", "async")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Offload" not in done.stdout


@pytest.mark.parametrize(("changes", "expected"), [((), 0), ((LEAK,), 1)], ids=["clean", "leak"])
def test_it_runs_under_pytest(tmp_path: Path, changes: tuple[tuple[str, str], ...], expected: int) -> None:
    write_manager(tmp_path, *changes)
    (tmp_path / "test_mypool.py").write_text(blocks()[1], "utf-8")
    done = run(tmp_path, "pytest", "-q", "-p", "no:cacheprovider", "test_mypool.py")
    assert done.returncode == expected, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("changes", "expected", "words"),
    [
        ((), 0, "decode by mykernel:decode"),
        ((WRONG_BLOCK,), 1, "VIOLATION numbers ["),
        (BEYOND, 1, "VIOLATION kernel [out-of-bounds]"),
    ],
    ids=["clean", "wrong block", "one block too many"],
)
def test_the_kernel(tmp_path: Path, changes: tuple[tuple[str, str], ...], expected: int, words: str) -> None:
    write_source(tmp_path / "mykernel.py", blocks(KERNEL)[0], changes)
    done = run(tmp_path, "kvsan.cli", "fuzz", "--kernel", "mykernel:decode", "--steps", "150", "--max-findings", "1")
    assert done.returncode == expected, done.stdout + done.stderr
    assert words in done.stdout


def test_the_page_names_every_parameter_that_a_kernel_may_have() -> None:
    text = KERNEL.read_text("utf-8").partition("```python")[0]
    for role in REQUIRED:
        for parameter in (*REQUIRED[role], *OPTIONAL[role]):
            assert re.search(rf"\b{parameter}\b", text), parameter
