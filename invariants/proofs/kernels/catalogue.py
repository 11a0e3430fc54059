"""What is claimed of this repository's kernels: every configuration that is compiled, from TTIR, and one of each from TTGIR."""

from __future__ import annotations

import hashlib
import importlib
import sys
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from kvsan.gpu_kernels.compile.build import TARGETS, Build
from kvsan.gpu_kernels.compile.builds import builds
from kvsan.gpu_kernels.compile.worker import load
from kvsan.invariants.proofs.kernels import decode_specs, move_specs, prefill_specs, write_specs
from kvsan.invariants.proofs.kernels.lowering import TTGIR, TTIR, lower, ordered_signature
from kvsan.invariants.proofs.kernels.prover import Subject
from kvsan.invariants.proofs.kernels.prover import prove as prove_subject
from kvsan.invariants.proofs.kernels.replaying import replay
from kvsan.invariants.proofs.kernels.specification import Specify
from kvsan.invariants.proofs.kernels.unknown_launch import UnknownLaunch
from kvsan.invariants.proofs.obligation import REFUTED, Claim, Counterexample, Outcome
from kvsan.invariants.proofs.solver import Limits

PART = "kernel"

STATEMENT = (
    "every load and store is at the element that the specification names, where and only where it says, hence in bounds; no "
    "two programs meet; nothing is left out; loops cover exactly the visible context; no integer overflows"
)
_LAYOUTS = (
    "as the compiler lays it out for {target} (num_stages 1): every load and store is at the element that the specification "
    "names, where and only where it says; loops cover exactly the visible context; no integer overflows"
)
GENERAL = (
    "Tensors have the shapes and strides of the specification; elements at different indexes, and different tensors, are "
    "different memory.",
    "Floats, and bits of codes, are data: nothing is claimed about them.",
)


def specification_of(name: str) -> Specify:
    """The specification of a kernel of this repository; KeyError if it has none."""
    for module in (decode_specs, prefill_specs, write_specs, move_specs):
        found: Specify | None = getattr(module, name, None)
        if found is not None:
            return found
    raise KeyError(name)


@lru_cache(maxsize=1)
def _subjects() -> dict[str, tuple[Build, str, str | None]]:
    """Build, level and target by the name of a claim."""
    found: dict[str, tuple[Build, str, str | None]] = {}
    seen = set()
    for build in builds():
        found[f"{build.name}/{build.configuration}"] = build, TTIR, None
        for target in build.targets if build.name not in seen else ():
            if TARGETS[target].backend == "cuda":
                found[f"{build.name}/{build.configuration}@{target}"] = build, TTGIR, target
        seen.add(build.name)
    return found


def claims() -> list[Claim]:
    """One for each kernel and configuration."""
    return [_claim(name, *subject) for name, subject in _subjects().items()]


def prove(name: str, limits: Limits) -> Outcome:
    """Prove one claim by name."""
    build, level, target = _subjects()[name]
    return prove_build(_claim(name, build, level, target), build, level, target, specification_of(build.name), limits)


def prove_build(
    claim: Claim, build: Build, level: str, target: str | None, specify: Specify, limits: Limits, folder: str = ""
) -> Outcome:
    """Prove a claim about a build, a counterexample replayed; ``folder``: where the kernel's module is, if not among the
    installed ones."""
    subject = subject_of(build, specify, level, target)
    verdict = prove_subject(subject, limits)
    counterexample = None
    if verdict.status == REFUTED:
        assert verdict.failed is not None
        assert verdict.case is not None
        shown = replay(build, subject, verdict, folder=folder)
        constexprs = ", ".join(f"{name} = {value}" for name, value in subject.constexprs.items())
        story = (*verdict.story(), f"constexprs: {constexprs}")
        counterexample = Counterexample(verdict.failed.what, verdict.failed.line, verdict.case.values(), story, shown)
    largest = UnknownLaunch(subject.signature, subject.constexprs, subject.specify).specification.limits
    return Outcome(claim, verdict.status, verdict.shown, verdict.seconds, counterexample, verdict.reason, largest)


def subject_of(build: Build, specify: Specify, level: str = TTIR, target: str | None = None) -> Subject:
    """A build as what is proved: lowered as `lowering.lower` does it; what is shown of TTGIR is less (see `Subject`)."""
    whole = level == TTIR
    lowered = lower(build, level, target)
    return Subject(lowered, ordered_signature(build), build.constexprs, specify, exact=whole, theorems=whole)


def _claim(name: str, build: Build, level: str, target: str | None) -> Claim:
    specify = specification_of(build.name)
    return claim_of(name, build, STATEMENT if level == TTIR else _LAYOUTS.format(target=target), specify)


def claim_of(name: str, build: Build, statement: str, specify: Specify) -> Claim:
    """A claim about a kernel; its source is the kernel's, with all that it calls, and its specification's."""
    kernel = load(build.kernel)
    notes = UnknownLaunch(ordered_signature(build), build.constexprs, specify).specification.notes
    return Claim(PART, name, statement, (*notes, *GENERAL), _source(kernel, build, specify))


def _source(kernel: Any, build: Build, specify: Specify) -> str:
    described = sorted(build.signature.items()), sorted(build.constexprs.items())
    return hashlib.sha256(
        "\n".join((kernel.cache_key, repr(described), *_formulas(specify.__module__))).encode()
    ).hexdigest()


@lru_cache(maxsize=8)
def _formulas(name: str) -> tuple[str, ...]:
    """Text of the module of a specification, and of those that its formulas come from: other specifications, addressing."""
    found: dict[str, str] = {}
    todo = [name]
    while todo:
        module = importlib.import_module(todo.pop())
        if module.__name__ in found or not module.__file__:
            continue
        found[module.__name__] = Path(module.__file__).read_text("utf-8")
        named = [one.__name__ if isinstance(one, ModuleType) else _module_of(one) for one in vars(module).values()]
        todo += [one for one in named if _has_formulas(one, Path(module.__file__).parent)]
    return tuple(found[one] for one in sorted(found))


def _module_of(value: Any) -> str:
    return str(value.__module__) if callable(value) and hasattr(value, "__module__") else ""


def _has_formulas(name: str, folder: Path) -> bool:
    """Whether a module says what a kernel does: specifications, the modules of kernels, what lies beside a user's file."""
    if name.startswith("kvsan."):
        return name.endswith("_specs") or name.startswith("kvsan.gpu_kernels.")
    file = getattr(sys.modules.get(name), "__file__", None)
    return bool(file) and Path(str(file)).parent == folder
