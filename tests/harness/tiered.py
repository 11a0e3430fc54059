"""Sessions with tiers, for tests: the reference manager over a host, a disk and a remote store."""

from __future__ import annotations

from collections.abc import Sequence

from kvsan.fuzz.replay import open_session
from kvsan.harness.configuration import Configuration, OptionValue
from kvsan.harness.operations import (
    Complete,
    Finish,
    Launch,
    Offload,
    Operation,
    Retire,
    Schedule,
    Submit,
)
from kvsan.harness.session import Session
from kvsan.models_under_test.paged import PagedManager, make_target

BLOCK = 2
PROMPT = ((0, 7),)
"""Three full blocks and a token, so that all full blocks may come from a tier."""


def tiered(*, numbers: bool = False, num_units: int = 12, **options: OptionValue) -> Session:
    """Open a session that is swept after every step."""
    given = {"host_units": 8, "stores": "disk,remote", **options}
    configuration = Configuration(num_units=num_units, block_size=BLOCK, options=tuple(sorted(given.items())))
    return open_session(make_target, configuration, numbers=numbers, sweep_every=1)


def computed(r: str, prompt: object = PROMPT) -> list[Operation]:
    """What computes a request's prompt in one launch."""
    return [Submit(r, prompt), Schedule(r, 64), Launch(f"prefill {r}"), Retire(f"prefill {r}")]  # type: ignore[arg-type]


def offloaded(r: str, *tiers: str) -> list[Operation]:
    """What brings a computed request's chunks into tiers, one after the other."""
    return [one for tier in tiers for one in (Offload(f"{r} to {tier}", r, tier), Complete(f"{r} to {tier}"))]


def only_in(*tiers: str) -> list[Operation]:
    """What leaves the chunks of a prompt in these tiers, and neither on the device nor in requests."""
    return [*computed("old"), *offloaded("old", *tiers), Finish("old"), *filling()]


def filling() -> list[Operation]:
    """What evicts everything from a pool of twelve units."""
    return [Submit("filler", ((9, 21),)), Schedule("filler", 64), Finish("filler")]


def run(session: Session, operations: Sequence[Operation]) -> list[bool]:
    """Run operations; which were executed."""
    return [session.step(operation) for operation in operations]


def manager_of(session: Session) -> PagedManager:
    """Give the reference manager of a session."""
    assert isinstance(session.target, PagedManager)
    return session.target


__all__ = ["BLOCK", "PROMPT", "computed", "filling", "manager_of", "offloaded", "only_in", "run", "tiered"]
