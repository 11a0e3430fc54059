"""A user's kernel, and the file that specifies it.

The file is Python::

    from kvsan.invariants.proofs.kernels.specification import Load, Specification, Store, Tensor
    from kvsan.invariants.proofs.term import both, within

    SIGNATURE = {"cache": "*bf16", "table": "*i32", "out": "*bf16", "stride": "i32"}    # as Triton names types
    CONSTEXPRS = {"BLOCK_SIZE": 16, "HEAD_DIM": 128}                                    # or a list of such dicts

    def specify(k):
        ...
        return Specification(...)
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from kvsan.ci.proofs.proving import with_seeds
from kvsan.gpu_kernels.compile.build import Build, signature
from kvsan.gpu_kernels.compile.worker import WrongBuild
from kvsan.harness.verdict import HarnessError, UsageError
from kvsan.invariants.proofs.kernels.catalogue import claim_of, prove_build
from kvsan.invariants.proofs.kernels.ir import Rejected
from kvsan.invariants.proofs.kernels.lowering import TTIR
from kvsan.invariants.proofs.kernels.specification import Specification, Specify
from kvsan.invariants.proofs.kernels.unknown_launch import UnknownLaunch
from kvsan.invariants.proofs.obligation import Claim, Outcome

_SEPARATOR = "\n"
_EXACT = (
    "every load and store is at the element that the specification names, where and only where it says, hence in bounds"
)
_BOUNDS = "every load and store is in bounds; which address is right was not specified"


def keys(kernel: str, file: Path) -> list[str]:
    """One key for each configuration of the file; UsageError if file or kernel are not what they should be."""
    if kernel.count(":") != 1:
        raise UsageError(f"--kernel {kernel}: expected MODULE:FUNCTION")
    builds, specify = _read(kernel, str(file))
    for build in builds:
        _claim(build, specify, file)
    return [_SEPARATOR.join((kernel, str(file), str(number))) for number in range(len(builds))]


def prove(key: str, timeout_ms: int, seeds: int) -> Outcome:
    """Prove the configuration of a key; UsageError if the specification itself raises."""
    kernel, file, number = key.split(_SEPARATOR)
    builds, specify = _read(kernel, file)
    build = builds[int(number)]
    claim = _claim(build, specify, Path(file))
    try:
        return with_seeds(lambda limits: prove_build(claim, build, TTIR, None, specify, limits), timeout_ms, seeds)
    except (UsageError, HarnessError):
        raise
    except Exception as error:
        raise _explained(error, Path(file)) from error


@lru_cache(maxsize=4)
def _read(kernel: str, file: str) -> tuple[list[Build], Specify]:
    module = _load(Path(file))
    for name in ("SIGNATURE", "CONSTEXPRS", "specify"):
        if not hasattr(module, name):
            raise UsageError(f"--spec {file}: has no {name}; see docs/proofs.md for what it should have")
    if not callable(module.specify):
        raise UsageError(f"--spec {file}: specify is not a function")
    configurations = module.CONSTEXPRS if isinstance(module.CONSTEXPRS, list) else [module.CONSTEXPRS]
    builds = []
    for constexprs in configurations:
        if not isinstance(constexprs, Mapping) or not isinstance(module.SIGNATURE, Mapping):
            raise UsageError(f"--spec {file}: expected SIGNATURE to be a dict, CONSTEXPRS a dict or a list of dicts")
        name = "-".join(f"{key}={value}" for key, value in constexprs.items()).replace(" ", "") or "only"
        try:
            types = {argument: kind for argument, kind in module.SIGNATURE.items() if signature({kind: argument})}
            builds.append(Build(kernel, name, types, dict(constexprs)))
        except (ValueError, AttributeError) as error:
            raise UsageError(f"--spec {file}: {error}") from error
    if not builds:
        raise UsageError(f"--spec {file}: CONSTEXPRS is empty: expected one configuration at least")
    return builds, module.specify


def _load(path: Path) -> Any:
    if not path.is_file():
        raise UsageError(f"--spec {path}: no such file")
    for folder in ("", str(path.resolve().parent)):  # the kernel may be beside the file, or where the user is
        if folder not in sys.path:
            sys.path.insert(0, folder)
    found = importlib.util.spec_from_file_location("kvsan_user_specification", path)
    if found is None or found.loader is None:
        raise UsageError(f"--spec {path}: is no Python file")
    module = importlib.util.module_from_spec(found)
    sys.modules[module.__name__] = module
    try:
        found.loader.exec_module(module)
    except Exception as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        line = f", line {frames[-1].lineno}" if frames else ""
        raise UsageError(f"--spec {path}{line}: {type(error).__name__}: {error}") from error
    return module


def _claim(build: Build, specify: Specify, file: Path) -> Claim:
    name = f"{build.name}/{build.configuration}"
    try:
        launch = UnknownLaunch(build.signature, build.constexprs, specify)
        return claim_of(name, build, _statement(launch.specification), specify)
    except (ImportError, WrongBuild) as error:
        raise UsageError(f"--kernel {build.kernel}: {error}") from error
    except Exception as error:
        raise _explained(error, file) from error


def _statement(specification: Specification) -> str:
    """What is claimed of a user's kernel: no more than its specification says."""
    parts = [_EXACT if specification.accesses is not None else _BOUNDS, "no two programs meet", "no integer overflows"]
    if specification.loops:
        parts.append(f"its loops are the {len(specification.loops)} of the specification")
    if specification.guards:
        parts.append(f"its guards are the {len(specification.guards)} of the specification")
    parts += [theorem.statement for theorem in specification.theorems]
    parts.append(
        f"all where {len(specification.assume)} conditions on sizes and arguments hold (assume in the specification)"
    )
    return "; ".join(parts)


def _explained(error: Exception, file: Path) -> Exception:
    """UsageError for what the user's file does; HarnessError for what KVSan does."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == file.resolve()]
    line = f", line {lines[-1]}" if lines else ""
    if isinstance(error, Rejected | WrongBuild):
        return UsageError(f"--spec {file}{line}: {error}")
    if lines:
        return UsageError(f"--spec {file}{line}: {type(error).__name__}: {error}")
    return HarnessError(f"{type(error).__name__}: {error}")
