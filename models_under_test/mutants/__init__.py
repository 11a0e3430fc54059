"""Seeded bugs: the reference manager with one small step done wrong, each from a public report.

A check that never fires looks like a check that works: each invariant has a mutant that it must kill (``killed_by``).
"""

from __future__ import annotations

from kvsan.harness.configuration import Configuration
from kvsan.models_under_test.mutants import (
    completions,
    counting,
    freeing,
    indexes,
    keys,
    loads,
    publishing,
    sharing,
    slots,
    stores,
    testimony,
    tiers,
    transfers,
    watermarks,
)
from kvsan.models_under_test.mutants.base import Mutant, make_mutant
from kvsan.models_under_test.naming import mutant_named

MODULES = (
    sharing,
    counting,
    keys,
    publishing,
    freeing,
    slots,
    testimony,
    transfers,
    loads,
    completions,
    tiers,
    indexes,
    stores,
    watermarks,
)

MUTANTS: dict[str, type[Mutant]] = {
    found.name: found
    for module in MODULES
    for found in vars(module).values()
    if isinstance(found, type) and issubclass(found, Mutant) and found is not Mutant
}
"""Every mutant by name."""


def make_target(configuration: Configuration) -> Mutant:
    """Seeded bug NAME over the reference manager, as mutant:NAME."""
    return make_mutant(mutant_named(configuration.target, MUTANTS), configuration)


__all__ = ["MODULES", "MUTANTS", "Mutant", "make_target"]
