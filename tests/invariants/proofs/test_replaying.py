"""A case is replayed on the real kernel; one that the kernel does not keep to is an error of the proofs, and said so.

Kernels are refuted by `replayed_cases.py`, in a process that compiles; each case is then replayed as it is, and with one
number of it changed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvsan.gpu_kernels.compile.builds import builds
from kvsan.harness.verdict import HarnessError
from kvsan.invariants.proofs.kernels.cases_as_launches import index_of
from kvsan.invariants.proofs.kernels.interpreted import (
    ConcreteLaunch,
    ConcreteTensor,
    Interpreted,
    Interpreter,
    Program,
    TooLarge,
)
from kvsan.invariants.proofs.kernels.specification import Tensor

HEADS, BLOCK_SIZE, DIM = 2, 16, 128
SLOT = HEADS * DIM


@pytest.fixture(scope="module")
def shown() -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(Path(__file__).with_name("replayed_cases.py"))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("address", "stores keys at element"),
        ("address, of TTGIR", "stores keys at element"),
        ("mask", "loads key at element 0, where the specification has no access"),
        ("mask, left out", "does not store split_maxima at element 0, as the specification does"),
        ("overflow", "the interpreter reports overflow in reshape_and_cache"),
        ("loop", "the start of the loop is 0; the specification has 1"),
        ("guard", "takes what the specification masks out"),
        ("race", "stores; the interpreter reports race in merge_splits"),
        ("bounds", "loads split_maxima at element 3, of 0 to 2; the interpreter reports out-of-bounds in merge_splits"),
        ("left out", "stores element [0, 0, 0, 0] of keys"),
        ("outside", "stores element [0, 15, 0, 0] of keys [1, 15, 1, 128]"),
    ],
)
def test_the_kernel_does_what_the_solver_says(shown: dict[str, str], case: str, expected: str) -> None:
    assert shown[case].startswith("replayed: ")
    assert expected in shown[case]


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("address, another", "stores keys at"),
        ("address, expected another", "does not say element"),
        ("mask, not there", "loads key at [0]"),
        ("mask, not left out", "stores split_maxima at [0]"),
        ("overflow, of a small number", "overflows nowhere"),
        ("loop, another start", "has loops whose start is [0]"),
        ("guard, not taken", "has 1 selects there, none of which is so"),
        ("race, of another lane", "meet nowhere"),
        ("bounds, elsewhere", "loads split_maxima at [3]"),
        ("left out, but need not be there", "need not be accessed"),
        ("left out, but is there", "stores that element"),
        ("outside, elsewhere", "does not say element [0, 16, 0, 0]"),
        ("nothing", "a verdict that is proved"),
    ],
)
def test_what_the_kernel_does_not_do_is_an_error_of_the_proofs(shown: dict[str, str], case: str, expected: str) -> None:
    assert shown[case].startswith("HarnessError: ")
    assert expected in shown[case]


@pytest.mark.parametrize(
    ("case", "expected"),
    [("too large", "GiB of addresses"), ("too long", "not replayed: a loop of 524288 trips")],
)
def test_what_cannot_be_replayed_is_said(shown: dict[str, str], case: str, expected: str) -> None:
    assert shown[case].startswith("not replayed: ")
    assert expected in shown[case]


# -- one launch


@pytest.fixture(scope="module")
def interpreter() -> Interpreter:
    with Interpreter() as found:
        yield found


def written(slots: dict[int, int], num_blocks: int = 8, tokens: int = 2, checked: bool = True) -> ConcreteLaunch:
    """A launch of ``reshape_and_cache`` through a slot mapping."""
    build = next(one for one in builds() if (one.name, one.configuration) == ("reshape_and_cache", "bf16-d128-b16-g4"))
    strides = {"stride_kt": SLOT, "stride_kh": DIM, "stride_vt": SLOT, "stride_vh": DIM}
    strides |= {"stride_block": BLOCK_SIZE * SLOT, "stride_slot": SLOT, "stride_head": DIM}
    new = ConcreteTensor((tokens, HEADS, DIM), (SLOT, DIM, 1))
    cache = ConcreteTensor((num_blocks, BLOCK_SIZE, HEADS, DIM), (BLOCK_SIZE * SLOT, SLOT, DIM, 1))
    tensors = {"key": new, "value": new, "keys": cache, "values": cache}
    tensors["slot_mapping"] = ConcreteTensor((tokens,), (1,), slots, fill=-1)
    scalars = {"num_tokens": tokens, **strides}
    return ConcreteLaunch(
        build.kernel, build.signature, build.constexprs, scalars, tensors, (1, HEADS), checked=checked
    )


def stores(run: Interpreted, program: Program) -> dict[tuple[int, ...], int]:
    """Offset in the keys by lane."""
    return {
        lane: offset
        for where, how, tensor, lane, offset, _ in run.lanes()
        if (where, how, tensor) == (program, "store", "keys")
    }


def test_every_active_lane_is_written_down(interpreter: Interpreter) -> None:
    run = interpreter.run(written({0: 5}))
    assert run.bug is None
    assert stores(run, (0, 1, 0)) == {(0, d): 5 * SLOT + DIM + d for d in range(DIM)}


def test_the_place_is_that_of_the_access(interpreter: Interpreter) -> None:
    run = interpreter.run(written({0: 5}))
    places = [one.place.partition(":")[0] for one in run.accesses]
    assert set(places) == {"write.py"}
    assert [one.tensor for one in run.accesses[:5]] == ["slot_mapping", "key", "value", "keys", "values"]


def test_one_program_of_a_launch_is_run_alone(interpreter: Interpreter) -> None:
    run = interpreter.run(written({0: 5}), ((0, 1, 0),))
    assert {one.program for one in run.accesses} == {(0, 1, 0)}


def test_a_pool_that_no_machine_holds_is_imagined(interpreter: Interpreter) -> None:
    blocks = 10**7
    run = interpreter.run(written({0: blocks * BLOCK_SIZE - 1}, blocks), ((0, 1, 0),))
    assert run.bug is None
    assert max(stores(run, (0, 1, 0)).values()) == blocks * BLOCK_SIZE * SLOT - 1


def test_an_access_out_of_bounds_is_reported(interpreter: Interpreter) -> None:
    run = interpreter.run(written({0: 8 * BLOCK_SIZE}))
    assert run.bug is not None
    assert (run.bug.kind, run.bug.lane) == ("out-of-bounds", (0, 0))


def test_an_access_out_of_bounds_is_written_down_where_bounds_are_not_looked_at(interpreter: Interpreter) -> None:
    run = interpreter.run(written({0: 8 * BLOCK_SIZE}, checked=False))
    assert run.bug is None
    assert stores(run, (0, 0, 0))[0, 0] == 8 * BLOCK_SIZE * SLOT


def test_a_race_is_reported(interpreter: Interpreter) -> None:
    run = interpreter.run(written({0: 5, 1: 5}))
    assert run.bug is not None
    assert run.bug.kind == "race"


def test_overflow_is_reported_in_the_width_of_the_argument(interpreter: Interpreter) -> None:
    launch = written({0: 2**62 // SLOT * 4})
    run = interpreter.run(launch)
    assert run.bug is not None
    assert run.bug.kind == "overflow"
    assert "int64" in run.bug.message


def test_a_launch_of_more_than_all_addresses_is_refused(interpreter: Interpreter) -> None:
    with pytest.raises(TooLarge, match="keys spans 8388608 GiB"):
        interpreter.run(written({0: 5}, 2**40))


def test_a_kernel_that_is_not_there_is_an_error_of_the_harness(interpreter: Interpreter) -> None:
    launch = written({0: 5})
    missing = ConcreteLaunch("kvsan.nowhere:kernel", launch.signature, launch.constexprs, {}, launch.tensors, (1,))
    with pytest.raises(HarnessError, match="nowhere"):
        interpreter.run(missing)


@pytest.mark.parametrize(("offset", "expected"), [(0, (0, 0)), (13, (1, 3)), (7, None), (50, None), (-1, None)])
def test_an_offset_has_an_index_or_none(offset: int, expected: tuple[int, ...] | None) -> None:
    assert index_of(Tensor((3, 5), (10, 1)), offset) == expected
