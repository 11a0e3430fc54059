"""What must not pass for proved: kernels and specifications that once did, each beside a right one that does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from small_kernels import FLAGS, FLOATS, INDEX, OUT, SIGNATURE, A, B, kernel

from kvsan.ci.proofs.subjects import subjects
from kvsan.invariants.proofs.kernels.lowering import Lowered
from kvsan.invariants.proofs.kernels.prover import Subject, Verdict, prove
from kvsan.invariants.proofs.kernels.specification import (
    At,
    Complete,
    Load,
    Loop,
    Specification,
    Store,
    Tensor,
    Theorem,
)
from kvsan.invariants.proofs.obligation import PROVED, REFUTED, REJECTED, UNKNOWN
from kvsan.invariants.proofs.term import implies, within

PROGRAM = '%p = "tt.get_program_id"() <{axis = 0 : i32}> : () -> i32'
CONSTANTS = """
    %none = "arith.constant"() <{value = 0 : i32}> : () -> i32
    %one = "arith.constant"() <{value = 1 : i32}> : () -> i32
    %two = "arith.constant"() <{value = 2 : i32}> : () -> i32
    %four = "arith.constant"() <{value = 4 : i32}> : () -> i32"""
SEGMENTS = "operandSegmentSizes = array<i32: 1, 0, 0>"


def verdict(body: str, specify: Callable[[Any], Specification]) -> Verdict:
    """Prove a small kernel."""
    return prove(Subject(Lowered(kernel(f"{CONSTANTS}\n{PROGRAM}\n{body}"), {}), SIGNATURE, {}, specify))


def place(name: str, pointer: str, offset: str, type: str = "f32") -> str:
    """An address."""
    return f'{name} = "tt.addptr"({pointer}, {offset}) : (!tt.ptr<{type}>, i32) -> !tt.ptr<{type}>'


def stored(name: str, offset: str) -> str:
    """A store to the output."""
    return f'{place(name, OUT, offset)}\n"tt.store"({name}, %zero) : (!tt.ptr<f32>, f32) -> ()'


def looked_up(name: str, offset: str) -> str:
    """A load from the index tensor."""
    return f"""{place(f"{name}_at", INDEX, offset, "i32")}
        {name} = "tt.load"({name}_at) <{{{SEGMENTS}}}> : (!tt.ptr<i32>) -> i32"""


# -- contents that the kernel itself changes


def _by_index(k: Any) -> Specification:
    rows, blocks = k.size("rows", most=1000), k.size("blocks", most=1000)
    return Specification(
        grid=(rows,),
        tensors={
            "index": Tensor((rows,), (1,), contents=lambda block, _: within(0, block, blocks)),
            "floats": Tensor((blocks,), (1,)),
            "out": Tensor((rows,), (1,)),
        },
        loops=(),
        guards=(),
    )


@pytest.mark.parametrize("store", [False, True])
def test_an_index_tensor_that_is_stored_to_holds_anything(store: bool) -> None:
    changed = f'{place("%there", INDEX, "%p", "i32")}\n"tt.store"(%there, %four) : (!tt.ptr<i32>, i32) -> ()'
    body = f"""{changed if store else ""}
        {looked_up("%block", "%p")}
        {place("%from", FLOATS, "%block")}
        %x = "tt.load"(%from) <{{{SEGMENTS}}}> : (!tt.ptr<f32>) -> f32
        {stored("%to", "%p")}"""
    found = verdict(body, _by_index)
    assert found.status == (REJECTED if store else PROVED)
    assert ("whose contents the kernel relies on" in found.reason) == store


# -- completeness in loops


def _loops(*bodies: str) -> str:
    """Loops over ``range(STOP)``, one after the other."""
    return "\n".join(
        f"""
        "scf.for"(%none, {stop}, %one) ({{
        ^bb0(%i{number}: i32):
          {stored(f"%to{number}", f"%i{number}" if inside == "i" else inside)}
          "scf.yield"() : () -> ()
        }}) : (i32, i32, i32) -> ()"""
        for number, (stop, inside) in enumerate(one.split() for one in bodies)
    )


def _every(k: Any, loops: tuple[Any, ...] | None, place: Callable[[Any], At], size: Any) -> Specification:
    stop = {"all": lambda _: k.a, "some": lambda _: k.b}
    everything = Complete("everything is stored", 0, ("i",), lambda i: within(0, i, size), lambda i: (i,), place)
    return Specification(
        grid=(1 if place(7).loops else size,),
        tensors={"out": Tensor((size,), (1,))},
        accesses=(Store("out", lambda at: (at.loop if place(7).loops else at.program[0],)),),
        assume=(within(1, k.a, 1000), within(0, k.b, k.a + 1)),
        loops=None if loops is None else tuple(Loop(lambda _: 0, stop[one], 1) for one in loops),
        theorems=(everything,),
    )


def _by_trip(i: Any) -> At:
    return At((0, 0, 0), (), (i,))


def test_everything_is_stored_only_if_the_loop_around_the_store_gets_there() -> None:
    assert verdict(_loops(f"{A} i"), lambda k: _every(k, ("all",), _by_trip, k.a)).status == PROVED
    assert verdict(_loops(f"{B} i"), lambda k: _every(k, ("some",), _by_trip, k.a)).status == REFUTED
    assert verdict(_loops(f"{B} i"), lambda k: _every(k, None, _by_trip, k.a)).status == REJECTED


def test_another_loop_than_the_one_around_the_store_does_not_count() -> None:
    empty = f"""
        "scf.for"(%none, {A}, %one) ({{
        ^bb0(%first: i32):
          "scf.yield"() : () -> ()
        }}) : (i32, i32, i32) -> ()"""
    body = empty + _loops(f"{B} i")
    assert verdict(body, lambda k: _every(k, ("all", "some"), _by_trip, k.a)).status == REFUTED
    assert verdict(body, lambda k: _every(k, ("all", "some"), _by_trip, k.b)).status == PROVED


def test_a_store_in_a_loop_has_to_have_a_trip() -> None:
    assert (
        "in 0 loops" in verdict(_loops(f"{B} %p"), lambda k: _every(k, ("some",), lambda i: At((i, 0, 0)), k.a)).reason
    )


# -- blocks that are too small


def _tile(lanes: int) -> str:
    integers, pointers, floats, bools = (f"tensor<{lanes}x{one}>" for one in ("i32", "!tt.ptr<f32>", "f32", "i1"))
    return f"""
        %t = "tt.make_range"() <{{start = 0 : i32, end = {lanes} : i32}}> : () -> {integers}
        %stop = "tt.splat"({A}) : (i32) -> {integers}
        %zeros = "tt.splat"(%zero) : (f32) -> {floats}
        %begin = "tt.splat"({OUT}) : (!tt.ptr<f32>) -> {pointers}
        "scf.for"(%none, {A}, %four) ({{
        ^bb0(%i: i32):
          %tile = "tt.splat"(%i) : (i32) -> {integers}
          %at = "arith.addi"(%tile, %t){FLAGS} : ({integers}, {integers}) -> {integers}
          %mask = "arith.cmpi"(%at, %stop) <{{predicate = 2 : i64}}> : ({integers}, {integers}) -> {bools}
          %to = "tt.addptr"(%begin, %at) : ({pointers}, {integers}) -> {pointers}
          "tt.store"(%to, %zeros, %mask) : ({pointers}, {floats}, {bools}) -> ()
          "scf.yield"() : () -> ()
        }}) : (i32, i32, i32) -> ()"""


def _tiles(k: Any) -> Specification:
    return Specification(
        grid=(1,),
        tensors={"out": Tensor((k.a,), (1,))},
        accesses=(Store("out", lambda at: (at.loop + at.lane[0],), lambda at: at.loop + at.lane[0] < k.a),),
        assume=(within(1, k.a, 1000),),
        loops=(Loop(lambda _: 0, lambda _: k.a, 4),),
    )


@pytest.mark.parametrize(("lanes", "status"), [(4, PROVED), (2, REJECTED), (8, REJECTED)])
def test_a_tile_has_as_many_lanes_as_the_loop_has_positions(lanes: int, status: str) -> None:
    assert verdict(_tile(lanes), _tiles).status == status


def test_a_vector_has_the_lanes_that_its_condition_names() -> None:
    def specify(k: Any) -> Specification:
        store = Store("out", lambda at: (at.lane[0],), lambda at: within(0, at.lane[0], 8))
        return Specification(grid=(1,), tensors={"out": Tensor((8,), (1,))}, accesses=(store,))

    def body(lanes: int) -> str:
        integers, pointers, floats = (f"tensor<{lanes}x{one}>" for one in ("i32", "!tt.ptr<f32>", "f32"))
        return f"""
        %t = "tt.make_range"() <{{start = 0 : i32, end = {lanes} : i32}}> : () -> {integers}
        %zeros = "tt.splat"(%zero) : (f32) -> {floats}
        %begin = "tt.splat"({OUT}) : (!tt.ptr<f32>) -> {pointers}
        %to = "tt.addptr"(%begin, %t) : ({pointers}, {integers}) -> {pointers}
        "tt.store"(%to, %zeros) : ({pointers}, {floats}) -> ()"""

    assert verdict(body(8), specify).status == PROVED
    assert verdict(body(4), specify).status == REJECTED


def test_kernels_that_read_half_a_tile_are_refused() -> None:
    """The real decode kernel, with blocks of half as many positions as its loop goes on by."""
    whole = subjects(["paged_decode/bf16-d128-b16-g4"])["paged_decode/bf16-d128-b16-g4"]
    half = whole.lowered.text.replace("tensor<32", "tensor<16").replace("x32x", "x16x").replace("end = 32", "end = 16")
    assert half != whole.lowered.text
    assert prove(whole).status == PROVED
    assert "16 lanes for positions of a loop by 32" in prove(replace(whole, lowered=Lowered(half, {}))).reason


# -- what is promised of two


def _slots(apart: bool) -> Callable[[Any], Specification]:
    def specify(k: Any) -> Specification:
        rows = k.size("rows", most=1000)
        return Specification(
            grid=(2 * rows,),
            tensors={
                "index": Tensor(
                    (2 * rows,), (1,), lambda slot, _: within(0, slot, rows), lambda _, slot, __, other: slot != other
                ),
                "out": Tensor((2 * rows,), (1,)),
            },
            accesses=(
                Load("index", lambda at: (at.program[0] if apart else at.program[0] // 2,)),
                Store("out", lambda at: (k.read("index", at.program[0] if apart else at.program[0] // 2),)),
            ),
        )

    return specify


def test_an_entry_is_not_another_than_itself() -> None:
    """``pairs`` is of two entries: it must not hide that two programs look at one."""
    halved = '%half = "arith.divsi"(%p, %two) : (i32, i32) -> i32\n'
    assert verdict(f"{looked_up('%s', '%p')}\n{stored('%to', '%s')}", _slots(True)).status == PROVED
    assert verdict(f"{halved}{looked_up('%s', '%half')}\n{stored('%to', '%s')}", _slots(False)).status == REFUTED


def test_a_program_is_not_another_than_itself() -> None:
    """``any_two`` is of two programs: it must not hide that one stores twice."""

    def specify(k: Any) -> Specification:
        rows = k.size("rows", most=1000)
        return Specification(
            grid=(rows,),
            tensors={"out": Tensor((rows,), (1,))},
            accesses=(Store("out", lambda at: (at.program[0],)), Store("out", lambda at: (at.program[0],))),
            any_two=lambda one, other: one.program[0] != other.program[0],
        )

    found = verdict(f"{stored('%to', '%p')}\n{stored('%again', '%p')}", specify)
    assert (found.status, found.story()[0].startswith("store out: race")) == (REFUTED, True)


# -- memory that two tensors share


def _aliased(same: bool) -> Callable[[Any], Specification]:
    def specify(k: Any) -> Specification:
        rows = k.size("rows", most=1000)
        strides = k.a == k.b
        return Specification(
            grid=(rows,),
            tensors={"floats": Tensor((rows,), (k.a,)), "out": Tensor((rows,), (k.b,))},
            accesses=(Load("floats", lambda at: (at.program[0],)), Store("out", lambda at: (at.program[0],))),
            assume=(
                within(1, k.a, 9),
                within(1, k.b, 9),
                implies(k.shares("floats", "out"), strides) if same else True,
            ),
            aliases=(("floats", "out"),),
        )

    return specify


def test_one_memory_has_one_set_of_strides() -> None:
    body = f"""
        %mine = "arith.muli"(%p, {A}){FLAGS} : (i32, i32) -> i32
        %yours = "arith.muli"(%p, {B}){FLAGS} : (i32, i32) -> i32
        {place("%from", FLOATS, "%mine")}
        %x = "tt.load"(%from) <{{{SEGMENTS}}}> : (!tt.ptr<f32>) -> f32
        {stored("%to", "%yours")}"""
    assert verdict(body, _aliased(True)).status == PROVED
    assert "strides of the same memory differ" in verdict(body, _aliased(False)).story()[0]


# -- without accesses


def _strided(stride: int) -> Callable[[Any], Specification]:
    def specify(k: Any) -> Specification:
        rows = k.size("rows", most=1000)
        entries = Tensor((rows,), (stride,), contents=lambda slot, entry: slot == entry)
        return Specification(grid=(rows,), tensors={"index": entries, "out": Tensor((rows,), (1,))})

    return specify


def test_contents_are_by_index_and_not_by_offset() -> None:
    body = f"""
        %far = "arith.muli"(%p, %two){FLAGS} : (i32, i32) -> i32
        {looked_up("%s", "%far")}
        {stored("%to", "%s")}"""
    assert verdict(f"{looked_up('%s', '%p')}\n{stored('%to', '%s')}", _strided(1)).status == PROVED
    assert verdict(body, _strided(2)).status == REJECTED


def test_what_a_masked_load_leaves_is_another_in_every_trip() -> None:
    """Without ``other`` inactive lanes hold anything: a store by them may meet the one of an earlier trip."""
    body = f"""
        %t = "tt.make_range"() <{{start = 0 : i32, end = 2 : i32}}> : () -> tensor<2xi32>
        %n = "tt.splat"({A}) : (i32) -> tensor<2xi32>
        %mask = "arith.cmpi"(%t, %n) <{{predicate = 2 : i64}}> : (tensor<2xi32>, tensor<2xi32>) -> tensor<2xi1>
        %entries = "tt.splat"({INDEX}) : (!tt.ptr<i32>) -> tensor<2x!tt.ptr<i32>>
        %from = "tt.addptr"(%entries, %t) : (tensor<2x!tt.ptr<i32>>, tensor<2xi32>) -> tensor<2x!tt.ptr<i32>>
        %low = "tt.splat"(%none) : (i32) -> tensor<2xi32>
        %high = "tt.splat"(%two) : (i32) -> tensor<2xi32>
        %apart = "arith.constant"() <{{value = dense<8> : tensor<2xi32>}}> : () -> tensor<2xi32>
        %lane = "arith.muli"(%t, %apart){FLAGS} : (tensor<2xi32>, tensor<2xi32>) -> tensor<2xi32>
        %zeros = "tt.splat"(%zero) : (f32) -> tensor<2xf32>
        %begin = "tt.splat"({OUT}) : (!tt.ptr<f32>) -> tensor<2x!tt.ptr<f32>>
        "scf.for"(%none, %four, %one) ({{
        ^bb0(%i: i32):
          %x = "tt.load"(%from, %mask) <{{operandSegmentSizes = array<i32: 1, 1, 0>}}>
            : (tensor<2x!tt.ptr<i32>>, tensor<2xi1>) -> tensor<2xi32>
          %some = "arith.maxsi"(%x, %low) : (tensor<2xi32>, tensor<2xi32>) -> tensor<2xi32>
          %little = "arith.minsi"(%some, %high) : (tensor<2xi32>, tensor<2xi32>) -> tensor<2xi32>
          %trip = "tt.splat"(%i) : (i32) -> tensor<2xi32>
          %sum = "arith.addi"(%little, %trip){FLAGS} : (tensor<2xi32>, tensor<2xi32>) -> tensor<2xi32>
          %at = "arith.addi"(%sum, %lane){FLAGS} : (tensor<2xi32>, tensor<2xi32>) -> tensor<2xi32>
          %to = "tt.addptr"(%begin, %at) : (tensor<2x!tt.ptr<f32>>, tensor<2xi32>) -> tensor<2x!tt.ptr<f32>>
          "tt.store"(%to, %zeros) : (tensor<2x!tt.ptr<f32>>, tensor<2xf32>) -> ()
          "scf.yield"() : () -> ()
        }}) : (i32, i32, i32) -> ()"""

    def specify(k: Any) -> Specification:
        index = Tensor((2,), (1,), contents=lambda *_: True)
        return Specification(grid=(1,), tensors={"index": index, "out": Tensor((16,), (1,))}, assume=(k.a <= 2,))

    assert verdict(body, specify).status == REFUTED
    within_one_trip = body.replace(
        "%from, %mask) <{operandSegmentSizes = array<i32: 1, 1, 0>}", "%from) <{" + SEGMENTS + "}"
    )
    loaded = within_one_trip.replace(
        "(tensor<2x!tt.ptr<i32>>, tensor<2xi1>) -> tensor<2xi32>", "(tensor<2x!tt.ptr<i32>>) -> tensor<2xi32>"
    )
    assert verdict(loaded, specify).status == PROVED


# -- strides, and statements of nothing


@pytest.mark.parametrize(("stride", "status"), [(16, PROVED), (8, REJECTED), (0, REJECTED)])
def test_rows_that_overlap_by_their_strides_are_refused(stride: int, status: str) -> None:
    def specify(k: Any) -> Specification:
        rows = k.size("rows", most=1000)
        out = Tensor((rows, 16), (stride, 1))
        return Specification(
            grid=(rows,), tensors={"out": out}, accesses=(Store("out", lambda at: (at.program[0], 0)),)
        )

    body = f"""
        %stride = "arith.constant"() <{{value = {stride} : i32}}> : () -> i32
        %row = "arith.muli"(%p, %stride){FLAGS} : (i32, i32) -> i32
        {stored("%to", "%row")}"""
    assert verdict(body, specify).status == status


@pytest.mark.parametrize(("low", "status"), [(3, PROVED), (9, UNKNOWN)])
def test_a_theorem_whose_premise_never_holds_is_none(low: int, status: str) -> None:
    def specify(k: Any) -> Specification:
        rows = k.size("rows", most=1000)
        theorem = Theorem("small", ("i",), lambda i: implies(within(low, i, 5), i < 5))
        accesses = (Store("out", lambda at: (at.program[0],)),)
        return Specification((rows,), {"out": Tensor((rows,), (1,))}, accesses, theorems=(theorem,))

    assert verdict(stored("%to", "%p"), specify).status == status


# -- names


@pytest.mark.parametrize(
    ("size", "unknown"), [("a", "i"), ("lane0", "i"), ("rows", "program0"), ("rows", "rows"), ("rows", "a")]
)
def test_a_name_has_one_meaning(size: str, unknown: str) -> None:
    """A theorem about ``program0`` would be one about programs of the grid only, and say nothing of the others."""

    def specify(k: Any) -> Specification:
        rows = k.size(size, most=1000)
        everything = Complete(
            "all", 0, (unknown,), lambda i: within(0, i, 2 * rows), lambda i: (i,), lambda i: At((i, 0, 0))
        )
        return Specification(
            grid=(rows,),
            tensors={"out": Tensor((2 * rows,), (1,))},
            accesses=(Store("out", lambda at: (at.program[0],)),),
            theorems=(everything,),
        )

    assert "expected a name" in verdict(stored("%to", "%p"), specify).reason
