"""What a piece of a pull means: identities go from one pool's shadow to the other's, bytes from cache to cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsan.gpu_kernels.conversion import Side, read_piece, write_parcel
from kvsan.gpu_kernels.interface import OutsidePool
from kvsan.gpu_kernels.sharding import Layout
from kvsan.harness.device import Work
from kvsan.harness.exchange import Exchange
from kvsan.harness.kernel_faults import runs_kernels
from kvsan.harness.numbers import Numbers
from kvsan.harness.pair import CONSUMER, PRODUCER
from kvsan.harness.pull import Pulled, PullWork, look_at, slots_at
from kvsan.harness.shadow import Shadow
from kvsan.harness.target import IntArray
from kvsan.harness.transfer import Transfer
from kvsan.harness.verdict import NUMBERS, Violation

if TYPE_CHECKING:
    from kvsan.harness.session import Session


class PullExecutor:
    """Implements ``kvsan.harness.device.Executor`` for the network between two pools."""

    def __init__(
        self,
        exchange: Exchange,
        sessions: Mapping[str, Session],
        layouts: Mapping[str, Layout],
        numbers: Mapping[str, Numbers],
        first_slots: Mapping[str, int],
    ) -> None:
        self._exchange = exchange
        self._source, self._destination = (sessions[pool].shadow for pool in (PRODUCER, CONSUMER))
        self._source_layout = layouts[PRODUCER]
        self._numbers = numbers
        self._first_slots = first_slots
        self.judges: Sequence[Callable[[Transfer, Pulled], None]] = ()

    def ready(self, work: Work) -> bool:
        """A pull binds nothing at execution."""
        return True

    def execute(self, work: Work) -> None:
        """Move one piece."""
        assert isinstance(work.payload, PullWork)
        self._move(work, work.payload)

    def tear(self, work: Work) -> None:
        """Move the first half of its positions."""
        assert isinstance(work.payload, PullWork)
        self._move(work, work.payload.half())

    def accesses(self, work: Work) -> tuple[IntArray, IntArray]:
        """Slots of the producer that are read, and of the consumer that are written."""
        assert isinstance(work.payload, PullWork)
        route, positions = work.payload.route, work.payload.piece.positions
        at = look_at(work.payload, self._source_layout, self._source.num_units)
        writes = slots_at(route.destination_table, positions, self._destination.block_size)
        return at.slots.reshape(-1) + self._first_slots[PRODUCER], writes + self._first_slots[CONSUMER]

    def _move(self, work: Work, payload: PullWork) -> None:
        if not len(payload.piece.positions):
            return
        transfer = work.transfer
        assert transfer is not None
        at = look_at(payload, self._source_layout, self._source.num_units)
        expected = self._exchange.offers[payload.t].identity[payload.piece.positions]
        pulled = Pulled(payload, at, self._source.content[at.slots], expected)
        for judge in self.judges:
            judge(transfer, pulled)
        self._arrive(pulled, work.step)
        if self._numbers:
            self._move_bytes(payload)

    def _arrive(self, pulled: Pulled, step: int) -> None:
        """Count what has arrived of each token: once all of it has, the slot holds the token, and until then nothing."""
        work, shadow = pulled.work, self._destination
        route, piece = work.route, work.piece
        layout = route.plan.destination
        tokens = piece.positions - route.start
        route.vectors[tokens] += piece.heads
        right = (pulled.found == pulled.expected[:, None]) & (pulled.at.heads == pulled.at.wanted)
        route.wrong[tokens] |= ~right.all(axis=1)
        whole = route.vectors[tokens] >= layout.tp * layout.heads
        # A token of which some head is another's is no token of anybody.
        content = np.where(whole, np.where(route.wrong[tokens] != 0, ~pulled.expected, pulled.expected), 0)
        slots = slots_at(route.destination_table, piece.positions, layout.unit_tokens)
        self._check_write(shadow, work, slots, pulled.expected)
        shadow.content[slots] = content
        shadow.writer[slots] = step

    def _check_write(self, shadow: Shadow, work: PullWork, slots: IntArray, written: IntArray) -> None:
        """Whoever already relies on a slot must expect there what is pulled."""
        size = shadow.block_size
        for unit in np.unique(slots // size).tolist():
            if shadow.relied_on(unit):
                for index in np.flatnonzero(slots // size == unit).tolist():
                    who = partial(_told, work, int(work.piece.positions[index]))
                    shadow.check_write(unit, int(slots[index]) % size, written[index : index + 1], 0, who)

    def _side(self, pool: str, table: IntArray) -> Side:
        numbers: Any = self._numbers[pool]  # made with sharded kernels
        return Side(numbers.kernels, numbers.cache, table)

    @runs_kernels
    def _move_bytes(self, payload: PullWork) -> None:
        route = payload.route
        source, destination = self._side(PRODUCER, route.source_table), self._side(CONSUMER, route.destination_table)
        try:
            write_parcel(route.plan, read_piece(route.plan, payload.piece, source), destination)
        except OutsidePool as error:
            raise Violation(NUMBERS, "key-bytes", f"{payload.t} cannot move {payload}: {error}") from error


def _told(work: PullWork, position: int, _at: int) -> str:
    return f"{work.t}@{position}"
