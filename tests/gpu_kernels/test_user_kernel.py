"""Kernels of a user's own under the numbers oracle: legal ones are silent, and each wrong one is seen."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kvsan.fuzz.kernels import kernels_named
from kvsan.gpu_kernels.host import HostKernels
from kvsan.gpu_kernels.interface import KernelBug, OutsidePool, encode
from kvsan.gpu_kernels.user_function import find_function
from kvsan.gpu_kernels.user_kernel import UserCache, UserKernels
from kvsan.harness.execution import BoundRow
from kvsan.harness.numbers import Numbers
from kvsan.harness.verdict import Violation

USER_KERNELS = Path(__file__).parents[1] / "user_targets" / "torch_kernels.py"
DTYPES = ("float32", "float16", "bfloat16")
BLOCK_SIZE = 4


@pytest.fixture(autouse=True)
def user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copy(USER_KERNELS, tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def user_kernels(name: str) -> UserKernels:
    return UserKernels(find_function(f"torch_kernels:{name}"), HostKernels(), "host", "cpu")


def user_numbers(name: str, dtype: str = "float32", q_heads: int = 2) -> Numbers:
    return Numbers(16, BLOCK_SIZE, dtype, user_kernels(name), q_heads=q_heads)


def make_row(name: str, units: list[int], start: int, stop: int, window: int | None = None) -> BoundRow:
    identity = np.arange(stop, dtype=np.int64) * 1000 + sum(map(ord, name))
    low = 0 if window is None else max(0, start - window + 1)
    return BoundRow(name, 0, np.array(units, np.int64), start, stop, window, low, identity, {})


def launches(window: int | None = None) -> Iterator[list[BoundRow]]:
    """Two prompts, then a launch of both kinds of rows, then decode steps."""
    one, two = [9, 3, 14, 7], [0, 5, 15]
    for ends in (((0, 7), (0, 1)), ((7, 12), (1, 2)), ((12, 13), (2, 3)), ((13, 14), (3, 9)), ((14, 15), (9, 10))):
        yield [make_row(name, units, *end, window) for name, units, end in zip("ab", (one, two), ends, strict=True)]


def run(numbers: Numbers, window: int | None = None) -> None:
    for step, rows in enumerate(launches(window)):
        numbers.launch(rows, step)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["decode", "mixed", "checked", "write"])
def test_legal_kernels_are_silent(name: str, dtype: str) -> None:
    numbers = user_numbers(name, dtype)

    run(numbers)

    assert numbers.outputs_compared == (15 + 10) * 6
    assert any(call.endswith(f"by torch_kernels:{name}") for call in numbers.calls)


@pytest.mark.parametrize(("kv_heads", "q_heads"), [(1, 1), (2, 4), (2, 10)])
def test_groups_of_heads_are_powers_of_two_for_the_user(kv_heads: int, q_heads: int) -> None:
    seen = set()

    def decode(output: Any, query: Any, key_cache: Any, value_cache: Any, block_tables: Any, seq_lens: Any) -> None:
        seen.add(query.shape[1] // key_cache.shape[2])
        function.call(output, query, key_cache, value_cache, block_tables, seq_lens, 1.0)

    function = find_function("torch_kernels:decode")
    asked = function.parameters - {"scale"}
    kernels = UserKernels(type(function)("mine", decode, function.role, asked), HostKernels(), "host", "cpu")
    run(Numbers(16, BLOCK_SIZE, kernels=kernels, kv_heads=kv_heads, q_heads=q_heads))

    assert seen == {{1: 4, 4: 8, 10: 16}[q_heads]}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("decode_wrong_block", ("numbers", "zero")),
        ("decode_leaves_a_row", ("numbers", "needle")),
        ("decode_one_block_too_many", ("target.crash", "kernel IndexError")),
        ("checked_loses_a_token", ("numbers", "needle")),
        ("write_padding", ("numbers", "key-bytes")),
        ("raises", ("target.crash", "kernel RuntimeError")),
    ],
)
def test_wrong_kernels_are_seen(name: str, kind: tuple[str, str]) -> None:
    with pytest.raises(Violation) as caught:
        run_all(user_numbers(name))

    assert caught.value.kind == kind
    assert caught.value.needs_kernels


def run_all(numbers: Numbers) -> None:
    """Run the launches, and then some in which a row owns the pool's last slot while another one is written."""
    run(numbers)
    owner, other = make_row("a", [15], 0, 4), make_row("b", [1], 0, 2)
    numbers.launch([owner], 0)
    numbers.launch([other], 1)
    numbers.launch([make_row("a", [15, 2], 4, 5)], 2)


def test_a_row_sum_that_is_wrong_is_told() -> None:
    with pytest.raises(Violation, match=r"found b@0 with a row sum of 0, expected 1"):
        run(user_numbers("checked_loses_a_token"))


def test_what_a_kernel_raised_is_told_with_its_place() -> None:
    line = next(i for i, text in enumerate(USER_KERNELS.read_text().splitlines(), 1) if "no kernel image" in text)
    with pytest.raises(Violation, match=f"no kernel image is available at torch_kernels.py:{line}, in decode"):
        run(user_numbers("raises"))


@pytest.mark.parametrize("window", [1, 6])
def test_windows_go_to_a_function_that_asks_for_them(window: int) -> None:
    numbers = user_numbers("mixed")
    run(numbers, window)
    assert numbers.calls["prefill by torch_kernels:mixed"] == 3
    with pytest.raises(Violation) as caught:
        run(user_numbers("mixed_forgets_the_window"), window)
    assert caught.value.kind in {("numbers", "zero"), ("numbers", "needle")}


def test_windows_go_to_the_base_otherwise_and_that_is_said() -> None:
    numbers = user_numbers("decode")
    run(numbers, window=6)
    assert numbers.calls["decode with a window by host (torch_kernels:decode has no parameter window)"] == 5
    assert numbers.calls["decode by torch_kernels:decode"] == 0


def test_who_served_what_is_counted() -> None:
    numbers = user_numbers("decode")
    run(numbers)
    assert numbers.calls == {"write by host": 5, "prefill by host": 3, "decode by torch_kernels:decode": 5}


def test_a_copy_moves_the_part_that_was_asked_for() -> None:
    kernels = user_kernels("copy")
    cache = kernels.allocate(3, BLOCK_SIZE, 1, 4, "float32")
    bits = encode(np.arange(8 * 4).reshape(8, 1, 4), "float32")
    kernels.write(cache, np.arange(8), bits, bits)

    kernels.copy(cache, 0, 1, 1, 3)

    assert cache.keys[1].flatten().tolist() == [*range(16, 20), *range(4, 12), *range(28, 32)]
    assert torch.equal(cache.keys, cache.values)
    assert kernels.calls["copy by torch_kernels:copy"] == 1


def test_a_copy_that_forgets_v_is_seen() -> None:
    numbers = user_numbers("copy_keys_only")
    row = make_row("a", [6], 0, 3)
    numbers.launch([row], 0)
    numbers.copy(6, 9, 0, 3)
    row.table = np.array([9])
    assert {mismatch.cause for mismatch in numbers.mismatches([row], 1)} >= {"value-bytes", "zero"}


@pytest.mark.parametrize("call", ["write", "decode", "copy"])
def test_nothing_outside_the_pool_reaches_the_user(call: str) -> None:
    kernels = user_kernels(call)
    cache = kernels.allocate(3, BLOCK_SIZE, 1, 4, "float32")
    bits = np.zeros((1, 1, 4), np.uint32)
    queries = np.zeros((1, 1, 4), np.float32)
    arguments: dict[str, tuple[Any, ...]] = {
        "write": (np.array([12]), bits, bits),
        "decode": (queries, np.array([[3]]), np.array([1]), None),
        "copy": (0, 3, 0, 4),
    }
    with pytest.raises(OutsidePool):
        getattr(kernels, call)(cache, *arguments[call])
    assert not kernels.calls[f"{call} by torch_kernels:{call}"]


def test_entries_behind_the_last_block_are_far_outside_the_pool() -> None:
    seen: list[list[list[int]]] = []

    def decode(block_tables: torch.Tensor, output: torch.Tensor, **_rest: object) -> None:
        seen.append(block_tables.tolist())
        output[:] = 0

    function = find_function("torch_kernels:decode")
    kernels = UserKernels(
        type(function)("mine", decode, function.role, function.parameters), HostKernels(), "host", "cpu"
    )
    cache = kernels.allocate(8, BLOCK_SIZE, 2, 32, "float32")
    queries = np.zeros((2, 4, 32), np.float32)

    kernels.decode(cache, queries, np.array([[1, 2, 3], [4, 5, 6]]), np.array([12, 4]), None)

    outside = (1 << 31) // (BLOCK_SIZE * 2 * 32) - 1
    assert seen == [[[1, 2, 3, outside], [4, outside, outside, outside]]]
    assert (outside + 1) * BLOCK_SIZE * 2 * 32 <= 1 << 31


def test_a_bug_that_a_sanitizer_saw_is_no_crash() -> None:
    bug = KernelBug("out-of-bounds", "k", "k.py", 3, (0, 0, 0), 1, "load 4 bytes behind key_cache")

    def decode(**_rest: object) -> None:
        try:
            raise bug
        except KernelBug as error:
            raise RuntimeError("the interpreter's own words") from error

    function = find_function("torch_kernels:decode")
    kernels = UserKernels(
        type(function)("mine", decode, function.role, function.parameters), HostKernels(), "host", "cpu"
    )
    with pytest.raises(Violation) as caught:
        run(Numbers(16, BLOCK_SIZE, kernels=kernels))
    assert caught.value.kind == ("kernel", "out-of-bounds")
    assert "k.py:3" in caught.value.message


@pytest.mark.parametrize("name", ["mixed", "write"])
def test_on_a_device_tensors_are_those_of_the_triton_kernels(name: str) -> None:
    base = kernels_named("triton")
    kernels = UserKernels(find_function(f"torch_kernels:{name}"), base, "triton", "cpu")
    numbers = Numbers(16, BLOCK_SIZE, kernels=kernels, q_heads=2)
    run(numbers)
    numbers.copy(9, 1, 0, 3)
    numbers.zero(1, 0, 2)
    assert numbers.cache.keys.is_contiguous()
    assert not numbers.cache.keys[1, :2].any()
    assert torch.equal(numbers.cache.keys[1, 2], numbers.cache.keys[9, 2])
    assert numbers.calls["copy by triton"] == 1


def test_a_process_whose_device_is_lost_ends_as_a_crash() -> None:
    program = """
import torch
from kvsan.gpu_kernels.user_kernel import end_process_without_device

torch.cuda.synchronize = lambda: None
end_process_without_device("all is well")
print("went on", flush=True)

def lost():
    raise RuntimeError("an illegal memory access was encountered")

torch.cuda.synchronize = lost
end_process_without_device("mine:decode raised RuntimeError")
print("not reached")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGABRT
    assert done.stdout == "went on\n"
    assert done.stderr.splitlines()[0] == "mine:decode raised RuntimeError"


def test_tensors_share_the_memory_of_the_base() -> None:
    kernels = user_kernels("decode")
    for dtype in DTYPES:
        cache: UserCache = kernels.allocate(2, BLOCK_SIZE, 1, 4, dtype)
        cache.keys[1, 2] = 3.0
        assert np.array_equal(cache.base.keys[6, 0], encode(np.full(4, 3.0), dtype))
        assert cache.keys.is_contiguous()
