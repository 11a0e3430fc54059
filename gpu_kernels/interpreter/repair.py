"""Triton's interpreter, made exact and watchful: kernels run on CPU tensors, and what they do wrong is a KernelBug.

Whether ``triton.jit`` interprets is decided when Triton is first imported. ``enable()`` therefore comes first in a
process; a process that compiles kernels is another one.

What the interpreter does by itself, and what ``enable()`` makes of it:

| by itself | after ``enable()`` |
| --- | --- |
| bfloat16 and FP8 arithmetic works on bit patterns, casts round wrongly | exact (``numbers``) |
| no bounds: what is mapped is read or written | lanes are checked against their tensor (``memory``) |
| programs run one after the other, so races have no effect | reported (``memory``) |
| integers wrap silently | reported (``overflow``) |

What stays different from a compiled kernel, and needs tests of compiled kernels:

- Types that change by branch, and names that one branch alone defines, pass here and do not compile. So do ``tl.dot``
  below the hardware's sizes and calls of ordinary Python functions.
- ``a < b < c`` on blocks compares only ``b < c`` (before Triton 3.9). A block of several elements as a condition is true.
- A masked load without ``other`` gives zeros here, anything there. ``tf32`` dots are taken in full float32.
  float32 ``tl.fma`` rounds twice (before Triton 3.9). Casts of floats to integers that do not hold them differ.
- Threads of one program run in lockstep here: a store and a load of one program that a barrier must part are not noticed.

With Triton 3.8.0 checks make this repository's write kernel (64 tokens) 1.3 to 1.5 times and its decode kernel (4 rows,
299 positions) 1.15 to 1.2 times as slow as ``unchecked()``, which is a little faster than the unrepaired interpreter.

``//`` and ``%`` of integers truncate towards zero, like C and unlike Python: that is how Triton defines them.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from kvsan.gpu_kernels.interpreter import numbers, overflow
from kvsan.gpu_kernels.interpreter.launch import Launch, running, running_launch
from kvsan.gpu_kernels.interpreter.memory import ATOMIC, LOAD, STORE, Memory

VARIABLE = "TRITON_INTERPRET"

_INTERNALS: dict[str, tuple[str, ...]] = {
    "InterpreterBuilder.cast_impl": ("self", "src", "dst_type"),
    "InterpreterBuilder.create_fp_to_fp": ("self", "src", "dst_type", "rounding_mode"),
    "InterpreterBuilder.binary_op": ("self", "lhs", "rhs", "op"),
    "InterpreterBuilder.unary_op": ("self", "arg", "op"),
    "InterpreterBuilder.ternary_op": ("self", "lhs", "rhs", "other", "op"),
    "InterpreterBuilder.create_fma": ("self", "x", "y", "z"),
    "InterpreterBuilder.create_minnumf": ("self", "lhs", "rhs"),
    "InterpreterBuilder.create_maxnumf": ("self", "lhs", "rhs"),
    "InterpreterBuilder.create_fabs": ("self", "arg"),
    "InterpreterBuilder.create_idiv": ("self", "lhs", "rhs"),
    "InterpreterBuilder.create_dot": ("self", "a", "b", "d", "input_precision", "max_num_imprecise_acc"),
    "ReduceOps.sum": ("self", "input"),
    "ReduceOps.min_max": ("self", "input", "val_reduce_op", "idx_reduce_op"),
    "ScanOps.cumsum": ("self", "input"),
    "ScanOps.cumprod": ("self", "input"),
    "GridExecutor._init_args_hst": ("self", "args_dev", "kwargs"),
    "GridExecutor.__call__": ("self", "args_dev", "kwargs"),
    "TensorHandle": ("data", "dtype", "attr"),
    "_implicit_cvt": ("arg",),
    "_get_np_dtype": ("tt_dtype",),
    "InterpretedFunction.rewritten_fn": (),
    "InterpreterError": (),
    "InterpreterOptions": (),
    "interpreter_builder.options": (),
    "_ir.ROUNDING_MODE.RTZ": (),
    "_interpreter": (),
    "tl": (),
}
"""What the repair needs of Triton's interpreter module, with parameters where it calls or replaces a function."""

_MEMORY_ACCESS = {"load", "store", "atomic_rmw", "atomic_cas"}
_NO_MEMORY_ACCESS = {"fma_fp32", "fma_fp64"}

_state = {"enabled": False, "checked": True}


def enabled() -> bool:
    """Whether kernels of this process run under the repaired interpreter."""
    return _state["enabled"]


def enable() -> None:
    """Make this process interpret Triton kernels, exactly and with checks; does nothing the second time.

    Raises RuntimeError if Triton was imported to compile, or is a version whose interpreter the repair does not know.
    """
    if enabled():
        return
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "1"
    try:
        module = _interpreter_module()
    except BaseException:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
        raise
    numbers.install(module)
    overflow.install(module)
    _install_checks(module)
    _state["enabled"] = True


@contextmanager
def unchecked() -> Iterator[None]:
    """Run launches inside without checks of bounds, races and overflow; numbers stay exact."""
    before, _state["checked"] = _state["checked"], False
    try:
        yield
    finally:
        _state["checked"] = before


def _interpreter_module() -> Any:
    import triton
    import triton.language
    import triton.runtime.interpreter as module

    if not isinstance(triton.language.cdiv, module.InterpretedFunction):
        raise RuntimeError(
            "Triton was imported before the interpreter was enabled, and compiles kernels in this process: "
            f"call kvsan.gpu_kernels.interpreter.enable() first, or set {VARIABLE}=1 before Python starts"
        )
    unknown = unknown_internals(module)
    if unknown:
        raise RuntimeError(
            f"triton {triton.__version__}: its interpreter is not one that KVSan can check ({'; '.join(unknown)})"
        )
    return module


def unknown_internals(module: Any) -> list[str]:
    """Differences between Triton's interpreter module and what the repair needs, one sentence each."""
    found = []
    for path, parameters in _INTERNALS.items():
        member = module
        for name in path.split("."):
            member = getattr(member, name, None)
        if member is None:
            found.append(f"no {path}")
        elif parameters and tuple(inspect.signature(member).parameters) != parameters:
            found.append(f"{path} takes {', '.join(inspect.signature(member).parameters)}")
    native = getattr(module, "_interpreter", None)
    members = {name: getattr(native, name) for name in dir(native) if not name.startswith("_")}
    functions = {name for name, member in members.items() if callable(member) and not isinstance(member, type)}
    found += [f"no _interpreter.{name}" for name in sorted(_MEMORY_ACCESS - functions)]
    found += [f"_interpreter.{name} is new" for name in sorted(functions - _MEMORY_ACCESS - _NO_MEMORY_ACCESS)]
    return found


class _CheckedMemory:
    """Stands in for Triton's native module, through which every access of every kernel goes."""

    def __init__(self, native: Any) -> None:
        self._native = native
        self.as_atomic = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def _checked(self, how: str, pointers: Any, mask: Any, size_bytes: int) -> Any:
        launch = running_launch()
        if launch is None:
            return pointers
        return launch.memory.check(launch, ATOMIC if self.as_atomic else how, pointers, mask, size_bytes)

    def load(self, pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
        return self._native.load(self._checked(LOAD, pointers, mask, dtype.itemsize), mask, other, dtype)

    def store(self, pointers: Any, values: Any, mask: Any) -> Any:
        return self._native.store(self._checked(STORE, pointers, mask, values.itemsize), values, mask)

    def atomic_rmw(self, operation: Any, pointers: Any, values: Any, mask: Any, order: Any) -> Any:
        pointers = self._checked(ATOMIC, pointers, mask, values.itemsize)
        return self._native.atomic_rmw(operation, pointers, values, mask, order)

    def atomic_cas(self, pointers: Any, expected: Any, values: Any, order: Any) -> Any:
        pointers = self._checked(ATOMIC, pointers, np.True_, values.itemsize)
        return self._native.atomic_cas(pointers, expected, values, order)


def _install_checks(module: Any) -> None:
    memory = _CheckedMemory(module._interpreter)
    module._interpreter = memory
    module._implicit_cvt = _tagging(module._implicit_cvt)
    executor, builder = module.GridExecutor, module.InterpreterBuilder
    executor._init_args_hst = _registering(executor._init_args_hst)
    executor.__call__ = _launching(module, executor.__call__)
    for name in ("create_atomic_load", "create_atomic_store", "create_atomic_poll"):  # Triton 3.9 on
        if hasattr(builder, name):
            setattr(builder, name, _as_atomic(memory, getattr(builder, name)))


def _launching(module: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    def launched(executor: Any, *args: Any, **kwargs: Any) -> Any:
        with np.errstate(all="ignore"):  # infinities and NaN are ordinary numbers of kernels
            if not _state["checked"]:
                return call(executor, *args, **kwargs)
            launch = Launch(module, executor.fn, Memory())
            try:
                with running(launch):
                    return call(executor, *args, **kwargs)
            except module.InterpreterError:
                if launch.bug is not None:
                    raise launch.bug from None
                raise

    return launched


def _registering(init_args: Callable[..., Any]) -> Callable[..., Any]:
    """Note the tensors that a launch is given, by the names of the kernel's parameters."""

    def registered(executor: Any, args_dev: Any, kwargs: Any) -> Any:
        args, keywords = init_args(executor, args_dev, kwargs)
        launch = running_launch()
        if launch is not None:
            named = inspect.getcallargs(executor.fn, *args, **keywords)
            for name, argument in named.items():
                launch.memory.add(name, argument)
            if not callable(executor.grid):
                launch.check_arguments(named, executor.constexprs, executor.grid)
        return args, keywords

    return registered


def _tagging(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Tag the pointers that tensor arguments become."""

    def tagged(argument: Any) -> Any:
        result = convert(argument)
        launch = running_launch()
        if launch is not None and hasattr(argument, "data_ptr"):
            result.handle.data = result.handle.data | launch.memory.tag(argument)
        return result

    return tagged


def _as_atomic(memory: _CheckedMemory, method: Callable[..., Any]) -> Callable[..., Any]:
    def atomic(*args: Any) -> Any:
        memory.as_atomic = True
        try:
            return method(*args)
        finally:
            memory.as_atomic = False

    return atomic
