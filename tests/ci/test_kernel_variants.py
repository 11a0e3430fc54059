"""Every broken variant of the kernels is caught, by the check that it names; the table in docs/ lists them all."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kvsan.ci.kernel_table import main
from kvsan.ci.kernels import variant_table
from kvsan.ci.kernels.far_rows import spread
from kvsan.ci.kernels.kernel_set import KERNELS, KernelSet
from kvsan.ci.kernels.trials import STREAMS, VARIANTS, failures_of, trial_of
from kvsan.ci.kernels.variant import Variant, loaded
from kvsan.ci.kernels.variant_table import HEADER, Record, described, record, rows
from kvsan.gpu_kernels import interpreter

PAGE = Path(__file__).resolve().parents[2] / "docs" / "kernels-broken.md"
SEED = 0
PROBLEMS = 40
ADDRESSES_BYTES = 20e9

interpreted = pytest.mark.skipif(not interpreter.enabled(), reason="some variants leave their tensors: CPU only")


def named(name: str) -> Variant:
    return next(variant for variant in VARIANTS if variant.name == name)


def needs_addresses(stream: str) -> bool:
    return stream.startswith("far") and os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") < ADDRESSES_BYTES


@interpreted
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_broken_kernel_is_caught_by_its_check(variant: Variant) -> None:
    if needs_addresses(variant.problems):
        pytest.skip("a machine of less than 20 GB may refuse 20 GB of addresses")
    with loaded(variant) as kernels:
        found = record(variant.problems, kernels, PROBLEMS, SEED, until=variant.seen_by)

    assert variant.seen_by in found.checks
    assert failures_of(trial_of(variant.problems, SEED, found.tried - 1), KERNELS) == []


def test_names_are_unique() -> None:
    assert len({variant.name for variant in VARIANTS}) == len(VARIANTS)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_the_text_that_is_broken_is_in_the_kernel_once(variant: Variant) -> None:
    assert variant.new in variant.text()


@pytest.mark.parametrize("old", ["no such text", "tl.load"])
def test_a_variant_of_text_that_is_not_there_once_is_refused(old: str) -> None:
    with pytest.raises(ValueError, match=r"window-wide: tiles.py has .*expected 1"):
        replace(named("window-wide"), old=old).text()


def test_every_stream_has_a_variant() -> None:
    assert {variant.problems for variant in VARIANTS} == set(STREAMS)


def test_the_table_lists_the_variants_of_the_code_and_the_checks_that_they_name() -> None:
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    header, _, control, *table = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)

    assert tuple(header) == HEADER
    assert control[-2] == "never"
    assert [tuple(cells[:-2]) for cells in table] == [described(variant) for variant in VARIANTS]
    assert [v.name for v, cells in zip(VARIANTS, table, strict=True) if f"{v.seen_by} " not in cells[-1]] == []


@interpreted
def test_a_variant_leaves_the_kernels_as_they_are() -> None:
    with loaded(named("window-wide")) as kernels:
        assert kernels.write is KERNELS.write
        assert kernels.decode is not KERNELS.decode

    assert [name for name in sys.modules if name.startswith("kvsan_broken")] == []


@interpreted
def test_scratch_memory_is_poisoned_while_a_kernel_is_launched() -> None:
    seen = []

    def decode(*args: object, **options: object) -> object:
        seen.append(torch.empty(3))
        return KERNELS.decode(*args, **options)

    failures_of(trial_of("decode", SEED, 0), replace(KERNELS, decode=decode))

    assert torch.isnan(seen[0]).all()
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.skipif(needs_addresses("far"), reason="a machine of less than 20 GB may refuse 20 GB of addresses")
def test_rows_are_spread_over_more_than_an_int32_reaches() -> None:
    rows = torch.arange(12, dtype=torch.int16).reshape(4, 3)

    found = spread(rows)

    assert torch.equal(found, rows)
    assert found.stride(0) * 3 >= 2**31


@interpreted
def test_a_record_ends_with_the_check_that_is_waited_for() -> None:
    with loaded(named("softcap-dropped")) as kernels:
        found = record("decode", kernels, PROBLEMS, SEED, until="lse")

    assert found.first is not None
    assert found.tried == found.first
    assert found.first_checks == ("lse", "reference")


def test_a_record_counts_problems_and_checks() -> None:
    found = Record()

    for checks in (set(), {"lse", "bytes"}, {"lse"}):
        found.add(checks)

    assert (found.tried, found.caught, found.first) == (3, 2, 2)
    assert found.checks == {"lse": 2, "bytes": 1}


def few(monkeypatch: pytest.MonkeyPatch, *variants: Variant) -> None:
    monkeypatch.setattr(variant_table, "VARIANTS", variants)
    monkeypatch.setattr(variant_table, "STREAMS", {"write": STREAMS["write"]})


@interpreted
def test_the_command_prints_the_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    few(monkeypatch, named("padding-written"))

    assert main(["--problems", "3"]) == 0

    *_, control, row = capsys.readouterr().out.splitlines()
    assert "none: 0 of 3" in control
    assert "| vLLM 43810 | write | interpreter: out-of-bounds (problem 1) |" in row


@interpreted
def test_a_survivor_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    harmless = replace(named("padding-written"), old="_TOKENS = 16", new="_TOKENS = 32")
    few(monkeypatch, harmless)

    assert main(["--problems", "2"]) == 1


@interpreted
def test_checks_that_fail_the_kernels_as_they_are_fail_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    few(monkeypatch)

    def broken(*args: object) -> None:
        return None

    monkeypatch.setattr(variant_table, "KERNELS", replace(KernelSet(), write=broken))

    (_, _), (_, _), (cells, right) = rows(2, SEED)

    assert not right
    assert "WRONGLY" in cells


def test_no_problems_are_refused() -> None:
    with pytest.raises(SystemExit):
        main(["--problems", "0"])
