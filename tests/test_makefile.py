"""The Makefile and .ci/run, on stand-ins for the tools: what they say decides the exit code."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CLOSING_LINE = "==== 12 passed in 0.01s ===="


def checkout(folder: Path, **exit_codes: int) -> Path:
    """Make a folder where everything is installed and each tool ends with the given exit code, or 0."""
    shutil.copy(ROOT / "Makefile", folder)
    shutil.copytree(ROOT / ".ci", folder / ".ci")
    (folder / "pyproject.toml").touch()
    tools = folder / ".venv" / "bin"
    tools.mkdir(parents=True)
    for name in ("python", "ruff", "mypy", "pytest", "kvsan"):
        said = CLOSING_LINE if name == "pytest" else f"{name} $*"
        (tools / name).write_text(f'#!/bin/sh\necho "{said}"\nexit {exit_codes.get(name, 0)}\n')
        (tools / name).chmod(0o755)
    stand_in(folder, "redis-server", "exit 0")
    for stamp in (".dev-installed", ".engines-installed"):
        (folder / ".venv" / stamp).touch()
    return folder


def stand_in(folder: Path, name: str, script: str) -> None:
    """Put a command into the folder that ``run`` looks into first."""
    path = folder / "commands" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def run(folder: Path, *command: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    environment |= {"PATH": f"{folder / 'commands'}:{path or os.environ['PATH']}", "CI_RETRY_S": "0"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


def test_good_run_ends_with_the_line_of_pytest(tmp_path: Path) -> None:
    done = run(checkout(tmp_path), "bash", ".ci/run")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, CLOSING_LINE)


@pytest.mark.parametrize(("tool", "code"), [("ruff", 1), ("mypy", 1), ("kvsan", 1), ("pytest", 1), ("pytest", 5)])
def test_a_tool_that_fails_fails_the_run(tool: str, code: int, tmp_path: Path) -> None:
    done = run(checkout(tmp_path, **{tool: code}), "bash", ".ci/run")
    assert done.returncode != 0


def without_redis(folder: Path) -> tuple[Path, str]:
    """A checkout on a machine that has what the script itself needs, and no server."""
    checkout(folder)
    (folder / "commands" / "redis-server").unlink()
    few = folder / "few"
    few.mkdir()
    for tool in ("bash", "sh", "dirname", "make", "sleep", "cat", "env", "mkdir", "ln", "awk", "touch", "chmod"):
        (few / tool).symlink_to(shutil.which(tool) or tool)
    return folder, str(few)


def test_a_machine_without_redis_gets_one_before_the_tests(tmp_path: Path) -> None:
    folder, few = without_redis(tmp_path)
    stand_in(folder, "apt-get", f'echo "$*" >> {folder}/asked')
    done = run(folder, "bash", ".ci/run", path=few)
    assert (folder / "asked").read_text().splitlines()[-1] == "install -y --no-install-recommends redis-server"
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, CLOSING_LINE)


def test_redis_that_cannot_be_installed_fails_the_run(tmp_path: Path) -> None:
    folder, few = without_redis(tmp_path)
    stand_in(folder, "apt-get", "exit 100")
    done = run(folder, "bash", ".ci/run", path=few)
    assert (done.returncode, done.stderr) == (1, ".ci/run: redis-server could not be installed\n")


def test_newer_pyproject_installs_again(tmp_path: Path) -> None:
    checkout(tmp_path)
    os.utime(tmp_path / ".venv" / ".dev-installed", (0, 0))
    done = run(tmp_path, "make", "fuzz")
    assert "python -m pip install --quiet --no-input -e .[dev]" in done.stdout


def test_fuzz_runs_the_command_line(tmp_path: Path) -> None:
    done = run(checkout(tmp_path), "make", "fuzz")
    assert done.stdout.splitlines()[-1] == "kvsan fuzz --target paged --budget 60s"


def test_every_target_is_in_the_help(tmp_path: Path) -> None:
    done = run(checkout(tmp_path), "make")
    listed = [line.split()[1] for line in done.stdout.splitlines()]
    assert listed == ["help", "fuzz", "kernels", "prove", "test", "test-engines", "quality", "bench", "lint", "clean"]
