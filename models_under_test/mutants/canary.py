"""The canary: a target with a bug that every search must find, or the search itself is broken.

A campaign that finds nothing says nothing until the canary has been caught by the same command.
"""

from __future__ import annotations

from kvsan.harness.configuration import Configuration
from kvsan.models_under_test.mutants.sharing import MissingCopyOnWrite
from kvsan.models_under_test.paged import PagedManager, manager_arguments


def make_target(configuration: Configuration) -> PagedManager:
    """Reference manager without copy on write; must be caught, or CI is red."""
    return MissingCopyOnWrite(**manager_arguments(configuration))  # type: ignore[arg-type]


__all__ = ["make_target"]
