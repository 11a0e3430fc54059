"""The process that compiles: ``python -m kvsan.gpu_kernels.compile.worker [FOLDER]``, started by `compile`.

Reads builds from stdin, one JSON object a line, and answers each with one line; FOLDER is the result cache. What Triton
and the kernels' modules print goes to stderr. An answer is cached under everything that it depends on: the kernel's
source and that of all it calls (``JITFunction.cache_key``), the build, the target, the version of Triton, and this
reader. Only what compiles is cached.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvsan.gpu_kernels.compile import resources
from kvsan.gpu_kernels.compile.build import TARGETS
from kvsan.gpu_kernels.compile.crew import Message
from kvsan.gpu_kernels.compile.resources import Resources, UnreadableBinary


class WrongBuild(Exception):
    """A build does not fit its kernel."""


def main(arguments: list[str]) -> int:
    """Answer until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    results = Path(arguments[0]) if arguments else None
    triton = importlib.import_module("triton")
    print(json.dumps({"triton": triton.__version__}), file=answers)
    for line in sys.stdin:
        job = json.loads(line)
        print(json.dumps(answer(job["build"], job["target"], results)), file=answers)
    return 0


def answer(build: Message, target: str, results: Path | None) -> Message:
    """Fields of an `Outcome`."""
    try:
        kernel = load(build["kernel"])
        check_arguments(kernel, build)
        place = results / f"{_key(kernel, build, target)}.json" if results else None
        known = _recall(place)
    except Exception as error:
        return {"error": _explain(error)}
    if known:
        return known | {"cached": True}
    started = time.perf_counter()
    try:
        figures = compile_for(kernel, build, target)
    except UnreadableBinary as error:
        return {"harness_error": str(error)}
    except Exception as error:
        return {"error": _explain(error), "seconds": time.perf_counter() - started}
    found = {"resources": asdict(figures), "seconds": time.perf_counter() - started}
    _remember(place, found)
    return found


def load(reference: str) -> Any:
    """The kernel at ``module:function``; WrongBuild if there is none."""
    module, _, name = reference.partition(":")
    kernel = getattr(importlib.import_module(module), name, None)
    if not isinstance(kernel, importlib.import_module("triton").JITFunction):
        raise WrongBuild(f"{reference} is no function under @triton.jit")
    return kernel


def check_arguments(kernel: Any, build: Message) -> None:
    """WrongBuild unless the build gives every argument of the kernel, and nothing else."""
    given = build["signature"].keys() | build["constexprs"].keys()
    constants = {parameter.name for parameter in kernel.params if parameter.is_constexpr}
    problems = {
        "of the kernel, without a type or value": set(kernel.arg_names) - given,
        "not an argument of the kernel": given - set(kernel.arg_names),
        "a constexpr of the kernel": constants & build["signature"].keys(),
    }
    found = [f"{', '.join(sorted(names))}: {problem}" for problem, names in problems.items() if names]
    if found:
        raise WrongBuild("; ".join(found))


def compile_for(kernel: Any, build: Message, target: str) -> Resources:
    """Compile and read the figures; whatever Triton raises comes out."""
    compiler = importlib.import_module("triton.compiler")
    gpu = importlib.import_module("triton.backends.compiler").GPUTarget
    goal = TARGETS[target]
    position = {name: index for index, name in enumerate(kernel.arg_names)}
    source = compiler.ASTSource(
        kernel,
        {name: build["signature"].get(name, "constexpr") for name in kernel.arg_names},
        constexprs=build["constexprs"],
        attrs={(position[name],): [["tt.divisibility", 16]] for name in build["aligned"]},
    )
    options = {name: build[name] for name in ("num_warps", "num_stages") if build[name] is not None}
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        binary = compiler.compile(source, target=gpu(goal.backend, goal.arch, goal.warp_size), options=options)
    shared_bytes = binary.metadata.shared
    if goal.backend == "cuda":
        return resources.nvidia_resources(said.getvalue(), binary.kernel, shared_bytes)
    return resources.amd_resources(binary.asm["amdgcn"], binary.kernel, shared_bytes)


def _key(kernel: Any, build: Message, target: str) -> str:
    reader = [Path(file).read_text("utf-8") for file in (__file__, resources.__file__)]
    triton = importlib.import_module("triton").__version__
    launch = [build[name] for name in ("signature", "constexprs", "aligned", "num_warps", "num_stages")]
    parts = [kernel.cache_key, launch, target, asdict(TARGETS[target]), triton, reader]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _recall(place: Path | None) -> Message | None:
    """What was found before; None if that is nothing, or not what it should be."""
    if place is None:
        return None
    try:
        known: Message = json.loads(place.read_text("utf-8"))
        Resources(**known["resources"])
        return {"resources": known["resources"], "seconds": float(known["seconds"])}
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _remember(place: Path | None, found: Message) -> None:
    """Keep a result, whole or not at all; a cache that cannot be written costs time and nothing else."""
    if place is None:
        return
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=place.parent, suffix=".part", delete=False) as file:
            json.dump(found, file)
        Path(file.name).replace(place)


def _explain(error: BaseException) -> str:
    """What the compiler says, from the outermost frame of the kernel to the innermost."""
    told = []
    cause: BaseException | None = error
    while cause is not None:
        text = str(cause).strip()
        told.append(
            text if type(cause).__name__ in ("CompilationError", "WrongBuild") else f"{type(cause).__name__}: {text}"
        )
        cause = cause.__cause__
    return "\n".join(told)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
