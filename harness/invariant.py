"""The form of an invariant: what the session calls, and when."""

from __future__ import annotations

from kvsan.harness.books import Books
from kvsan.harness.expectation import Expected
from kvsan.harness.graph_executor import Snapshot
from kvsan.harness.pull import Pulled
from kvsan.harness.shadow import Shadow
from kvsan.harness.step import Step
from kvsan.harness.target import Effect
from kvsan.harness.transfer import Transfer
from kvsan.harness.verdict import Violation


class Invariant:
    """A statement about a target that must hold. Subclasses override the hooks they need; the session calls no other.

    A subclass's module docstring says, under these headings: the statement, why it matters, public reports, what it does
    not see, and the seeded bug that trips it.
    """

    id: str = ""
    every_step: bool = False
    """Whether ``after_step`` is asked also after a step that changed nothing in tables, units and hashes."""

    def __init__(self, books: Books, shadow: Shadow) -> None:
        self.books = books
        self.shadow = shadow
        self.view = books.view
        self.traits = books.traits

    def applies(self) -> bool:
        """Whether the target's traits promise this at all."""
        return True

    def after_step(self, step: Step) -> None:
        """Judge the facts of one executed step that changed something."""

    def on_lookup(self, request: Expected, hit: int) -> None:
        """Judge what a look-up answered, in tokens."""

    def on_transfer(self, transfer: Transfer) -> None:
        """Judge a transfer as it begins, before any of its bytes move."""

    def on_moved(self, transfer: Transfer, effect: Effect) -> None:
        """Judge what one piece of a transfer, executed whole, has moved."""

    def on_pulled(self, transfer: Transfer, pulled: Pulled) -> None:
        """Judge what one piece of a pull from another pool has read, before it is written."""

    def on_replay(self, snapshot: Snapshot) -> None:
        """Judge what a replay finds in its static buffers, before it writes or reads anything."""

    def sweep(self) -> None:
        """Judge everything the target holds."""

    def at_quiescence(self) -> None:
        """Judge the target when every request has ended and no work is left."""

    def violated(self, cause: str, message: str, *lineage: str) -> Violation:
        """Build the violation of this invariant, to be raised."""
        return Violation(self.id, cause, message, lineage)
