"""The part *protocol*: the reference manager's pool and steps, put together with their proofs."""

from __future__ import annotations

import hashlib
import inspect
import time
from functools import cache
from types import ModuleType
from typing import Any

from kvsan.ci.proofs.broken_protocol import target_of
from kvsan.ci.proofs.protocol_traces import trace_of
from kvsan.gpu_kernels import addressing
from kvsan.harness.trace import dumps
from kvsan.invariants.proofs.obligation import (
    PROVED,
    REFUTED,
    REJECTED,
    UNKNOWN,
    Claim,
    Counterexample,
    Outcome,
    Status,
    Values,
)
from kvsan.invariants.proofs.protocol import (
    bench,
    clauses,
    columns,
    counts,
    flights,
    induction,
    instances,
    loops,
    manager_scenarios,
    manager_steps,
    pool_steps,
    start,
    state,
)
from kvsan.invariants.proofs.protocol.account import account
from kvsan.invariants.proofs.protocol.bench import Parts
from kvsan.invariants.proofs.protocol.concrete import replayed
from kvsan.invariants.proofs.protocol.induction import Broken, Shown, Step, show
from kvsan.invariants.proofs.protocol.manager_steps import MANAGER_STEPS
from kvsan.invariants.proofs.protocol.pool_steps import POOL_STEPS
from kvsan.invariants.proofs.solver import Limits, satisfiable, solve
from kvsan.models_under_test.mutants.base import Mutant
from kvsan.models_under_test.paged import batch, keys, manager, pool, request
from kvsan.models_under_test.paged.batch import InFlight, Row
from kvsan.models_under_test.paged.manager import PagedManager
from kvsan.models_under_test.paged.pool import BlockPool
from kvsan.models_under_test.paged.request import PagedRequest

PART = "protocol"
START = "start"
_COUNT = "count-"

_CALLERS = (
    "the manager's caller keeps the contract of the harness: launches retire in order, a request in the scheduled batch is not "
    "forked, a load lands once",
    "tiers and exchanges between pools, which hold blocks by themselves, are not part of the system that is proved",
    "keys of blocks are any numbers: that equal keys mean equal contents is not part of it either",
)
_SYSTEM = (pool, manager, request, batch, keys, addressing)
"""Modules of all code that steps run: a change anywhere in them makes every claim another."""
_PROOF = (
    state,
    clauses,
    columns,
    bench,
    flights,
    instances,
    induction,
    loops,
    pool_steps,
    manager_steps,
    manager_scenarios,
)
"""What says what is proved of it."""
_STEPS: dict[str, Step] = {step.name: step for step in (*POOL_STEPS, *MANAGER_STEPS)}


@cache
def claims() -> list[Claim]:
    """What is proved: the beginning, each step, and the lemmas about counts."""
    sizes = f"that the constructor makes what the formula says is looked at for pools of 2 to {start.LARGEST} blocks"
    source = _hash(*_SYSTEM, *_PROOF)
    return [
        Claim(PART, START, "Every clause holds of a new pool, of any size.", (sizes,), _hash(*_SYSTEM, *_PROOF, start)),
        *(
            Claim(PART, one.name, f"{one.statement}: every clause holds after it.", (*one.assumptions, *_CALLERS), source)
            for one in _STEPS.values()
        ),
        *(Claim(PART, _COUNT + one.name, _sentence(one.statement), (), _hash(counts)) for one in counts.lemmas()),
    ]  # fmt: skip


def prove(
    name: str,
    limits: Limits = Limits(),  # noqa: B008
    pool_type: type[BlockPool] = BlockPool,
    manager_type: type[PagedManager] = PagedManager,
) -> Outcome:
    """Prove one claim of some pool and manager; KeyError if there is none of that name."""
    claim = {one.name: one for one in claims()}[name]
    if name == START:
        return _prove_start(claim, limits, pool_type, manager_type)
    if name.startswith(_COUNT):
        return _prove_lemma(claim, limits)
    parts = Parts(pool_type, manager_type, PagedRequest, Row, InFlight)
    shown = show(_STEPS[name], parts, limits)
    if shown.status == PROVED and (found := loops.findings(parts, _STEPS[name].methods)):
        # A state that a step breaks says more than a line that is not understood: it comes first.
        return Outcome(claim, REJECTED, shown.obligations, shown.seconds, None, "; ".join(map(str, found[:3])))
    counterexample = None if shown.broken is None else _counterexample(name, shown.broken, parts)
    return Outcome(claim, shown.status, shown.obligations, shown.seconds, counterexample, shown.reason)


def prove_variant(name: str, kind: type[Mutant], limits: Limits = Limits()) -> Outcome:  # noqa: B008
    """Prove one claim of a seeded bug."""
    return prove(name, limits, kind.pool_type, kind)


def _prove_start(claim: Claim, limits: Limits, pool_type: type[BlockPool], manager_type: type[PagedManager]) -> Outcome:
    shown = _solve_all(start.obligations(), limits)
    differences = start.differences(pool_type)
    sizes = {"largest pool looked at": start.LARGEST}
    if shown.status != PROVED or not differences:
        return Outcome(claim, shown.status, shown.obligations, shown.seconds, None, shown.reason, sizes)
    story = tuple(f"{one} is not what the clauses are proved of" for one in differences[:3])
    units = int("".join(filter(str.isdigit, differences[0])))
    said, trace = _as_trace(START, "", {"units": units}, manager_type)
    said = "; ".join(filter(None, ("made by the real constructor", said)))
    found = Counterexample(story[0], 0, {"units": units}, story, said, trace)
    return Outcome(claim, REFUTED, shown.obligations, shown.seconds, found, limits=sizes)


def _prove_lemma(claim: Claim, limits: Limits) -> Outcome:
    lemma = next(one for one in counts.lemmas() if _COUNT + one.name == claim.name)
    shown = _solve_all(lemma.obligations, limits)
    return Outcome(claim, shown.status, shown.obligations, shown.seconds, None, shown.reason)


def _solve_all(obligations: tuple[Any, ...], limits: Limits) -> Shown:
    """Prove obligations that no step is involved in, each from hypotheses that some case satisfies."""
    started = time.monotonic()
    status: Status = PROVED
    reason = ""
    for obligation in obligations:
        if not satisfiable(obligation.hypotheses, limits):
            status, reason = UNKNOWN, f"vacuous: {obligation.what}"
            break
        answer = solve(obligation, limits)
        if answer.status != PROVED:
            status, reason = answer.status, answer.reason or obligation.what
            break
    return Shown(status, len(obligations), time.monotonic() - started, None, reason)


def _counterexample(name: str, broken: Broken, parts: Parts) -> Counterexample:
    """Replay a counterexample on the real code, in the state that it names; and as a trace where its manager is a target."""
    before, after = replayed(broken.scenario, broken.values, parts)
    said = f"the real code, in this state, breaks: {', '.join(after) or 'nothing'}"
    if before:
        said = f"no state of the real code: it breaks {', '.join(before)}"
    seen, trace = _as_trace(name, broken.scenario.__name__, broken.values, parts.manager)
    said = "; ".join(filter(None, (said, seen)))
    return Counterexample(f"{name}: {broken.goal.statement}", 0, broken.values, account(broken), said, trace)


def _as_trace(step: str, scenario: str, values: Values, manager_type: type[Any]) -> tuple[str, str]:
    """What a trace that leads to the step shows, and the trace; of a manager that is a target."""
    if not issubclass(manager_type, Mutant):
        return "", ""
    found = trace_of(target_of(manager_type), step, scenario, values)
    return (f"as a trace: {found[1]}", dumps(found[0])) if found else ("no trace was found that leads there", "")


def _sentence(statement: str) -> str:
    return f"{statement[:1].upper()}{statement[1:]}."


def _hash(*modules: ModuleType) -> str:
    return hashlib.sha256("".join(map(inspect.getsource, modules)).encode()).hexdigest()
