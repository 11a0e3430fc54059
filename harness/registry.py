"""From the name of a target to the code that makes it.

Two kinds of names, as ``--target`` and the configuration of a trace give them:

- an entry point of the group ``kvsan.targets``: ``paged``, ``vllm@0.22.1``, ``mutant:NAME``. What stands behind ``@``
  or the colon of a mutant is for the target's factory, which reads it from the configuration.
- ``package.module:Class``, or a function: anything that takes a Configuration and returns a target.
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points

from kvsan.harness.configuration import Configuration, is_users_own
from kvsan.harness.target import Target
from kvsan.harness.trace_format import shown
from kvsan.harness.verdict import UsageError

TargetFactory = Callable[[Configuration], Target]

GROUP = "kvsan.targets"

PAIRS = frozenset({"disagg", "disagg-mutant"})
IN_PROCESS = frozenset({"paged", "canary", "mutant", "graphs", "graphs-mutant"}) | PAIRS
REFERENCE = IN_PROCESS - PAIRS | {"vllm-offload"}

RUNNERS = frozenset({"graphs", "graphs-mutant"})
"""Targets that launch for the one that their option ``over`` names."""

MUTANTS = frozenset({"mutant", "graphs-mutant", "disagg-mutant"})
"""Targets behind whose name stands that of a seeded bug."""

_REFERENCE = re.compile(r"(?P<module>\w+(\.\w+)*):(?P<attribute>\w+(\.\w+)*)")


def resolve(name: str) -> TargetFactory:
    """Find what makes the target, to be called with its Configuration.

    UsageError if there is no such target, or its module or attribute is missing, or importing it raises.
    """
    targets = _targets()
    key = _entry_name(name)
    reference = targets[key].value if key in targets else name
    if match := _REFERENCE.fullmatch(reference):
        return _load(f"target {_quoted(name)}", match["module"], match["attribute"])
    close = difflib.get_close_matches(key, targets, n=3)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    raise UsageError(
        f"target {_quoted(name)}: unknown; {hint}expected a name that `kvsan targets` lists, or package.module:Class"
    )


def available() -> list[tuple[str, str]]:
    """List the names that need no module, each with the first line of its factory's docstring or why it has none."""
    return [(name, _description(name)) for name in sorted(_targets())]


def is_builtin_in_process(name: str) -> bool:
    """Whether a target is KVSan's own pure Python and runs in the session's process; all others get a worker."""
    return _entry_name(name) in IN_PROCESS


def takes_reference_options(name: str) -> bool:
    """Whether a target is made with the reference manager's options."""
    return _entry_name(name) in REFERENCE


def takes_pair_options(name: str) -> bool:
    """Whether a target is made with the reference pair's options."""
    return _entry_name(name) in PAIRS


def runs_in_process(configuration: Configuration) -> bool:
    """Whether both target and kernels are KVSan's own; a user's kernel may crash or hang like a user's target.

    So may a manager that a runner of graphs launches for.
    """
    names = [configuration.target]
    if _entry_name(configuration.target) in RUNNERS:
        names.append(str(configuration.option("over", "paged")))
    return all(map(is_builtin_in_process, names)) and not is_users_own(configuration.kernels)


def _entry_name(name: str) -> str:
    kind, colon, _ = name.partition(":")
    return kind if colon and kind in MUTANTS else name.partition("@")[0]


def _targets() -> dict[str, EntryPoint]:
    """Entry points by name; no other package can take the name of one of KVSan's own."""
    points = sorted(entry_points(group=GROUP), key=lambda point: point.value.startswith("kvsan."))
    return {point.name: point for point in points}


def _load(what: str, module_name: str, attribute: str) -> TargetFactory:
    try:
        found = importlib.import_module(module_name)
        for part in attribute.split("."):
            if not hasattr(found, part):
                raise UsageError(f"{what}: {module_name} has no {attribute}; expected a class or function")
            found = getattr(found, part)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise UsageError(f"{what}: no module {error.name}; expected one that Python can import") from None
        reason = shown(f"{type(error).__name__}: {error}")[:200]
        raise UsageError(f"{what}: importing {module_name} raises {reason}") from error
    if not callable(found):
        kind = type(found).__name__
        raise UsageError(f"{what}: {attribute} in {module_name} is a {kind}; expected a class or function")
    return found


def _description(name: str) -> str:
    try:
        text = resolve(name).__doc__ or ""
    except UsageError as error:
        return f"cannot be loaded: {error}"
    return text.strip().partition("\n")[0] or "no description"


def _quoted(name: str) -> str:
    return shown(repr(name if len(name) <= 80 else f"{name[:77]}..."))
