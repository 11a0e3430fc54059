from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import interpreted_kernels as kernels
import numpy as np
import pytest
import torch
import triton
import triton.runtime.interpreter as triton_interpreter

from kvsan.gpu_kernels import interpreter
from kvsan.gpu_kernels.interface import KernelBug
from kvsan.gpu_kernels.interpreter.views import View

pytestmark = pytest.mark.skipif(not interpreter.enabled(), reason="kernels of this process are compiled")

BFLOAT16 = torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
FP8 = [torch.float8_e4m3fn, torch.float8_e5m2]
VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])
if VERSION >= (3, 8):  # before, it refused to convert these
    FP8 += [torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
SMALL = [torch.bfloat16, *FP8]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64]


def name_of(value: object) -> str | None:
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else None


def codes(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype)


def floats(seed: int, count: int = 65536) -> torch.Tensor:
    """Half of them any bit pattern, half of them in the range of all formats."""
    generator = torch.Generator().manual_seed(seed)
    anything = torch.randint(-(2**31), 2**31, (count // 2,), generator=generator).to(torch.int32).view(torch.float32)
    sizes = torch.exp2(torch.rand(count - count // 2, generator=generator) * 40 - 24)
    return torch.cat([anything, sizes * torch.randn(len(sizes), generator=generator).sign()])


def rounded(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Torch's own cast, made to saturate for FP8."""
    if dtype in FP8:
        limit = torch.finfo(dtype).max
        values = torch.where(values.isnan(), values, values.clamp(-limit, limit))
    return values.to(dtype)


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal bit for bit, except that any NaN equals any other."""
    assert found.dtype == expected.dtype
    differ = found.double() != expected.double()
    differ |= found.double().signbit() != expected.double().signbit()
    differ &= ~(found.double().isnan() & expected.double().isnan())
    assert not differ.any(), (found[differ][:4], expected[differ][:4])


def launch(kernel: Any, dtype: torch.dtype, *inputs: torch.Tensor, **options: Any) -> torch.Tensor:
    """Run one program over all of the inputs, repeated to a power of two, and return what it stores."""
    count = inputs[0].numel()
    lanes = 1 << (count - 1).bit_length()
    if lanes > count:
        inputs = tuple(one[torch.arange(lanes) % count] for one in inputs)
    out = torch.zeros(lanes, dtype=dtype)
    kernel[(1,)](out, *inputs, N=lanes, **options)
    return out[:count]


# Numbers


@pytest.mark.parametrize("dtype", FP8, ids=name_of)
def test_every_fp8_code_is_read_exactly(dtype: torch.dtype) -> None:
    assert_same(launch(kernels.cast, torch.float32, codes(dtype)), codes(dtype).float())


def test_every_bfloat16_is_read_exactly() -> None:
    assert_same(launch(kernels.cast, torch.float32, BFLOAT16), BFLOAT16.float())


@pytest.mark.parametrize("source", [torch.float64, torch.float32, torch.float16], ids=name_of)
@pytest.mark.parametrize("dtype", SMALL, ids=name_of)
def test_casts_round_to_nearest_even_and_saturate_fp8(dtype: torch.dtype, source: torch.dtype) -> None:
    values = floats(1).to(source)
    assert_same(launch(kernels.cast, dtype, values), rounded(values.float(), dtype))


@pytest.mark.parametrize("dtype", SMALL, ids=name_of)
def test_casts_of_ties_and_their_neighbours_are_right(dtype: torch.dtype) -> None:
    exact = BFLOAT16.float() if dtype == torch.bfloat16 else codes(dtype).float()
    exact = exact[exact.isfinite()].unique()
    ties = (exact[1:] + exact[:-1]) / 2
    values = torch.cat([ties, ties.nextafter(torch.tensor(torch.inf)), ties.nextafter(torch.tensor(-torch.inf))])
    assert_same(launch(kernels.cast, dtype, values), rounded(values, dtype))


@pytest.mark.parametrize("dtype", FP8, ids=name_of)
def test_every_bfloat16_is_cast_to_fp8_exactly(dtype: torch.dtype) -> None:
    assert_same(launch(kernels.cast, dtype, BFLOAT16), rounded(BFLOAT16.float(), dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=name_of)
def test_casts_towards_zero_never_grow_and_are_the_nearest_that_does_not(dtype: torch.dtype) -> None:
    values = floats(2)
    values = values[values.isfinite()]
    found = launch(kernels.cast_towards_zero, dtype, values).float()
    assert (found.abs() <= values.abs()).all()
    nearest = values.to(dtype).float()
    smaller = nearest.abs() <= values.abs()
    assert_same(found[smaller], nearest[smaller])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=name_of)
def test_integers_become_bfloat16_by_way_of_float32(dtype: torch.dtype) -> None:
    values = torch.randint(-(2**31), 2**31, (4096,), generator=torch.Generator().manual_seed(3)).to(dtype)
    assert_same(launch(kernels.cast, torch.bfloat16, values), values.float().bfloat16())
    small = BFLOAT16[BFLOAT16.float().abs() < 2**30]
    assert torch.equal(launch(kernels.cast, dtype, small), small.to(dtype))


ARITHMETIC = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "neg": lambda a, b: -a,
    "abs": lambda a, b: a.abs(),
    "min": lambda a, b: torch.where((a < b) | b.isnan(), a, b),
    "max": lambda a, b: torch.where((a > b) | b.isnan(), a, b),
    "where": lambda a, b: torch.where(a < b, a, b),
    "unless": lambda a, b: torch.where(a < b, a, b),
    "fma": lambda a, b: (a.double() * b.double() + b.double()).float(),
    "scaled": lambda a, b: a * 1.5,
    "full": lambda a, b: a + 1.25,
}


@pytest.mark.parametrize("operation", ARITHMETIC)
@pytest.mark.parametrize("dtype", SMALL, ids=name_of)
def test_arithmetic_is_exact(dtype: torch.dtype, operation: str) -> None:
    if dtype == torch.bfloat16:
        a, b = BFLOAT16, BFLOAT16[torch.randperm(65536, generator=torch.Generator().manual_seed(4))]
    else:
        a, b = codes(dtype).repeat_interleave(256), codes(dtype).repeat(256)
    if VERSION < (3, 7) and dtype in FP8 and operation in ("scaled", "full"):
        pytest.skip("this Triton has no FP8 constants")
    found = launch(kernels.arithmetic, dtype, a, b, OPERATION=operation)
    wide = ARITHMETIC[operation](a.float(), b.float())
    expected = (
        wide.to(dtype) if operation in ("abs", "where", "unless") else rounded(wide, dtype)
    )  # those keep infinities
    if operation in ("neg", "min", "max"):  # Triton versions differ in the sign of zero
        found, expected = found.float() + 0.0, expected.float() + 0.0
    assert_same(found, expected)


@pytest.mark.parametrize("dtype", SMALL, ids=name_of)
def test_comparisons_are_exact(dtype: torch.dtype) -> None:
    if dtype == torch.bfloat16:
        a, b = BFLOAT16, BFLOAT16[torch.randperm(65536, generator=torch.Generator().manual_seed(5))]
    else:
        a, b = codes(dtype).repeat_interleave(256), codes(dtype).repeat(256)
    x, y = a.float(), b.float()
    expected = (x < y).int() + 2 * (x <= y).int() + 4 * (x == y).int()
    assert torch.equal(launch(kernels.compare, torch.int32, a, b), expected)


def test_bitcasts_move_bits() -> None:
    patterns = BFLOAT16.view(torch.int16)
    assert torch.equal(launch(kernels.bits, torch.int16, BFLOAT16), patterns)
    assert torch.equal(launch(kernels.bits, torch.bfloat16, patterns).view(torch.int16), patterns)
    for dtype in FP8:
        assert torch.equal(launch(kernels.bits, torch.int8, codes(dtype)), codes(dtype).view(torch.int8))


def matrix(dtype: torch.dtype, seed: int) -> torch.Tensor:
    return (torch.randn(32, 32, generator=torch.Generator().manual_seed(seed)) * 4).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, *SMALL], ids=name_of)
def test_dot_multiplies_numbers(dtype: torch.dtype) -> None:
    a, b = matrix(dtype, 6), matrix(dtype, 7)
    out = torch.zeros(32, 32)
    kernels.dot[(1,)](out, a, b, N=32)
    torch.testing.assert_close(out.double(), a.double() @ b.double(), rtol=0, atol=1e-3)


@pytest.mark.parametrize("operation", ["sum", "max", "min", "argmax"])
@pytest.mark.parametrize("dtype", SMALL, ids=name_of)
def test_reductions_are_of_numbers(dtype: torch.dtype, operation: str) -> None:
    x = matrix(dtype, 8)
    out = torch.zeros(32, dtype=torch.int32 if operation == "argmax" else dtype)
    kernels.reduce_rows[(1,)](out, x, OPERATION=operation, N=32)
    wide = x.float()
    found = {"sum": wide.sum(1), "max": wide.amax(1), "min": wide.amin(1), "argmax": wide.argmax(1)}[operation]
    assert_same(out, found.int() if operation == "argmax" else rounded(found, dtype))


@pytest.mark.parametrize(("operation", "whole"), [("sum", np.cumsum), ("product", np.cumprod)])
@pytest.mark.parametrize("dtype", SMALL, ids=name_of)
def test_running_sums_and_products_are_of_numbers(dtype: torch.dtype, operation: str, whole: Any) -> None:
    x = matrix(dtype, 9).flatten()[:64].contiguous()
    found = launch(kernels.running, dtype, x, OPERATION=operation)
    assert_same(found, rounded(torch.from_numpy(whole(x.float().numpy())), dtype))


def test_division_of_integers_truncates_as_triton_defines_it() -> None:
    out = torch.zeros(2, dtype=torch.int32)
    one = torch.tensor([-7], dtype=torch.int32), torch.tensor([2], dtype=torch.int32)
    kernels.quotient_and_remainder[(1,)](out, *one)
    assert out.tolist() == [-3, -1]


# Reports


def line_of(kernel: Any, text: str) -> int:
    lines, first = inspect.getsourcelines(kernel.fn)
    (found,) = [number for number, line in enumerate(lines, first) if text in line]
    return found


def expect(
    kind: str,
    kernel: Any,
    text: str,
    program: tuple[int, ...],
    lane: tuple[int, ...],
    message: str,
    *args: Any,
    grid: tuple[int, ...] = (1,),
    inside: Any = None,
    **options: Any,
) -> None:
    """Launch a kernel and expect exactly this report, on the line of the kernel (or of a helper) that has the text."""
    with pytest.raises(KernelBug) as caught:
        kernel[grid](*args, **options)
    bug = caught.value
    place = bug.kind, bug.kernel, bug.file, bug.line
    assert place == (kind, kernel.fn.__name__, "interpreted_kernels.py", line_of(inside or kernel, text))
    assert (bug.program, bug.lane, bug.message) == (program, lane, message)


def integers(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)


@pytest.mark.parametrize(
    ("shift", "lane", "message"),
    [
        (3, (5,), "load 1 element past the end of argument x [8]"),
        (20, (0,), "load 13 elements past the end of argument x [8]"),
        (-2, (0,), "load 2 elements before the start of argument x [8]"),
        (-(2**33), (0,), "load 8589934592 elements before the start of argument x [8]"),
    ],
)
def test_a_load_outside_its_tensor_is_reported(shift: int, lane: tuple[int, ...], message: str) -> None:
    x, out = integers(8), integers(8)
    expect("out-of-bounds", kernels.load_shifted, "tl.load", (0, 0, 0), lane, message, out, x, shift, N=8)
    assert out.tolist() == list(range(8))
    kernels.load_shifted[(1,)](out, x, 0, N=8)


def test_a_store_outside_its_tensor_is_reported_with_its_program() -> None:
    x, out = integers(3, 4), torch.zeros(2, 4, dtype=torch.int32)
    message = "store 1 element past the end of argument out [2, 4]"
    expect("out-of-bounds", kernels.copy_rows, "tl.store", (2, 0, 0), (0,), message, out, x, 4, 4, 4, grid=(3,), N=4)
    kernels.copy_rows[(2,)](out, x, 4, 4, 4, N=4)
    assert torch.equal(out, x[:2])


def test_lanes_that_the_mask_excludes_touch_nothing() -> None:
    x, out = integers(3, 4), torch.zeros(3, 4, dtype=torch.int32)
    kernels.copy_rows[(3,)](out, x, 4, 4, 4, N=16)
    assert torch.equal(out, x)


def test_a_scalar_access_has_no_lane() -> None:
    message = "load 1 element past the end of argument x [8]"
    expect("out-of-bounds", kernels.load_scalar, "tl.load", (0, 0, 0), (), message, integers(1), integers(8), 8)
    kernels.load_scalar[(1,)](integers(1), integers(8), 7)


def test_a_view_of_a_larger_tensor_ends_where_the_view_ends() -> None:
    message = "load 1 element past the end of argument x [8]"
    expect(
        "out-of-bounds",
        kernels.load_shifted,
        "tl.load",
        (0, 0, 0),
        (7,),
        message,
        integers(8),
        integers(64)[:8],
        1,
        N=8,
    )


def test_a_gap_of_a_strided_view_is_out_of_bounds() -> None:
    page, out = integers(4, 8), torch.zeros(4, 4, dtype=torch.int32)
    message = "load in a gap between elements of argument x [4, 3] with strides [8, 1]"
    arguments = (out, page[:, :3], 4, 8)
    expect("out-of-bounds", kernels.copy_rows, "tl.load", (0, 0, 0), (3,), message, *arguments, 4, grid=(4,), N=4)
    kernels.copy_rows[(4,)](*arguments, 3, N=4)
    assert torch.equal(out[:, :3], page[:, :3])


def test_an_address_in_another_argument_is_out_of_bounds() -> None:
    pool, out = integers(32), integers(8)
    message = "store 1 element past the end of argument out [8], in argument x [8]"
    with pytest.raises(KernelBug) as caught:
        kernels.copy_rows[(2,)](pool[:8], pool[8:16], 8, 0, 8, N=8)
    assert (caught.value.kind, caught.value.program, caught.value.message) == ("out-of-bounds", (1, 0, 0), message)
    message = "load 3 elements before the start of argument x [8], in argument out [8]"
    expect("out-of-bounds", kernels.load_shifted, "tl.load", (0, 0, 0), (0,), message, pool[:8], pool[8:16], -3, N=8)
    kernels.copy_rows[(2,)](out, pool, 4, 4, 4, N=4)


def test_a_pointer_keeps_its_tensor_through_shapes_and_selects() -> None:
    out, pool = torch.zeros(16, dtype=torch.int32), integers(64)
    message = "load 1 element past the end of argument x [16], in argument out [16]"
    expect("out-of-bounds", kernels.load_shaped, "tl.load", (0, 0, 0), (15,), message, pool[16:32], pool[:16], 1, N=4)
    kernels.load_shaped[(1,)](out, pool[:16], 0, N=4)
    assert torch.equal(out, pool[:16].reshape(4, 4).T.flatten())
    kernels.load_either[(1,)](out, pool[:16], pool[16:32], N=16)
    assert out.tolist() == [lane + 16 * (lane % 2) for lane in range(16)]
    message = "load 1 element past the end of argument a [4], in argument b [8]"
    expect("out-of-bounds", kernels.load_either, "tl.load", (0, 0, 0), (4,), message, out, pool[:4], pool[4:12], N=8)


@pytest.mark.parametrize(("of_a", "of_b", "lane"), [(2, 4, 2), (6, 2, 3)])
def test_of_several_lanes_out_of_bounds_the_first_is_reported(of_a: int, of_b: int, lane: int) -> None:
    with pytest.raises(KernelBug) as caught:
        kernels.load_either[(1,)](integers(8), integers(of_a), integers(of_b), N=8)
    assert caught.value.lane == (lane,)


def test_an_address_made_of_an_integer_may_be_in_any_argument() -> None:
    x, stranger = integers(4), integers(4)
    kernels.load_address[(1,)](x, x.data_ptr() + 12)
    assert x[0] == 3
    message = "load in no tensor argument"
    expect("out-of-bounds", kernels.load_address, "tl.load", (0, 0, 0), (), message, x, stranger.data_ptr())


def test_a_pointer_of_another_width_is_checked_by_bytes() -> None:
    out, x = torch.zeros(16, dtype=torch.int16), integers(4)
    kernels.load_halves[(1,)](out[:8], x, N=8)
    assert torch.equal(out[:8], x.view(torch.int16))
    message = "load 1 element past the end of argument x [4]"
    expect("out-of-bounds", kernels.load_halves, "tl.load", (0, 0, 0), (8,), message, out, x, N=16)
    kernels.store_bytes[(4,)](x, SHIFT=1)
    assert x[0] == 0x01010101
    message = "store of element [0] of argument out [4], where program (0, 0, 0) stores"
    expect("race", kernels.store_bytes, "tl.store", (1, 0, 0), (), message, x, SHIFT=0, grid=(2,))


def test_an_access_that_only_ends_outside_is_told_by_its_first_byte_outside() -> None:
    out = torch.zeros(4, dtype=torch.int64)
    kernels.load_pairs[(1,)](out, integers(8), N=4)
    assert torch.equal(out, integers(8).view(torch.int64))
    message = "load 1 element past the end of argument x [7]"
    expect("out-of-bounds", kernels.load_pairs, "tl.load", (0, 0, 0), (3,), message, out, integers(7), N=4)
    message = "load in a gap between elements of argument x [4] with strides [2]"
    expect("out-of-bounds", kernels.load_pairs, "tl.load", (0, 0, 0), (0,), message, out, integers(8)[::2], N=4)


def test_a_descriptor_larger_than_its_tensor_is_out_of_bounds() -> None:
    x, out = torch.arange(64.0).reshape(4, 16), torch.ones(4, 16)
    kernels.load_described[(1,)](out, x[:3], 3)
    assert torch.equal(out[:3], x[:3])
    assert torch.equal(out[3], torch.zeros(16))
    message = "load 1 element past the end of argument x [3, 16]"
    expect("out-of-bounds", kernels.load_described, "block.load", (0, 0, 0), (3, 0), message, out, x[:3], 4)


def test_what_overflows_in_tritons_own_library_is_reported_where_it_is_called() -> None:
    x, out = torch.tensor([2**31 - 17], dtype=torch.int32), integers(1)
    kernels.count_blocks[(1,)](out, x)
    x += 16
    with pytest.raises(KernelBug, match=r"2147483647 \+ 1[56] does not fit int32") as caught:
        kernels.count_blocks[(1,)](out, x)
    assert caught.value.line == line_of(kernels.count_blocks, "tl.cdiv")


def test_an_empty_tensor_has_no_address() -> None:
    with pytest.raises(KernelBug, match=r"load 1 element past the end of argument x \[0\]"):
        kernels.load_scalar[(1,)](integers(1), integers(0), 0)


def test_a_helper_is_reported_by_its_own_line_under_the_name_of_its_kernel() -> None:
    message = "load 2 elements past the end of argument x [8]"
    arguments = integers(1), integers(8), 9
    expect(
        "out-of-bounds",
        kernels.load_in_helper,
        "return tl.load",
        (0, 0, 0),
        (),
        message,
        *arguments,
        inside=kernels.element,
    )
    kernels.load_in_helper[(1,)](integers(1), integers(8), 7)


def test_atomics_are_checked() -> None:
    out = torch.zeros(8, dtype=torch.int32)
    message = "atomic 1 element past the end of argument out [8]"
    expect("out-of-bounds", kernels.add_atomically, "atomic_add", (0, 0, 0), (6,), message, out, 5, N=8)
    expect("out-of-bounds", kernels.swap_atomically, "atomic_cas", (0, 0, 0), (), message, out, 8)
    kernels.add_atomically[(3,)](out, 0, N=8)
    kernels.swap_atomically[(3,)](out, 7)
    assert out.tolist() == [6, 6, 6, 6, 0, 0, 0, 7]


def test_views_know_their_addresses() -> None:
    """Against the set of offsets of every element, for dense, gapped, expanded, overlapping and interleaved views."""
    pool = torch.arange(4096, dtype=torch.int16)
    views = [
        pool[5:5],
        pool[:1].reshape(()),
        pool[100:200],
        pool[:60].reshape(3, 4, 5),
        pool[:60].reshape(3, 4, 5).permute(2, 0, 1),
        pool[:240].reshape(4, 6, 10)[1:3, ::2, 3:7],
        pool[:60].reshape(3, 4, 5)[:, :, :1].expand(3, 4, 7),
        pool[:30].unfold(0, 6, 2),
        pool[:30].unfold(0, 3, 5),
        torch.as_strided(pool, (2, 2), (3, 2), 7),
        torch.as_strided(pool, (3, 2, 4), (30, 7, 2), 9),
    ]
    for tensor in views:
        view = View("x", tensor)
        members = {int(value) - tensor.storage_offset() for value in tensor.flatten()}
        offsets = np.arange(-8, 600)
        expected = [offset % 2 == 0 and offset // 2 in members for offset in offsets.tolist()]
        aligned = offsets % 2 == 0
        assert view.contains(offsets, 2)[aligned].tolist() == np.array(expected)[aligned].tolist(), tensor.stride()
        both = [offset // 2 in members and offset // 2 + 1 in members for offset in offsets[aligned].tolist()]
        assert view.contains(offsets[aligned], 4).tolist() == both, tensor.stride()
        single = [offset // 2 in members for offset in offsets.tolist()]
        assert view.contains(offsets, 1).tolist() == single, tensor.stride()


def test_two_programs_that_store_to_one_address_race() -> None:
    out = torch.zeros(3, 4, dtype=torch.int32)
    message = "store of element [0, 3] of argument out [3, 4], where program (0, 3, 0) stores"
    expect("race", kernels.store_program, "tl.store", (1, 0, 0), (), message, out, 3, grid=(3, 4))
    kernels.store_program[(3, 4)](out, 4)
    assert torch.equal(out, torch.arange(3, dtype=torch.int32)[:, None].expand(3, 4))


def test_two_lanes_that_store_to_one_address_race() -> None:
    out = torch.zeros(8, dtype=torch.int32)
    message = "store of element [0] of argument out [8], as lane (1,) of the same store does"
    expect("race", kernels.store_lanes, "tl.store", (0, 0, 0), (0,), message, out, DIVISOR=2, N=8)
    kernels.store_lanes[(1,)](out, DIVISOR=1, N=8)
    assert out.tolist() == list(range(8))


def test_a_load_of_what_another_program_stores_is_a_race_in_either_order() -> None:
    message = "store of element [1] of argument x [8], where program (0, 0, 0) loads"
    expect("race", kernels.shift_in_place, "tl.store", (1, 0, 0), (), message, integers(8), 1, grid=(4,))
    message = "load of element [0] of argument x [7], where program (0, 0, 0) stores"
    x = torch.zeros(8, dtype=torch.int32)[1:]
    with pytest.raises(KernelBug, match="out-of-bounds"):
        kernels.shift_in_place[(4,)](x, -1)
    expect("race", kernels.follow, "tl.load", (1, 0, 0), (), message, x, grid=(4,))
    kernels.shift_in_place[(4,)](integers(8), 0)


def test_a_store_races_with_all_that_load() -> None:
    message = "store of element [0] of argument x [1], where more than one program loads"
    expect("race", kernels.load_then_last_stores, "tl.store", (2, 0, 0), (), message, integers(1), grid=(3,))
    kernels.load_then_last_stores[(1,)](integers(1))


def test_what_was_stored_in_one_width_races_in_another() -> None:
    message = "store of element [0] of argument out [2], where program (0, 0, 0) stores"
    expect("race", kernels.store_wide_then_narrow, "int8", (1, 0, 0), (), message, integers(2), grid=(2,))


def test_views_race_though_a_smaller_one_lies_between_them() -> None:
    pool = integers(16)
    message = "store of element [8] of argument out [16], where more than one program loads"
    views = pool, pool[2:4], pool[8:12]
    expect("race", kernels.store_beside, "tl.store", (8, 0, 0), (), message, *views, grid=(16,))
    kernels.store_beside[(8,)](*views)


def test_views_of_one_storage_race_with_each_other() -> None:
    pool = integers(16)
    out, x = pool[3:11].reshape(2, 4), pool[:8].reshape(2, 4)
    with pytest.raises(KernelBug) as caught:
        kernels.copy_rows[(2,)](out, x, 4, 4, 4, N=4)
    assert (caught.value.kind, caught.value.line) == ("race", line_of(kernels.copy_rows, "block = tl.load"))
    assert caught.value.message == "load of element [1, 0] of argument x [2, 4], where program (0, 0, 0) stores"
    kernels.copy_rows[(2,)](pool[8:].reshape(2, 4), x, 4, 4, 4, N=4)


def test_atomics_race_with_stores_of_other_programs_only() -> None:
    kernels.store_then_update[(4,)](torch.zeros(8, dtype=torch.int32), 0)
    message = "store of element [1] of argument out [8], where program (0, 0, 0) does an atomic"
    out = torch.zeros(8, dtype=torch.int32)
    expect("race", kernels.store_then_update, "tl.store", (1, 0, 0), (), message, out, 1, grid=(4,))


def test_atomics_race_with_loads_of_other_programs_only() -> None:
    kernels.load_then_update[(4,)](integers(8), 0)
    message = "load of element [1] of argument x [8], where program (0, 0, 0) does an atomic"
    expect("race", kernels.load_then_update, "tl.load", (1, 0, 0), (), message, integers(8), 1, grid=(4,))


def test_launches_do_not_race_with_each_other() -> None:
    out = torch.zeros(1, 4, dtype=torch.int32)
    for _ in range(2):
        kernels.store_program[(1, 4)](out, 4)
    assert out.tolist() == [[0, 0, 0, 0]]


def limits(dtype: torch.dtype) -> tuple[int, int]:
    return torch.iinfo(dtype).min, torch.iinfo(dtype).max


OVERFLOWS = {
    "add": ("x + y", lambda low, high: (high, 1), "{} + {}"),
    "sub": ("x - y", lambda low, high: (low, 1), "{} - {}"),
    "mul": ("x * y", lambda low, high: (high // 2, 3), "{} * {}"),
    "neg": ("-x", lambda low, high: (low, 1), "0 - {}"),
    "abs": ("tl.abs(x)", lambda low, high: (low, 1), "absolute({})"),
    "div": ("x // y", lambda low, high: (low, -1), "{} // -1"),
    "shl": ("x << y", lambda low, high: (1, high.bit_length() + 1), "{} << {}"),
    "shr": ("x >> y", lambda low, high: (1, -1), "{} >> {}"),
}


@pytest.mark.parametrize("operation", OVERFLOWS)
@pytest.mark.parametrize("dtype", INTEGERS, ids=name_of)
def test_overflow_is_reported_in_every_width(dtype: torch.dtype, operation: str) -> None:
    text, operands, told = OVERFLOWS[operation]
    x, y, out = torch.ones(8, dtype=dtype), torch.ones(8, dtype=dtype), torch.zeros(8, dtype=dtype)
    kernels.integers[(1,)](out, x, y, OPERATION=operation, N=8)
    x[5], y[5] = a, b = operands(*limits(dtype))
    message = f"{told.format(a, b)} does not fit {name_of(dtype)}"
    expect("overflow", kernels.integers, text, (0, 0, 0), (5,), message, out, x, y, OPERATION=operation, N=8)


@pytest.mark.parametrize("dtype", INTEGERS, ids=name_of)
def test_products_at_the_border_are_told_apart(dtype: torch.dtype) -> None:
    low, high = limits(dtype)
    root = int(np.sqrt(float(high)))
    numbers = [low, low + 1, -root, -2, -1, 0, 1, 2, 3, root, root + 1, high // 2, high // 2 + 1, high - 1, high]
    for a in numbers:
        for b in numbers:
            x, y = torch.tensor([a], dtype=dtype), torch.tensor([b], dtype=dtype)
            try:
                found = int(launch(kernels.integers, dtype, x, y, OPERATION="mul"))
            except KernelBug:
                assert not low <= a * b <= high, (a, b)
            else:
                assert found == a * b


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64], ids=name_of)
def test_unsigned_integers_wrap(dtype: torch.dtype) -> None:
    x, y = torch.full((8,), torch.iinfo(dtype).max, dtype=dtype), torch.full((8,), 2, dtype=dtype)
    assert launch(kernels.integers, dtype, x, y, OPERATION="add").tolist() == [1] * 8
    assert launch(kernels.integers, dtype, x, y, OPERATION="mul").tolist() == [torch.iinfo(dtype).max - 1] * 8


def test_a_cast_to_int32_that_loses_value_is_an_overflow() -> None:
    x = torch.tensor([2**31 - 1, -(2**31)])
    assert torch.equal(launch(kernels.integers, torch.int64, x, x, OPERATION="int32"), x)
    message = "2147483648 does not fit int32, to which it is cast"
    x[1] = 2**31
    out = torch.zeros(2, dtype=torch.int64)
    expect("overflow", kernels.integers, "to(tl.int32)", (0, 0, 0), (1,), message, out, x, x, OPERATION="int32", N=2)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=name_of)
def test_sums_that_do_not_fit_are_overflows(dtype: torch.dtype) -> None:
    half = torch.full((2,), torch.iinfo(dtype).max // 2, dtype=dtype)
    launch(kernels.integers, dtype, half, half, OPERATION="sum")
    assert launch(kernels.integers, dtype, half, half, OPERATION="cumsum").tolist() == half.cumsum(0).tolist()
    full = half * 2
    for operation, text, lane in (("sum", "tl.sum", ()), ("cumsum", "tl.cumsum", (1,))):
        with pytest.raises(KernelBug) as caught:
            launch(kernels.integers, dtype, full, full, OPERATION=operation)
        assert (caught.value.kind, caught.value.lane) == ("overflow", lane)
        assert caught.value.line == line_of(kernels.integers, text)


def test_a_sum_that_overflows_by_its_low_halves_alone_is_noticed() -> None:
    x = torch.full((32,), 2**58 - 1)
    x[0] += 31
    launch(kernels.integers, torch.int64, x, x, OPERATION="sum")
    x[0] += 1
    with pytest.raises(KernelBug, match="a sum does not fit int64"):
        launch(kernels.integers, torch.int64, x, x, OPERATION="sum")


def test_checks_can_be_left_out_while_numbers_stay_exact() -> None:
    out = torch.zeros(8, dtype=torch.int32)
    with interpreter.unchecked():
        kernels.store_lanes[(1,)](out, DIVISOR=2, N=8)
        kernels.load_shifted[(1,)](out, integers(64)[:8], 8, N=8)
        assert out.tolist() == list(range(8, 16))
        assert_same(launch(kernels.cast, torch.float32, BFLOAT16), BFLOAT16.float())
    with pytest.raises(KernelBug):
        kernels.store_lanes[(1,)](out, DIVISOR=2, N=8)


# The process


def run_python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name != interpreter.VARIABLE}
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**clean, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_enabling_comes_too_late_after_triton_was_imported_to_compile() -> None:
    program = """
import os, triton
from kvsan.gpu_kernels import interpreter
try:
    interpreter.enable()
except RuntimeError as error:
    print(error, "TRITON_INTERPRET" in os.environ, interpreter.enabled())
"""
    result = run_python(program)
    assert "Triton was imported before the interpreter was enabled" in result.stdout, result.stderr
    assert result.stdout.endswith("False False\n")


def test_enabling_twice_is_enabling_once() -> None:
    before = triton_interpreter.InterpreterBuilder.binary_op
    interpreter.enable()
    assert triton_interpreter.InterpreterBuilder.binary_op is before


def test_an_unknown_interpreter_is_refused_by_version() -> None:
    program = """
import os
os.environ["TRITON_INTERPRET"] = "1"
import triton.runtime.interpreter as module
module.InterpreterBuilder.cast_impl = lambda self, source: None
del module.ReduceOps.min_max
from kvsan.gpu_kernels import interpreter
try:
    interpreter.enable()
except RuntimeError as error:
    print(error)
"""
    result = run_python(program)
    assert f"triton {triton.__version__}: its interpreter is not one that KVSan can check" in result.stdout, (
        result.stderr
    )
    assert "InterpreterBuilder.cast_impl takes self, source; no ReduceOps.min_max" in result.stdout


def test_a_new_way_to_memory_is_noticed() -> None:
    def new() -> None: ...

    native = SimpleNamespace(load=new, store=new, atomic_rmw=new, atomic_cas=new, gather=new)
    assert "_interpreter.gather is new" in interpreter.unknown_internals(SimpleNamespace(_interpreter=native))
    native = SimpleNamespace(load=new, store=new)
    assert "no _interpreter.atomic_cas" in interpreter.unknown_internals(SimpleNamespace(_interpreter=native))


FAULTS = {
    "casts of float32 to bfloat16 truncate": "numbers: cast_impl for bfloat16",
    "casts to FP8 are wrong": "numbers: create_fp_to_fp",
    "reading FP8 is wrong": "numbers: create_fp_to_fp",
    "arithmetic on bfloat16 is wrong": "numbers: binary_op",
    "comparisons of bfloat16 are wrong": "numbers: binary_op",
    "dot of bfloat16 is wrong": "numbers: create_dot",
    "sums of bfloat16 are wrong": "numbers: reductions",
    "loads out of bounds are silent": "memory: View",
    "races are silent": "memory: Region",
    "overflow of int32 is silent": "overflow: binary_op",
    "overflow of int64 is silent": "overflow: binary_op",
    "casts that lose value are silent": "overflow: cast_impl",
}
"""What the unrepaired interpreter does wrong, and the part of the repair that is there for it."""

UNREPAIRED = """
import json, os
os.environ["TRITON_INTERPRET"] = "1"
import torch
import interpreted_kernels as kernels

def silent(kernel, *args, **options):
    try:
        kernel[(2,)](*args, **options)
    except Exception:
        return False
    return True

def run(kernel, dtype, *inputs, **options):
    out = torch.zeros(inputs[0].numel(), dtype=dtype)
    kernel[(1,)](out, *inputs, N=inputs[0].numel(), **options)
    return out

def integers(value, dtype, operation):
    x = torch.full((2,), value, dtype=dtype)
    return silent(kernels.integers, x[:0].new_zeros(8).expand(8), x, x, OPERATION=operation, N=2)

x = torch.randn(1024, generator=torch.Generator().manual_seed(0)) * 4
y = x.bfloat16()
z = y.flip(0).contiguous()
eight = x.to(torch.float8_e4m3fn)
codes = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(torch.float8_e4m3fn)
square, out = y.reshape(32, 32), torch.zeros(32, 32)
kernels.dot[(1,)](out, square, square, N=32)
sums = torch.zeros(32, dtype=torch.bfloat16)
kernels.reduce_rows[(1,)](sums, square, OPERATION="sum", N=32)
number = torch.zeros(64, dtype=torch.int32)
fault = {
    "casts of float32 to bfloat16 truncate": not torch.equal(run(kernels.cast, torch.bfloat16, x), y),
    "casts to FP8 are wrong": not torch.equal(run(kernels.cast, torch.float8_e4m3fn, x).float(), eight.float()),
    "reading FP8 is wrong": not torch.equal(run(kernels.cast, torch.float32, codes).nan_to_num(), codes.float().nan_to_num()),
    "arithmetic on bfloat16 is wrong": not torch.equal(run(kernels.arithmetic, torch.bfloat16, y, z, OPERATION="add"), y + z),
    "comparisons of bfloat16 are wrong": not torch.equal(run(kernels.compare, torch.int32, y, z) & 1, (y < z).int()),
    "dot of bfloat16 is wrong": not torch.allclose(out, square.float() @ square.float(), rtol=0, atol=1e-2),
    "sums of bfloat16 are wrong": not torch.allclose(sums.float(), square.float().sum(1), rtol=0.1, atol=1),
    "loads out of bounds are silent": silent(kernels.load_shifted, number[:8], number[8:16], 8, N=8),
    "races are silent": silent(kernels.store_lanes, number, DIVISOR=2, N=8),
    "overflow of int32 is silent": integers(2**31 - 1, torch.int32, "add"),
    "overflow of int64 is silent": integers(2**63 - 1, torch.int64, "add"),
    "casts that lose value are silent": integers(2**40, torch.int64, "int32"),
}
print(json.dumps([name for name, there in fault.items() if there]))
"""


def test_the_repair_is_still_needed_for_the_installed_triton() -> None:
    result = run_python(UNREPAIRED)
    assert result.returncode == 0, result.stderr
    there = set(json.loads(result.stdout))
    for fault, part in FAULTS.items():
        assert fault in there, f"Triton no longer does this: {fault}. Drop what repairs it ({part})"
