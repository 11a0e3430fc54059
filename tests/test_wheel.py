"""What a user gets: sdist and wheel are built, installed into a fresh environment, and do the main job there."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOT_SOURCE = shutil.ignore_patterns(".*", "build", "dist", "findings", "*.egg-info", "__pycache__")


def run(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV_"))}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the sdist and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("distributions")
    shutil.copytree(ROOT, folder / "source", ignore=NOT_SOURCE)
    build = run(folder, sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, folder / "source")
    assert build.returncode == 0, build.stdout + build.stderr
    return folder


@pytest.fixture(scope="module")
def fresh(distributions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Interpreter of a new environment with the wheel; the dependencies are borrowed from the running environment.

    A path in a .pth file comes last and the .pth files in it are not read: the editable install there stays unseen.
    """
    place = tmp_path_factory.mktemp("fresh")
    venv.create(place)
    python = place / "bin" / "python"
    (wheel,) = distributions.glob("*.whl")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", wheel)
    install = run(place, *pip)
    assert install.returncode == 0, install.stderr
    site_packages = Path(sysconfig.get_path("purelib", vars={"base": str(place)}))
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_package_comes_from_the_wheel(fresh: Path, tmp_path: Path) -> None:
    code = "import kvsan.harness, torch; print(kvsan.harness.__file__)"
    done = run(tmp_path, fresh, "-c", code)
    assert Path(done.stdout.strip()).is_relative_to(fresh.parents[1]), done.stderr


def test_main_job_runs_from_an_empty_folder(fresh: Path, tmp_path: Path) -> None:
    done = run(tmp_path, fresh.with_name("kvsan"), "fuzz", "--target", "paged", "--steps", "1000")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"steps +1,0\d\d in", done.stdout), done.stdout


def test_proofs_run_from_an_empty_folder(fresh: Path, tmp_path: Path) -> None:
    claims = ("--claim", "window", "--claim", "touch", "--claim", "move_heads/i16-w128-tp2to8")
    done = run(tmp_path, fresh.with_name("kvsan"), "prove", *claims)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 of 3 claims proved" in done.stdout


TARGETS = [
    "canary", "disagg", "disagg-mutant", "graphs", "graphs-mutant", "mutant", "paged", "vllm", "vllm-offload",
]  # fmt: skip


def test_targets_are_entry_points_of_the_wheel(fresh: Path, tmp_path: Path) -> None:
    code = "from kvsan.harness.registry import available; print(*(name for name, _ in available()))"
    assert run(tmp_path, fresh, "-c", code).stdout.split() == TARGETS


@pytest.mark.parametrize("name", ["LICENSE", "py.typed", "METADATA", "budgets.json"])
def test_wheel_carries(name: str, fresh: Path) -> None:
    assert any(path.name == name for path in fresh.parents[1].rglob("kvsan*/**/*"))
