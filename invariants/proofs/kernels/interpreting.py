"""The process of `interpreted.Interpreter`: takes launches from stdin, one JSON object a line, and answers each likewise.

Every tensor has a window of addresses to itself, with as much room before it as it may need, so that an access far out of
bounds is still known to be of that tensor. Windows have 2**47 bytes together: tensors that span more cannot be imagined.
"""

from __future__ import annotations

import importlib
import json
import operator
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsan.gpu_kernels import interpreter
from kvsan.gpu_kernels.interface import KernelBug
from kvsan.gpu_kernels.interpreter.launch import Launch, lane_at, running, running_launch
from kvsan.gpu_kernels.interpreter.memory import LOAD, STORE, Memory

Message = dict[str, Any]
Method = Callable[..., Any]

ADDRESSES = 1 << 47
LARGEST_SHADOW = 1 << 31
"""Cells of a tensor beyond which races are not looked for: the interpreter keeps numbers for each."""


class NotImaginable(Exception):
    """A launch is larger than the addresses that there are."""


@dataclass(slots=True)
class Imagined:
    """A tensor without storage; answers what the interpreter asks of a torch tensor on the CPU."""

    name: str
    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    contents: dict[int, int]
    fill: int
    address: int = 0

    @property
    def span(self) -> int:
        """Bytes from the first element to behind the last."""
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return (last + 1) * self.element_size()

    def element_size(self) -> int:
        """Bytes of an element."""
        return int(self.dtype.itemsize)

    def data_ptr(self) -> int:
        """Address of the first element."""
        return self.address

    def stride(self) -> tuple[int, ...]:
        """Strides in elements."""
        return self.strides

    def size(self) -> tuple[int, ...]:
        """The shape."""
        return self.shape

    def storage_offset(self) -> int:
        """Where in its storage a tensor begins."""
        return 0

    def untyped_storage(self) -> Imagined:
        """Stands for its storage, which is copied to the CPU and back."""
        return self

    def cpu(self) -> Imagined:
        """On the CPU already."""
        return self

    def new_empty(self, *_: Any, **__: Any) -> Imagined:
        """What becomes a view of the storage by ``set_``."""
        return self

    def set_(self, *_: Any) -> None:
        """Be a view of a storage."""

    def copy_(self, *_: Any) -> None:
        """Take what a launch left in the copy on the CPU: nothing."""

    def values(self, offsets: npt.NDArray[np.int64], dtype: Any) -> npt.NDArray[Any]:
        """What is at offsets."""
        found = np.full(offsets.shape, self.fill, dtype=dtype)
        for offset, value in self.contents.items():
            found[offsets == offset] = value
        return found


class ImaginedMemory:
    """Stands in for Triton's native module: writes accesses down."""

    def __init__(self, native: Any, tensors: list[Imagined], windows: list[int], observed: Observed) -> None:
        self._native = native
        self._tensors = tensors
        self._windows = windows
        self._observed = observed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def load(self, pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
        """Load zeros, or what an index tensor holds."""
        everywhere, active, result = np.broadcast_arrays(pointers, np.asarray(mask, dtype=np.bool_), other)
        result = result.astype(dtype)
        for tensor, where, offsets in self._touched(LOAD, everywhere, active):
            result[where] = tensor.values(offsets, dtype)
        return result

    def store(self, pointers: Any, values: Any, mask: Any) -> None:
        """Store nothing."""
        everywhere, active, _ = np.broadcast_arrays(pointers, np.asarray(mask, dtype=np.bool_), values)
        for _ in self._touched(STORE, everywhere, active):
            pass

    def atomic_rmw(self, *_: Any) -> Any:
        """Not imagined: proofs reject atomics."""
        raise ValueError("atomics are not imagined")

    atomic_cas = atomic_rmw

    def _touched(self, how: str, pointers: Any, active: Any) -> Iterator[tuple[Imagined, Any, Any]]:
        addresses = pointers.astype(np.int64)
        owners = np.searchsorted(self._windows, addresses, side="right") - 1
        launch = running_launch()
        assert launch is not None
        for number in np.unique(owners[active]).tolist() if active.any() else []:
            tensor = self._tensors[number]
            where = active & (owners == number)
            offsets = (addresses[where] - tensor.address) // tensor.element_size()
            lanes = [list(lane_at(int(one), active.shape)) for one in np.flatnonzero(where)]
            self._observed.accesses.append(
                {**self._observed.where(launch), "how": how, "tensor": tensor.name, "shape": _shape(active), "lanes": lanes,
                 "offsets": offsets.tolist()}
            )  # fmt: skip
            yield tensor, where, offsets


def _shape(block: npt.NDArray[Any]) -> list[int]:
    return [] if block.shape == (1,) else list(block.shape)


class Observed:
    """What programs do, as it goes into the answer."""

    def __init__(self) -> None:
        self.accesses: list[Message] = []
        self.loops: list[Message] = []
        self.guards: list[Message] = []
        self._variables: list[int] = []

    def where(self, launch: Launch) -> Message:
        """Program, place in the source, and variables of the loops around it."""
        file, line = launch.source()
        return {"program": list(launch.program()), "place": f"{file}:{line}", "loops": list(self._variables)}

    def range(self, *bounds: Any) -> Iterator[int]:
        """Stands in for ``range`` in kernels."""
        whole = range(*map(operator.index, bounds))
        launch = running_launch()
        assert launch is not None
        self.loops.append({**self.where(launch), "range": [whole.start, whole.stop, whole.step]})
        self._variables.append(0)
        for variable in whole:
            self._variables[-1] = variable
            yield variable
        self._variables.pop()

    def select(self, method: Method) -> Method:
        """Stands in for selects between floats: what is computed is taken, and not a constant, as in `specification.Guard`."""

        def selected(builder: Any, condition: Any, first: Any, second: Any) -> Any:
            launch = running_launch()
            if launch is not None and first.dtype.scalar.is_floating():
                taken = np.broadcast_to(condition.data, np.broadcast_shapes(condition.data.shape, first.data.shape))
                if _CONSTANT in first.attr and _CONSTANT not in second.attr:
                    taken = ~taken.astype(np.bool_)
                lanes = [list(lane_at(int(one), taken.shape)) for one in np.flatnonzero(taken)]
                self.guards.append({**self.where(launch), "shape": _shape(taken), "taken": lanes})
            return method(builder, condition, first, second)

        return selected


_CONSTANT = "kvsan.constant"
_MAKE_CONSTANTS = ("get_fp16", "get_fp32", "get_fp64", "get_null_value")
_KEEP_CONSTANTS = (
    "create_splat", "create_broadcast", "create_expand_dims", "create_fp_ext", "create_fp_trunc", "create_fp_to_fp",
)  # fmt: skip


def _marking(method: Method) -> Method:
    """Mark what a method of the builder gives as constant, where the blocks that it is given, if any, are."""

    def marked(builder: Any, *operands: Any) -> Any:
        result = method(builder, *operands)
        if all(_CONSTANT in one.attr for one in operands if hasattr(one, "attr")):
            result.set_attr(_CONSTANT, True)
        return result

    return marked


class _OverflowOnly(Memory):
    """Leaves addresses alone."""

    def check(self, launch: Launch, how: str, pointers: Any, mask: Any, size_bytes: int) -> Any:
        return super().check(launch, how, pointers, np.False_, size_bytes)


def interpret(request: Message) -> Message:
    """Run one launch; fields of an `interpreted.Interpreted`."""
    launch, programs = request["launch"], request["programs"]
    if launch["folder"] and launch["folder"] not in sys.path:
        sys.path.insert(0, launch["folder"])
    module, _, name = launch["kernel"].partition(":")
    kernel = getattr(importlib.import_module(module), name)
    triton = importlib.import_module("triton.runtime.interpreter")
    tensors = [_tensor(name, launch) for name in launch["tensors"]]
    windows = _place(tensors, launch)
    function = kernel.rewrite()
    small = all(tensor.span // tensor.element_size() <= LARGEST_SHADOW for tensor in tensors)
    memory = Memory() if launch["checked"] and small else _OverflowOnly()
    running_now = Launch(triton, function, memory)
    observed = Observed()
    error = ""
    imagined = ImaginedMemory(triton._interpreter._native, tensors, windows, observed)
    with _watching(triton, kernel, observed, imagined, launch["grid"], programs) as grid:
        arguments = _arguments(launch, tensors)
        try:
            with running(running_now), interpreter.unchecked(), np.errstate(all="ignore"):
                kernel[grid](**arguments)
        except triton.InterpreterError as raised:
            error = "" if running_now.bug is not None else str(raised)
    bug = running_now.bug
    found = {"accesses": observed.accesses, "loops": observed.loops, "guards": observed.guards}
    return {**found, "error": error, "bug": None if bug is None else _fields(bug)}


def _fields(bug: KernelBug) -> Message:
    names = ("kind", "kernel", "file", "line", "program", "lane", "message")
    return {name: getattr(bug, name) for name in names} | {"program": list(map(int, bug.program))}


def _tensor(name: str, launch: Message) -> Imagined:
    one, triton = launch["tensors"][name], importlib.import_module("triton")
    kind = launch["signature"][name].removeprefix("*")
    torch = importlib.import_module("torch")
    types = {
        "fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64, "i1": torch.bool,
        "fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2, "fp8e4b8": torch.float8_e4m3fnuz,
        "fp8e5b16": torch.float8_e5m2fnuz, **{f"i{bits}": getattr(torch, f"int{bits}") for bits in (8, 16, 32, 64)},
        **{f"u{bits}": getattr(torch, f"uint{bits}") for bits in (8, 16, 32, 64)},
    }  # fmt: skip
    if kind not in types:
        raise ValueError(f"{name} of type {kind}, triton {triton.__version__}")
    return Imagined(name, types[kind], tuple(one["shape"]), tuple(one["strides"]), dict(one["contents"]), one["fill"])


def _place(tensors: list[Imagined], launch: Message) -> list[int]:
    """Give addresses; returns where the windows begin, by number of tensor."""
    width = ADDRESSES // len(tensors)
    windows = []
    firsts: dict[str, Imagined] = {}
    for number, tensor in enumerate(tensors):
        if tensor.span > width // 2:
            raise NotImaginable(f"{tensor.name} spans {tensor.span / 2**30:.0f} GiB of addresses")
        first = firsts.setdefault(launch["tensors"][tensor.name]["storage"] or tensor.name, tensor)
        windows.append(number * width)
        tensor.address = number * width + width // 4 if first is tensor else first.address
    return windows


def _arguments(launch: Message, tensors: list[Imagined]) -> Message:
    language = importlib.import_module("triton.language")
    handle = importlib.import_module("triton.runtime.interpreter").TensorHandle
    given: Message = {tensor.name: tensor for tensor in tensors} | launch["constexprs"]
    for name, kind in launch["signature"].items():
        if kind.startswith("*"):
            continue
        if kind.startswith("fp"):
            given[name] = 1.0
        else:  # an int would get the narrowest type that it fits
            type = getattr(language, f"int{kind[1:]}" if kind[0] == "i" else f"uint{kind[1:]}")
            width = (
                np.dtype(f"{'u' * (kind[0] == 'u')}int{max(8, int(kind[1:]))}") if kind != "i1" else np.dtype(np.bool_)
            )
            given[name] = language.tensor(handle(np.array([launch["scalars"][name]], dtype=width), type), type)
    return given


@contextmanager
def _watching(
    triton: Any, kernel: Any, observed: Observed, memory: ImaginedMemory, grid: list[int], programs: Any
) -> Iterator[tuple[int, ...]]:
    """Put memory, loops, selects and programs of one launch in place; gives the grid to launch with."""
    builder, methods = triton.interpreter_builder, triton.InterpreterBuilder
    whole = (*grid, 1, 1)[:3]
    with ExitStack() as replaced:
        _replace(replaced, vars(triton._interpreter), "_native", memory)
        changed = {name: _marking(getattr(methods, name)) for name in (*_MAKE_CONSTANTS, *_KEEP_CONSTANTS)}
        changed["create_select"] = observed.select(methods.create_select)
        for name, method in changed.items():
            replaced.callback(setattr, methods, name, getattr(methods, name))
            setattr(methods, name, method)
        for names in _globals(triton, kernel):
            _replace(replaced, names, "range", observed.range)
        if programs is not None:
            _replace(replaced, vars(builder), "set_grid_dim", lambda *_: setattr(builder, "grid_dim", whole))
            chosen = [tuple(one) for one in programs]
            _replace(
                replaced, vars(builder), "set_grid_idx", lambda number, *_: setattr(builder, "grid_idx", chosen[number])
            )
        yield whole if programs is None else (len(programs), 1, 1)


def _replace(replaced: ExitStack, names: Message, name: str, value: Any) -> None:
    """Give a name another value for as long as ``replaced`` is open."""
    if name in names:
        replaced.callback(names.__setitem__, name, names[name])
    else:
        replaced.callback(names.__delitem__, name)
    names[name] = value


def _globals(triton: Any, kernel: Any) -> list[Message]:
    """Names of the modules of a kernel and of all that it may call, but for Triton's own."""
    found: dict[int, Message] = {}
    todo = [kernel]
    while todo:
        names = todo.pop().fn.__globals__
        if id(names) not in found and not names["__name__"].startswith("triton."):
            found[id(names)] = names
            todo += [one for one in list(names.values()) if isinstance(one, triton.InterpretedFunction)]
    return list(found.values())


def main() -> int:
    """Answer until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    interpreter.enable()
    for line in sys.stdin:
        try:
            answer = interpret(json.loads(line))
        except NotImaginable as error:
            answer = {"failed": str(error), "too_large": True}
        except Exception as error:  # the process goes on; whoever asked is told
            answer = {"failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
