"""What every seeded bug is: the reference manager with one small step done wrong."""

from __future__ import annotations

from typing import ClassVar

from kvsan.models_under_test.paged import PagedManager


class Mutant(PagedManager):
    """One seeded bug. ``killed_by`` are the checks that each must see it, the first the most telling."""

    name: ClassVar[str]
    killed_by: ClassVar[tuple[str, ...]]
