"""The session of a pair: two sessions, one for each pool, over one device, and an exchange between them.

Each pool is judged by its own books, shadow memory and invariants, as if it were alone; what goes from one to the other is
judged by the ``exchange_...`` invariants. An operation is a step of the pool that it is about.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvsan.harness.exchange import Exchange
from kvsan.harness.expectation import Expected
from kvsan.harness.invariant import Invariant
from kvsan.harness.numbers import Numbers
from kvsan.harness.operations import (
    Advance,
    Cancel,
    Complete,
    Expire,
    Fail,
    Fork,
    Launch,
    Operation,
    Receive,
    Release,
    ResetPrefixCache,
    Send,
    Submit,
    Tear,
)
from kvsan.harness.pair import CONSUMER, NET_STREAM, POOLS, PRODUCER, PairTarget
from kvsan.harness.pool_device import JointDevice, PoolDevice
from kvsan.harness.pull_executor import PullExecutor
from kvsan.harness.session import ENDED_KEPT, Session
from kvsan.harness.verdict import Violation

_AT = (Submit, Launch, Cancel, ResetPrefixCache)
_PRODUCERS = (Send, Release, Expire)
_CONSUMERS = (Receive, Complete, Fail, Tear)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a session of one pool stands in a pair; ``known`` are the requests of both, newest first."""

    pool: str
    device: PoolDevice
    exchange: Exchange
    known: deque[Expected]


class PairSession:
    """Runs operations against a pair and judges every step; see ``kvsan.harness.session.Session``.

    ``numbers`` holds a numbers oracle for each pool, over the kernels of its layout, or nothing. ``blamed`` is the session
    that was judged last.
    """

    def __init__(
        self,
        target: PairTarget,
        invariants: Sequence[type[Invariant]],
        numbers: Mapping[str, Numbers],
        sweep_every: int | None = None,
        beyond_contract: bool = False,
    ) -> None:
        self.target = target
        self.exchange = Exchange(target)
        joint = JointDevice({pool: target.pools[pool].traits for pool in POOLS})
        self.device = joint.device
        known: deque[Expected] = deque(maxlen=2 * ENDED_KEPT)
        self.sessions = {
            pool: Session(
                target.pools[pool], invariants, numbers.get(pool), sweep_every, beyond_contract,
                Place(pool, joint.pools[pool], self.exchange, known),
            )
            for pool in POOLS
        }  # fmt: skip
        self.exchange.in_flight = self.sessions[CONSUMER].transfers
        pulls = PullExecutor(self.exchange, self.sessions, target.layouts, numbers, joint.first_slots)
        pulls.judges = self.sessions[PRODUCER].on_pulled  # what is read is in the producer's shadow
        joint.executors[NET_STREAM] = pulls
        self.position = -1
        self._unknown: Counter[str] = Counter()
        self.blamed = self.sessions[PRODUCER]

    # -- what a search, a replay and a story ask of a session

    @property
    def parts(self) -> tuple[Session, ...]:
        """The two sessions."""
        return tuple(self.sessions.values())

    @property
    def steps(self) -> int:
        """Operations that were executed."""
        return sum(one.steps for one in self.sessions.values())

    @property
    def counts(self) -> Counter[str]:
        """Executed operations and events of both pools."""
        return sum((one.counts for one in self.sessions.values()), Counter())

    @property
    def skipped(self) -> Counter[str]:
        """Operations that were not executed, by kind."""
        return sum((one.skipped for one in self.sessions.values()), self._unknown)

    # -- running

    def step(self, operation: Operation) -> bool:
        """Run one operation in its pool; False if it was skipped. Raises Violation; HarnessError if KVSan itself fails."""
        self.position += 1
        session = self._session_of(operation)
        if session is None:
            self._unknown[type(operation).__name__] += 1
            return False
        self.blamed = session
        session.position = self.position - 1
        try:
            executed = session.step(operation)
            if executed and isinstance(operation, Receive):
                self._judge_producer(operation)
        except Violation as violation:
            raise self._placed(violation) from violation.__cause__
        if executed and isinstance(operation, Launch) and all(one.in_flight for one in self.sessions.values()):
            session.counts["launches in both pools"] += 1
        return executed

    def _judge_producer(self, operation: Receive) -> None:
        """Judge what the claim of a pull, which is no step of the producer's, has changed there."""
        self.blamed = self.sessions[PRODUCER]
        self.blamed.position = self.position
        self.blamed.judge_call(operation)

    def close(self) -> None:
        """End every request and every offer, let all work finish, and judge what is left in both pools."""
        consumer, producer = self.sessions[CONSUMER], self.sessions[PRODUCER]
        self.position += 1
        for end in (consumer.wind_down, producer.wind_down, consumer.judge_rest, producer.judge_rest):
            self.blamed = end.__self__  # type: ignore[attr-defined]
            self.blamed.position = self.position
            try:
                end()
            except Violation as violation:
                raise self._placed(violation) from violation.__cause__

    def _placed(self, violation: Violation) -> Violation:
        """Say in which pool it was seen."""
        violation.lineage = (f"seen in pool {self.blamed.pool}", *violation.lineage)
        return violation

    def _session_of(self, operation: Operation) -> Session | None:
        """Find the pool that an operation is about; no two pools know one request or launch."""
        sessions = self.sessions
        if isinstance(operation, _AT):
            session = sessions.get(operation.at)
            new = getattr(operation, "r", getattr(operation, "b", None))
            return None if session is None or self._elsewhere(new, session) else session
        if isinstance(operation, _PRODUCERS):
            return sessions[PRODUCER]
        if isinstance(operation, _CONSUMERS):
            return sessions[CONSUMER]
        if isinstance(operation, Advance):
            return next((one for one in sessions.values() if operation.stream in one.device.streams), None)
        id = getattr(operation, "r", getattr(operation, "b", None))
        session = next((one for one in sessions.values() if id in one.ids), None)
        if session is not None and isinstance(operation, Fork) and self._elsewhere(operation.child, session):
            return None
        return session

    def _elsewhere(self, id: str | None, session: Session) -> bool:
        """Whether another pool has used an id."""
        return any(id in one.ids for one in self.sessions.values() if one is not session)
