"""A visible table entry stays.

Statement: an entry of a table changes only if the new unit was given the old one's content (copy on write) or holds the
same full block already (equal blocks are merged), or if the window has passed it and it becomes null; a table loses only
entries behind the scheduled tokens.

Why: kernels of earlier launches, and everybody who copied the table, go on reading the old unit.

Reports: SGLang 26939 (a list cached and then extended in place), vLLM 47282 (window blocks freed by an optimistic count).

Does not see: whether the copy was done right, ``provenance`` sees that when the entry is read; nor a window's unit that is
freed while a launch in flight reads it, ``order`` and ``provenance`` do.

Mutant: ``table_aliased``, ``trims_too_much``.
"""

from __future__ import annotations

from kvsan.gpu_kernels.addressing import blocks_for, first_visible
from kvsan.harness.invariant import Invariant
from kvsan.harness.step import Replaced, Step


class AppendOnly(Invariant):
    """Checks replaced and trimmed entries."""

    id = "append_only"

    def after_step(self, step: Step) -> None:
        """Check what was replaced and trimmed."""
        for replaced in step.replaced:
            copied = step.copied.get(replaced.new) == replaced.old
            if not (copied or self._passed(replaced) or self.shadow.replaces(replaced)):
                window = self.traits.groups[replaced.group].window
                dropped = window is not None and replaced.new == self.books.null
                raise self.violated(
                    "window not passed" if dropped else "replaced",
                    f"{replaced.request.r} block {replaced.block} of group {replaced.group} went from unit {replaced.old} "
                    f"to unit {replaced.new} without a copy",
                )
        for trimmed in step.trimmed:
            needed = blocks_for(trimmed.request.scheduled, self.traits.block_size)
            if trimmed.blocks < needed:
                raise self.violated(
                    "trimmed",
                    f"{trimmed.request.r} has {trimmed.request.scheduled} tokens scheduled, which need {needed} blocks; its "
                    f"table of group {trimmed.group} was cut from {trimmed.length_before} to {trimmed.blocks}",
                )

    def _passed(self, replaced: Replaced) -> bool:
        """Whether a window group dropped a block that no query of a launch to come will see.

        Launches in flight have their tables already. The next one starts at the scheduled row, or earlier by as many
        drafts in flight as may still be rejected.
        """
        window = self.traits.groups[replaced.group].window
        if window is None or replaced.new != self.books.null:
            return False
        request = replaced.request
        start = request.scheduled if request.row is None else request.row.start
        start -= sum(row.drafts for row in request.life.rows)
        return (replaced.block + 1) * self.traits.block_size <= first_visible(max(0, start), window)
