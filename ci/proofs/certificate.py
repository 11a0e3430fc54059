"""What was proved, written down: claims, assumptions, hashes of what they are about and of the proofs, versions, time.

Two runs on the same code and versions differ in seconds alone.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvsan.ci import proofs as ci_proofs
from kvsan.invariants import proofs
from kvsan.invariants.proofs.obligation import Outcome

FORMAT = 1
_PACKAGES = ("kvsan", "z3-solver", "triton", "xdsl", "torch", "numpy")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a proof depends on; only those that are installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def certificate(
    outcomes: Sequence[Outcome], *, complete: bool, seeds: int, timeout_ms: int, seconds: float
) -> dict[str, Any]:
    """Everything as data for JSON; ``complete`` is False where a run was stopped, or only some claims were asked for."""
    ordered = sorted(outcomes, key=lambda outcome: outcome.claim.key)
    return {
        "format": FORMAT,
        "complete": complete,
        "versions": versions(),
        "proofs": proofs_hash(),
        "seeds": list(range(seeds)),
        "timeout_ms": timeout_ms,
        "seconds": round(seconds, 2),
        "summary": dict(_counts(ordered)),
        "claims": [_claim(outcome) for outcome in ordered],
    }


def proofs_hash() -> str:
    """Hash of the proofs themselves, statements and solver included: sha256 in hex. What they are about has hashes of its own."""
    digest = hashlib.sha256()
    for package in (proofs, ci_proofs):
        folder = Path(package.__path__[0])
        for file in sorted(folder.rglob("*.py")):
            digest.update(f"{file.relative_to(folder)}\n".encode() + file.read_bytes())
    return digest.hexdigest()


def _counts(outcomes: Sequence[Outcome]) -> Mapping[str, int]:
    counts = {"claims": len(outcomes), "obligations": sum(outcome.obligations for outcome in outcomes)}
    for outcome in outcomes:
        counts[outcome.status] = counts.get(outcome.status, 0) + 1
    return counts


def _claim(outcome: Outcome) -> dict[str, Any]:
    written = asdict(outcome.claim)
    written["assumptions"] = list(outcome.claim.assumptions)
    written |= {"status": outcome.status, "obligations": outcome.obligations, "seconds": round(outcome.seconds, 3)}
    if outcome.limits:
        written["limits"] = dict(outcome.limits)
    if outcome.reason:
        written["reason"] = outcome.reason
    if outcome.counterexample is not None:
        written["counterexample"] = asdict(outcome.counterexample)
    return written
