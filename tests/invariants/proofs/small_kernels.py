"""Small kernels in MLIR's generic form: an integer shows in the address of a store, a bool in its mask."""

from __future__ import annotations

from collections.abc import Mapping

import z3

from kvsan.invariants.proofs.kernels.execution import Access, Run, execute
from kvsan.invariants.proofs.kernels.parsing import parse

NUMBERS = (-7, -3, -2, -1, 0, 1, 2, 3, 5, 8)
FLAGS = " <{overflowFlags = #arith.overflow<none>}>"


class Free:
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
    return execute(parse(kernel(body)), SIGNATURE, Free())


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


POINTER_OF_FLOAT = f"""
    %score = "tt.load"({FLOATS}) <{{operandSegmentSizes = array<i32: 1, 0, 0>}}> : (!tt.ptr<f32>) -> f32
    %code = "arith.fptosi"(%score) : (f32) -> i32
"""
