"""Bugs of admission: the watermark is there, and somebody does not look at it. These managers have one of two blocks."""

from __future__ import annotations

from typing import Any

from kvsan.models_under_test.mutants.base import Mutant
from kvsan.models_under_test.paged import PagedManager
from kvsan.models_under_test.paged.request import PagedRequest
from kvsan.models_under_test.paged.tiering import Tiering

_WATERMARK = 2


class _WithWatermark(PagedManager):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options | {"watermark": _WATERMARK})


class WatermarkIgnored(_WithWatermark, Mutant):
    """New requests are admitted as long as there are blocks for them.

    Reports: ascend 16315 in kind.
    """

    name = "watermark_ignored"
    killed_by = ("watermark",)

    def fits(self, request: PagedRequest, hits: list[int], fresh: int) -> bool:
        """Whether there are blocks."""
        return self.taken(hits, fresh) <= self.pool.num_free


class _LoadsToTheLastBlock(Tiering):
    def _admits(self, request: PagedRequest, hits: list[int], fresh: int) -> bool:
        manager = self.manager
        manager.watermark, kept = 0, manager.watermark
        admits = super()._admits(request, hits, fresh)
        manager.watermark = kept
        return admits


class WatermarkForgottenByLoads(_WithWatermark, Mutant):
    """A load is an admission too, and takes the blocks that the watermark keeps.

    Reports: vLLM 45388 in kind.
    """

    name = "watermark_forgotten_by_loads"
    killed_by = ("watermark",)
    profile = "async"
    tiering_type = _LoadsToTheLastBlock
