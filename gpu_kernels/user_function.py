"""A user's host function that launches a kernel: found by its name, its role read off its parameters.

It is called with torch tensors by parameter name, and gets those that its signature asks for. A parameter with a
default that is none of these keeps its default.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvsan.gpu_kernels.interface import UnusableKernels

WRITE, ATTENTION, COPY = "write", "attention", "copy"

TELLS = {"slot_mapping": WRITE, "block_tables": ATTENTION, "block_mapping": COPY}
"""The parameter that tells a role."""

REQUIRED = {
    WRITE: ("key", "value", "key_cache", "value_cache", "slot_mapping"),
    ATTENTION: ("output", "query", "key_cache", "value_cache", "block_tables", "seq_lens"),
    COPY: ("key_cache", "value_cache", "block_mapping"),
}
OPTIONAL = {
    WRITE: (),
    ATTENTION: ("scale", "window", "query_start_loc", "sums", "row_sums"),
    COPY: (),
}
"""Parameters that a function of a role must, and may, have."""

_NAME = re.compile(r"(?P<module>\w+(\.\w+)*):(?P<attribute>\w+(\.\w+)*)")


@dataclass(frozen=True, slots=True)
class UserFunction:
    """A function and what it asks for."""

    name: str
    call: Callable[..., object]
    role: str
    parameters: frozenset[str]


def find_function(name: str) -> UserFunction:
    """Import ``package.module:function``; UnusableKernels if it cannot be had or cannot be called as a kernel."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise _unusable(name, "expected package.module:function")
    try:
        found: Any = importlib.import_module(match["module"])
        for part in match["attribute"].split("."):
            if not hasattr(found, part):
                raise _unusable(name, f"{match['module']} has no {match['attribute']}; expected a function")
            found = getattr(found, part)
    except UnusableKernels:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{match['module']}.".startswith(f"{error.name}."):
            raise _unusable(name, f"no module {error.name}; expected one that Python can import") from None
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise _unusable(name, f"importing {match['module']} raises {reason}") from error
    if type(found).__module__.partition(".")[0] == "triton":
        raise _unusable(name, "is a @triton.jit kernel; hand in the host function that launches it")
    if not callable(found):
        raise _unusable(name, f"is a {type(found).__name__}; expected a function")
    role, parameters = _read_signature(name, found)
    return UserFunction(name, found, role, parameters)


def _read_signature(name: str, function: Callable[..., object]) -> tuple[str, frozenset[str]]:
    """Role of a function, and the known names among its parameters."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        raise _unusable(name, "its parameters cannot be read; expected a Python function") from None
    named = [one for one in signature.parameters.values() if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    asked = [one.name for one in named]
    roles = [TELLS[parameter] for parameter in asked if parameter in TELLS]
    if len(roles) != 1:
        wanted = "; ".join(f"{role}({', '.join((*REQUIRED[role], *OPTIONAL[role]))})" for role in REQUIRED)
        what = f"parameters of {' and '.join(roles)}" if roles else "no parameter that tells what it does"
        raise _unusable(name, f"has {what}; expected one of {wanted}")
    (role,) = roles
    known = (*REQUIRED[role], *OPTIONAL[role])
    described = f"a function for {role} has {', '.join(REQUIRED[role])}"
    if OPTIONAL[role]:
        described += f", and may have {', '.join(OPTIONAL[role])}"
    if missing := [parameter for parameter in REQUIRED[role] if parameter not in asked]:
        raise _unusable(name, f"lacks {', '.join(missing)}; {described}")
    if unknown := [one.name for one in named if one.name not in known and one.default is one.empty]:
        raise _unusable(name, f"asks for {', '.join(unknown)}, which nobody knows; {described}")
    if positional := [one.name for one in named if one.name in known and one.kind is one.POSITIONAL_ONLY]:
        raise _unusable(name, f"takes {', '.join(positional)} by position only; expected parameters with names")
    parameters = frozenset(asked) & frozenset(known)
    if len(parameters & {"sums", "row_sums"}) == 1:
        raise _unusable(name, "has one of sums and row_sums; expected both, or none of them")
    return role, parameters


def _unusable(name: str, reason: str) -> UnusableKernels:
    return UnusableKernels(f"kernel {name}: {reason}")
