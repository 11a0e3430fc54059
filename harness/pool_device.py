"""One device for two pools: their streams side by side, ordered by one set of vector clocks, and a network between them.

::

    number of the stream    0 ... n-1            n ... n+m-1          n+m
    name                    p0.compute, ...      p1.compute, ...      net
    a session sees          its own, from 0      its own, from 0, with ``net`` behind them

There is one host: what either side has seen complete counts as known to both before anything that is enqueued later. Pools
share no memory, and every pull begins with a message, so all that is missed is a pull that no message is behind.

Slots of the second pool are counted behind those of the first, so that no access of one meets one of the other, except a
pull, which reads the one and writes the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvsan.harness.device import Device, Executor, Payload, Work
from kvsan.harness.pair import CONSUMER, NET_STREAM
from kvsan.harness.target import IntArray, Traits
from kvsan.harness.transfer import Transfer


class JointDevice:
    """The device of a pair. ``executors`` are given by the pools as their sessions begin, and for the network."""

    def __init__(self, traits: Mapping[str, Traits]) -> None:
        self.executors: dict[str, Executor] = {}
        self.pools: dict[str, PoolDevice] = {}
        self._names: list[str] = []
        self.first_slots: dict[str, int] = {}
        streams, slots = 0, 0
        for pool, one in traits.items():
            self.first_slots[pool] = slots
            slots += (one.num_units + one.host_units) * one.block_size
            names = [f"{pool}.{name}" for name in one.streams]
            self.pools[pool] = PoolDevice(self, pool, streams, names + [NET_STREAM] * (pool == CONSUMER))
            streams += len(names)
            self._names += [pool] * len(names)
        self._names.append(NET_STREAM)
        all_streams = [name for pool in self.pools.values() for name in pool.streams]
        self.device = Device(self, tuple(all_streams))
        self.device.name_slot = self._name_slot

    @property
    def net(self) -> int:
        """Number of the network's stream."""
        return len(self._names) - 1

    def _name_slot(self, slot: int) -> str:
        pool, first = max(self.first_slots.items(), key=lambda item: (item[1] <= slot, item[1]))
        return f"slot {slot - first} of {pool}"

    def _executor(self, work: Work) -> Executor:
        return self.executors[self._names[work.stream]]

    # -- implements kvsan.harness.device.Executor

    def ready(self, work: Work) -> bool:
        """Ask whoever the work belongs to."""
        return self._executor(work).ready(work)

    def execute(self, work: Work) -> None:
        """Move the bytes."""
        self._executor(work).execute(work)

    def tear(self, work: Work) -> None:
        """Move the first half of the bytes."""
        self._executor(work).tear(work)

    def accesses(self, work: Work) -> tuple[IntArray, IntArray]:
        """Slots read and written, those of each pool behind those of the one before."""
        reads, writes = self._executor(work).accesses(work)
        first = self.first_slots.get(self._names[work.stream], 0)
        return (reads + first, writes + first) if first else (reads, writes)


class PoolDevice:
    """What a session of one pool sees of the joint device: as ``kvsan.harness.device.Device``, with its own streams."""

    def __init__(self, joint: JointDevice, pool: str, first: int, names: Sequence[str]) -> None:
        self._joint = joint
        self._first = first
        self.pool = pool
        self.streams = tuple(names)

    @property
    def _device(self) -> Device:
        return self._joint.device

    def join(self, executor: Executor) -> PoolDevice:
        """Begin: this is what gives the pool's work its meaning."""
        self._joint.executors[self.pool] = executor
        return self

    def enqueue(
        self,
        stream: int,
        payload: Payload,
        step: int,
        after: Sequence[tuple[int, ...]] = (),
        transfer: Transfer | None = None,
    ) -> Work:
        """Put work on a stream."""
        return self._device.enqueue(self._first + stream, payload, step, after, transfer)

    def advance(self, stream: int) -> bool:
        """Execute the next item of a stream; False if there is none or it still waits."""
        return self._device.advance(self._first + stream)

    def pending(self, stream: int) -> int:
        """Items of a stream that have not been executed."""
        return self._device.pending(self._first + stream)

    def event(self, stream: int) -> tuple[int, ...]:
        """Record an event behind everything that a stream has been given so far."""
        return self._device.event(self._first + stream)

    def complete(self, work: Work) -> bool:
        """Execute everything that the work needs and the work itself; False if it cannot complete yet."""
        return self._device.complete(work)

    def tear(self, transfer: Transfer) -> bool:
        """Move half of a transfer's next piece; False if it cannot run."""
        return self._device.tear(transfer)

    def drain(self) -> None:
        """Execute whatever can be, of both pools."""
        self._device.drain()
