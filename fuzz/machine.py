"""The Hypothesis machine: the fuzzer in a pytest file.

::

    from kvsan.fuzz import machine_for
    from mypool import MyPool

    TestMyPool = machine_for(MyPool, num_units=16, block_size=4).TestCase

Hypothesis draws the operations; the session, the invariants and the shrinker are KVSan's own. What fails the test is one
report with the minimal trace, its file, and the command that replays it. An error of KVSan itself is an error, not a failure.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, cast
from unittest import TestCase

from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from kvsan.fuzz import findings
from kvsan.fuzz.profiles import DEFAULT, Profile, small_scope
from kvsan.fuzz.replay import open_session
from kvsan.fuzz.shrink import shrink
from kvsan.harness.configuration import Configuration
from kvsan.harness.operations import (
    Abort,
    Adapter,
    Advance,
    Cancel,
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
    ResetPrefixCache,
    Restart,
    Retire,
    Schedule,
    Segment,
    Spoil,
    Submit,
    Tear,
)
from kvsan.harness.registry import TargetFactory, resolve
from kvsan.harness.session import Session
from kvsan.harness.story import story
from kvsan.harness.trace import Trace
from kvsan.harness.verdict import Violation

SETTINGS = settings(
    max_examples=100,
    stateful_step_count=100,
    deadline=None,
    database=None,
    derandomize=True,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
    print_blob=False,
    verbosity=Verbosity.quiet,
)
"""What a machine's TestCase runs with; its ``settings`` attribute can be set to others."""

_OUT = "KVSAN_OUT"
_LIVE = 8
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
        return open_session(type(self).factory, self.drawn, numbers=self.numbers)

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
        """There is somebody from the start, whichever rules Hypothesis leaves out of this example."""
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
        """The batch goes to the device."""
        self.run(Launch(self.fresh("b")))

    @precondition(lambda self: self.session.in_flight)
    @rule(outcomes=_OUTCOMES)
    def retire(self, outcomes: tuple[tuple[int, int], ...]) -> None:
        """The oldest launch's result arrives: for each request how many drafts are accepted, and what is sampled."""
        for b in list(self.session.in_flight)[:1]:
            told = zip(self.session.requests, outcomes, strict=False)
            self.run(Retire(b, tuple(Outcome(r, accepted, family) for r, (accepted, family) in told)))

    @rule(which=_CHOICE)
    def advance(self, which: int) -> None:
        """The device makes progress."""
        streams = self.session.device.streams
        self.run(Advance(streams[which % len(streams)]))

    @precondition(lambda self: self.session.traits.tiers and self.session.requests)
    @rule(which=_CHOICE, tier=_CHOICE)
    def offload(self, which: int, tier: int) -> None:
        """A request's chunks go down."""
        tiers = self.session.traits.tiers
        self.run(Offload(self.fresh("t"), self.live(which), tiers[tier % len(tiers)]))

    @precondition(lambda self: self.session.traits.tiers)
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

    @precondition(lambda self: self.session.loads)
    @rule(which=_CHOICE)
    def landed(self, which: int) -> None:
        """A delayed load is there."""
        loading = [request.r for request, _ in self.session.loads.values()]
        self.run(Landed(loading[which % len(loading)]))

    @precondition(lambda self: 0 < len(self.session.requests) < _LIVE)
    @rule(which=_CHOICE)
    def fork(self, which: int) -> None:
        """A request is forked."""
        self.run(Fork(self.live(which), self.fresh("r")))

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


def machine_for(
    target: str | TargetFactory,
    *,
    configuration: Configuration | None = None,
    profile: Profile = DEFAULT,
    numbers: bool = True,
    **fields: Any,
) -> type[TargetMachine]:
    """Make a Hypothesis state machine for a target; its ``TestCase`` is what a test module gives a name to.

    ``target`` is a name as ``kvsan targets`` lists them, or a class or function that takes a Configuration. ``fields`` are
    fields of the Configuration; pool and block size are drawn from ``profile`` where neither gives them.
    """
    factory = resolve(target) if isinstance(target, str) else target
    small = small_scope(profile)
    drawn = (
        {}
        if configuration is not None
        else {
            "num_units": (*small.num_units, *profile.num_units),
            "block_size": (*small.block_sizes, *profile.block_sizes),
        }
    )
    base = configuration if configuration is not None else Configuration(target=_name_of(target))
    sizes = {name: st.sampled_from(values) for name, values in drawn.items() if name not in fields}
    members: dict[str, Any] = {
        "factory": staticmethod(factory),
        "configuration": replace(base, **fields),
        "numbers": numbers,
        "__module__": __name__,
    }
    if sizes:
        members["draw_sizes"] = _drawing(sizes)
    machine: Any = type("TargetMachine", (TargetMachine,), members)
    machine.TestCase = _test_case(machine)
    return cast("type[TargetMachine]", machine)


def _name_of(target: str | TargetFactory) -> str:
    return target if isinstance(target, str) else f"{target.__module__}:{getattr(target, '__qualname__', 'target')}"


def _drawing(sizes: dict[str, st.SearchStrategy[int]]) -> Any:
    """Make a first rule that draws what the configuration leaves open; others may have run before it."""

    def draw_sizes(self: TargetMachine, **values: int) -> None:
        self.drawn = replace(self.configuration, **values)  # type: ignore[arg-type]
        self.session = self._open()
        operations, self.operations = self.operations, []
        for operation in operations:
            self.run(operation)

    make_rule: Any = initialize
    return make_rule(**sizes)(draw_sizes)


def _test_case(machine: type[TargetMachine]) -> type[TestCase]:
    """Make the class that pytest and unittest collect."""

    class MachineTestCase(TestCase):
        settings = SETTINGS

        def runTest(self) -> None:
            __tracebackhide__ = True
            report = _search(machine, self.settings)
            if report:
                raise AssertionError("\n".join(report)) from None

    MachineTestCase.__name__ = MachineTestCase.__qualname__ = "TestTarget"
    return MachineTestCase


def _search(machine: type[TargetMachine], chosen: settings) -> Sequence[str]:
    """Run the machine; shrink and tell what it finds."""
    try:
        run_state_machine_as_test(machine, settings=chosen)
    except Violation:
        assert machine.violated is not None
        return report_of(machine, *machine.violated)
    return ()


def report_of(machine: type[TargetMachine], trace: Trace, violation: Violation) -> list[str]:
    """Shrink a violation, write its trace into the folder for findings, and tell both."""
    finding = shrink(machine.factory, trace, violation, numbers=violation.invariant == "numbers")
    folder = Path(os.environ.get(_OUT) or "findings")
    folder.mkdir(parents=True, exist_ok=True)
    lines = story(finding, str(findings.write(folder, finding)))
    configuration, operations = finding.trace.configuration, finding.trace.operations
    sizes = f"{configuration.num_units} units of {configuration.block_size} tokens"
    return [*lines, "", f"  minimal trace, {sizes}:", *(f"    {operation!r}" for operation in operations)]
