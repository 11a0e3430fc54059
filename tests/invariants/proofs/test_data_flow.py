"""Data in kernels: which load a store writes, and what a guard puts in, is read off the IR; another one is refused."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from kvsan.ci.proofs.subjects import subjects
from kvsan.invariants.proofs.kernels.parsing import parse
from kvsan.invariants.proofs.kernels.prover import Subject, prove
from kvsan.invariants.proofs.solver import Limits

WRITE, DECODE, MOVE = "reshape_and_cache/bf16-d128-b16-g4", "paged_decode/bf16-d128-b16-g4", "move_blocks/i16-w128"
QUICK = Limits(smallest=False)


@pytest.fixture(scope="module")
def lowered() -> dict[str, Subject]:
    return subjects([WRITE, DECODE, MOVE])


def changed(subject: Subject, pattern: str, new: str) -> Subject:
    text, count = re.subn(pattern, new, subject.lowered.text)
    assert count, pattern
    return replace(subject, lowered=replace(subject.lowered, text=text))


def test_the_kernels_store_what_they_should(lowered: dict[str, Subject]) -> None:
    assert [prove(subject, QUICK).status for subject in lowered.values()] == ["proved"] * 3


def test_values_stored_as_keys_are_refused(lowered: dict[str, Subject]) -> None:
    subject = lowered[WRITE]
    first, second = re.findall(r'"tt\.store"\(%\w+, (%\w+),', subject.lowered.text)
    verdict = prove(changed(subject, rf'("tt\.store"\(%\w+, ){first},', rf"\g<1>{second},"), QUICK)
    assert verdict.status == "rejected"
    assert "stored to keys comes from value, expected key" in verdict.reason


def test_a_constant_stored_for_what_was_loaded_is_refused(lowered: dict[str, Subject]) -> None:
    subject = lowered[WRITE]
    constant = re.search(r'(%\w+) = "arith.constant"\(\).*tensor<16x128xbf16>$', subject.lowered.text, re.MULTILINE)
    assert constant
    verdict = prove(changed(subject, r'("tt\.store"\(%\w+, )%\w+,', rf"\g<1>{constant[1]},"), QUICK)
    assert "comes from something else" in verdict.reason


def test_zeros_put_in_for_scores_that_are_not_visible_are_refused(lowered: dict[str, Subject]) -> None:
    verdict = prove(changed(lowered[DECODE], r"dense<0xFF800000>", "dense<0.000000e+00>"), QUICK)
    assert verdict.status == "rejected"
    assert "puts in 0.0, expected -inf" in verdict.reason


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("dense<0xFF800000> : tensor<4xf32>", -math.inf),
        ("dense<0x7F80> : tensor<4xbf16>", math.inf),
        ("dense<0xFC00> : tensor<4xf16>", -math.inf),
        ("0xFFF0000000000000 : f64", -math.inf),
        ("dense<1.500000e+00> : tensor<4xf32>", 1.5),
        ("2.500000e-01 : f32", 0.25),
    ],
)
def test_constants_are_read_as_what_they_are(written: str, value: float) -> None:
    type = written.partition(" : ")[2]
    text = (
        '"builtin.module"() ({\n"tt.func"() <{function_type = () -> (), sym_name = "one"}> ({\n'
        f'  %0 = "arith.constant"() <{{value = {written}}}> : () -> {type}\n'
        '  "tt.return"() : () -> ()\n}) : () -> ()\n}) : () -> ()\n'
    )
    constant, _ = parse(text).body.operations
    assert constant.attributes["value"] == ("float", value)
