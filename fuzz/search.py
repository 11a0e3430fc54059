"""The search loop: run after run, each from its own seed, until a budget ends or enough was found.

A run is a fresh target under a fresh session with a fresh generator. Run i of seed s is always the same run. ``steps`` is the
deterministic budget; ``budget_s`` only caps it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random

from kvsan.fuzz.floors import impossible_in, steered_events
from kvsan.fuzz.generate import Generator, draw_features
from kvsan.fuzz.journal import Journal
from kvsan.fuzz.known import Known, KnownFindings
from kvsan.fuzz.pair_draws import PairGenerator
from kvsan.fuzz.profiles import Profile, small_scope, tiny_scope
from kvsan.fuzz.replay import open_session
from kvsan.fuzz.shrink import Judge, NotRepeated, Shrinker, judge_of
from kvsan.harness.clock import now_s
from kvsan.harness.configuration import Configuration, OptionValue, is_users_own
from kvsan.harness.operations import Operation
from kvsan.harness.pair_session import PairSession
from kvsan.harness.registry import TargetFactory, takes_pair_options, takes_reference_options
from kvsan.harness.session import Session, sweep_interval
from kvsan.harness.trace import Trace
from kvsan.harness.verdict import Finding, UsageError, Violation

_PROGRESS_EVERY_S = 0.5
_CLOCK_EVERY = 64
_LARGE_SHARE = 0.3  # of the runs; they are the longer ones and still make most of the steps
_LARGE_SHARE_SLOW = 0.1
_SHRINK_AT_MOST_S = 60.0
_REPEATS = 3
_LEAST_STEPS = 1000
_LEAST_STEPS_SLOW = 100
_SLOW_FLOORS = 0.1  # a tiny run seldom gets as far as a rejected draft
_LEAST_CALLS = 10


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """What to search, and for how long.

    ``drawn``: sizes that each run draws from the profile; others are the configuration's. ``numbers`` is the share of
    runs in which every attention output is compared. Runs are numbered ``first_run``, ``first_run + run_stride`` and so
    on, at most ``runs`` of them. ``seen`` are kinds of violation that have been found before and are passed over.
    ``slow`` says that kernels are interpreted: every run is small, and fewer steps count as tried.
    """

    configuration: Configuration
    profile: Profile
    seed: int = 0
    steps: int | None = None
    budget_s: float | None = None
    max_findings: int = 1
    numbers: float = 1.0
    drawn: frozenset[str] = frozenset({"num_units", "block_size"})
    beyond_contract: bool = False
    without: frozenset[str] = frozenset()
    first_run: int = 0
    run_stride: int = 1
    runs: int | None = None
    seen: frozenset[tuple[str, str]] = frozenset()
    slow: bool = False


@dataclass(slots=True)
class SearchSummary:
    """What a search did.

    ``counts`` are executed operations and events by name, ``impossible`` those that the target's traits rule out,
    ``calls`` how often each kernel served what, if there are kernels of more than one maker, ``known`` how often each
    known finding was met, ``too_little`` the floors that were not reached.
    """

    steps: int = 0
    skipped: int = 0
    runs: int = 0
    seconds: float = 0.0
    outputs_compared: int = 0
    tokens_read: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    impossible: frozenset[str] = frozenset()
    findings: list[Finding] = field(default_factory=list)
    known: Counter[str] = field(default_factory=Counter)
    too_little: list[str] = field(default_factory=list)
    interrupted: bool = False


class Reporter:
    """What a search tells while it runs; the base class keeps quiet."""

    def progress(self, summary: SearchSummary) -> None:
        """Say how far the search is; called about twice a second."""

    def run_done(self, summary: SearchSummary) -> None:
        """Say that a run is complete and accounted for."""

    def violated(self, violation: Violation, trace: Trace) -> None:
        """Say that something was found and is being shrunk."""

    def found(self, finding: Finding) -> None:
        """Say what was found, shrunk; called before the search goes on."""


class Search:
    """One search by one process."""

    def __init__(
        self,
        factory: TargetFactory,
        settings: SearchSettings,
        known: KnownFindings,
        reporter: Reporter,
        journal: Journal | None = None,
    ) -> None:
        self._factory = factory
        self._settings = settings
        self._known = known
        self._reporter = reporter
        self._journal = journal or Journal()
        self._started = self._last_told = now_s()
        self._seen = set(settings.seen)
        self._large, self._small = settings.profile, small_scope(settings.profile)
        if settings.slow:
            self._large, self._small = self._small, tiny_scope(settings.profile)
        self.summary = SearchSummary()

    def run(self) -> SearchSummary:
        """Search; Ctrl-C ends it with everything found so far."""
        summary = self.summary
        try:
            while not self._done():
                self._run_once(self._settings.first_run + summary.runs * self._settings.run_stride)
                summary.runs += 1
                summary.seconds = now_s() - self._started
                self._reporter.run_done(summary)
        except KeyboardInterrupt:
            summary.interrupted = True
        summary.seconds = now_s() - self._started
        if not summary.interrupted and not summary.findings:
            summary.too_little = floors_missed(summary, self._settings)
        self._reporter.progress(summary)
        return summary

    def _done(self) -> bool:
        settings, summary = self._settings, self.summary
        if len(summary.findings) >= settings.max_findings:
            return True
        if settings.steps is not None and summary.steps >= settings.steps:
            return True
        if settings.runs is not None and summary.runs >= settings.runs:
            return True
        return settings.budget_s is not None and now_s() - self._started >= settings.budget_s

    # -- one run

    def _run_once(self, number: int) -> None:
        settings = self._settings
        random = Random(f"{settings.seed}:{number}")
        large_share = _LARGE_SHARE_SLOW if settings.slow else _LARGE_SHARE
        profile = self._large if random.random() < large_share or not settings.drawn else self._small
        configuration = self._draw_configuration(random, profile)
        numbers = random.random() < settings.numbers
        self._journal.start(number, configuration)
        session = self._open(configuration, numbers)
        if not self.summary.runs:  # an engine's first construction imports it
            _must_fit(session, settings.profile)
            self._started = now_s()
        impossible = impossible_in(session) | steered_events(self._known.features())
        self.summary.impossible = impossible & self.summary.impossible if self.summary.runs else impossible
        features = draw_features(random, profile, settings.without | self._known.avoid(random))
        generator = (
            PairGenerator(session, profile, random, features)
            if isinstance(session, PairSession)
            else Generator(session, profile, random, features)
        )
        length = random.choice(profile.run_steps)
        if settings.steps is not None:
            length = min(length, settings.steps - self.summary.steps)
        operations: list[Operation] = []
        violation = None
        try:
            self._drive(session, generator, length, operations)
        except Violation as raised:
            violation = raised
        finally:
            self._account(session)
        if violation is not None:
            self._violated(Trace(configuration, tuple(operations)), violation, numbers)

    def _open(self, configuration: Configuration, numbers: bool) -> Session | PairSession:
        settings = self._settings
        try:
            return open_session(self._factory, configuration, numbers=numbers, beyond_contract=settings.beyond_contract)
        except UsageError as error:
            if not settings.drawn or error.__cause__ is None:
                raise
            drawn = ", ".join(f"{size}={getattr(configuration, size)}" for size in sorted(settings.drawn))
            raise UsageError(f"{error} (this run drew {drawn})") from error

    def _draw_configuration(self, random: Random, profile: Profile) -> Configuration:
        configuration, drawn = self._settings.configuration, self._settings.drawn
        num_units = random.choice(profile.num_units)
        block_size = random.choice(profile.block_sizes)
        return replace(
            configuration,
            num_units=num_units if "num_units" in drawn else configuration.num_units,
            block_size=block_size if "block_size" in drawn else configuration.block_size,
            options=self._draw_options(random, profile),
        )

    def _draw_options(self, random: Random, profile: Profile) -> tuple[tuple[str, OptionValue], ...]:
        configuration = self._settings.configuration
        takes = takes_pair_options if profile.of_pairs else takes_reference_options
        if not takes(configuration.target):
            return configuration.options
        options: dict[str, OptionValue] = {name: random.choice(values) for name, values in profile.options}
        return tuple(sorted(fitted(options, dict(configuration.options)).items()))

    def _drive(
        self,
        session: Session | PairSession,
        generator: Generator | PairGenerator,
        length: int,
        operations: list[Operation],
    ) -> None:
        """Run to the step budget of the run; a run that only skips ends too."""
        budget_s, journal = self._settings.budget_s, self._journal
        for attempt in range(4 * length + 100):
            operation = generator.next()
            operations.append(operation)
            journal.next(operation)
            session.step(operation)
            if session.steps >= length:
                break
            if attempt % _CLOCK_EVERY == 0:
                now = now_s()
                if now - self._last_told > _PROGRESS_EVERY_S:
                    self._last_told = now
                    self._tell(session)
                if budget_s is not None and now - self._started > budget_s:
                    break
        journal.closing()
        session.close()

    def _tell(self, session: Session | PairSession) -> None:
        summary = self.summary
        before = summary.steps
        summary.steps += session.steps
        summary.seconds = now_s() - self._started
        self._reporter.progress(summary)
        summary.steps = before

    def _account(self, session: Session | PairSession) -> None:
        summary = self.summary
        summary.steps += session.steps
        summary.skipped += sum(session.skipped.values())
        summary.counts.update(session.counts)
        for part in session.parts:
            summary.tokens_read += part.shadow.tokens_read
            if part.executor.numbers is not None:
                summary.outputs_compared += part.executor.numbers.outputs_compared
                summary.calls.update(part.executor.numbers.calls)

    # -- findings

    def _violated(self, trace: Trace, violation: Violation, numbers: bool) -> None:
        """Shrink what is new; count what is known. Each kind is shrunk once a search."""
        if violation.kind in self._seen:
            return
        known = self._known.of_kind(violation.kind)
        if known is not None and known.met >= known.confirm:
            self.summary.known[known.name] += 1
            known.met += 1
            return
        self._reporter.violated(violation, trace)
        self._shrink(trace, violation, numbers and violation.needs_kernels, known)

    def _shrink(self, trace: Trace, violation: Violation, numbers: bool, known: Known | None) -> None:
        """Shrink and tell; interrupted, the best so far is told. What cannot be repeated is told as it was found."""
        started = now_s()
        judge = judge_of(
            self._factory, numbers=numbers, beyond_contract=self._settings.beyond_contract, journal=self._journal
        )
        finding = as_found(trace, violation, (1, 1))
        try:
            shrinker = Shrinker(judge, trace, violation, lambda: now_s() - started > _SHRINK_AT_MOST_S)
            try:
                finding = shrinker.shrink()
                known = None
            except KeyboardInterrupt:
                finding = shrinker.finding(replays=1)
                raise
        except NotRepeated:
            finding = as_found(trace, violation, _repeats(judge, trace, violation))
        finally:
            self._found(finding, known)
            if finding.kind in self._seen:
                self._seen.add(violation.kind)  # the plainer kind that it was shrunk to has been told

    def _found(self, finding: Finding, presumed: Known | None) -> None:
        """Count or tell a finding; one that could not be shrunk is presumed to be the known one of its kind."""
        same = self._known.match(finding) or presumed
        if same is not None:
            same.met += 1
            self.summary.known[same.name] += 1
            return
        if finding.kind in self._seen:
            return
        self._seen.add(finding.kind)
        self.summary.findings.append(finding)
        self._reporter.found(finding)


def fitted(drawn: dict[str, OptionValue], given: dict[str, OptionValue]) -> dict[str, OptionValue]:
    """Join drawn options and those that the user gave; what was drawn gives way where both cannot be."""
    options = drawn | given
    host_units, chunk_blocks = options.get("host_units"), options.get("chunk_blocks")
    if isinstance(host_units, int) and isinstance(chunk_blocks, int) and chunk_blocks > host_units:
        if "chunk_blocks" not in given:
            options["chunk_blocks"] = max(1, host_units)
        elif "host_units" not in given:
            options["host_units"] = chunk_blocks
    if host_units == 0 and "stores" not in given and "stores" in drawn:
        options["stores"] = ""
    return options


def _must_fit(session: Session | PairSession, profile: Profile) -> None:
    """Raise UsageError if a profile draws what a target can never do, or leaves out what it is there for."""
    pair = isinstance(session, PairSession)
    if pair != profile.of_pairs:
        kind, wanted = ("a pair of pools", "disagg") if pair else ("one pool", "default, async or graphs")
        raise UsageError(f"profile {profile.name}: the target is {kind}; expected --profile {wanted}")
    if profile.weights["Replay"] and not any(part.traits.graph_rows for part in session.parts):
        raise UsageError(f"profile {profile.name}: the target replays no graphs; expected --profile default or async")


def _repeats(judge: Judge, trace: Trace, violation: Violation) -> tuple[int, int]:
    """How often a trace that is not shrunk violates again when it is judged as in the search."""
    interval = sweep_interval(trace.configuration.num_units)
    replays = [judge(trace.configuration, trace.operations, interval, True) for _ in range(_REPEATS)]
    same = [r for r in replays if r.violation is not None and r.violation.kind == violation.kind]
    return len(same), _REPEATS


def as_found(trace: Trace, violation: Violation, replays: tuple[int, int]) -> Finding:
    """Tell a violation by the trace that found it."""
    step = max(0, len(trace.operations) - 1)
    return Finding(*violation.kind, violation.message, step, trace, violation.lineage, replays)


def floors_missed(summary: SearchSummary, settings: SearchSettings) -> list[str]:
    """Events that the profile promises, the target can produce, and this search did not."""
    profile = settings.profile
    wanted = _LEAST_STEPS_SLOW if settings.slow else _LEAST_STEPS
    if settings.steps is not None:
        wanted = min(settings.steps, wanted)
    if summary.steps < wanted:
        return [f"steps: {summary.steps:,} were executed, {wanted:,} are the least that counts"]
    kernel = settings.configuration.kernels
    calls = sum(count for call, count in summary.calls.items() if call.endswith(f" by {kernel}"))
    if is_users_own(kernel) and calls < _LEAST_CALLS:
        return [f"kernel: {kernel} was called {calls} times, {_LEAST_CALLS} are the least that counts"]
    if summary.steps < profile.floor_steps:
        return []
    missed = []
    for event, whole_floor in profile.floors.items():
        floor = whole_floor * _SLOW_FLOORS if settings.slow else whole_floor
        rate = 1000 * summary.counts[event] / summary.steps
        if event not in summary.impossible and rate < floor:
            missed.append(f"{event}: {rate:.2f} per 1,000 steps, the floor is {floor:g}")
    return missed
