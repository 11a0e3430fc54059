"""All seeded mistakes in one place: each is a claim that must not be proved, with a counterexample that is replayed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from kvsan.ci.proofs import broken_addressing, broken_kernels, broken_protocol, int32_pools, protocol
from kvsan.ci.proofs.proving import with_seeds
from kvsan.gpu_kernels.compile.build import Build
from kvsan.invariants.proofs import addressing
from kvsan.invariants.proofs.kernels.catalogue import STATEMENT, claim_of, prove_build
from kvsan.invariants.proofs.kernels.lowering import TTIR
from kvsan.invariants.proofs.kernels.specification import Specify
from kvsan.invariants.proofs.obligation import Outcome
from kvsan.invariants.proofs.solver import Limits

_INT32 = "int32-"


def mechanisms() -> dict[str, str]:
    """What is wrong, by the name of the mistake; addresses first, then kernels, then the protocol."""
    found = {one.name: _told(one.mechanism, one.source) for one in broken_addressing.BROKEN}
    found |= {one.name: _told(one.variant.mechanism, one.variant.source) for one in broken_kernels.BROKEN}
    found |= {
        f"{_INT32}{one.name}": _told(f"int32 arithmetic; the smallest {one.size} that shows it", one.source)
        for one in int32_pools.INT32
    }
    return found | {one.name: _first_line(one.kind) for one in broken_protocol.BROKEN}


def names() -> list[str]:
    """Names of all mistakes."""
    return list(mechanisms())


def prove(name: str, timeout_ms: int, seeds: int) -> Outcome:
    """Try to prove what a mistake breaks, with each seed until one refutes it."""
    return with_seeds(partial(_prove, name), timeout_ms, seeds)


def _prove(name: str, limits: Limits) -> Outcome:
    for wrong in broken_addressing.BROKEN:
        if wrong.name == name:
            return addressing.prove(wrong.claim, limits, wrong.functions)
    for variant in broken_protocol.BROKEN:
        if variant.name == name:
            return protocol.prove_variant(variant.claim, variant.kind, limits)
    with _kernel(name) as (build, specify, folder):
        claim = claim_of(f"{name}/{build.name}", build, STATEMENT, specify)
        return prove_build(claim, build, TTIR, None, specify, limits, folder)


@contextmanager
def _kernel(name: str) -> Iterator[tuple[Build, Specify, str]]:
    """Build of a broken kernel, what it should do, and the folder that its source is in, if it is none of ours."""
    for small in int32_pools.INT32:
        if name == f"{_INT32}{small.name}":
            yield small.build(wide=False), small.specify, ""
            return
    broken = next(one for one in broken_kernels.BROKEN if one.name == name)
    with broken_kernels.written() as folder:
        yield broken_kernels.broken_build(broken), broken.specification(), folder


def _told(mechanism: str, source: str) -> str:
    return f"{mechanism} ({source})" if source else mechanism


def _first_line(kind: type) -> str:
    return (kind.__doc__ or "").strip().partition("\n")[0]
