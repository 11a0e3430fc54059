"""Exact bfloat16 and FP8 under Triton's interpreter, which keeps them as integers and mostly computes on their codes.

Values are decoded to float32, the interpreter's own operation runs on those, and its result is rounded once, to nearest
even. One rounding of a float32 result is the correctly rounded result of ``+ - * /`` and the square root, since 24 bits
are more than twice the 8 of bfloat16 and two. FP8 saturates (infinity too) and NaN stays NaN, as ``cvt.rn.satfinite``
does. Sums and products over an axis are taken in float32 and rounded at the end; a compiled kernel may round in between.

Bitcasts, loads, stores and selects move codes and are left alone. ``tl.fma`` is taken in float64. Not repaired:
``tl.dot_scaled``, atomics on bfloat16, and fp8e4b15, casts of which raise NotImplementedError. Triton's interpreter knows
the FP8 formats with unsigned zero from 3.8 on, and FP8 constants from 3.7 on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[Any]
"""Codes of one format: ``uint16`` for bfloat16, ``uint8`` for FP8."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Codec:
    """How one format's codes are read and made; both keep the shape."""

    storage: np.dtype[Any]
    decode: Callable[[Codes], Floats]
    encode: Callable[[Floats], Codes]

    def encode_towards_zero(self, values: Floats) -> Codes:
        """Codes of values, rounded towards zero."""
        codes = self.encode(values)
        # codes are sign and magnitude: the next one towards zero is one less
        return np.where(np.abs(self.decode(codes)) > np.abs(values), codes - self.storage.type(1), codes)


def _decode_bfloat16(codes: Codes) -> Floats:
    return (codes.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _encode_bfloat16(values: Floats) -> Codes:
    bits = np.asarray(values, dtype=np.float32).view(np.uint32)
    even = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = ((bits + np.uint32(0x7FFF) + even) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def fp8_values(mantissa_bits: int, bias: int, infinity: bool, unsigned_zero: bool) -> Floats:
    """Values of all 256 codes of an FP8 format, as float32.

    ``infinity``: the highest exponent is for infinity and NaN, as in IEEE formats; else only its last code is NaN.
    ``unsigned_zero``: the code of minus zero is the only NaN.
    """
    codes = np.arange(256)
    mantissa = codes & ((1 << mantissa_bits) - 1)
    exponent = (codes & 0x7F) >> mantissa_bits
    fraction = mantissa / (1 << mantissa_bits) + (exponent > 0)
    values = np.where(codes & 0x80, -1.0, 1.0) * fraction * np.exp2(np.maximum(exponent, 1) - float(bias))
    if unsigned_zero:
        values[0x80] = np.nan
    elif infinity:
        highest = exponent == 0x7F >> mantissa_bits
        values[highest] = np.where(mantissa[highest], np.nan, np.copysign(np.inf, values[highest]))
    else:
        values[[0x7F, 0xFF]] = np.nan
    return np.asarray(values, dtype=np.float32)


def _fp8(values: Floats) -> Codec:
    positive = values[:0x80][np.isfinite(values[:0x80])]
    halfway = (positive[:-1] + positive[1:]) / 2
    signed_zero = values[0x80] == 0
    nan = np.uint8(0x7F if signed_zero else 0x80)

    def encode(numbers: Floats) -> Codes:
        size = np.abs(np.asarray(numbers, dtype=np.float32))
        down, up = np.searchsorted(halfway, size, side="left"), np.searchsorted(halfway, size, side="right")
        code = np.where(down % 2, up, down).astype(np.uint8)  # they differ on a tie, and one of them is even
        code |= np.where(np.signbit(numbers) & ((code > 0) | signed_zero), np.uint8(0x80), np.uint8(0))
        return np.where(np.isnan(numbers), nan, code)

    return Codec(np.dtype(np.uint8), lambda codes: values[codes], encode)


CODECS: dict[str, Codec] = {
    "bf16": Codec(np.dtype(np.uint16), _decode_bfloat16, _encode_bfloat16),
    "fp8e4nv": _fp8(fp8_values(3, 7, infinity=False, unsigned_zero=False)),
    "fp8e5": _fp8(fp8_values(2, 15, infinity=True, unsigned_zero=False)),
    "fp8e4b8": _fp8(fp8_values(3, 8, infinity=False, unsigned_zero=True)),
    "fp8e5b16": _fp8(fp8_values(2, 16, infinity=False, unsigned_zero=True)),
}
"""By Triton's names: bfloat16, float8_e4m3fn, float8_e5m2, float8_e4m3fnuz, float8_e5m2fnuz."""


def codec_of(handle: Any) -> Codec | None:
    """Codec of the codes that a handle holds, None if it holds ordinary numbers."""
    codec = CODECS.get(handle.dtype.scalar.name)
    # the interpreter labels comparisons with the type of what was compared
    return codec if codec is not None and handle.data.dtype == codec.storage else None


def install(interpreter: Any) -> None:
    """Repair the builder and the reductions of Triton's interpreter module."""
    repair = _Repair(interpreter)
    builder = interpreter.InterpreterBuilder
    builder.cast_impl = repair.cast(builder.cast_impl)
    builder.create_fp_to_fp = repair.float_cast()
    builder.binary_op = repair.widened(builder.binary_op, operands=2)
    builder.unary_op = repair.widened(builder.unary_op, operands=1)
    builder.ternary_op = repair.ternary(builder.ternary_op)
    builder.create_fma = repair.fused(builder.create_fma)
    builder.create_fabs = repair.absolute(builder.create_fabs)
    builder.create_dot = repair.dot(builder.create_dot)
    builder.create_minnumf = lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmin)  # NaN won before Triton 3.8
    builder.create_maxnumf = lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmax)
    builder.get_bf16 = lambda self, value: self.cast_impl(self.get_fp32(value), interpreter.tl.bfloat16)
    for owner, name in (("ReduceOps", "sum"), ("ReduceOps", "min_max"), ("ScanOps", "cumsum"), ("ScanOps", "cumprod")):
        setattr(getattr(interpreter, owner), name, repair.reduction(getattr(getattr(interpreter, owner), name)))


class _Repair:
    """Makes exact methods out of the interpreter's own."""

    def __init__(self, interpreter: Any) -> None:
        self.interpreter = interpreter
        self.tl = interpreter.tl

    def wide(self, handle: Any) -> Any:
        codec = codec_of(handle)
        return handle if codec is None else self.interpreter.TensorHandle(codec.decode(handle.data), self.tl.float32)

    def narrow(self, handle: Any, dtype: Any) -> Any:
        if handle.data.dtype == np.bool_:
            return self.interpreter.TensorHandle(handle.data, self.tl.int1)
        return self.interpreter.TensorHandle(CODECS[dtype.scalar.name].encode(handle.data), dtype.scalar)

    def widened(self, method: Callable[..., Any], operands: int) -> Callable[..., Any]:
        """Decode the operands, run the method, round its result to the type of the last operand."""

        def exact(builder: Any, *args: Any) -> Any:
            last = args[operands - 1]
            if codec_of(last) is None:
                return method(builder, *args)
            wide = [self.wide(handle) for handle in args[:operands]]
            return self.narrow(method(builder, *wide, *args[operands:]), last.dtype)

        return exact

    def ternary(self, method: Callable[..., Any]) -> Callable[..., Any]:
        widened = self.widened(method, operands=3)

        def exact(builder: Any, lhs: Any, rhs: Any, other: Any, op: Any) -> Any:
            return (method if op is np.where else widened)(builder, lhs, rhs, other, op)

        return exact

    def fused(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def exact(builder: Any, x: Any, y: Any, z: Any) -> Any:
            if codec_of(z) is None:
                return method(builder, x, y, z)
            a, b, c = (self.wide(handle).data.astype(np.float64) for handle in (x, y, z))
            return self.round_to(a * b + c, z.dtype.scalar, towards_zero=False)

        return exact

    def absolute(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def exact(builder: Any, arg: Any) -> Any:
            result = method(builder, arg)
            codec = codec_of(arg)
            if codec is not None:
                # without its sign the NaN of a format with unsigned zero would be zero
                result.data = np.where(np.isnan(codec.decode(arg.data)), arg.data, result.data)
            return result

        return exact

    def cast(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def exact(builder: Any, src: Any, dst_type: Any) -> Any:
            if codec_of(src) is None and dst_type.scalar.name not in CODECS:
                return method(builder, src, dst_type)
            return self.round_to(self.wide(src).data, dst_type.scalar, towards_zero=False)

        return exact

    def float_cast(self) -> Callable[..., Any]:
        def exact(builder: Any, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
            if "fp8e4b15" in (src.dtype.scalar.name, dst_type.scalar.name):
                raise NotImplementedError("fp8e4b15 is not exact under the interpreter")
            towards_zero = rounding_mode == self.interpreter._ir.ROUNDING_MODE.RTZ
            return self.round_to(self.wide(src).data, dst_type.scalar, towards_zero)

        return exact

    def round_to(self, values: npt.NDArray[Any], dtype: Any, towards_zero: bool) -> Any:
        codec = CODECS.get(dtype.name)
        if codec is not None:
            single = values.astype(np.float32)
            codes = codec.encode_towards_zero(single) if towards_zero else codec.encode(single)
            return self.interpreter.TensorHandle(codes, dtype)
        rounded = values.astype(self.interpreter._get_np_dtype(dtype))
        if towards_zero:
            rounded = np.where(np.abs(rounded) > np.abs(values), np.nextafter(rounded, rounded.dtype.type(0)), rounded)
        return self.interpreter.TensorHandle(rounded, dtype)

    def dot(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def exact(builder: Any, a: Any, b: Any, d: Any, *options: Any) -> Any:
            if codec_of(a) is None and codec_of(b) is None and codec_of(d) is None:
                return method(builder, a, b, d, *options)
            # accumulated in float32: multiplying in float16 would round the operands
            total = self.interpreter.TensorHandle(self.wide(d).data.astype(np.float32), self.tl.float32)
            result = method(builder, self.wide(a), self.wide(b), total, *options)
            return self.round_to(result.data, d.dtype.scalar, towards_zero=False)

        return exact

    def reduction(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def exact(reduction: Any, tensor: Any, **options: Any) -> Any:
            if codec_of(tensor.handle) is None:
                return method(reduction, tensor, **options)
            found = method(reduction, self.retyped(tensor, self.wide(tensor.handle), self.tl.float32), **options)
            if isinstance(found, (tuple, list)):  # values first, then indices if there are any
                return type(found)([self.narrowed(found[0], tensor.dtype), *found[1:]])
            return self.narrowed(found, tensor.dtype)

        return exact

    def narrowed(self, tensor: Any, dtype: Any) -> Any:
        return self.retyped(tensor, self.narrow(tensor.handle, dtype), dtype)

    def retyped(self, tensor: Any, handle: Any, dtype: Any) -> Any:
        scalar = not tensor.type.is_block()
        return self.tl.core.tensor(handle, dtype if scalar else self.tl.block_type(dtype, list(tensor.type.shape)))
