"""What every seeded bug is: the reference manager with one small step done wrong."""

from __future__ import annotations

from typing import ClassVar

from kvsan.harness.configuration import Configuration
from kvsan.models_under_test.paged import PagedManager, manager_arguments
from kvsan.models_under_test.paged.tiers import StoreMakers, index_maker
from kvsan.models_under_test.tiers.index import ChunkIndex


class Mutant(PagedManager):
    """One seeded bug. ``killed_by`` are the checks that each must see it, the first the most telling.

    ``profile`` is that of the searches that must find it. ``index_type`` and ``store_makers`` take the place of the reference
    manager's own, for bugs that lie below it.
    """

    name: ClassVar[str]
    killed_by: ClassVar[tuple[str, ...]]
    profile: ClassVar[str] = "default"
    index_type: ClassVar[type[ChunkIndex]] = ChunkIndex
    store_makers: ClassVar[StoreMakers] = {}


def make_mutant(kind: type[Mutant], configuration: Configuration) -> Mutant:
    """Make one with the reference manager's options."""
    make_index = index_maker(str(configuration.option("policy", "lru")), kind.index_type)
    return kind(**manager_arguments(configuration, make_index, kind.store_makers))
