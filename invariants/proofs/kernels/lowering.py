"""A kernel to the IR that its compiler gets, as text in MLIR's generic form; no GPU is needed.

MLIR prints a module in generic form, which parsers can read without knowing its dialects, when it fails its verifier: an
attribute of a wrong type on the module is enough.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvsan.gpu_kernels.compile.build import TARGETS, Build
from kvsan.gpu_kernels.compile.worker import WrongBuild, check_arguments, load
from kvsan.invariants.proofs.kernels.ir import Rejected
from kvsan.invariants.proofs.kernels.places import places

TTIR, TTGIR = "ttir", "ttgir"
LEVELS = (TTIR, TTGIR)
"""Triton's own IR, and the one with layouts: what a GPU's threads do."""


@dataclass(frozen=True, slots=True)
class Lowered:
    """IR of one kernel: its ``text``, and ``file:line`` in the kernel's source by line of the text."""

    text: str
    places: Mapping[int, str]


def lower(build: Build, level: str = TTIR, target: str | None = None) -> Lowered:
    """IR of a kernel in one configuration, after the compiler's passes up to ``level``.

    ``target`` is one of `TARGETS`, the build's first unless given. TTGIR is taken with ``num_stages`` 1: pipelined loops
    are not covered. Rejected if the kernel does not compile, WrongBuild if its arguments are others.
    """
    kernel = load(build.kernel)
    if os.environ.get("TRITON_INTERPRET"):
        raise WrongBuild("TRITON_INTERPRET is set: this process interprets kernels and cannot compile them")
    described = {"signature": dict(build.signature), "constexprs": dict(build.constexprs)}
    check_arguments(kernel, described)
    compiler = importlib.import_module("triton.compiler")
    backends = importlib.import_module("triton.backends.compiler")
    ir = importlib.import_module("triton._C.libtriton").ir
    goal = TARGETS[target or build.targets[0]]
    gpu = backends.GPUTarget(goal.backend, goal.arch, goal.warp_size)
    position = {name: index for index, name in enumerate(kernel.arg_names)}
    source = compiler.ASTSource(
        kernel,
        {name: build.signature.get(name, "constexpr") for name in kernel.arg_names},
        constexprs=dict(build.constexprs),
        attrs={(position[name],): [["tt.divisibility", 16]] for name in build.aligned},
    )
    backend = compiler.make_backend(gpu)
    options = backend.parse_options({"num_warps": build.num_warps, "num_stages": 1, **source.parse_options()})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, source.language)
    metadata = {"target": gpu, **options.__dict__}
    try:
        module = source.make_ir(
            gpu, options, backend.get_codegen_implementation(options), backend.get_module_map(), context
        )
        for name in LEVELS[: LEVELS.index(level) + 1]:
            module = stages[name](module, metadata)
    except WrongBuild:
        raise
    except Exception as error:
        raise Rejected(f"the kernel does not compile: {type(error).__name__}: {error}") from error
    module.set_attr("llvm.data_layout", ir.builder(context).get_string_attr("none"))
    with quiet():
        text, located = module.str_nodebug(), str(module)
    if not text.lstrip().startswith(('"builtin.module"', "#")):
        raise Rejected("this release of Triton does not print the generic form of its IR")
    return Lowered(text, places(text, located))


def ordered_signature(build: Build) -> dict[str, str]:
    """Types of the arguments that the IR has, in the order of the kernel."""
    return {name: build.signature[name] for name in load(build.kernel).arg_names if name in build.signature}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the complaints of MLIR's verifier, which writes to stderr's file descriptor itself."""
    kept = os.dup(2)
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
