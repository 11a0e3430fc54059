"""The session: one target, one trace, one verdict.

Data flows one way: an operation becomes calls of the target and work for the simulated device; the target's testimony becomes
the facts of the step; invariants judge the facts. A violation is raised at the step that broke the rule.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kvsan.harness import exchanges, graph_launches, launches, requests, transfers
from kvsan.harness.blame import blame_of
from kvsan.harness.books import Books
from kvsan.harness.device import Device, Work
from kvsan.harness.exchange import Exchange
from kvsan.harness.executor import MemoryExecutor
from kvsan.harness.expectation import Expected, Row
from kvsan.harness.identity import SegmentCache
from kvsan.harness.invariant import Invariant
from kvsan.harness.numbers_oracle import NumbersOracle
from kvsan.harness.operations import Operation
from kvsan.harness.pair import PRODUCER
from kvsan.harness.pull import Pulled
from kvsan.harness.shadow import Shadow, name_identity_of
from kvsan.harness.step import Step
from kvsan.harness.target import SessionState, Target, anything_goes
from kvsan.harness.transfer import Transfer
from kvsan.harness.verdict import Violation

if TYPE_CHECKING:
    from kvsan.harness.pair_session import Place

Handler = Callable[["Session", Operation], bool]

HANDLERS: dict[type[Operation], Handler] = {
    **requests.HANDLERS,
    **launches.HANDLERS,
    **graph_launches.HANDLERS,
    **transfers.HANDLERS,
    **exchanges.HANDLERS,
}

ENDED_KEPT = 256
"""Requests whose tokens can still be named after they have ended."""
_SWEEP_EVERY = 1000


def sweep_interval(num_units: int) -> int:
    """Steps between two sweeps: they cost what the pool is large, so they grow apart with it."""
    return max(_SWEEP_EVERY, num_units // 4)


class Session:
    """Runs operations against a target and judges every step.

    ``sweep_every`` is in executed steps; 1 makes the first bad step exact, also against a target that says too little.
    ``numbers`` adds the third oracle. ``beyond_contract`` runs what the target's contract forbids. ``place`` is where the
    target stands in a pair; ``kvsan.harness.pair_session`` makes sessions that have one.
    """

    def __init__(
        self,
        target: Target,
        invariants: Sequence[type[Invariant]],
        numbers: NumbersOracle | None = None,
        sweep_every: int | None = None,
        beyond_contract: bool = False,
        place: Place | None = None,
    ) -> None:
        self.target = target
        self.traits = target.traits
        self.pool = PRODUCER if place is None else place.pool
        self.books = Books(target)
        self.books.exchange = None if place is None else place.exchange
        self.requests: dict[str, Expected] = {}
        self.known: deque[Expected] = deque(maxlen=ENDED_KEPT) if place is None else place.known
        self.ids: set[str] = set()
        self.shadow = Shadow(self.books, name_identity_of(self.known, self.books.masks), place.pool if place else "")
        self.executor = MemoryExecutor(self.books, self.shadow, numbers)
        self.device = Device(self.executor, self.traits.streams) if place is None else place.device.join(self.executor)
        self.segments = SegmentCache()
        self.batch: dict[str, Row] = {}
        self.in_flight: dict[str, Work] = {}
        self.loads: dict[str, tuple[Expected, Work]] = {}
        self.transfers: dict[str, Transfer] = {} if self.books.tiers is None else self.books.tiers.in_flight
        self.told: dict[str, bool] = {}
        self.lookup_pending: str | None = None
        self.step_facts = Step()
        self.steps = 0
        self.position = -1
        self.counts: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.judged_by_contract = not beyond_contract and self.traits.allows is not anything_goes
        self.sweep_every = sweep_every or sweep_interval(self.traits.num_units)
        self.invariants = [invariant for kind in invariants if (invariant := kind(self.books, self.shadow)).applies()]
        self._after_step = [one.after_step for one in self._overriding("after_step")]
        self._every_step = [one.after_step for one in self._overriding("after_step") if one.every_step]
        self._on_lookup = [one.on_lookup for one in self._overriding("on_lookup")]
        self._on_transfer = [one.on_transfer for one in self._overriding("on_transfer")]
        self.executor.judges = [one.on_moved for one in self._overriding("on_moved")]
        self.executor.graphs.judges = [one.on_replay for one in self._overriding("on_replay")]
        self._sweep = [one.sweep for one in self._overriding("sweep")]

    def _overriding(self, hook: str) -> list[Invariant]:
        return [one for one in self.invariants if getattr(type(one), hook) is not getattr(Invariant, hook)]

    @property
    def exchange(self) -> Exchange | None:
        """Account of what goes from pool to pool, if the target is one of a pair."""
        return self.books.exchange

    @property
    def on_pulled(self) -> list[Callable[[Transfer, Pulled], None]]:
        """Who judges what a piece of a pull reads from this pool."""
        return [one.on_pulled for one in self._overriding("on_pulled")]

    @property
    def parts(self) -> tuple[Session, ...]:
        """Sessions of one target each that this one is made of."""
        return (self,)

    @property
    def blamed(self) -> Session:
        """Session of the last step."""
        return self

    # -- running

    def step(self, operation: Operation) -> bool:
        """Run one operation; False if it was skipped. Raises Violation; HarnessError if KVSan itself fails."""
        self.position += 1
        try:
            return self._step(operation)
        except Violation:
            raise
        except Exception as error:
            raise self._blame(error, operation) from error

    def _step(self, operation: Operation) -> bool:
        kind = type(operation)
        facts = self.step_facts
        facts.clear()
        facts.index, facts.operation = self.position, operation
        if kind not in self.traits.operations or not HANDLERS[kind](self, operation):
            self.skipped[kind.__name__] += 1
            return False
        self.counts[kind.__name__] += 1
        self.steps += 1
        self._take_in(facts)
        return True

    def judge_call(self, operation: Operation) -> None:
        """Take in and judge what an operation of another pool, which called the target, has changed here."""
        facts = self.step_facts
        facts.clear()
        facts.index, facts.operation = self.position, operation
        self._do(lambda: self._take_in(facts), operation)

    def _take_in(self, facts: Step) -> None:
        self.books.absorb(facts)
        for judge in self._after_step if facts.changed() or self.shadow.unwritten else self._every_step:
            judge(facts)
        if facts.added:
            self._count_evictions(facts)
        if self.steps % self.sweep_every == 0:
            self.sweep()

    def _count_evictions(self, facts: Step) -> None:
        if facts.withdrawn:
            fresh = {added.unit for added in facts.added if added.holders == 0}
            self.counts["eviction"] += sum(publication.unit in fresh for publication in facts.withdrawn)

    def looked_up(self, request: Expected, hit: int) -> None:
        """Judge a look-up's answer."""
        for judge in self._on_lookup:
            judge(request, hit)

    def transfer_began(self, transfer: Transfer) -> None:
        """Judge what a transfer claims, before anything of it moves."""
        for judge in self._on_transfer:
            judge(transfer)

    def sweep(self) -> None:
        """Hold the target to everything it ever said."""
        self.counts["sweep"] += 1
        self.books.walk_queue()
        for judge in self._sweep:
            judge()

    def _blame(self, error: Exception, operation: Operation | None) -> Exception:
        tiers = self.books.tiers
        others: list[object] = []
        if self.exchange is not None:
            others = [self.exchange.target, self.exchange.producer, self.exchange.consumer]
        if tiers is not None:
            others += [tiers.view, *tiers.stores.values()]
        return blame_of(error, self.target, self.books.view, operation, *others)

    def close(self) -> None:
        """End every request, let all work finish, and judge what is left: nothing may leak."""
        self.position += 1
        self.wind_down()
        self.judge_rest()

    def wind_down(self) -> None:
        """End every request and all that waits for something."""
        self._do(self._wind_down)

    def judge_rest(self) -> None:
        """Let all work finish, and judge what is left."""
        self._do(self._judge_rest)

    def _do(self, act: Callable[[], None], operation: Operation | None = None) -> None:
        """Act outside of the steps of this session, and say whose error it is."""
        try:
            act()
        except Violation:
            raise
        except Exception as error:
            raise self._blame(error, operation) from error

    def _wind_down(self) -> None:
        self.sweep()
        for operation in launches.closing_operations(self):
            self._step(operation)

    def _judge_rest(self) -> None:
        self.device.drain()
        self.sweep()
        for invariant in self.invariants:
            invariant.at_quiescence()

    # -- contract

    def allowed(self, request: Expected | None, operation: Operation) -> bool:
        """Whether the target's own contract lets this operation happen now."""
        if not self.judged_by_contract:
            return True
        state = None if request is None else requests.state_of(self, request)
        pending = self.lookup_pending
        return self.traits.allows(state, SessionState(len(self.batch), len(self.in_flight), pending), operation)
