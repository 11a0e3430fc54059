"""Protocols with one step done wrong: the claim that must be refuted is, in a state that the real code breaks as well."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsan.ci.proofs.broken_protocol import BROKEN, BrokenProtocol
from kvsan.ci.proofs.protocol import START, claims, prove, prove_variant
from kvsan.ci.proofs.protocol_traces import Ways
from kvsan.cli import main
from kvsan.harness.trace import loads
from kvsan.invariants.proofs.obligation import PROVED, REFUTED, Counterexample
from kvsan.invariants.proofs.protocol.induction import Step
from kvsan.invariants.proofs.protocol.manager_steps import MANAGER_STEPS
from kvsan.invariants.proofs.protocol.pool_steps import POOL_STEPS

SLOW = {
    "aborted_is_published",
    "trims_too_much",
    "off_by_one_slot",
    "rejected_drafts_counted",
    "duplicate_freed_in_table",
}
UNSEEN = {"front_is_the_back"}
"""Of these no trace shows anything: the manager does not ask for the front, and no check can tell a newer one from it."""

EACH = [pytest.param(one, id=one.name, marks=pytest.mark.slow if one.name in SLOW else ()) for one in BROKEN]
ALSO = [pytest.param(one, claim, id=f"{one.name}-{claim}") for one in BROKEN for claim in one.also]


def refutation(broken: BrokenProtocol, claim: str) -> Counterexample:
    outcome = prove_variant(claim, broken.kind)
    assert (outcome.status, outcome.reason) == (REFUTED, "")
    found = outcome.counterexample
    assert found is not None
    assert "no state of the real code" not in found.replay
    assert "breaks: nothing" not in found.replay
    return found


def violates_on_its_target_only(found: Counterexample, tmp_path: Path) -> bool:
    trace = tmp_path / "trace.json"
    trace.write_text(found.trace)
    return main(["replay", str(trace)]) == 1 and main(["replay", str(trace), "--target", "paged"]) == 0


@pytest.mark.parametrize("broken", EACH)
def test_a_broken_step_is_refuted_and_its_trace_violates(
    broken: BrokenProtocol, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = refutation(broken, broken.claim)
    assert broken.claim == START or broken.clause in found.replay.partition("breaks: ")[2]
    if broken.name in UNSEEN:
        assert found.trace == ""
        return
    assert violates_on_its_target_only(found, tmp_path)
    assert "clean" in capsys.readouterr().out


@pytest.mark.parametrize(("broken", "claim"), ALSO)
def test_what_a_variant_also_breaks_is_refuted_and_its_trace_violates(
    broken: BrokenProtocol, claim: str, tmp_path: Path
) -> None:
    assert violates_on_its_target_only(refutation(broken, claim), tmp_path)


def test_every_claim_has_a_variant_that_refutes_it() -> None:
    """A new claim has to have one; the lemmas about counts are broken by a wrong definition, where they are tested."""
    refuted = {claim for one in BROKEN for claim in (one.claim, *one.also)}
    assert refuted == {claim.name for claim in claims() if not claim.name.startswith("count-")}


@pytest.mark.parametrize("step", [*POOL_STEPS, *MANAGER_STEPS], ids=lambda step: step.name)
def test_ways_lead_to_every_step(step: Step) -> None:
    """Whatever a scenario calls its blocks, and whichever numbers its counterexample has."""
    for scenario in step.scenarios:
        assert [*Ways(step.name, scenario.__name__, {"units": 3}).all()] != []


def test_a_counterexample_can_be_read() -> None:
    broken = next(one for one in BROKEN if one.name == "freed_while_shared")
    found = prove_variant(broken.claim, broken.kind).counterexample
    assert found is not None
    assert found.story == (
        "Before the step every clause holds: a pool of 2 blocks, block 0 the null block.",
        "  block 1: count 2, is the step's unit, named by 1 other entry",
        "  free queue: empty",
        "  block size 1",
        "Step: release. A holder gives a block back.",
        "After it this does not hold (free, block 1): a block is in the free queue if and only if nobody holds it.",
    )


def test_each_variant_names_a_claim_and_its_target() -> None:
    names = {claim.name for claim in claims()}
    assert {one.claim for one in BROKEN} <= names
    assert len({one.target for one in BROKEN}) == len(BROKEN) >= 10


def test_a_trace_names_the_variant_that_it_is_for() -> None:
    broken = BROKEN[0]
    found = prove_variant(broken.claim, broken.kind).counterexample
    assert found is not None
    assert loads(found.trace).trace.configuration.target == broken.target


def test_what_a_variant_does_not_touch_is_proved() -> None:
    broken = next(one for one in BROKEN if one.name == "freed_while_shared")
    assert prove("touch", pool_type=broken.kind.pool_type, manager_type=broken.kind).status == PROVED
