"""Signed integer overflow under Triton's interpreter, in every width from 8 to 64 bits.

A compiled kernel wraps silently, and so does numpy. Checked are ``+ - *``, negation, ``abs``, division of the least
number by -1, shifts by less than nothing or by the width and more, sums over an axis, and casts from int64 to int32 that
lose value. Unsigned numbers wrap by intent, and so do bits that a shift moves out. Lanes that a later mask excludes
count: Triton's own overflow checks see them too. Atomic additions are not checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsan.gpu_kernels.interpreter.launch import running_launch

Integers = npt.NDArray[np.signedinteger[Any]]
Lanes = npt.NDArray[np.bool_]


def _sum_overflows(a: Integers, b: Integers, result: Integers) -> Lanes:
    return ((a ^ result) & (b ^ result)) < 0


def _difference_overflows(a: Integers, b: Integers, result: Integers) -> Lanes:
    return ((a ^ b) & (a ^ result)) < 0


def _product_overflows(a: Integers, b: Integers, result: Integers) -> Lanes:
    if a.dtype.itemsize < 8:
        return np.asarray(a.astype(np.int64) * b.astype(np.int64) != result)
    # float64 tells apart all but the borders; dividing back tells those, which are rare
    size = np.abs(a.astype(np.float64) * b.astype(np.float64))
    if float(size.max(initial=0)) < 2.0**62:
        return np.zeros(result.shape, dtype=np.bool_)
    divisor = np.where(a == 0, 1, a)
    minus = (divisor == -1) & (b == np.iinfo(np.int64).min)
    return np.asarray((a != 0) & (minus | (result // np.where(minus, 1, divisor) != b)))


def _shift_overflows(a: Integers, b: Integers, result: Integers) -> Lanes:
    return np.asarray(np.broadcast_to((b < 0) | (b >= 8 * a.dtype.itemsize), result.shape))


_BINARY: dict[Any, tuple[str, Callable[[Integers, Integers, Integers], Lanes]]] = {
    np.add: ("+", _sum_overflows),
    np.subtract: ("-", _difference_overflows),
    np.multiply: ("*", _product_overflows),
    np.left_shift: ("<<", _shift_overflows),
    np.right_shift: (">>", _shift_overflows),
}


def _is_signed(data: npt.NDArray[Any]) -> bool:
    return data.dtype.kind == "i"


def _report(bad: Lanes, operands: tuple[npt.NDArray[Any], ...], text: str) -> None:
    """Report the first bad lane; ``text`` has a place for each operand's number there."""
    launch = running_launch()
    if launch is not None and bad.any():
        numbers = [np.broadcast_to(one, bad.shape).ravel()[int(np.argmax(bad))] for one in operands]
        launch.report_lanes("overflow", bad, text.format(*(int(number) for number in numbers)))


def install(interpreter: Any) -> None:
    """Check integer operations, casts and sums of Triton's interpreter module."""
    builder = interpreter.InterpreterBuilder
    builder.binary_op = _checked_binary(builder.binary_op)
    builder.unary_op = _checked_unary(builder.unary_op)
    builder.create_idiv = _checked_division(builder.create_idiv)
    builder.cast_impl = _checked_cast(builder.cast_impl)
    interpreter.ReduceOps.sum = _checked_sum(interpreter.ReduceOps.sum, np.sum)
    interpreter.ScanOps.cumsum = _checked_sum(interpreter.ScanOps.cumsum, np.cumsum)
    # Triton's own checks cost a cast and an operation in int64 each, and are dropped without debug
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)


def _checked_binary(method: Callable[..., Any]) -> Callable[..., Any]:
    def checked(builder: Any, lhs: Any, rhs: Any, op: Any) -> Any:
        a, b = lhs.data, rhs.data
        result = method(builder, lhs, rhs, op)
        if op in _BINARY and _is_signed(a) and _is_signed(b) and running_launch() is not None:
            sign, overflows = _BINARY[op]
            _report(overflows(a, b, result.data), (a, b), f"{{}} {sign} {{}} does not fit {a.dtype}")
        return result

    return checked


def _checked_unary(method: Callable[..., Any]) -> Callable[..., Any]:
    def checked(builder: Any, arg: Any, op: Any) -> Any:
        result = method(builder, arg, op)
        if op in (np.abs, np.negative) and _is_signed(arg.data):
            least = arg.data == np.iinfo(arg.data.dtype).min
            _report(least, (arg.data,), f"{op.__name__}({{}}) does not fit {arg.data.dtype}")
        return result

    return checked


def _checked_division(method: Callable[..., Any]) -> Callable[..., Any]:
    def checked(builder: Any, lhs: Any, rhs: Any) -> Any:
        if _is_signed(lhs.data):
            bad = np.asarray((rhs.data == -1) & (lhs.data == np.iinfo(lhs.data.dtype).min))
            _report(bad, (lhs.data,), f"{{}} // -1 does not fit {lhs.data.dtype}")
        return method(builder, lhs, rhs)

    return checked


def _checked_cast(method: Callable[..., Any]) -> Callable[..., Any]:
    def checked(builder: Any, src: Any, dst_type: Any) -> Any:
        result = method(builder, src, dst_type)
        if src.data.dtype == np.int64 and result.data.dtype == np.int32:
            _report(np.asarray(result.data != src.data), (src.data,), "{} does not fit int32, to which it is cast")
        return result

    return checked


def _checked_sum(method: Callable[..., Any], sums: Callable[..., Any]) -> Callable[..., Any]:
    def checked(reduction: Any, tensor: Any) -> Any:
        data = tensor.handle.data
        if _is_signed(data) and running_launch() is not None:
            # in two halves, each of which an int64 holds: high * 2**32 + low
            high, low = (
                np.atleast_1d(sums(half, axis=reduction.axis, dtype=np.int64))
                for half in (data.astype(np.int64) >> 32, data.astype(np.int64) & 0xFFFFFFFF)
            )
            high, low = high + (low >> 32), low & 0xFFFFFFFF
            limits = np.iinfo(data.dtype)
            over = (high > limits.max >> 32) | ((high == limits.max >> 32) & (low > limits.max & 0xFFFFFFFF))
            under = (high < limits.min >> 32) | ((high == limits.min >> 32) & (low < limits.min & 0xFFFFFFFF))
            _report(over | under, (), f"a sum does not fit {data.dtype}")
        return method(reduction, tensor)

    return checked
