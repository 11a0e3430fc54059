"""What the proofs say an operation does, against what it does to ints."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import z3
from small_kernels import FLAGS, INDEX, NUMBERS, OUT, POINTER_OF_FLOAT, A, B, run, store, store_block, store_if, value

from kvsan.invariants.proofs.kernels.ir import Rejected
from kvsan.invariants.proofs.kernels.semantics import _RULES


def truncated(a: int, b: int) -> int:
    """C's division."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


WHOLE_NUMBERS = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.divsi": truncated,
    "arith.remsi": lambda a, b: int(np.fmod(a, b)),
    "arith.minsi": min,
    "arith.maxsi": max,
}


@pytest.mark.parametrize("name", WHOLE_NUMBERS)
def test_an_operation_on_integers_is_that_of_c(name: str) -> None:
    flags = FLAGS if name in ("arith.addi", "arith.subi", "arith.muli") else ""
    found = run(f'%r = "{name}"({A}, {B}){flags} : (i32, i32) -> i32\n{store("%r")}').accesses[0].offset
    for a, b in itertools.product(NUMBERS, NUMBERS):
        if b or name not in ("arith.divsi", "arith.remsi"):
            assert value(found, {"a": a, "b": b}) == WHOLE_NUMBERS[name](a, b), (name, a, b)


COMPARISONS = {
    0: lambda a, b: a == b, 1: lambda a, b: a != b, 2: lambda a, b: a < b, 3: lambda a, b: a <= b, 4: lambda a, b: a > b,
    5: lambda a, b: a >= b, 6: lambda a, b: a < b, 7: lambda a, b: a <= b, 8: lambda a, b: a > b, 9: lambda a, b: a >= b,
}  # fmt: skip


@pytest.mark.parametrize("predicate", COMPARISONS)
def test_a_comparison_is_that_of_its_predicate(predicate: int) -> None:
    found = run(f'%r = "arith.cmpi"({A}, {B}) <{{predicate = {predicate} : i64}}> : (i32, i32) -> i1\n{store_if("%r")}')
    for a, b in itertools.product(NUMBERS, NUMBERS):
        if predicate < 6 or (a >= 0 and b >= 0):
            assert value(found.accesses[0].active, {"a": a, "b": b}) == COMPARISONS[predicate](a, b)
    demanded = [one.what for one in found.demands]
    assert demanded == (["unsigned comparison: an operand that may be negative"] * 2 if predicate > 5 else [])


LOGIC = {"arith.andi": lambda p, q: p and q, "arith.ori": lambda p, q: p or q, "arith.xori": lambda p, q: p != q}


@pytest.mark.parametrize("name", LOGIC)
def test_logic_on_bools(name: str) -> None:
    found = run(f"""
        %p = "arith.cmpi"({A}, {B}) <{{predicate = 2 : i64}}> : (i32, i32) -> i1
        %five = "arith.constant"() <{{value = 5 : i32}}> : () -> i32
        %q = "arith.cmpi"({A}, %five) <{{predicate = 5 : i64}}> : (i32, i32) -> i1
        %r = "{name}"(%p, %q) : (i1, i1) -> i1
        {store_if("%r")}""").accesses[0]
    for a, b in itertools.product(NUMBERS, NUMBERS):
        assert value(found.active, {"a": a, "b": b}) == LOGIC[name](a < b, a >= 5)


@pytest.mark.parametrize("predicate", [0, 1])
def test_bools_are_compared_for_equality_only(predicate: int) -> None:
    body = f"""
        %p = "arith.cmpi"({A}, {B}) <{{predicate = 2 : i64}}> : (i32, i32) -> i1
        %q = "arith.constant"() <{{value = true}}> : () -> i1
        %r = "arith.cmpi"(%p, %q) <{{predicate = PREDICATE : i64}}> : (i1, i1) -> i1
        {store_if("%r")}"""
    found = run(body.replace("PREDICATE", str(predicate))).accesses[0]
    for a, b in itertools.product(NUMBERS, NUMBERS):
        assert value(found.active, {"a": a, "b": b}) == ((a < b) == (predicate == 0))
    with pytest.raises(Rejected, match="comparison 2 is not supported"):
        run(body.replace("PREDICATE", "2"))


def test_a_select_of_integers_and_of_addresses() -> None:
    found = run(f"""
        %p = "arith.cmpi"({A}, {B}) <{{predicate = 2 : i64}}> : (i32, i32) -> i1
        %r = "arith.select"(%p, {A}, {B}) : (i1, i32, i32) -> i32
        {store("%r")}
        %one = "tt.addptr"({OUT}, {A}) : (!tt.ptr<f32>, i32) -> !tt.ptr<f32>
        %other = "tt.addptr"({OUT}, {B}) : (!tt.ptr<f32>, i32) -> !tt.ptr<f32>
        %both = "arith.select"(%p, %other, %one) : (i1, !tt.ptr<f32>, !tt.ptr<f32>) -> !tt.ptr<f32>
        "tt.store"(%both, %zero) : (!tt.ptr<f32>, f32) -> ()""").accesses
    for a, b in itertools.product(NUMBERS, NUMBERS):
        assert value(found[0].offset, {"a": a, "b": b}) == min(a, b)
        assert value(found[1].offset, {"a": a, "b": b}) == max(a, b)


def test_widths_and_what_they_demand() -> None:
    found = run(f"""
        %wide = "arith.extsi"({A}) : (i32) -> i64
        %big = "arith.muli"(%wide, %wide){FLAGS} : (i64, i64) -> i64
        %narrow = "arith.trunci"(%big){FLAGS} : (i64) -> i32
        %unsigned = "arith.extui"({B}) : (i32) -> i64
        %sum = "arith.addi"(%unsigned, %big){FLAGS} : (i64, i64) -> i64
        {store("%sum", 64)}""")
    by_name = {one.what: one.holds for one in found.demands}
    assert value(found.accesses[0].offset, {"a": 1 << 20, "b": 3}) == (1 << 40) + 3
    fits = by_name["overflow of int32: a number made narrower"]
    assert [value(fits, {"a": a}) for a in (46_340, 46_341)] == [True, False]
    assert value(by_name["overflow of int64: the result of muli"], {"a": 1 << 31}) is True
    assert value(by_name["overflow of int64: the result of muli"], {"a": 1 << 32}) is False
    assert [value(by_name["unsigned extension: a number that may be negative"], {"b": b}) for b in (0, -1)] == [
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("name", "a", "b", "fits"),
    [
        ("arith.addi", 2**31 - 1, 0, True), ("arith.addi", 2**31 - 1, 1, False), ("arith.subi", -(2**31), 1, False),
        ("arith.muli", 2**16, 2**15 - 1, True), ("arith.muli", 2**16, 2**15, False), ("arith.muli", -(2**16), 2**15, True),
    ],
)  # fmt: skip
def test_int32_that_overflows_is_a_demand_that_fails(name: str, a: int, b: int, fits: bool) -> None:
    (demand,) = run(f'%r = "{name}"({A}, {B}){FLAGS} : (i32, i32) -> i32\n{store("%r")}').demands
    assert value(demand.holds, {"a": a, "b": b}) is fits


def test_division_demands_a_divisor_that_is_not_zero_and_a_quotient_that_fits() -> None:
    by_name = {
        one.what: one.holds for one in run(f'%r = "arith.divsi"({A}, {B}) : (i32, i32) -> i32\n{store("%r")}').demands
    }
    assert value(by_name["division by zero"], {"b": 0}) is False
    assert value(by_name["overflow of int32: the result of divsi"], {"a": -(2**31), "b": -1}) is False
    assert value(by_name["overflow of int32: the result of divsi"], {"a": -(2**31), "b": 1}) is True


@pytest.mark.parametrize(("name", "true"), [("arith.extui", 1), ("arith.extsi", -1)])
def test_a_bool_made_an_integer(name: str, true: int) -> None:
    found = run(f"""
        %p = "arith.cmpi"({A}, {B}) <{{predicate = 2 : i64}}> : (i32, i32) -> i1
        %r = "{name}"(%p) : (i1) -> i32
        {store("%r")}""").accesses[0]
    assert [value(found.offset, {"a": a, "b": 0}) for a in (-1, 1)] == [true, 0]


def test_blocks_lane_by_lane() -> None:
    """Ranges, splats, new dimensions, broadcasts and transposed blocks, against numpy."""
    found = run(f"""
        %rows = "tt.make_range"() <{{end = 7 : i32, start = 3 : i32}}> : () -> tensor<4xi32>
        %columns = "tt.make_range"() <{{end = 8 : i32, start = 0 : i32}}> : () -> tensor<8xi32>
        %column = "tt.expand_dims"(%rows) <{{axis = 1 : i32}}> : (tensor<4xi32>) -> tensor<4x1xi32>
        %row = "tt.expand_dims"(%columns) <{{axis = 0 : i32}}> : (tensor<8xi32>) -> tensor<1x8xi32>
        %many = "tt.splat"({A}) : (i32) -> tensor<4x1xi32>
        %scaled = "arith.muli"(%column, %many){FLAGS} : (tensor<4x1xi32>, tensor<4x1xi32>) -> tensor<4x1xi32>
        %left = "tt.broadcast"(%scaled) : (tensor<4x1xi32>) -> tensor<4x8xi32>
        %right = "tt.broadcast"(%row) : (tensor<1x8xi32>) -> tensor<4x8xi32>
        %sum = "arith.addi"(%left, %right){FLAGS} : (tensor<4x8xi32>, tensor<4x8xi32>) -> tensor<4x8xi32>
        %turned = "tt.trans"(%sum) <{{order = array<i32: 1, 0>}}> : (tensor<4x8xi32>) -> tensor<8x4xi32>
        {store_block("%turned", "8x4")}""").accesses[0]
    expected = (np.arange(3, 7)[:, None] * 100 + np.arange(8)[None, :]).T
    got = [[value(found.offset, {"a": 100, "lane0": i, "lane1": j}) for j in range(4)] for i in range(8)]
    assert got == expected.tolist()


def test_a_block_of_three_dimensions_transposed() -> None:
    found = run(f"""
        %range = "tt.make_range"() <{{end = 2 : i32, start = 0 : i32}}> : () -> tensor<2xi32>
        %two = "tt.expand_dims"(%range) <{{axis = 1 : i32}}> : (tensor<2xi32>) -> tensor<2x1xi32>
        %three = "tt.expand_dims"(%two) <{{axis = 2 : i32}}> : (tensor<2x1xi32>) -> tensor<2x1x1xi32>
        %turned = "tt.trans"(%three) <{{order = array<i32: 1, 2, 0>}}> : (tensor<2x1x1xi32>) -> tensor<1x1x2xi32>
        {store_block("%turned", "1x1x2")}""").accesses[0]
    expected = np.arange(2).reshape(2, 1, 1).transpose(1, 2, 0)
    assert [
        value(found.offset, {"lane0": 0, "lane1": 0, "lane2": one}) for one in range(2)
    ] == expected.ravel().tolist()


def test_a_constant_block_and_one_lane_of_it() -> None:
    found = run(f"""
        %nines = "arith.constant"() <{{value = dense<9> : tensor<1xi32>}}> : () -> tensor<1xi32>
        %nine = "tt.unsplat"(%nines) : (tensor<1xi32>) -> i32
        {store("%nine")}""").accesses[0]
    assert value(found.offset, {}) == 9


def test_what_an_index_tensor_holds_and_what_masked_lanes_get() -> None:
    found = run(f"""
        %p = "arith.cmpi"({A}, {B}) <{{predicate = 2 : i64}}> : (i32, i32) -> i1
        %where = "tt.addptr"({INDEX}, {A}) : (!tt.ptr<i32>, i32) -> !tt.ptr<i32>
        %other = "arith.constant"() <{{value = -1 : i32}}> : () -> i32
        %held = "tt.load"(%where, %p, %other) <{{operandSegmentSizes = array<i32: 1, 1, 1>}}> : (!tt.ptr<i32>, i1, i32) -> i32
        {store("%held")}""").accesses
    held = z3.substitute_funs(
        found[1].offset, (z3.Function("index", z3.IntSort(), z3.IntSort()), z3.Var(0, z3.IntSort()) * 10)
    )
    assert [value(held, {"a": a, "b": 5}) for a in (4, 5)] == [40, -1]


def test_a_masked_lane_without_another_value_is_anything() -> None:
    found = run(f"""
        %p = "arith.cmpi"({A}, {B}) <{{predicate = 2 : i64}}> : (i32, i32) -> i1
        %held = "tt.load"({INDEX}, %p) <{{operandSegmentSizes = array<i32: 1, 1, 0>}}> : (!tt.ptr<i32>, i1) -> i32
        {store("%held")}""").accesses[1]
    assert "undefined" in found.offset.sexpr()


def test_every_rule_is_tested_here() -> None:
    text = Path(__file__).read_text("utf-8")
    assert [name for name in _RULES if f'"{name}"' not in text] == []


@pytest.mark.parametrize("name", ["arith.shli", "arith.shrui", "arith.shrsi", "arith.andi", "arith.ori", "arith.xori"])
def test_bits_of_codes_are_data_and_bits_of_addresses_are_refused(name: str) -> None:
    run(POINTER_OF_FLOAT + f'%r = "{name}"(%code, %code) : (i32, i32) -> i32')
    with pytest.raises(Rejected, match=f"{name} of integers"):
        run(f'%r = "{name}"({A}, {B}) : (i32, i32) -> i32\n{store("%r")}')


def test_a_layout_is_not_seen() -> None:
    found = run(f'%r = "ttg.convert_layout"({A}) : (i32) -> i32\n{store("%r")}').accesses[0]
    assert value(found.offset, {"a": 4}) == 4
