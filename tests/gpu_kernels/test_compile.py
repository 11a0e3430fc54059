"""Compiling for GPUs that are not there; every target is shown to report a spill."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from kvsan.gpu_kernels.compile.build import TARGETS, Build, Outcome, signature
from kvsan.gpu_kernels.compile.builds import builds
from kvsan.gpu_kernels.compile.crew import WorkerFailure, compile_builds
from kvsan.gpu_kernels.compile.resources import Resources, UnreadableBinary, amd_resources, code_bytes, nvidia_resources

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Triton is made for Linux")

ADD = Build("tiny_kernels:add", "fp32", signature({"*fp32": "x out", "i32": "length"}), {"SIZE": 128}, ("x", "out"))
GREEDY = Build("tiny_kernels:greedy", "fp32", signature({"*fp32": "x out"}), {"SIZE": 1 << 17}, num_warps=16)
FICKLE = Build("tiny_kernels:fickle", "fp32", signature({"*fp32": "out", "i32": "length"}), {})

KERNEL = """
import triton
import triton.language as tl
from changing_callee import changed

@triton.jit
def store(out):
    tl.store(out, changed())
"""
CALLEE = """
import triton
import triton.language as tl

NUMBER = tl.constexpr(1)

@triton.jit
def changed():
    return NUMBER
"""

MANY_SCALARS = """
import triton
import triton.language as tl

@triton.jit
def walk(x, n, {factors}):
    total = tl.zeros([64], tl.int64)
    for step in range(n):
{body}
    tl.store(x + tl.arange(0, 64), total)
"""


def only(build: Build, target: str, results: Path | None = None) -> Outcome:
    (outcome,) = compile_builds([build], [target], results=results).outcomes
    return outcome


def resources(outcome: Outcome) -> Resources:
    assert outcome.resources is not None, outcome
    return outcome.resources


@pytest.mark.parametrize("target", TARGETS)
def test_a_small_kernel_compiles_and_a_greedy_one_spills(target: str) -> None:
    small, greedy = (resources(outcome) for outcome in compile_builds([ADD, GREEDY], [target]).outcomes)
    assert small.spilled == {}
    assert set(greedy.spilled) >= ({"vector_registers"} if target == "gfx942" else {"stored_bytes", "loaded_bytes"})
    assert 0 < small.registers < greedy.registers
    assert 0 < small.code_bytes < greedy.code_bytes
    assert small.shared_bytes == 0 < greedy.shared_bytes


def test_scalar_registers_that_amd_keeps_in_vector_registers_are_no_spill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    factors = [f"f{index}" for index in range(70)]
    body = "".join(f"        total = total * {factor} + tl.load(x + total)\n" for factor in factors)
    (tmp_path / "many_scalars.py").write_text(MANY_SCALARS.format(factors=", ".join(factors), body=body))
    build = Build("many_scalars:walk", "i64", signature({"*i64": "x", "i32": "n", "i64": " ".join(factors)}), {})
    read = resources(only(build, "gfx942"))
    assert (read.spilled, read.scalar_spills > 0) == ({}, True)


def test_outcomes_come_in_the_order_of_builds_and_targets() -> None:
    report = compile_builds(
        [ADD, replace(ADD, configuration="two", targets=("sm_90",))], ["gfx942", "sm_90"], workers=2
    )
    found = [(outcome.build.configuration, outcome.target) for outcome in report.outcomes]
    assert found == [("fp32", "sm_90"), ("fp32", "gfx942"), ("two", "sm_90")]


def test_one_kernel_under_two_names_is_read_twice() -> None:
    first, second = compile_builds([ADD, replace(ADD, configuration="again")], ["sm_90"]).outcomes
    assert resources(first) == resources(second)


def test_the_environment_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = resources(only(ADD, "sm_90"))
    for name in ("TRITON_INTERPRET", "DISABLE_PTXAS_OPT", "DISABLE_LLVM_OPT"):
        monkeypatch.setenv(name, "1")
    assert resources(only(ADD, "sm_90")) == plain


def test_a_type_that_changes_by_branch_does_not_compile() -> None:
    outcome = only(FICKLE, "sm_90")
    assert "`result` is of type int32" in outcome.error.splitlines()[-1]
    assert (outcome.resources, outcome.harness_error) == (None, "")


WRONG_BUILDS = {
    "length: of the kernel, without a type or value": replace(ADD, signature=signature({"*fp32": "x out"})),
    "size: not an argument of the kernel": replace(ADD, constexprs={"SIZE": 128, "size": 1}),
    "SIZE: a constexpr of the kernel": replace(ADD, signature=ADD.signature | {"SIZE": "i32"}, constexprs={}),
    "tiny_kernels:plain_function is no function under @triton.jit": replace(ADD, kernel="tiny_kernels:plain_function"),
    "tiny_kernels:nothing is no function under @triton.jit": replace(ADD, kernel="tiny_kernels:nothing"),
    "ModuleNotFoundError: No module named 'no_such_module'": replace(ADD, kernel="no_such_module:add"),
}


def test_a_build_that_does_not_fit_its_kernel_is_an_error() -> None:
    builds = [replace(build, configuration=str(index)) for index, build in enumerate(WRONG_BUILDS.values())]
    assert [outcome.error for outcome in compile_builds(builds, ["sm_90"]).outcomes] == list(WRONG_BUILDS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel": "tiny_kernels.add"}, "expected module:function"),
        ({"configuration": "two words"}, "without spaces"),
        ({"constexprs": {"x": 1}}, "x both in the signature and a constexpr"),
        ({"aligned": ("y",)}, "aligned y: not in the signature"),
        ({"targets": ("sm_1",)}, "targets sm_1: expected some of sm_80"),
    ],
)
def test_a_build_that_contradicts_itself_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        replace(ADD, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("types", "message"),
    [({"*float": "x"}, "type '*float'"), ({"fp8e5": "x"}, "type 'fp8e5'"), ({"i32": "x y", "i64": "x"}, "'x' has two")],
)
def test_a_signature_that_makes_no_sense_is_refused(types: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        signature(types)


def test_builds_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two builds are called add fp32"):
        compile_builds([ADD, replace(ADD, num_warps=8)])


def test_the_second_time_is_from_the_cache(tmp_path: Path) -> None:
    first, second = only(ADD, "sm_90", tmp_path), only(ADD, "sm_90", tmp_path)
    assert (first.cached, second.cached) == (False, True)
    assert replace(second, cached=False) == first


def test_another_build_is_not_from_the_cache(tmp_path: Path) -> None:
    others = [replace(ADD, num_warps=8), replace(ADD, num_stages=2), replace(ADD, constexprs={"SIZE": 256})]
    others += [replace(ADD, aligned=()), replace(ADD, signature=ADD.signature | {"length": "i64"})]
    builds = [replace(build, configuration=str(index)) for index, build in enumerate([ADD, *others, ADD])]
    cached = [outcome.cached for outcome in compile_builds(builds, ["sm_90"], results=tmp_path).outcomes]
    assert cached == [False] * 6 + [True]


def test_what_does_not_compile_is_not_cached(tmp_path: Path) -> None:
    only(FICKLE, "sm_90", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_spoilt_cache_is_compiled_again(tmp_path: Path) -> None:
    only(ADD, "sm_90", tmp_path)
    (entry,) = tmp_path.iterdir()
    entry.write_text('{"resources": {"registers": 1}, "seconds": 0}')
    outcome = only(ADD, "sm_90", tmp_path)
    assert (outcome.cached, resources(outcome).registers > 1) == (False, True)


@pytest.mark.parametrize(
    ("old", "new", "cached"),
    [("tl.store(out, changed())", "tl.store(out + 1, changed())", False), ("# ", "# ", True)],
    ids=["kernel", "nothing"],
)
def test_the_cache_follows_the_kernel(
    old: str, new: str, cached: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compiled_after_change("changing_kernel.py", old, new, tmp_path, monkeypatch) == cached


@pytest.mark.parametrize(("old", "new"), [("return NUMBER", "return NUMBER + 1"), ("constexpr(1)", "constexpr(2)")])
def test_the_cache_follows_what_the_kernel_calls(
    old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not compiled_after_change("changing_callee.py", old, new, tmp_path, monkeypatch)


def compiled_after_change(name: str, old: str, new: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the kernel comes from the cache when one of its files has changed."""
    monkeypatch.syspath_prepend(folder)
    sources = {"changing_kernel.py": KERNEL, "changing_callee.py": CALLEE}
    build = Build("changing_kernel:store", "only", signature({"*i32": "out"}), {})
    for file, text in sources.items():
        (folder / file).write_text(text)
    assert not only(build, "sm_90", folder / "results").cached
    (folder / name).write_text(sources[name].replace(old, new))
    os.utime(folder / name, (0, 0))  # what Python has compiled of it is told apart by that
    outcome = only(build, "sm_90", folder / "results")
    assert outcome.resources, outcome.error
    return outcome.cached


def kernel_that(does: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    """A kernel whose module does something to the process that imports it."""
    monkeypatch.syspath_prepend(folder)
    (folder / "vandal.py").write_text(
        f"import os, signal, sys, time\nprint('vandal here', file=sys.stderr, flush=True)\n{does}\n"
    )
    return Build("vandal:kernel", "only", {}, {})


@pytest.mark.parametrize(
    ("does", "how"),
    [("os.kill(os.getpid(), signal.SIGSEGV)", "killed by signal 11"), ("os._exit(0)", "exit code 0")],
)
def test_a_worker_that_dies_is_no_fault_of_the_kernel(
    does: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vandal, after = compile_builds([kernel_that(does, tmp_path, monkeypatch), ADD], ["sm_90"]).outcomes
    assert vandal.harness_error == f"{how}: vandal here"
    assert (vandal.error, resources(after).registers > 0) == ("", True)


def test_a_worker_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vandal = kernel_that("time.sleep(60)", tmp_path, monkeypatch)
    (outcome,) = compile_builds([vandal], ["sm_90"], timeout_s=0.5).outcomes
    assert outcome.harness_error.startswith("no answer in 0.5 s")


def test_a_kernel_that_prints_does_not_disturb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = only(kernel_that("print('{}', flush=True); os.write(1, b'{}')", tmp_path, monkeypatch), "sm_90")
    assert "no function under @triton.jit" in outcome.error.splitlines()[-1]


def test_a_worker_that_does_not_start_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "triton.py").write_text("raise ImportError('not this one')")
    with pytest.raises(WorkerFailure, match="not this one"):
        compile_builds([ADD])


def test_an_interrupt_keeps_what_is_done(tmp_path: Path) -> None:
    def interrupt(outcome: Outcome, count: int, total: int) -> None:
        raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        compile_builds([ADD, GREEDY], results=tmp_path, done=interrupt)
    assert threading.active_count() == before
    assert only(ADD, "sm_80", tmp_path).cached


REPORT = """ptxas info    : Function properties for kernel
    16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers
ptxas info    : Function properties for callee
    24 bytes stack frame, 1 bytes spill stores, 2 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers
"""


def elf(flags: int = 0x4, size: int = 640) -> bytes:
    """An ELF file with one section and no more."""
    header = bytearray(64)
    header[:6] = b"\x7fELF\x02\x01"
    header[0x28], header[0x3A], header[0x3C] = 64, 64, 1
    section = bytearray(64)
    section[8] = flags
    section[32:40] = size.to_bytes(8, "little")
    return bytes(header + section)


def test_functions_that_are_not_inlined_count() -> None:
    read = nvidia_resources(REPORT, elf(), 128)
    assert read == Resources(40, {"stack_bytes": 24, "stored_bytes": 5, "loaded_bytes": 10}, 128, 640)


def metadata(private: int, vector: int, scalar: int) -> str:
    fields = {"private_segment_fixed_size": private, "vgpr_spill_count": vector, "sgpr_spill_count": scalar}
    return "".join(f"    .{name}: {count}\n" for name, count in {**fields, "vgpr_count": 9}.items())


@pytest.mark.parametrize(
    ("counts", "spilled"), [((4, 0, 0), {"private_bytes": 4}), ((0, 1, 0), {"vector_registers": 1})]
)
def test_either_count_of_amd_is_a_spill(counts: tuple[int, int, int], spilled: dict[str, int]) -> None:
    assert amd_resources(metadata(*counts), elf(), 0).spilled == spilled


def test_scalar_registers_in_vector_registers_are_told_apart() -> None:
    read = amd_resources(metadata(0, 0, 38), elf(), 0)
    assert (read.spilled, read.scalar_spills) == ({}, 38)


@pytest.mark.parametrize("report", ["", "Used 32 registers", REPORT.replace("Used", "used")])
def test_a_report_that_says_nothing_is_not_taken_for_no_spills(report: str) -> None:
    with pytest.raises(UnreadableBinary):
        nvidia_resources(report, elf(), 0)


@pytest.mark.parametrize("assembly", ["", "  .vgpr_count: 1\n", "  .private_segment_fixed_size: 0\n" * 2])
def test_assembly_that_says_nothing_is_not_taken_for_no_spills(assembly: str) -> None:
    with pytest.raises(UnreadableBinary):
        amd_resources(assembly, elf(), 0)


@pytest.mark.parametrize("binary", [b"", b"\x7fELF", elf(flags=0), b"!" + elf()[1:], elf()[:-30]])
def test_a_binary_without_code_is_not_taken_for_a_small_one(binary: bytes) -> None:
    with pytest.raises(UnreadableBinary):
        code_bytes(binary)


def test_a_worker_ends_with_its_parent() -> None:
    worker = subprocess.Popen(
        [sys.executable, "-P", "-m", "kvsan.gpu_kernels.compile.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert worker.communicate(timeout=60)[0].startswith(b'{"triton"')
    assert worker.returncode == 0


def test_builds_follow_the_constants_of_the_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvsan.gpu_kernels import copy, write

    monkeypatch.setattr(write, "_TOKENS", 64)
    monkeypatch.setattr(copy, "_SLOTS", 32)

    found = {build.name: build.constexprs for build in builds()}

    assert {found[name]["TOKENS"] for name in ("reshape_and_cache", "quantise_and_cache", "gather_tokens")} == {64}
    assert {found[name]["SLOTS"] for name in ("move_blocks", "move_heads")} == {32}
