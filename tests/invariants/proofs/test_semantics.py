"""What the proofs say an operation does, against what it does to ints; and that whatever they do not know is refused.

Each test is a small kernel in MLIR's generic form. An integer shows in the address of a store, a bool in its mask.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import z3

from kvsan.invariants.proofs.kernels.execution import Access, Run, execute
from kvsan.invariants.proofs.kernels.ir import INTEGER, OTHER, POINTER, Rejected, Type
from kvsan.invariants.proofs.kernels.parsing import parse
from kvsan.invariants.proofs.kernels.places import operations, places
from kvsan.invariants.proofs.kernels.semantics import _RULES

NUMBERS = (-7, -3, -2, -1, 0, 1, 2, 3, 5, 8)
FLAGS = " <{overflowFlags = #arith.overflow<none>}>"


class _Free:
    """A launch of which nothing is known; ``index`` is its one tensor that is no data."""

    programs = z3.Int("program0"), z3.Int("program1"), z3.Int("program2")
    grid = z3.Int("grid0"), z3.Int("grid1"), z3.Int("grid2")

    def scalar(self, name: str) -> z3.ArithRef:
        return z3.Int(name)

    def content(self, access: Access) -> z3.ArithRef | None:
        held = z3.Function("index", z3.IntSort(), z3.IntSort())
        return held(access.offset) if access.tensor == "index" else None


ARGUMENTS = {
    "out": "!tt.ptr<f32>",
    "index": "!tt.ptr<i32>",
    "floats": "!tt.ptr<f32>",
    "a": "i32",
    "b": "i32",
    "c": "i1",
}
SIGNATURE = {"out": "*fp32", "index": "*i32", "floats": "*fp32", "a": "i32", "b": "i32", "c": "i1"}
OUT, INDEX, FLOATS, A, B, C = (f"%arg{number}" for number in range(6))


def kernel(body: str) -> str:
    """A module around a body."""
    given = ", ".join(f"%arg{number}: {type}" for number, type in enumerate(ARGUMENTS.values()))
    lines = "\n".join(f"    {line.strip()}" for line in body.strip().splitlines())
    return f"""\
"builtin.module"() ({{
  "tt.func"() <{{function_type = ({", ".join(ARGUMENTS.values())}) -> (), sym_name = "small"}}> ({{
  ^bb0({given}):
    %zero = "arith.constant"() <{{value = 0.000000e+00 : f32}}> : () -> f32
{lines}
    "tt.return"() : () -> ()
  }}) : () -> ()
}}) : () -> ()
"""


def run(body: str) -> Run:
    """Run a body on unknowns."""
    return execute(parse(kernel(body)), SIGNATURE, _Free())


def store(offset: str, width: int = 32) -> str:
    """Operations that store at an integer."""
    return f"""\
        %place = "tt.addptr"({OUT}, {offset}) : (!tt.ptr<f32>, i{width}) -> !tt.ptr<f32>
        "tt.store"(%place, %zero) : (!tt.ptr<f32>, f32) -> ()"""


def store_if(condition: str) -> str:
    """Operations that store where a bool holds."""
    return f'"tt.store"({OUT}, %zero, {condition}) : (!tt.ptr<f32>, f32, i1) -> ()'


def store_block(offsets: str, shape: str, width: int = 32) -> str:
    """Operations that store at a block of integers."""
    addresses, integers, floats = (f"tensor<{shape}x{element}>" for element in ("!tt.ptr<f32>", f"i{width}", "f32"))
    return f"""\
        %pointers = "tt.splat"({OUT}) : (!tt.ptr<f32>) -> {addresses}
        %places = "tt.addptr"(%pointers, {offsets}) : ({addresses}, {integers}) -> {addresses}
        %zeros = "tt.splat"(%zero) : (f32) -> {floats}
        "tt.store"(%places, %zeros) : ({addresses}, {floats}) -> ()"""


def value(expression: z3.ExprRef, given: Mapping[str, int | bool]) -> int | bool:
    """What z3 makes of an expression for given numbers."""
    pairs = [
        (z3.Bool(name), z3.BoolVal(one)) if isinstance(one, bool) else (z3.Int(name), z3.IntVal(one))
        for name, one in given.items()
    ]
    found = z3.simplify(z3.substitute(expression, *pairs))
    return bool(z3.is_true(found)) if z3.is_bool(found) else int(found.as_long())


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


# -- control flow


def test_an_if_chooses_and_its_accesses_happen_on_its_condition() -> None:
    found = run(f"""
        %p = "arith.cmpi"({A}, {B}) <{{predicate = 2 : i64}}> : (i32, i32) -> i1
        %r = "scf.if"(%p) ({{
          %first = "tt.load"({FLOATS}) <{{operandSegmentSizes = array<i32: 1, 0, 0>}}> : (!tt.ptr<f32>) -> f32
          "scf.yield"({A}) : (i32) -> ()
        }}, {{
          "scf.yield"({B}) : (i32) -> ()
        }}) : (i1) -> i32
        {store("%r")}""").accesses
    for a, b in itertools.product(NUMBERS, NUMBERS):
        assert value(found[1].offset, {"a": a, "b": b}) == min(a, b)
        assert value(z3.And(*found[0].scope.conditions), {"a": a, "b": b}) == (a < b)
    assert found[1].scope.conditions == ()


LOOP = f"""
    %zero_i = "arith.constant"() <{{value = 0 : i32}}> : () -> i32
    %step = "arith.constant"() <{{value = 3 : i32}}> : () -> i32
    %r:2 = "scf.for"({A}, {B}, %step, %zero_i, {OUT}) ({{
    ^bb0(%i: i32, %count: i32, %at: !tt.ptr<f32>):
      %place_i = "tt.addptr"(%at, %count) : (!tt.ptr<f32>, i32) -> !tt.ptr<f32>
      "tt.store"(%place_i, %zero) : (!tt.ptr<f32>, f32) -> ()
      %next = "arith.addi"(%count, NEXT){FLAGS} : (i32, i32) -> i32
      %further = "tt.addptr"(%at, %zero_i) : (!tt.ptr<f32>, i32) -> !tt.ptr<f32>
      "scf.yield"(%next, %further) : (i32, !tt.ptr<f32>) -> ()
    }}) : (i32, i32, i32, i32, !tt.ptr<f32>) -> (i32, !tt.ptr<f32>)
    {store("%r#0")}
    "tt.store"(%r#1, %zero) : (!tt.ptr<f32>, f32) -> ()"""


@pytest.mark.parametrize(("a", "b"), [(0, 7), (2, 2), (5, 1), (-4, 6), (1, 4)])
def test_a_for_loop_carries_integers_and_addresses(a: int, b: int) -> None:
    """Each trip, and what comes out, against Python's range; the address moves by 10 a trip."""
    body = LOOP.replace("NEXT", "%step").replace(
        '%further = "tt.addptr"(%at, %zero_i)', '%further = "tt.addptr"(%at, %ten)'
    )
    found = run('%ten = "arith.constant"() <{value = 10 : i32}> : () -> i32\n' + body)
    trips = range(a, b, 3)
    inside, count, pointer = found.accesses
    steps = _steps(found)
    assert [value(inside.offset, {**steps, "trip.2": trip}) for trip in range(len(trips))] == [
        13 * trip for trip in range(len(trips))
    ]
    assert value(count.offset, {**steps, "a": a, "b": b}) == 3 * len(trips)
    assert value(pointer.offset, {**steps, "a": a, "b": b}) == 10 * len(trips)
    (loop,) = found.loops
    assert [value(one, {"a": a, "b": b}) for one in (loop.start, loop.stop, loop.step)] == [a, b, 3]
    known = z3.And(*inside.scope.known)
    given = {"a": a, "b": b}
    allowed = [
        (i, trip)
        for i, trip in itertools.product(range(-6, 9), range(-2, 6))
        if value(known, {**given, "iteration.1": i, "trip.2": trip})
    ]
    assert allowed == [(i, trip) for trip, i in enumerate(trips)]


def _steps(found: Run) -> dict[str, int]:
    """What loop-carried values move by, from the definitions."""
    solver = z3.Solver()
    solver.add(*found.definitions)
    assert solver.check() == z3.sat
    model = solver.model()
    return {name.name(): int(model[name].as_long()) for name in model.decls()}


def test_a_step_that_differs_from_trip_to_trip_is_refused() -> None:
    with pytest.raises(Rejected, match="whose step is not always the same"):
        run(LOOP.replace("NEXT", "%i"))
    with pytest.raises(Rejected, match="whose step is not always the same"):
        run(LOOP.replace("NEXT", "%count"))


def test_a_while_loop_stores_while_its_condition_holds() -> None:
    found = run(f"""
        %one = "arith.constant"() <{{value = 1 : i32}}> : () -> i32
        %r = "scf.while"({A}) ({{
        ^bb0(%now: i32):
          %more = "arith.cmpi"(%now, {B}) <{{predicate = 2 : i64}}> : (i32, i32) -> i1
          "scf.condition"(%more, %now) : (i1, i32) -> ()
        }}, {{
        ^bb0(%then: i32):
          %place = "tt.addptr"({OUT}, %then) : (!tt.ptr<f32>, i32) -> !tt.ptr<f32>
          "tt.store"(%place, %zero) : (!tt.ptr<f32>, f32) -> ()
          %next = "arith.addi"(%then, %one){FLAGS} : (i32, i32) -> i32
          "scf.yield"(%next) : (i32) -> ()
        }}) : (i32) -> i32""")
    (inside,) = found.accesses
    steps, known = _steps(found), z3.And(*inside.scope.known)
    trips = [trip for trip in range(-2, 9) if value(known, {**steps, "a": 3, "b": 7, "trip.1": trip})]
    assert [value(inside.offset, {**steps, "a": 3, "trip.1": trip}) for trip in trips] == [3, 4, 5, 6]


def test_what_a_while_loop_leaves_is_data() -> None:
    with pytest.raises(Rejected, match="is no address of an argument"):
        run(f"""
            %r = "scf.while"({A}) ({{
            ^bb0(%now: i32):
              %more = "arith.cmpi"(%now, {B}) <{{predicate = 2 : i64}}> : (i32, i32) -> i1
              "scf.condition"(%more, %now) : (i1, i32) -> ()
            }}, {{
            ^bb0(%then: i32):
              "scf.yield"(%then) : (i32) -> ()
            }}) : (i32) -> i32
            {store("%r")}""")


def test_a_guard_is_where_data_is_kept_whichever_arm_it_is_in() -> None:
    body = f"""
        %p = "arith.cmpi"({A}, {B}) <{{predicate = 2 : i64}}> : (i32, i32) -> i1
        %score = "tt.load"({FLOATS}) <{{operandSegmentSizes = array<i32: 1, 0, 0>}}> : (!tt.ptr<f32>) -> f32
        %r = "arith.select"(%p, ARMS) : (i1, f32, f32) -> f32
        "tt.store"({OUT}, %r) : (!tt.ptr<f32>, f32) -> ()"""
    for arms, kept in (("%score, %zero", True), ("%zero, %score", False)):
        (guard,) = run(body.replace("ARMS", arms)).guards
        assert value(guard.condition, {"a": 1, "b": 2}) is kept


# -- whatever is not known is refused

POINTER_OF_FLOAT = f"""
    %score = "tt.load"({FLOATS}) <{{operandSegmentSizes = array<i32: 1, 0, 0>}}> : (!tt.ptr<f32>) -> f32
    %code = "arith.fptosi"(%score) : (f32) -> i32
"""
REFUSED = {
    "an operation that is not known": ('%r = "arith.surprise"() : () -> i32', "arith.surprise is not supported"),
    "an unsigned division": (f'%r = "arith.divui"({A}, {B}) : (i32, i32) -> i32', "arith.divui is not supported"),
    "an unsigned remainder": (f'%r = "arith.remui"({A}, {B}) : (i32, i32) -> i32', "arith.remui is not supported"),
    "an unsigned minimum": (f'%r = "arith.minui"({A}, {B}) : (i32, i32) -> i32', "arith.minui is not supported"),
    "an atomic": (
        f'%r = "tt.atomic_rmw"({INDEX}, {A}) <{{atomic_rmw_op = 4 : i32}}> : (!tt.ptr<i32>, i32) -> i32',
        "tt.atomic_rmw is not supported",
    ),
    "a compare and swap": (
        f'%r = "tt.atomic_cas"({INDEX}, {A}, {B}) : (!tt.ptr<i32>, i32, i32) -> i32', "tt.atomic_cas is not supported"
    ),
    "a call": ('"tt.call"() <{callee = @helper}> : () -> ()', "tt.call is not supported"),
    "inline assembly": (f'%r = "tt.elementwise_inline_asm"({A}) : (i32) -> i32', "inline_asm is not supported"),
    "a gather": (f'%r = "tt.gather"({A}, {B}) : (i32, i32) -> i32', "tt.gather is not supported"),
    "an address of data": (POINTER_OF_FLOAT + store("%code"), "address of a store is no address of an argument"),
    "a mask of data": (
        POINTER_OF_FLOAT + f'%m = "arith.cmpf"(%score, %zero) <{{predicate = 2 : i64}}> : (f32, f32) -> i1\n{store_if("%m")}',
        "the mask of a store depends on data",
    ),
    "an if on data": (
        POINTER_OF_FLOAT
        + '%m = "arith.cmpf"(%score, %zero) <{predicate = 2 : i64}> : (f32, f32) -> i1\n'
        + '"scf.if"(%m) ({\n"scf.yield"() : () -> ()\n}, {\n"scf.yield"() : () -> ()\n}) : (i1) -> ()',
        "the condition of an if depends on data",
    ),
    "a loop up to data": (
        POINTER_OF_FLOAT
        + f'"scf.for"({A}, %code, {B}) ({{\n^bb0(%i: i32):\n"scf.yield"() : () -> ()\n}}) : (i32, i32, i32) -> ()',
        "a bound of a loop depends on data",
    ),
    "an assertion on data": (
        POINTER_OF_FLOAT
        + '%m = "arith.cmpf"(%score, %zero) <{predicate = 2 : i64}> : (f32, f32) -> i1\n'
        + '"tt.assert"(%m) <{message = "positive"}> : (i1) -> ()',
        "an assertion depends on data",
    ),
    "a block of different constants": (
        '%r = "arith.constant"() <{value = dense<[1, 2]> : tensor<2xi32>}> : () -> tensor<2xi32>',
        "a block of different constants",
    ),
    "bits of an address": (
        f'%r = "arith.shli"({A}, {B}){FLAGS} : (i32, i32) -> i32\n{store("%r")}', "arith.shli of integers that addresses"
    ),
    "a bool made of an integer": (
        f'%r = "arith.trunci"({A}){FLAGS} : (i32) -> i1\n{store_if("%r")}', "arith.trunci of integers that addresses"
    ),
    "an address in one of two tensors": (
        f'%p = "arith.cmpi"({A}, {B}) <{{predicate = 2 : i64}}> : (i32, i32) -> i1\n'
        f'%r = "arith.select"(%p, {OUT}, {FLOATS}) : (i1, !tt.ptr<f32>, !tt.ptr<f32>) -> !tt.ptr<f32>\n'
        '"tt.store"(%r, %zero) : (!tt.ptr<f32>, f32) -> ()',
        "an address in out or in floats",
    ),
    "an address made of an integer": (
        f'%r = "tt.int_to_ptr"({A}) : (i32) -> !tt.ptr<f32>\n"tt.store"(%r, %zero) : (!tt.ptr<f32>, f32) -> ()',
        "tt.int_to_ptr is not supported",
    ),
    "several results": (
        f'%r:2 = "arith.addi"({A}, {B}){FLAGS} : (i32, i32) -> (i32, i32)', "arith.addi with 2 results"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_known_is_refused_by_name_and_line(case: str) -> None:
    body, message = REFUSED[case]
    with pytest.raises(Rejected, match=message):
        run(body)


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


# -- reading


def test_an_early_return_is_refused() -> None:
    text = kernel(store(A)).replace(
        '    "tt.return"() : () -> ()',
        f'    "cf.cond_br"({C})[^bb1, ^bb2] <{{operandSegmentSizes = array<i32: 1, 0, 0>}}> : (i1) -> ()\n'
        '  ^bb1:\n    "tt.return"() : () -> ()\n  ^bb2:\n    "tt.return"() : () -> ()',
    )
    with pytest.raises(Rejected, match="blocks in tt\\.func: expected one; write `if`"):
        parse(text)


def test_text_that_is_no_ir_is_refused() -> None:
    with pytest.raises(Rejected, match="cannot be parsed"):
        parse(kernel(store(A)).replace("}) : () -> ()", "", 1))
    with pytest.raises(Rejected, match="0 functions in the IR"):
        parse('"builtin.module"() ({\n}) : () -> ()')
    with pytest.raises(Rejected, match="without a name"):
        parse(kernel(store(A)).replace('sym_name = "small"', 'other = "small"'))


def test_a_kernel_with_other_arguments_is_refused() -> None:
    with pytest.raises(Rejected, match="6 arguments in the IR: expected 1"):
        execute(parse(kernel(store(A))), {"out": "*fp32"}, _Free())


def test_types_lines_and_attributes() -> None:
    function = parse(kernel(store(A)))
    assert [one.type for one in function.body.arguments[:4]] == [
        Type((), POINTER, 0, "f32"), Type((), POINTER, 0, "i32"), Type((), POINTER, 0, "f32"), Type((), INTEGER, 32, "i32"),
    ]  # fmt: skip
    assert function.body.operations[0].results[0].type == Type((), OTHER, 0, "f32")
    assert [(one.name, one.line) for one in function.body.operations] == [
        ("arith.constant", 4), ("tt.addptr", 5), ("tt.store", 6), ("tt.return", 7),
    ]  # fmt: skip


LOCATED = """\
#loc1 = loc("/somewhere/decode.py":150:5)
#loc2 = loc("/lib/triton/language/standard.py":40:1)
"builtin.module"() ({
  "tt.func"() <{sym_name = "small"}> ({
    %0 = "arith.constant"() <{value = 1 : i32}> : () -> i32 loc(#loc1)
    %1 = "scf.if"(%0) ({
      %2 = "tt.load"() : () -> f32 loc(#loc4)
    }) : (i32) -> i32 loc(#loc3)
  }) : () -> () loc(#loc)
}) : () -> () loc(#loc)
#loc3 = loc(callsite(#loc2 at #loc1))
#loc4 = loc("blocks"(#loc5))
#loc5 = loc("/somewhere/tiles.py":7:3)
"""


def test_places_in_the_source_by_line_of_the_ir() -> None:
    """A region's location is at its end, an inlined function's is its caller's if it is Triton's own, a name's is below it."""
    text = "\n".join(line.partition(" loc(")[0] for line in LOCATED.splitlines() if not line.startswith("#"))
    assert list(operations(text)) == [
        (1, "builtin.module"), (2, "tt.func"), (3, "arith.constant"), (4, "scf.if"), (5, "tt.load"),
    ]  # fmt: skip
    assert places(text, LOCATED) == {3: "decode.py:150", 4: "decode.py:150", 5: "tiles.py:7"}


def test_places_of_another_module_are_none() -> None:
    assert places(kernel(store(A)), LOCATED) == {}
