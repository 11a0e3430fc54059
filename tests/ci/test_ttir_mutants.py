"""The prover notices mutants of kernels' IR; and these tests would notice if it did not."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from kvsan.ci.proofs.equivalence import difference
from kvsan.ci.proofs.mutations import OPERATORS, Mutant
from kvsan.ci.proofs.subjects import subjects
from kvsan.ci.proofs.ttir_mutants import (
    CONFIGURATIONS,
    EQUIVALENT,
    LIMITS,
    SURVIVED,
    Judged,
    judge,
    mutants_of,
    selection,
    table,
)
from kvsan.ci.proofs.verifier import Verifier
from kvsan.invariants.proofs.kernels.catalogue import specification_of
from kvsan.invariants.proofs.kernels.prover import Subject
from kvsan.invariants.proofs.kernels.specification import Specification
from kvsan.invariants.proofs.obligation import REFUTED, UNKNOWN

WRITE = "reshape_and_cache/fp16-d80-b32-g4"
DECODE = "paged_decode/bf16-d128-b16-g4-window"

MAY_CHANGE_NOTHING = {"constant", "comparison", "and/or", "conjunct", "mask", "argument"}
"""A condition that others imply, or that always holds in one configuration; a stride that is only multiplied by 0."""


@pytest.fixture(scope="module")
def proved() -> dict[str, Subject]:
    """Every kernel of which mutants are made."""
    return subjects(CONFIGURATIONS)


@pytest.fixture
def write(proved: dict[str, Subject]) -> Subject:
    """The kernel that writes plain K and V."""
    return proved[WRITE]


def test_mutants_of_every_kernel_are_noticed(proved: dict[str, Subject]) -> None:
    judged = [judge(*one) for one in selection(proved, 1)]
    found = Counter(one.fate for one in judged)
    assert found[SURVIVED] == found[UNKNOWN] == 0, table(judged)
    assert sum(one.killed for one in judged) >= 150, table(judged)
    assert found[EQUIVALENT] <= len(judged) // 8, table(judged)
    assert {one.mutant.operator for one in judged if one.fate == EQUIVALENT} <= MAY_CHANGE_NOTHING, table(judged)
    assert {one.mutant.operator for one in judged if one.killed} == OPERATORS.keys()
    assert {one.kernel for one in judged if one.killed} == set(CONFIGURATIONS)


def test_the_same_mutants_every_time(write: Subject) -> None:
    assert mutants_of(write) == mutants_of(write)


def test_a_mutant_that_changes_nothing_is_not_killed(write: Subject) -> None:
    same = Mutant("identity", 1, "", write.lowered.text)
    assert judge(WRITE, write, same).fate == EQUIVALENT


def test_a_specification_with_a_hole_lets_a_mutant_survive(proved: dict[str, Subject]) -> None:
    """The arms of the scores' mask swapped: noticed, unless the specification says nothing about what is masked."""
    subject = proved[DECODE]
    (mutant,) = [one for one in mutants_of(subject) if one.operator == "arms"]
    judged = judge(DECODE, subject, mutant)
    assert (judged.fate, judged.told) == (REFUTED, "a guard of data")
    assert judge(DECODE, replace(subject, specify=_says_nothing_of_masks), mutant).fate == SURVIVED


def _says_nothing_of_masks(k: Any) -> Specification:
    return replace(specification_of("paged_decode")(k), guards=None)


def test_what_is_refuted_is_not_equivalent(write: Subject) -> None:
    """Else a hole in the comparison would hide one in the prover."""
    refuted = [one for one in mutants_of(write) if one.operator in ("program", "and/or", "mask")]
    for mutant in refuted:
        assert judge(WRITE, write, mutant).killed
        assert difference(write, mutant.text, LIMITS)


def test_no_mutant_is_of_values_that_are_only_data(proved: dict[str, Subject]) -> None:
    """The NVFP4 kernel packs codes with shifts by constants: no address depends on them, so they are left alone."""
    subject = proved["quantise_and_cache/nvfp4-d80-b16-g4"]
    lines = subject.lowered.text.splitlines()
    assert any('"arith.shli"' in line or '"arith.ori"' in line for line in lines)
    mutated = {lines[one.line - 1] for one in mutants_of(subject)}
    assert not [line for line in mutated if "f32" in line and '"tt.' not in line and '"scf.' not in line]
    assert not [line for line in mutated if "arith.sh" in line]


def test_only_well_typed_text_is_a_mutant(write: Subject) -> None:
    verifier, text = Verifier(), write.lowered.text
    assert verifier.takes(text)
    assert not verifier.takes(text.replace('"arith.divsi"', '"arith.divf"', 1))
    assert not verifier.takes(text.replace(" -> tensor<16xi64>", " -> tensor<16xi32>", 1))


def test_the_table_names_what_was_not_killed() -> None:
    mutant = Mutant("mask", 7, "tt.store(%1, %2, %3)  ->  tt.store(%1, %2)", "")
    told = table([Judged("a/b", mutant, SURVIVED, "store out: where it happens", 0.5)])
    assert "survived a/b line 7, mask: tt.store(%1, %2, %3)  ->  tt.store(%1, %2)" in told
