"""Bugs of sharing: fork, copy on write, and tables that are one list for two requests."""

from __future__ import annotations

from kvsan.harness.target import Copy, Effects
from kvsan.models_under_test.mutants.base import Mutant
from kvsan.models_under_test.paged.batch import InFlight, Row
from kvsan.models_under_test.paged.request import PagedRequest


class MissingCopyOnWrite(Mutant):
    """Siblings go on writing into the partial block that they share.

    Reports: SGLang 26939 in kind. No structure is wrong; only what the block holds is.
    """

    name = "missing_copy_on_write"
    killed_by = ("foreign_write", "provenance", "hash_content")

    def _shared_partial_block(self, request: PagedRequest, start: int) -> int | None:
        return None


class ForkWithoutCount(Mutant):
    """A fork names its parent's blocks and takes no reference to them.

    Reports: LMCache 1130 (a count lowered before the unpin) in kind; a count too low frees what somebody reads.
    """

    name = "fork_without_count"
    killed_by = ("ref_counts", "free_iff_unreferenced")

    def fork(self, name: str, child: str) -> Effects:
        """Fork, then lose the references."""
        super().fork(name, child)
        for unit in self.requests[child].table:
            self.pool.references[unit] -= 1
        return ()


class TableAliased(Mutant):
    """Parent and child have one list for a table, so that what one appends the other gets.

    Reports: SGLang 26939 (a list cached and then extended in place).
    """

    name = "table_aliased"
    killed_by = ("testimony", "ownership", "append_only", "ref_counts")

    def _shared_table(self, parent: PagedRequest, kept: int) -> list[int]:
        return parent.table


class ForkSharesTooMuch(Mutant):
    """A fork takes over blocks that its parent has only scheduled, and both will write.

    Reports: transformers 46117 (a fork of more than there is) in kind.
    """

    name = "fork_shares_too_much"
    killed_by = ("ownership", "foreign_write")

    def _shared_table(self, parent: PagedRequest, kept: int) -> list[int]:
        return parent.table[:]


class CancelKeepsCopy(Mutant):
    """A cancelled batch leaves its copies on write in the tables, although they were never made.

    Reports: SGLang 16067 (the slot of a copy on write is not given back when admission fails).
    """

    name = "cancel_keeps_copy"
    killed_by = ("append_only", "ref_counts", "conservation")

    def _uncopy(self, request: PagedRequest, block: int, old: int) -> None:
        pass


class CopySourceNotHeld(Mutant):
    """The source of a copy on write is given back when it is scheduled; it may be somebody else's when a cancel wants it.

    Reports: the reference manager itself, in its stream-ordered variant, until this harness was pointed at it: a sibling
    finished, a delayed load got the source, and the cancelled batch named it again.
    """

    name = "copy_source_not_held"
    killed_by = ("ref_counts", "free_iff_unreferenced")

    def _copy_on_write(self, row: Row, block: int, start: int) -> Effects:
        effects = super()._copy_on_write(row, block, start)
        assert row.copied is not None
        self.pool.release(row.copied[1])
        return effects

    def _uncopy(self, request: PagedRequest, block: int, old: int) -> None:
        self.pool.touch(old)
        super()._uncopy(request, block, old)

    def _copied(self, launch: InFlight, source: int) -> None:
        pass


class CopyUnordered(Mutant):
    """The copy on write runs on the copy stream, and no event makes the launch wait for it.

    Reports: vLLM 45704, 31341 (copies not ordered after compute).
    """

    name = "copy_unordered"
    killed_by = ("order", "provenance")

    def _copy_on_write(self, row: Row, block: int, start: int) -> Effects:
        return [
            effect._replace(stream="copy")
            for effect in super()._copy_on_write(row, block, start)
            if isinstance(effect, Copy)
        ]
