"""A refusal changes nothing.

Statement: a refused operation changes no reference, no table entry and no hash of a live request; freeing what a window has
passed, or evicting first, is legal where the trait says so. A target that promises it refuses only when it must.

Why: half an allocation leaks the other half: the pool shrinks with every refusal until nothing is admitted.

Reports: vLLM 11562, 11565 (hits touched, then the allocation is refused), SGLang 16067, transformers 46117 (fork not atomic).

Does not see: state that neither tables nor counts show.

Mutant: ``refusal_leaks``, ``refuses_too_early``.
"""

from __future__ import annotations

from kvsan.gpu_kernels.addressing import blocks_for
from kvsan.harness.invariant import Invariant
from kvsan.harness.operations import Schedule
from kvsan.harness.step import Step
from kvsan.invariants.load_progress import units_wanted


class RefusalAtomic(Invariant):
    """Checks the step of a refusal."""

    id = "refusal_atomic"

    def after_step(self, step: Step) -> None:
        """Judge a refused schedule."""
        if not step.refused:
            return
        assert step.subject is not None
        r = step.subject.r
        if step.added:
            raise self.violated(
                "table", f"{r} was refused, but unit {step.added[0].unit} entered {step.added[0].request.r}"
            )
        units = [unit for unit in step.units if self._changed(unit)]
        if self.traits.atomic_refusal and (units or step.withdrawn or step.replaced or step.trimmed):
            what = f"units {sorted(set(units))}" if units else "a hash" if step.withdrawn else "a table"
            raise self.violated("touched", f"{r} was refused, but {what} changed")
        if self.traits.judge_admission:
            self._judge_need(step)

    def _changed(self, unit: int) -> bool:
        """Whether a unit is counted or queued otherwise than the tables say; a delta may name units that stayed."""
        held, null = self.books.holders[unit], self.books.null
        counted = self.view.ref_count(unit) if self.traits.counts_references else held
        return unit != null and (counted != held or self.view.is_free(unit) == (held > 0))

    def _judge_need(self, step: Step) -> None:
        """An upper bound of what the request can need: no hit, and one copy on write; who waits for a load comes first."""
        request, operation = step.subject, step.operation
        if request is None or not isinstance(operation, Schedule):
            return
        size = self.traits.block_size
        slots = max(request.scheduled, operation.external) + operation.n + operation.lookahead + self.traits.max_drafts
        slots += len(request.life.tokens) if request.scheduled == 0 else 0
        needed = blocks_for(slots, size) + 1
        if self.books.tiers is not None and self.traits.loads_progress:
            needed += min(units_wanted(self.books, request), default=0)
        free = self.view.num_free() - self.traits.watermark
        if needed <= free:
            raise self.violated(
                "needless", f"{r_of(step)} needs {needed} units at most and {free} are free, yet it was refused"
            )


def r_of(step: Step) -> str:
    """Name of the step's request."""
    assert step.subject is not None
    return step.subject.r
