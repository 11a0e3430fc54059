"""At rest nothing is left.

Statement: when every request has ended and no work is in flight, every unit is free, none is referenced, and a request
within the pool's capacity is admitted.

Why: whatever is left then is left for ever.

Reports: vLLM 46283 (blocks held for ever after an abort), 10013, LMCache 1756, SGLang 16067.

Does not see: leaks outside of the pool.

Mutant: ``refusal_leaks``, ``abort_forgets_last_block``.
"""

from __future__ import annotations

from kvsan.harness.invariant import Invariant
from kvsan.harness.target import Request

_PROBE = "kvsan-capacity-probe"


class Quiescence(Invariant):
    """Judges the empty target."""

    id = "quiescence"

    def at_quiescence(self) -> None:
        """Check that everything is free, then fill the pool with one request."""
        capacity = self.traits.num_units - (self.books.null is not None)
        free = self.view.num_free()
        if free != capacity:
            raise self.violated("leak", f"every request has ended, {free} of {capacity} units are free")
        if self.traits.judge_admission and capacity > self.traits.watermark:
            self._fill(capacity - self.traits.watermark)

    def _fill(self, units: int) -> None:
        target = self.books.target
        tokens = min(units * self.traits.block_size, self.traits.max_model_len - 1)
        target.submit(Request(_PROBE, range(tokens)))
        hit = target.lookup(_PROBE)
        granted = target.schedule(_PROBE, tokens - hit, 0, 0, False)
        if granted is None:
            raise self.violated(
                "refused", f"the pool is empty; a request of {tokens} tokens in {units} units was refused"
            )
