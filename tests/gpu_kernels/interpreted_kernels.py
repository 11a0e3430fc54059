"""Kernels that do one thing each, wrong or right, for tests of the interpreter; Triton needs their source in a file."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def cast(out, x, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.store(out + lanes, tl.load(x + lanes).to(out.dtype.element_ty))


@triton.jit
def cast_towards_zero(out, x, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.store(out + lanes, tl.load(x + lanes).to(out.dtype.element_ty, fp_downcast_rounding="rtz"))


@triton.jit
def arithmetic(out, a, b, OPERATION: tl.constexpr, N: tl.constexpr):
    lanes = tl.arange(0, N)
    x = tl.load(a + lanes)
    y = tl.load(b + lanes)
    if OPERATION == "add":
        z = x + y
    elif OPERATION == "sub":
        z = x - y
    elif OPERATION == "mul":
        z = x * y
    elif OPERATION == "div":
        z = x / y
    elif OPERATION == "neg":
        z = -x
    elif OPERATION == "abs":
        z = tl.abs(x)
    elif OPERATION == "min":
        z = tl.minimum(x, y)
    elif OPERATION == "max":
        z = tl.maximum(x, y)
    elif OPERATION == "where":
        z = tl.where(x < y, x, y)
    elif OPERATION == "unless":
        z = tl.where(~(x < y), y, x)
    elif OPERATION == "fma":
        z = tl.fma(x, y, y)
    elif OPERATION == "scaled":
        z = (x * 1.5).to(x.dtype)
    elif OPERATION == "full":
        z = x + tl.full((N,), 1.25, x.dtype)
    tl.store(out + lanes, z)


@triton.jit
def compare(out, a, b, N: tl.constexpr):
    lanes = tl.arange(0, N)
    x = tl.load(a + lanes)
    y = tl.load(b + lanes)
    tl.store(out + lanes, (x < y).to(tl.int32) + 2 * (x <= y).to(tl.int32) + 4 * (x == y).to(tl.int32))


@triton.jit
def bits(out, x, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.store(out + lanes, tl.load(x + lanes).to(out.dtype.element_ty, bitcast=True))


@triton.jit
def dot(out, a, b, N: tl.constexpr):
    rows = tl.arange(0, N)[:, None] * N
    columns = tl.arange(0, N)[None, :]
    product = tl.dot(tl.load(a + rows + columns), tl.load(b + rows + columns), input_precision="ieee")
    tl.store(out + rows + columns, product)


@triton.jit
def reduce_rows(out, x, OPERATION: tl.constexpr, N: tl.constexpr):
    rows = tl.arange(0, N)
    block = tl.load(x + rows[:, None] * N + rows[None, :])
    if OPERATION == "sum":
        found = tl.sum(block, axis=1)
    elif OPERATION == "max":
        found = tl.max(block, axis=1)
    elif OPERATION == "min":
        found = tl.min(block, axis=1)
    elif OPERATION == "argmax":
        found = tl.argmax(block, axis=1)
    tl.store(out + rows, found)


@triton.jit
def running(out, x, OPERATION: tl.constexpr, N: tl.constexpr):
    lanes = tl.arange(0, N)
    block = tl.load(x + lanes)
    if OPERATION == "sum":
        found = tl.cumsum(block, 0)
    elif OPERATION == "product":
        found = tl.cumprod(block, 0)
    tl.store(out + lanes, found.to(out.dtype.element_ty))


@triton.jit
def copy_rows(out, x, out_stride, x_stride, count, N: tl.constexpr):
    row = tl.program_id(0)
    lanes = tl.arange(0, N)
    mask = lanes < count
    block = tl.load(x + row * x_stride + lanes, mask=mask, other=0)
    tl.store(out + row * out_stride + lanes, block, mask=mask)


@triton.jit
def load_shifted(out, x, shift, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.store(out + lanes, tl.load(x + lanes + shift))


@triton.jit
def load_scalar(out, x, index):
    tl.store(out, tl.load(x + index))


@triton.jit
def load_shaped(out, x, shift, N: tl.constexpr):
    pointers = tl.reshape(tl.trans(x + shift + tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]), (N * N,))
    tl.store(out + tl.arange(0, N * N), tl.load(pointers))


@triton.jit
def load_either(out, a, b, N: tl.constexpr):
    lanes = tl.arange(0, N)
    pointers = tl.where(lanes % 2 == 0, a + lanes, b + lanes)
    tl.store(out + lanes, tl.load(pointers))


@triton.jit
def load_address(out, address):
    tl.store(out, tl.load(address.to(tl.pointer_type(tl.int32))))


@triton.jit
def load_halves(out, x, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.store(out + lanes, tl.load(x.to(tl.pointer_type(tl.int16)) + lanes))


@triton.jit
def load_pairs(out, x, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.store(out + lanes, tl.load(x.to(tl.pointer_type(tl.int64)) + lanes))


@triton.jit
def load_described(out, x, rows):
    block = tl.make_tensor_descriptor(x, shape=[rows, 16], strides=[16, 1], block_shape=[4, 16])
    lanes = tl.arange(0, 4)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(out + lanes, block.load([0, 0]))


@triton.jit
def count_blocks(out, x):
    tl.store(out, tl.cdiv(tl.load(x), 16))


@triton.jit
def store_bytes(out, SHIFT: tl.constexpr):
    pointer = out.to(tl.pointer_type(tl.int8))
    tl.store(pointer + tl.program_id(0) * SHIFT, 1)


@triton.jit
def element(pointer, index):
    return tl.load(
        pointer + index,
    )


@triton.jit
def load_in_helper(out, x, index):
    first = element(x, 0)
    tl.store(out, first + element(x, index))


@triton.jit
def add_atomically(out, index, N: tl.constexpr):
    tl.atomic_add(out + index + tl.arange(0, N) // 2, 1)


@triton.jit
def swap_atomically(out, index):
    tl.atomic_cas(out + index, 0, 7)


@triton.jit
def store_program(out, stride):
    tl.store(out + tl.program_id(0) * stride + tl.program_id(1), tl.program_id(0))


@triton.jit
def store_lanes(out, DIVISOR: tl.constexpr, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.store(out + lanes // DIVISOR, lanes)


@triton.jit
def shift_in_place(x, distance):
    program = tl.program_id(0)
    value = tl.load(x + program + distance)
    tl.store(x + program, value)


@triton.jit
def follow(x):
    program = tl.program_id(0)
    tl.store(x + program, 1 + tl.load(x + tl.maximum(program, 1) - 1))


@triton.jit
def load_then_last_stores(x):
    first = tl.load(x)
    if tl.program_id(0) == tl.num_programs(0) - 1:
        tl.store(x, first)


@triton.jit
def store_beside(out, unused, x):
    program = tl.program_id(0)
    tl.store(out + program, tl.load(x + program % 4))


@triton.jit
def store_wide_then_narrow(out):
    if tl.program_id(0) == 0:
        tl.store(out, 1)
    else:
        tl.store(out.to(tl.pointer_type(tl.int8)) + 3, 1)


@triton.jit
def load_then_update(x, distance):
    program = tl.program_id(0)
    tl.load(x + program)
    tl.atomic_add(x + program + distance, 1)


@triton.jit
def store_then_update(out, distance):
    program = tl.program_id(0)
    tl.store(out + program, 1)
    tl.atomic_add(out + program + distance, 1)


@triton.jit
def integers(out, a, b, OPERATION: tl.constexpr, N: tl.constexpr):
    lanes = tl.arange(0, N)
    x = tl.load(a + lanes)
    y = tl.load(b + lanes)
    if OPERATION == "add":
        z = x + y
    elif OPERATION == "sub":
        z = x - y
    elif OPERATION == "mul":
        z = x * y
    elif OPERATION == "div":
        z = x // y
    elif OPERATION == "neg":
        z = -x
    elif OPERATION == "abs":
        z = tl.abs(x)
    elif OPERATION == "shl":
        z = x << y
    elif OPERATION == "shr":
        z = x >> y
    elif OPERATION == "int32":
        z = x.to(tl.int32).to(x.dtype)
    elif OPERATION == "sum":
        z = x + 0 * tl.sum(x.to(y.dtype), axis=0)
    elif OPERATION == "cumsum":
        z = tl.cumsum(x, 0)
    tl.store(out + lanes, z)


@triton.jit
def quotient_and_remainder(out, a, b):
    x = tl.load(a)
    y = tl.load(b)
    tl.store(out, x // y)
    tl.store(out + 1, x % y)
