"""What operations without memory or control flow do to symbolic values, and what must hold for that to be exact.

Integers are mathematical ones. An operation at a width of w bits is that of mathematics as long as its result fits, which
is demanded each time; machine integers that wrap are a failed demand, not another meaning. Division truncates towards
zero, as in C. Operations on data (floats, codes) give data. Whatever is not in a table here is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import z3

from kvsan.invariants.proofs.kernels.ir import POINTER, Operation, Rejected, Type
from kvsan.invariants.proofs.kernels.symbols import Entry, Lanes, Pointer, Symbolic, constant, data, pointwise


@dataclass(frozen=True, slots=True)
class Demand:
    """What must hold in every lane for the result of an operation to be exact; None for a lane of data."""

    what: str
    shape: tuple[int, ...]
    holds: Callable[[Lanes], z3.BoolRef | None]


def _truncated(dividend: z3.ArithRef, divisor: z3.ArithRef) -> z3.ArithRef:
    """C's division. z3's leaves a remainder that is not negative, so it truncates where the dividend is not."""
    return z3.If(dividend >= 0, dividend / divisor, -((-dividend) / divisor))


def _remainder(dividend: z3.ArithRef, divisor: z3.ArithRef) -> z3.ArithRef:
    """C's remainder, with the sign of the dividend."""
    return z3.If(dividend >= 0, dividend % divisor, -((-dividend) % divisor))


_ARITHMETIC: dict[str, Callable[[z3.ArithRef, z3.ArithRef], z3.ArithRef]] = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
}
_DIVISION = {"arith.divsi": _truncated, "arith.remsi": _remainder}
_CHOICE: dict[str, Callable[[z3.ArithRef, z3.ArithRef], z3.ArithRef]] = {
    "arith.minsi": lambda a, b: z3.If(a < b, a, b),
    "arith.maxsi": lambda a, b: z3.If(a < b, b, a),
}
_LOGIC: dict[str, Callable[[z3.BoolRef, z3.BoolRef], z3.BoolRef]] = {
    "arith.andi": z3.And,
    "arith.ori": z3.Or,
    "arith.xori": z3.Xor,
}
_SIGNED: dict[int, Callable[[z3.ArithRef, z3.ArithRef], z3.BoolRef]] = {
    0: lambda a, b: a == b,
    1: lambda a, b: a != b,
    2: lambda a, b: a < b,
    3: lambda a, b: a <= b,
    4: lambda a, b: a > b,
    5: lambda a, b: a >= b,
}
_UNSIGNED = {6: _SIGNED[2], 7: _SIGNED[3], 8: _SIGNED[4], 9: _SIGNED[5]}

_ON_DATA = frozenset((
    "arith.addf", "arith.subf", "arith.mulf", "arith.divf", "arith.negf", "arith.remf", "arith.maxnumf",
    "arith.minnumf", "arith.maximumf", "arith.minimumf", "arith.extf", "arith.truncf", "arith.sitofp",
    "arith.uitofp", "arith.fptosi", "arith.fptoui", "arith.bitcast", "arith.cmpf", "math.exp", "math.exp2",
    "math.log", "math.log2", "math.sqrt", "math.rsqrt", "math.absf", "math.fma", "math.floor", "math.ceil",
    "math.tanh", "math.erf", "math.sin", "math.cos", "tt.bitcast", "tt.fp_to_fp", "tt.precise_divf",
    "tt.precise_sqrt", "tt.clampf", "tt.dot", "tt.dot_scaled", "tt.reduce", "tt.reshape", "tt.split", "tt.join",
    "tt.cat", "tt.mulhiui",
))  # fmt: skip
"""Their results are data whatever their operands are: nothing is known of a float, and addresses made of it are refused."""

_SHARED_MEMORY = frozenset((
    "ttg.local_alloc", "ttg.local_load", "ttg.local_store", "ttg.local_dealloc", "ttg.memdesc_trans",
    "ttg.memdesc_index", "ttg.memdesc_subslice", "ttng.fence_async_shared", "ttng.warp_group_dot",
    "ttng.warp_group_dot_wait", "ttng.tmem_alloc", "ttng.tmem_store", "ttng.tmem_load", "ttng.init_barrier",
    "ttng.inval_barrier", "ttng.wait_barrier", "ttng.tc_gen5_mma", "gpu.barrier", "ttg.barrier",
))  # fmt: skip
"""TTGIR: tiles on their way through memory that is on the chip. What they hold is data."""

BITWISE = frozenset(["arith.andi", "arith.ori", "arith.xori", "arith.shli", "arith.shrui", "arith.shrsi"])


def fits(number: z3.ArithRef, width: int) -> z3.BoolRef:
    """Whether a signed integer of ``width`` bits holds it."""
    return z3.And(number >= -(1 << (width - 1)), number < (1 << (width - 1)))


def apply(operation: Operation, operands: list[Symbolic]) -> tuple[list[Symbolic], list[Demand]]:
    """Results of an operation, and its demands; Rejected for one that is not known."""
    types = [result.type for result in operation.results]
    if operation.name in _ON_DATA or operation.name in _SHARED_MEMORY:
        return [data(type) for type in types], []
    if operation.name not in _RULES:
        raise Rejected(f"line {operation.line}: {operation.name} is not supported")
    if len(types) != 1:
        raise Rejected(f"line {operation.line}: {operation.name} with {len(types)} results")
    result, demands = _RULES[operation.name](operation, operands, types[0])
    return [result], list(demands)


_Ruled = tuple[Symbolic, "Iterator[Demand] | list[Demand]"]


def _named(operation: Operation, what: str) -> str:
    return f"{what} of {operation.name.partition('.')[2]}"


def _number_demand(result: Symbolic, what: str, holds: Callable[[z3.ArithRef], z3.BoolRef]) -> Demand:
    def lane(lanes: Lanes) -> z3.BoolRef | None:
        entry = result(lanes)
        return None if entry is None else holds(entry)

    return Demand(what, result.type.shape, lane)


def _arithmetic(operation: Operation, operands: list[Symbolic], type: Type) -> _Ruled:
    if type.width == 1:
        return _on_bits(operation, operands, type), []
    result = pointwise(type, _ARITHMETIC[operation.name], *operands)
    what = _named(operation, f"overflow of int{type.width}: the result")
    return result, [_number_demand(result, what, lambda number: fits(number, type.width))]


def _division(operation: Operation, operands: list[Symbolic], type: Type) -> _Ruled:
    result = pointwise(type, _DIVISION[operation.name], *operands)
    return result, [
        _number_demand(operands[1], "division by zero", lambda number: number != 0),
        _number_demand(
            result, _named(operation, f"overflow of int{type.width}: the result"), lambda n: fits(n, type.width)
        ),
    ]


def _choice(operation: Operation, operands: list[Symbolic], type: Type) -> _Ruled:
    if type.width == 1:
        return _on_bits(operation, operands, type), []
    return pointwise(type, _CHOICE[operation.name], *operands), []


def _bitwise(operation: Operation, operands: list[Symbolic], type: Type) -> _Ruled:
    if type.width == 1 and operation.name in _LOGIC:
        return pointwise(type, _LOGIC[operation.name], *operands), []
    return _on_bits(operation, operands, type), []


def _on_bits(operation: Operation, operands: list[Symbolic], type: Type) -> Symbolic:
    """Bits of codes are data; bits of an address are not understood, so a lane that has two integers is refused."""

    def refuse(*_: Entry) -> Entry:
        raise Rejected(f"line {operation.line}: {operation.name} of integers that addresses may depend on")

    return pointwise(type, refuse, *operands)


def _comparison(operation: Operation, operands: list[Symbolic], type: Type) -> _Ruled:
    predicate = operation.attributes["predicate"]
    if predicate in _SIGNED and operands[0].type.width != 1:
        return pointwise(type, _SIGNED[predicate], *operands), []
    if predicate in (0, 1):
        return pointwise(type, (lambda a, b: a == b) if predicate == 0 else z3.Xor, *operands), []
    if predicate not in _UNSIGNED or operands[0].type.width == 1:
        raise Rejected(f"line {operation.line}: comparison {predicate} is not supported")
    demands = [
        _number_demand(one, "unsigned comparison: an operand that may be negative", lambda n: n >= 0)
        for one in operands
    ]
    return pointwise(type, _UNSIGNED[predicate], *operands), demands


def _select(operation: Operation, operands: list[Symbolic], type: Type) -> _Ruled:
    chosen, first, second = operands

    def lane(lanes: Lanes) -> Entry:
        condition = chosen(lanes if chosen.type.shape else ())
        entries = first(lanes), second(lanes)
        if condition is None or None in entries:
            return None
        return _merged(condition, *entries)

    return Symbolic(type, lane), []


def _merged(condition: z3.BoolRef, first: Entry, second: Entry) -> Entry:
    if isinstance(first, Pointer) and isinstance(second, Pointer):
        if first.tensor != second.tensor:
            raise Rejected(f"an address in {first.tensor} or in {second.tensor}: expected to know which")
        return Pointer(first.tensor, z3.If(condition, first.offset, second.offset))
    return z3.If(condition, first, second)


def merged(type: Type, condition: z3.BoolRef, first: Symbolic, second: Symbolic) -> Symbolic:
    """One value where the condition holds, else the other: what comes out of an ``if``."""
    return pointwise(type, lambda a, b: _merged(condition, a, b), first, second)


def _widened(operation: Operation, operands: list[Symbolic], type: Type) -> _Ruled:
    (operand,) = operands
    if operand.type.width == 1:
        one = 1 if operation.name == "arith.extui" else -1
        return pointwise(type, lambda condition: z3.If(condition, z3.IntVal(one), z3.IntVal(0)), operand), []
    result = pointwise(type, lambda number: number, operand)
    if operation.name == "arith.extsi":
        return result, []
    return result, [_number_demand(operand, "unsigned extension: a number that may be negative", lambda n: n >= 0)]


def _narrowed(operation: Operation, operands: list[Symbolic], type: Type) -> _Ruled:
    if type.width == 1:
        return _on_bits(operation, operands, type), []
    result = pointwise(type, lambda number: number, *operands)
    return result, [
        _number_demand(result, f"overflow of int{type.width}: a number made narrower", lambda n: fits(n, type.width))
    ]


def _constant(operation: Operation, _: list[Symbolic], type: Type) -> _Ruled:
    value = operation.attributes["value"]
    if not type.is_integer:
        return data(type), []
    if isinstance(value, tuple):
        if value[0] != "splat":
            raise Rejected(f"line {operation.line}: a block of different constants")
        value = value[1]
    if type.width == 1:
        return constant(type, z3.BoolVal(bool(value))), []
    return constant(type, z3.IntVal(int(value))), []


def _range(operation: Operation, _: list[Symbolic], type: Type) -> _Ruled:
    start = operation.attributes["start"]
    return Symbolic(type, lambda lanes: lanes[0] + start if start else lanes[0]), []


def _splat(_: Operation, operands: list[Symbolic], type: Type) -> _Ruled:
    return Symbolic(type, lambda _: operands[0](())), []


def _unsplat(_: Operation, operands: list[Symbolic], type: Type) -> _Ruled:
    return Symbolic(type, lambda _: operands[0](tuple(z3.IntVal(0) for _ in operands[0].type.shape))), []


def _expand(operation: Operation, operands: list[Symbolic], type: Type) -> _Ruled:
    axis = operation.attributes["axis"]
    return Symbolic(type, lambda lanes: operands[0](lanes[:axis] + lanes[axis + 1 :])), []


def _broadcast(_: Operation, operands: list[Symbolic], type: Type) -> _Ruled:
    shape = operands[0].type.shape
    zero = z3.IntVal(0)

    def lane(lanes: Lanes) -> Entry:
        return operands[0](tuple(zero if size == 1 else one for one, size in zip(lanes, shape, strict=True)))

    return Symbolic(type, lane), []


def _transpose(operation: Operation, operands: list[Symbolic], type: Type) -> _Ruled:
    order = operation.attributes["order"]

    def lane(lanes: Lanes) -> Entry:
        source = list(lanes)
        for place, axis in enumerate(order):
            source[axis] = lanes[place]
        return operands[0](tuple(source))

    return Symbolic(type, lane), []


def _move_pointer(_: Operation, operands: list[Symbolic], type: Type) -> _Ruled:
    assert type.kind == POINTER
    return pointwise(type, lambda at, by: Pointer(at.tensor, at.offset + by), *operands), []


def _same(_: Operation, operands: list[Symbolic], type: Type) -> _Ruled:
    return Symbolic(type, operands[0]), []


_RULES: dict[str, Callable[[Operation, list[Symbolic], Type], _Ruled]] = {
    **dict.fromkeys(_ARITHMETIC, _arithmetic),
    **dict.fromkeys(_DIVISION, _division),
    **dict.fromkeys(_CHOICE, _choice),
    **dict.fromkeys(BITWISE, _bitwise),
    **dict.fromkeys(("arith.extsi", "arith.extui"), _widened),
    "arith.trunci": _narrowed,
    "arith.cmpi": _comparison,
    "arith.select": _select,
    "arith.constant": _constant,
    "tt.make_range": _range,
    "tt.splat": _splat,
    "tt.unsplat": _unsplat,
    "tt.expand_dims": _expand,
    "tt.broadcast": _broadcast,
    "tt.trans": _transpose,
    "tt.addptr": _move_pointer,
    "ttg.convert_layout": _same,
}
