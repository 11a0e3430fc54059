"""Replay: run a trace against a fresh target and say what happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from kvsan.fuzz.journal import Journal
from kvsan.fuzz.kernels import has_device, kernels_named
from kvsan.gpu_kernels.cuda_streams import CudaStreams
from kvsan.gpu_kernels.formats import format_named
from kvsan.gpu_kernels.host import HostKernels
from kvsan.gpu_kernels.interface import Kernels, UnusableKernels
from kvsan.gpu_kernels.sharded import ShardedKernels
from kvsan.gpu_kernels.sharding import Layout
from kvsan.harness.configuration import HOST, TRITON, Configuration
from kvsan.harness.device import Device
from kvsan.harness.fingerprint import Fingerprint
from kvsan.harness.granted import check_tiers
from kvsan.harness.invariant import Invariant
from kvsan.harness.numbers import Numbers
from kvsan.harness.operations import Operation
from kvsan.harness.pair import PairTarget
from kvsan.harness.pair_checks import check_pair
from kvsan.harness.pair_session import PairSession
from kvsan.harness.registry import TargetFactory
from kvsan.harness.session import Session
from kvsan.harness.story import owners
from kvsan.harness.target import Target, Traits
from kvsan.harness.trace import Trace
from kvsan.harness.trace_format import shown
from kvsan.harness.verdict import HarnessError, UsageError, Violation
from kvsan.invariants import INVARIANTS

_Q_HEADS = 2
_GROUP = 2  # q heads of a kv head in a sharded cache


@dataclass(slots=True)
class Replayed:
    """``step`` is the index of the operation that violated (``len(operations)`` stands for the end of the session).

    ``ran`` are the indices of the operations that were executed and not skipped, that of the violation among them.
    """

    violation: Violation | None
    step: int
    executed: int
    counts: Counter[str] = field(default_factory=Counter)
    hashes: list[str] = field(default_factory=list)
    ran: list[int] = field(default_factory=list)


def construct(factory: TargetFactory, configuration: Configuration) -> Target:
    """Build a target, or a pair; what its constructor raises is bad input (UsageError), not a finding."""
    try:
        target = factory(configuration)
    except (UsageError, HarnessError):
        raise
    except Exception as error:
        raise UsageError(
            f"target {configuration.target}: its constructor raised {type(error).__name__}: {error}".splitlines()[0]
        ) from error
    pair = pair_of(target)
    for one in (target,) if pair is None else pair.pools.values():
        _check(one, configuration)
    if pair is not None:
        check_pair(pair)
    return target


def pair_of(target: object) -> PairTarget | None:
    """Give a target back if it is a pair of pools."""
    return cast(PairTarget, target) if isinstance(getattr(target, "pools", None), Mapping) else None


def _check(target: Target, configuration: Configuration) -> None:
    """Raise UsageError unless a target looks like one."""
    if not isinstance(getattr(target, "traits", None), Traits):
        raise UsageError(
            f"target {configuration.target}: made a {type(target).__name__} whose traits are no "
            "kvsan.harness.target.Traits; expected a kvsan.harness.target.Target"
        )
    check_tiers(target.traits, f"target {configuration.target}")
    for method in ("view", "delta"):
        if not callable(getattr(target, method, None)):
            raise UsageError(
                f"target {configuration.target}: {type(target).__name__} does not implement "
                f"kvsan.harness.target.Target: it has no method {method}"
            )
    try:
        target.view()
    except Exception as error:
        raise UsageError(
            f"target {configuration.target}: its view() raised {type(error).__name__}: {error}".splitlines()[0]
        ) from error


def make_numbers(traits: Traits, configuration: Configuration, layout: Layout | None = None) -> Numbers:
    """Make the numbers oracle with the kernels that the configuration names; UsageError if they cannot be had.

    Kernels other than the host's get half its q heads: where they are interpreted, every head costs. With a ``layout`` they
    run on the ranks of a sharded cache.
    """
    size = traits.num_units + traits.host_units, traits.block_size, configuration.dtype
    if configuration.kernels != TRITON and format_named(configuration.dtype).quantised:
        raise UsageError(
            f"dtype {configuration.dtype}: only the kernels called triton read it; expected --kernels triton"
        )
    if layout is not None:
        inner = HostKernels() if configuration.kernels == HOST else find_kernels(configuration.kernels)
        heads = layout.num_kv_heads
        return Numbers(*size, kernels=ShardedKernels(inner, layout), kv_heads=heads, q_heads=_GROUP * heads)
    if configuration.kernels == HOST:
        return Numbers(*size)
    return Numbers(*size, kernels=find_kernels(configuration.kernels), q_heads=_Q_HEADS)


def find_kernels(name: str) -> Kernels[Any]:
    """Find kernels by name; UsageError if they cannot be had."""
    try:
        return kernels_named(name)
    except UnusableKernels as error:
        raise UsageError(shown(str(error))) from None


def open_session(
    factory: TargetFactory,
    configuration: Configuration,
    *,
    numbers: bool,
    sweep_every: int | None = None,
    beyond_contract: bool = False,
    invariants: Sequence[type[Invariant]] = INVARIANTS,
) -> Session | PairSession:
    """Start a session on a fresh target, or on a fresh pair."""
    target = construct(factory, configuration)
    pair = pair_of(target)
    if pair is not None:
        pools = pair.pools.items() if numbers else ()
        oracles = {pool: make_numbers(one.traits, configuration, pair.layouts[pool]) for pool, one in pools}
        return PairSession(pair, invariants, oracles, sweep_every, beyond_contract)
    oracle = make_numbers(target.traits, configuration) if numbers else None
    session = Session(target, invariants, oracle, sweep_every, beyond_contract)
    if numbers and configuration.kernels == TRITON and has_device():
        assert isinstance(session.device, Device), "a session of one pool has a device of its own"
        session.device.issue_to(CudaStreams(target.traits.streams))
    return session


def run(
    session: Session | PairSession,
    operations: Sequence[Operation],
    *,
    close: bool = True,
    hashes: bool = False,
    journal: Journal | None = None,
) -> Replayed:
    """Run operations until one violates; ``close`` also judges the end of the session."""
    fingerprint = Fingerprint(session) if hashes else None
    journal = journal or Journal()
    seen: list[str] = []
    ran: list[int] = []
    position = -1
    violation = None
    try:
        for position, operation in enumerate(operations):
            journal.next(operation)
            ran.append(position)
            if not session.step(operation):
                ran.pop()
            if fingerprint is not None:
                seen.append(fingerprint.update())
        if close:
            position = len(operations)
            journal.closing()
            session.close()
    except Violation as raised:
        violation = raised
        violation.lineage += tuple(owners(session.blamed, raised))
    return Replayed(violation, position, session.steps, session.counts, seen, ran)


def replay(
    factory: TargetFactory,
    trace: Trace,
    *,
    numbers: bool = True,
    sweep_every: int = 1,
    beyond_contract: bool = False,
    hashes: bool = False,
    journal: Journal | None = None,
) -> Replayed:
    """Run a trace from its configuration on, with a sweep after every step."""
    if journal is not None:
        journal.start(0, trace.configuration)
    session = open_session(
        factory, trace.configuration, numbers=numbers, sweep_every=sweep_every, beyond_contract=beyond_contract
    )
    return run(session, trace.operations, hashes=hashes, journal=journal)
