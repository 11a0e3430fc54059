"""The canary: a target with a bug that every search must find soon, or the search itself is broken.

A campaign that finds nothing says nothing until the same command has caught the canary. Its bug shows wherever blocks are
evicted, which is to say in every search that exercises what it claims.
"""

from __future__ import annotations

from kvsan.harness.configuration import Configuration
from kvsan.models_under_test.mutants.publishing import HashKeptOnReuse
from kvsan.models_under_test.paged import PagedManager, manager_arguments


def make_target(configuration: Configuration) -> PagedManager:
    """Reference manager whose hash map keeps evicted blocks; must be caught, or CI is red."""
    return HashKeptOnReuse(**manager_arguments(configuration))


__all__ = ["make_target"]
