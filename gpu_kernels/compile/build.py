"""What is compiled, for which GPUs, and what became of it: data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from kvsan.gpu_kernels.compile.resources import Resources

Constant: TypeAlias = "int | float | bool | str | None"

_TYPES = ("i1", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "fp16", "bf16", "fp32", "fp64")
_POINTED_TO = (*_TYPES, "fp8e4nv", "fp8e5", "fp8e4b8", "fp8e5b16")


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of GPU; ``shared_bytes`` is how much shared memory one program can have."""

    backend: str
    arch: int | str
    warp_size: int
    shared_bytes: int


TARGETS: dict[str, Target] = {
    "sm_80": Target("cuda", 80, 32, 163 << 10),
    "sm_90": Target("cuda", 90, 32, 227 << 10),
    "sm_100": Target("cuda", 100, 32, 227 << 10),
    "gfx942": Target("hip", "gfx942", 64, 64 << 10),
}
"""What kernels are compiled for: A100, H100, B200, MI300. Shared memory: CUDA programming guide, CDNA3 whitepaper."""


@dataclass(frozen=True, slots=True)
class Build:
    """One kernel in one configuration.

    - ``kernel``: where it is, ``package.module:function``
    - ``configuration``: what tells this build from the kernel's others, such as ``bf16-d128-b16``
    - ``signature``: type of each argument that is no constexpr (see `signature`)
    - ``constexprs``: value of each constexpr argument; an argument that is none may be here too, as one whose value the
      launcher folds in (1, None)
    - ``aligned``: arguments of which a launch knows that they are divisible by 16: pointers, and strides
    - ``num_warps``, ``num_stages``: as in a launch; None is Triton's own choice, which differs by target
    - ``targets``: those on which the kernel exists, keys of `TARGETS`
    """

    kernel: str
    configuration: str
    signature: Mapping[str, str]
    constexprs: Mapping[str, Constant]
    aligned: tuple[str, ...] = ()
    num_warps: int = 4
    num_stages: int | None = None
    targets: tuple[str, ...] = tuple(TARGETS)

    def __post_init__(self) -> None:
        place = f"build {self.kernel} {self.configuration}"
        if not all(self.kernel.partition(":")) or not self.configuration or " " in self.configuration:
            raise ValueError(f"{place}: expected module:function, and a configuration without spaces")
        if twice := sorted(self.signature.keys() & self.constexprs.keys()):
            raise ValueError(f"{place}: {', '.join(twice)} both in the signature and a constexpr")
        if strange := sorted(set(self.aligned) - self.signature.keys()):
            raise ValueError(f"{place}: aligned {', '.join(strange)}: not in the signature")
        if strange := sorted(set(self.targets) - TARGETS.keys()):
            raise ValueError(f"{place}: targets {', '.join(strange)}: expected some of {', '.join(TARGETS)}")

    @property
    def name(self) -> str:
        """The kernel's function."""
        return self.kernel.rpartition(":")[2]


def signature(names_by_type: Mapping[str, str]) -> dict[str, str]:
    """Types of a build's arguments from the arguments of each type, their names separated by spaces.

    ``signature({"*bf16": "out q", "*i32": "block_tables", "i64": "stride_q", "fp32": "scale"})``. ValueError on a type
    that Triton does not have and on a name that comes twice.
    """
    types: dict[str, str] = {}
    for kind, names in names_by_type.items():
        if kind.removeprefix("*") not in (_POINTED_TO if kind.startswith("*") else _TYPES):
            raise ValueError(f"type {kind!r}: expected one of {', '.join(_TYPES)}, or a pointer such as *bf16")
        for name in names.split():
            if name in types:
                raise ValueError(f"argument {name!r} has two types, {types[name]} and {kind}")
            types[name] = kind
    return types


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a build on a target: exactly one of ``resources``, ``error`` and ``harness_error``.

    ``error`` is the kernel's fault: it does not compile, or its arguments are not those of the build.
    ``harness_error`` is not: the compiler crashed or was killed. ``seconds`` is what compiling took, when it was done.
    """

    build: Build
    target: str
    resources: Resources | None = None
    error: str = ""
    harness_error: str = ""
    seconds: float = 0.0
    cached: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """Outcomes in the order of builds and targets, and the version of Triton that they hold for."""

    triton: str
    outcomes: tuple[Outcome, ...]


def check_distinct(builds: Iterable[Build]) -> None:
    """ValueError if two builds would be told apart by nothing that is printed."""
    seen: dict[tuple[str, str], Build] = {}
    for build in builds:
        other = seen.setdefault((build.name, build.configuration), build)
        if other is not build:
            raise ValueError(
                f"two builds are called {build.name} {build.configuration}: {other.kernel}, {build.kernel}"
            )
