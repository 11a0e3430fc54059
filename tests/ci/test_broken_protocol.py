"""Protocols with one step done wrong: the claim that must be refuted is, in a state that the real code breaks as well."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsan.ci.proofs.broken_protocol import BROKEN, BrokenProtocol
from kvsan.ci.proofs.protocol import START, claims, prove, prove_variant
from kvsan.cli import main
from kvsan.harness.trace import loads
from kvsan.invariants.proofs.obligation import PROVED, REFUTED

SLOW = {
    "aborted_is_published",
    "trims_too_much",
    "off_by_one_slot",
    "rejected_drafts_counted",
    "duplicate_freed_in_table",
}
EACH = [pytest.param(one, id=one.name, marks=pytest.mark.slow if one.name in SLOW else ()) for one in BROKEN]


@pytest.mark.parametrize("broken", EACH)
def test_a_broken_step_is_refuted_and_its_trace_violates(
    broken: BrokenProtocol, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = prove_variant(broken.claim, broken.kind)
    assert outcome.status == REFUTED
    found = outcome.counterexample
    assert found is not None
    assert broken.claim == START or broken.clause in found.replay.partition("breaks: ")[2]
    assert "no state of the real code" not in found.replay
    trace = tmp_path / "trace.json"
    trace.write_text(found.trace)
    assert main(["replay", str(trace)]) == 1
    assert main(["replay", str(trace), "--target", "paged"]) == 0
    assert "clean" in capsys.readouterr().out


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
