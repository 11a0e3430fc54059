"""A first admission leaves the watermark free.

Statement (trait ``watermark``): after a request without a table was given one, by a schedule or a load, at least as many units
are free as the watermark says.

Why: running requests take their next blocks from there; without it an admission is followed by a preemption, for ever.

Reports: ascend 16315 (a cascade of preemptions), vLLM 45388 in kind.

Does not see: whether the watermark is large enough.

Mutant: ``watermark_ignored``, ``watermark_forgotten_by_loads``.
"""

from __future__ import annotations

from kvsan.harness.invariant import Invariant
from kvsan.harness.operations import Load, Schedule
from kvsan.harness.step import Step


class Watermark(Invariant):
    """Checks first admissions."""

    id = "watermark"

    def applies(self) -> bool:
        """Only where there is one."""
        return self.traits.watermark > 0

    def after_step(self, step: Step) -> None:
        """Judge the step in which a request got its first block."""
        request = step.subject
        if request is None or step.refused or not isinstance(step.operation, Schedule | Load):
            return
        first = any(added.request is request and added.block == 0 for added in step.added)
        free = self.view.num_free()
        if first and free < self.traits.watermark:
            raise self.violated(
                "not left",
                f"{request.r} was admitted, and {free} units are free; the watermark is {self.traits.watermark}",
            )
