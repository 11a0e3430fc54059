"""Broken kernels under whole sessions: what a search with ``--kernels triton`` finds, and how short its trace is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kvsan.ci.kernels.trials import VARIANTS
from kvsan.ci.kernels.variant import loaded
from kvsan.fuzz.known import KnownFindings
from kvsan.fuzz.profiles import DEFAULT
from kvsan.fuzz.search import Reporter, Search, SearchSettings
from kvsan.gpu_kernels import triton_kernels
from kvsan.harness.configuration import Configuration
from kvsan.harness.verdict import Finding
from kvsan.models_under_test.paged import make_target

BY_NAME = {variant.name: variant for variant in VARIANTS}

FAST = [("v-unmasked", "float16"), ("scale-of-head-0", "int8_per_token_head")]
SLOW = [
    ("block-of-tile", "float32"),
    ("token-too-many", "float32"),
    ("last-block-left-out", "bfloat16"),
    ("whole-last-block", "float16"),
    ("k-scale-for-v", "int8_per_token_head"),
    ("nvfp4-nibbles", "nvfp4"),
]


def first_finding(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> Finding:
    """Search with one broken kernel in the place of the real one."""
    with loaded(BY_NAME[name]) as kernels:
        monkeypatch.setattr(triton_kernels, "decode", kernels.decode)
        monkeypatch.setattr(triton_kernels, "prefill", kernels.prefill)
        monkeypatch.setattr(triton_kernels, "write", SimpleNamespace(write=kernels.write))
        quant = SimpleNamespace(write=kernels.quant_write, gather=kernels.quant_gather)
        monkeypatch.setattr(triton_kernels, "quant", quant)
        settings = SearchSettings(
            Configuration(kernels="triton", dtype=dtype),
            DEFAULT,
            steps=1000,
            slow=True,
            max_findings=1,
            drawn=frozenset(("num_units", "block_size")),
        )
        (finding,) = Search(make_target, settings, KnownFindings(), Reporter()).run().findings
        return finding


@pytest.mark.parametrize(("name", "dtype"), FAST)
def test_a_broken_kernel_is_found_by_a_session(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = first_finding(name, dtype, monkeypatch)

    assert finding.invariant in ("numbers", "kernel")
    assert len(finding.trace.operations) <= 8
    assert finding.replays == (3, 3)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), SLOW)
def test_more_broken_kernels_are_found_by_sessions(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = first_finding(name, dtype, monkeypatch)

    assert finding.invariant in ("numbers", "kernel")
    assert finding.replays == (3, 3)
