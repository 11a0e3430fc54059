"""The rules of the Hypothesis machine: what may happen next, one rule a kind of event.

Hypothesis leaves rules out of each example at random, so a rule that can never run costs the others their turn: what needs
tiers has a machine of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kvsan.fuzz.replay import open_session
from kvsan.harness.configuration import Configuration
from kvsan.harness.operations import (
    Abort,
    Adapter,
    Advance,
    Cancel,
    Capture,
    Complete,
    Fail,
    Finish,
    Fork,
    Landed,
    Launch,
    Load,
    Lookup,
    Media,
    Offload,
    Operation,
    Outcome,
    Preempt,
    Replay,
    ResetPrefixCache,
    Restart,
    Retire,
    Schedule,
    Segment,
    Spoil,
    Submit,
    Tear,
)
from kvsan.harness.registry import TargetFactory
from kvsan.harness.session import Session
from kvsan.harness.target import COMPUTE_STREAM, COPY_STREAM
from kvsan.harness.trace import Trace
from kvsan.harness.verdict import UsageError, Violation

_LIVE = 8
_GRAPH_ROWS = (1, 2, 4)
_CHOICE = st.integers(0, 63)
_SEGMENTS: list[Segment] = [(family, length) for family in (0, 1) for length in (1, 2, 3, 4, 7, 16, 33)]
_PROMPTS = st.sampled_from([(one,) for one in _SEGMENTS] + [(one, two) for one in _SEGMENTS for two in _SEGMENTS])
_SUBMITS = st.sampled_from(
    [Submit("", ()) for _ in range(8)]
    + [Submit("", (), salt=salt) for salt in ("x", "x", "y")]
    + [Submit("", (), adapter=Adapter(*one)) for one in (("x", 1), ("x", 2), ("y", 1))]
    + [Submit("", (), media=(Media(*one),)) for one in (("x", 0, 2), ("y", 0, 2), ("x", 1, 5))]
    + [Submit("", (), engine_id=name) for name in ("e1", "e1", "e2")]
)
_CHUNKS = st.sampled_from((1, 1, 2, 3, 4, 8, 48))
_SCHEDULES = st.sampled_from(
    [Schedule("", n) for n in (1, 1, 1, 2, 2, 3, 4, 8, 48)]
    + [Schedule("", n, lookahead=lookahead) for n in (1, 48) for lookahead in (1, 4)]
    + [Schedule("", 48, external=external, delayed=delayed) for external in (1, 4, 9) for delayed in (False, True)]
)
_APART = tuple((0, family) for family in range(_LIVE))
_OUTCOMES = st.sampled_from([(), ((0, 0),), ((0, 0), (0, 1), (1, 2)), ((2, 1), (0, 0), (0, 2)), ((1, 0), (0, 1))])


class TargetMachine(RuleBasedStateMachine):
    """Runs one session; subclasses that ``machine_for`` makes say of which target.

    ``violated`` is the last trace that violated, before shrinking; ``steps`` counts executed operations of all examples.
    """

    factory: ClassVar[TargetFactory]
    configuration: ClassVar[Configuration]
    numbers: ClassVar[bool]
    violated: ClassVar[tuple[Trace, Violation] | None] = None
    steps: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.created = 0
        self.failed = False
        self.drawn = self.configuration
        self.session = self._open()

    def _open(self) -> Session:
        session = open_session(type(self).factory, self.drawn, numbers=self.numbers)
        if not isinstance(session, Session):
            raise UsageError(
                f"target {self.drawn.target}: a pair of pools; expected one that kvsan.fuzz.machine can drive"
            )
        return session

    def run(self, operation: Operation) -> None:
        """Run one operation; what cannot be done now is skipped by the session."""
        self.operations.append(operation)
        self._judged(lambda: self.session.step(operation))

    def teardown(self) -> None:
        """End the session, unless it has failed."""
        type(self).steps += self.session.steps
        if not self.failed:
            self._judged(self.session.close)

    def _judged(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Violation as violation:
            self.failed = True
            type(self).violated = Trace(self.drawn, tuple(self.operations)), violation
            raise
        except Exception:
            self.failed = True
            raise

    # -- choices

    def fresh(self, letter: str) -> str:
        """Make a symbolic id."""
        self.created += 1
        return f"{letter}{self.created}"

    def live(self, which: int) -> str:
        """Choose a live request."""
        names = list(self.session.requests)
        return names[which % len(names)]

    # -- rules

    @initialize(prompt=_PROMPTS)
    def first_request(self, prompt: tuple[Segment, ...]) -> None:
        """There is somebody from the start, whichever rules Hypothesis leaves out of this example; graphs are captured too."""
        for rows in _GRAPH_ROWS:
            if rows <= self.session.traits.graph_rows:
                self.run(Capture(self.fresh("g"), rows))
        self.run(Submit(self.fresh("r"), prompt))

    @precondition(lambda self: len(self.session.requests) < _LIVE)
    @rule(submit=_SUBMITS, prompt=_PROMPTS)
    def submit(self, submit: Submit, prompt: tuple[Segment, ...]) -> None:
        """A request arrives."""
        self.run(replace(submit, r=self.fresh("r"), prompt=prompt))

    @precondition(lambda self: self.session.requests)
    @rule(which=_CHOICE, schedule=_SCHEDULES)
    def schedule(self, which: int, schedule: Schedule) -> None:
        """A prefill chunk, a decode step, drafts, or a load."""
        self.run(replace(schedule, r=self.live(which)))

    @precondition(lambda self: self.session.requests)
    @rule(n=_CHUNKS, outcomes=_OUTCOMES)
    def whole_step(self, n: int, outcomes: tuple[tuple[int, int], ...]) -> None:
        """Every request gets on, as in an engine's loop, and the results are there at once."""
        for r in list(self.session.requests):
            self.run(Schedule(r, n))
        if self.session.batch:
            self.launch()
        self.retire(outcomes)

    @precondition(lambda self: self.session.batch)
    @rule()
    def launch(self) -> None:
        """The batch goes to the device, through a graph where one is captured that it fits."""
        b, graphs = self.fresh("b"), list(self.session.executor.graphs.captured)
        if graphs:
            self.run(Replay(b, graphs[self.created % len(graphs)]))
        if b not in self.session.ids:
            self.run(Launch(b))

    @precondition(lambda self: self.session.in_flight)
    @rule(outcomes=_OUTCOMES)
    def retire(self, outcomes: tuple[tuple[int, int], ...]) -> None:
        """The oldest launch's result arrives: for each request how many drafts are accepted, and what is sampled."""
        for b in list(self.session.in_flight)[:1]:
            told = zip(self.session.requests, outcomes, strict=False)
            self.run(Retire(b, tuple(Outcome(r, accepted, family) for r, (accepted, family) in told)))

    @rule(stream=st.sampled_from((COMPUTE_STREAM, COPY_STREAM)))
    def advance(self, stream: Any) -> None:
        """The device makes progress."""
        self.run(Advance(stream))

    @precondition(lambda self: self.session.loads)
    @rule(which=_CHOICE)
    def landed(self, which: int) -> None:
        """A delayed load is there."""
        loading = [request.r for request, _ in self.session.loads.values()]
        self.run(Landed(loading[which % len(loading)]))

    @precondition(lambda self: 0 < len(self.session.requests) < _LIVE)
    @rule(which=_CHOICE)
    def fork(self, which: int) -> None:
        """A request is forked, and as often as not both go on at once, and apart."""
        self.run(Fork(self.live(which), self.fresh("r")))
        for _ in range(which % 2 * 2):
            self.whole_step(1, _APART)

    @precondition(lambda self: self.session.requests)
    @rule(which=_CHOICE, kind=st.sampled_from((Finish, Abort, Preempt)), prompt=_PROMPTS)
    def leave(self, which: int, kind: Any, prompt: tuple[Segment, ...]) -> None:
        """A request gives its blocks back; there is always another."""
        self.run(kind(self.live(which)))
        if not self.session.requests:
            self.run(Submit(self.fresh("r"), prompt))

    @precondition(lambda self: self.session.requests)
    @rule(which=_CHOICE)
    def lookup(self, which: int) -> None:
        """A look-up alone."""
        self.run(Lookup(self.live(which)))

    @precondition(lambda self: self.session.batch)
    @rule()
    def cancel(self) -> None:
        """The batch is dropped."""
        self.run(Cancel())

    @precondition(lambda self: self.session.books.publications)
    @rule()
    def reset_prefix_cache(self) -> None:
        """The cache is emptied."""
        self.run(ResetPrefixCache())


class TieredMachine(TargetMachine):
    """Also moves pages between tiers, and breaks what it can on the way."""

    @rule(which=_CHOICE)
    def advance_any(self, which: int) -> None:
        """Any stream of the device makes progress."""
        streams = self.session.device.streams
        self.run(Advance(streams[which % len(streams)]))

    @precondition(lambda self: self.session.traits.tiers and self.session.requests)
    @rule(which=_CHOICE, tier=_CHOICE)
    def offload(self, which: int, tier: int) -> None:
        """A request's chunks go down."""
        tiers = self.session.traits.tiers
        self.run(Offload(self.fresh("t"), self.live(which), tiers[tier % len(tiers)]))

    @rule(submit=_SUBMITS, prompt=_PROMPTS)
    def load(self, submit: Submit, prompt: tuple[Segment, ...]) -> None:
        """A request arrives, and its prefix comes up if a tier has it."""
        r = self.fresh("r")
        self.run(replace(submit, r=r, prompt=prompt))
        self.run(Load(self.fresh("t"), r))

    @precondition(lambda self: self.session.transfers)
    @rule(which=_CHOICE, kinds=st.sampled_from(((Complete,), (Complete, Complete), (Fail, Complete), (Tear, Complete))))
    def end_transfer(self, which: int, kinds: Any) -> None:
        """A transfer ends, well or not, and the manager hears of it, perhaps twice."""
        transfers = list(self.session.transfers)
        for kind in kinds:
            self.run(kind(transfers[which % len(transfers)]))

    @precondition(lambda self: len(self.session.traits.tiers) > 1)
    @rule(which=_CHOICE, kind=st.sampled_from(("flip", "truncate", "restart")))
    def break_store(self, which: int, kind: Any) -> None:
        """Stored bytes are damaged, or the store dies and comes back."""
        stores = self.session.traits.tiers[1:]
        tier = stores[which % len(stores)]
        self.run(Restart(tier) if kind == "restart" else Spoil(tier, which, kind))
