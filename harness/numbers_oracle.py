"""What the simulated device's work asks of the numbers oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from kvsan.harness.execution import BoundRow
from kvsan.harness.target import IntArray


class NumbersOracle(Protocol):
    """The third oracle, as the executor sees it; ``kvsan.harness.numbers`` is one."""

    outputs_compared: int
    tokens_read: int

    @property
    def calls(self) -> Counter[str]:
        """How often each kernel served what."""

    def copy(self, source: int, destination: int, start: int, stop: int) -> None:
        """Copy slots of one unit to another."""

    def zero(self, unit: int, start: int, stop: int) -> None:
        """Zero slots of a unit."""

    def store_pages(self, units: Sequence[int]) -> bytes:
        """Give the bytes of whole units."""

    def restore_pages(self, units: Sequence[int], data: bytes, tokens: int) -> None:
        """Write the first tokens of such bytes back."""

    def write_external(self, slots: IntArray, identity: IntArray) -> None:
        """Write what a connector loads."""

    def launch(self, rows: Sequence[BoundRow], step: int) -> None:
        """Write, attend, compare."""
