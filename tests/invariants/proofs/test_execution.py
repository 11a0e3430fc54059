"""Control flow as proofs run it, against Python's; and that whatever they do not know is refused, by name."""

from __future__ import annotations

import itertools

import pytest
import z3
from small_kernels import FLAGS, FLOATS, INDEX, NUMBERS, OUT, POINTER_OF_FLOAT, A, B, run, store, store_if, value

from kvsan.invariants.proofs.kernels.execution import Run
from kvsan.invariants.proofs.kernels.ir import Rejected


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
