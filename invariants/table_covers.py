"""A table covers what is scheduled.

Statement: after a grant, every group's table has a unit for each scheduled token and each lookahead slot.

Why: the kernel would read the table past its end, or write into the null block.

Reports: vLLM 56469, 54296 (block table read past its columns), SGLang 22819 (prefix length equal to the block size).

Does not see: which unit it is; the other oracles judge that.

Mutant: ``one_block_short``.
"""

from __future__ import annotations

from kvsan.gpu_kernels.addressing import blocks_for
from kvsan.harness.invariant import Invariant
from kvsan.harness.operations import Load, Schedule
from kvsan.harness.step import Step


class TableCovers(Invariant):
    """Checks the table of the request that was just scheduled."""

    id = "table_covers"
    every_step = True

    def after_step(self, step: Step) -> None:
        """Check a granted schedule."""
        operation, request = step.operation, step.subject
        if not isinstance(operation, Schedule | Load) or request is None or step.refused:
            return
        slots = request.scheduled
        if request.loading is None and isinstance(operation, Schedule):
            slots += min(operation.lookahead, self.traits.max_lookahead)
        needed = blocks_for(min(slots, self.traits.max_model_len), self.traits.block_size)
        for group, table in enumerate(request.tables):
            if len(table) < needed:
                raise self.violated(
                    "short",
                    f"{request.r} has {slots} slots scheduled, which need {needed} blocks; its table of group {group} "
                    f"has {len(table)}",
                )
