"""``kvsan prove``: exit codes, what is told, the certificate, and a kernel of a user's own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Triton is made for Linux")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "proofs.md"


def prove(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does, who has told Triton nothing."""
    return subprocess.run(
        [sys.executable, "-m", "kvsan.cli", "prove", *arguments],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """A folder with the kernel and the specification that docs/proofs.md shows."""
    for name, source in zip(("mygather.py", "gather_spec.py"), python_blocks(), strict=False):
        (tmp_path / name).write_text(source, "utf-8")
    return tmp_path


def python_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")


OWN = ("--kernel", "mygather:gather", "--spec", "gather_spec.py")


def test_claims_that_hold_end_in_exit_code_0_and_a_certificate(tmp_path: Path) -> None:
    done = prove(tmp_path, "--claim", "merge_splits/*", "--claim", "window*", "--json", "certificate.json")
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "certificate.json").read_text())
    assert written["summary"]["proved"] == written["summary"]["claims"] == 8
    assert not written["complete"]  # there are more claims
    assert re.fullmatch("[0-9a-f]{64}", written["proofs"])
    assert {"python", "z3-solver", "triton", "kvsan"} <= written["versions"].keys()
    for claim in written["claims"]:
        assert claim["status"] == "proved"
        assert claim["obligations"] > 0
        assert claim["assumptions"] or claim["part"] == "addressing"
        assert re.fullmatch("[0-9a-f]{64}", claim["source"])


def test_two_certificates_differ_in_seconds_alone(tmp_path: Path) -> None:
    texts = []
    for name in ("one.json", "other.json"):
        assert prove(tmp_path, "--claim", "move_heads/*", "--json", name).returncode == 0
        texts.append(re.sub(r'"seconds": [\d.]+', "", (tmp_path / name).read_text()))
    assert texts[0] == texts[1]


def test_a_seeded_mistake_ends_in_exit_code_1_with_its_place_values_and_replay(tmp_path: Path) -> None:
    done = prove(tmp_path, "--broken", "int32-read_block")
    assert done.returncode == 1, done.stderr
    assert "overflow of int32" in done.stdout
    assert re.search(r"int32_kernels\.py:\d+", done.stdout)
    assert "num_blocks = " in done.stdout
    assert "replayed: " in done.stdout


def test_a_broken_protocol_leaves_a_trace_that_replay_runs(tmp_path: Path) -> None:
    done = prove(tmp_path, "--broken", "freed_while_shared", "--json", "found.json")
    assert done.returncode == 1, done.stderr
    (trace,) = tmp_path.glob("*.trace.json")
    replayed = subprocess.run(
        [sys.executable, "-m", "kvsan.cli", "replay", str(trace)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert replayed.returncode == 1, replayed.stdout + replayed.stderr


@pytest.mark.parametrize("name", ["offset_of_next", "page_without_scales"])
def test_a_broken_address_tells_the_numbers_that_break_it(tmp_path: Path, name: str) -> None:
    done = prove(tmp_path, "--broken", name)
    assert done.returncode == 1, done.stderr
    assert "NOT PROVED addressing/" in done.stdout
    assert re.search(r"= \d", done.stdout)


def test_a_limit_that_is_too_short_is_a_failure_and_not_a_success(tmp_path: Path) -> None:
    done = prove(tmp_path, "--claim", "paged_decode_split/fp32*", "--timeout", "0.001s")
    assert done.returncode == 1, done.stderr
    assert "(unknown)" in done.stdout
    assert "holds up to" not in done.stdout


def test_the_kernel_of_the_page_is_proved(example: Path) -> None:
    done = prove(example, *OWN)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 2 claims proved" in done.stdout


def test_a_specification_may_be_in_another_folder(example: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    done = prove(tmp_path_factory.mktemp("elsewhere"), *OWN[:3], str(example / OWN[3]))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_kernel_of_the_page_with_int32_offsets_is_refuted(example: Path) -> None:
    change(example / "mygather.py", "tl.load(table + block).to(tl.int64)", "tl.load(table + block)")
    done = prove(example, *OWN)
    assert done.returncode == 1, done.stderr
    assert re.search(r"overflow of int32.*mygather\.py:\d+", done.stdout)
    assert "replayed: the interpreter reports overflow" in done.stdout


def test_without_accesses_bounds_and_races_are_still_shown(example: Path) -> None:
    change(example / "gather_spec.py", "accesses=(", "accesses=None and (")
    text = (example / "gather_spec.py").read_text()
    (example / "gather_spec.py").write_text(re.sub(r"theorems=\(.*\n        \),\n", "", text, flags=re.DOTALL))
    change(example / "gather_spec.py", "(k.stride_block, k.HEAD_DIM, 1)", "(k.BLOCK_SIZE * k.HEAD_DIM, k.HEAD_DIM, 1)")
    change(example / "gather_spec.py", "k.stride_block >= 0", "k.stride_block == k.BLOCK_SIZE * k.HEAD_DIM")
    assert prove(example, *OWN, "--verbose").returncode == 0
    change(example / "mygather.py", "mask = (position < length)", "mask = (position < length + 1)")
    done = prove(example, *OWN)
    assert done.returncode == 1, done.stderr
    assert "out of bounds" in done.stdout


BAD_INPUT = [
    (("--kernel", "mygather:gather"), "--kernel and --spec belong together"),
    (("--kernel", "mygather", "--spec", "gather_spec.py"), "--kernel mygather: expected MODULE:FUNCTION"),
    (("--kernel", "nowhere:gather", "--spec", "gather_spec.py"), "No module named 'nowhere'"),
    (("--kernel", "mygather:tl", "--spec", "gather_spec.py"), "no function under @triton.jit"),
    (("--kernel", "mygather:gather", "--spec", "nowhere.py"), "no such file"),
    (("--part", "everything"), "expected one of addressing, kernel, protocol"),
    (("--claim", "nothing"), "no claim is called nothing"),
    (("--claim", "window", "--claim", "windw"), "no claim is called windw (did you mean window?)"),
    (("--part", "protocol", "--claim", "window"), "no claim of the part protocol is called window"),
    (("--broken", "window-wid"), "no seeded mistake is called window-wid (did you mean window-wide?)"),
    (("--broken", "window-wide", "--part", "kernel"), "expected one of them"),
    (("--json", "nowhere/certificate.json"), "cannot be written"),
    (("--timeout", "soon"), "expected a time"),
]

BAD_SPECIFICATIONS = [
    ("k.length, k.BLOCK_SIZE", "k.lenght, k.BLOCK_SIZE", "asks for lenght"),
    ("within(0, block, blocks)", "0 <= block and block < blocks", "write both(...)"),
    ("def specify(k):", "def specified(k):", "has no specify"),
    ("return Specification(", "return dict(", "expected a Specification"),
    ('"length": "i32"', '"length": "int"', "type 'int'"),
    ("accesses=(", "accesses=None and (", "expected a specification with accesses"),
    ("SIGNATURE = {", "SIGNATURE = {{", "SyntaxError"),
    ("SIGNATURE = {", "1 / 0\nSIGNATURE = {", "ZeroDivisionError"),
]

MANY = """
import contextlib, io, json, sys
from kvsan.cli import main
for arguments in json.load(sys.stdin):
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code = main(["prove", *arguments])
    print(json.dumps([code, said.getvalue()]))
"""


def prove_many(folder: Path, *commands: tuple[str, ...]) -> list[tuple[int, str]]:
    """Exit code and what was said on stderr of several commands, run in one process: Triton is imported once."""
    done = subprocess.run(
        [sys.executable, "-c", MANY],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def test_bad_input_ends_in_exit_code_2(example: Path) -> None:
    told = prove_many(example, *(arguments for arguments, _ in BAD_INPUT))
    for (arguments, said), (code, message) in zip(BAD_INPUT, told, strict=True):
        assert (code, said in message, "Traceback" in message) == (2, True, False), (arguments, message)


def test_a_bad_specification_ends_in_exit_code_2_and_names_the_file(example: Path) -> None:
    source = (example / "gather_spec.py").read_text("utf-8")
    commands = []
    for number, (old, new, _) in enumerate(BAD_SPECIFICATIONS):
        assert old in source
        (example / f"bad_{number}.py").write_text(source.replace(old, new), "utf-8")
        commands.append(("--kernel", "mygather:gather", "--spec", f"bad_{number}.py"))
    for number, (code, message) in enumerate(prove_many(example, *commands)):
        assert (code, f"bad_{number}.py" in message) == (2, True), message
        assert BAD_SPECIFICATIONS[number][2] in message


def test_an_interrupt_keeps_what_was_proved(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "kvsan.cli", "prove", "--json", "certificate.json", "--workers", "1"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    process.stderr.readline()  # the first line of progress comes when some are proved
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    written = json.loads((tmp_path / "certificate.json").read_text())
    assert process.returncode == 130
    assert not written["complete"]
    assert written["summary"]["claims"] > 0
