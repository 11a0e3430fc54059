"""All parts of the proofs in one place: every claim, and who proves it.

A claim is found by its key, ``part/name``, so that processes can hand work to each other as text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from kvsan.ci.proofs import protocol
from kvsan.ci.proofs.proving import with_seeds
from kvsan.invariants.proofs import addressing
from kvsan.invariants.proofs.kernels import catalogue
from kvsan.invariants.proofs.obligation import Claim, Outcome
from kvsan.invariants.proofs.solver import Limits


@dataclass(frozen=True, slots=True)
class Part:
    """One part: what it claims, and how one of its claims is proved by name."""

    claims: Callable[[], list[Claim]]
    prove: Callable[[str, Limits], Outcome]


PARTS = {
    addressing.PART: Part(addressing.claims, addressing.prove),
    catalogue.PART: Part(catalogue.claims, catalogue.prove),
    protocol.PART: Part(protocol.claims, protocol.prove),
}
"""In the order in which they are told."""


def all_claims() -> list[Claim]:
    """Every claim of every part."""
    return [claim for part in PARTS.values() for claim in part.claims()]


def prove(key: str, timeout_ms: int, seeds: int) -> Outcome:
    """Prove the claim of a key, with each of the solver's seeds."""
    part, _, name = key.partition("/")
    return with_seeds(partial(PARTS[part].prove, name), timeout_ms, seeds)
