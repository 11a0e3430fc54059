"""Finding a seeded bug by the name of a target."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TypeVar

from kvsan.harness.verdict import UsageError

Kind = TypeVar("Kind")


def mutant_named(target: str, mutants: Mapping[str, Kind]) -> Kind:
    """Give the mutant that ``PREFIX:NAME`` names; UsageError if there is none, with names that are like it."""
    name = target.partition(":")[2]
    if name not in mutants:
        close = difflib.get_close_matches(name, mutants, n=3)
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        raise UsageError(f"target {target}: no such mutant; {hint}expected one of {', '.join(mutants)}")
    return mutants[name]
