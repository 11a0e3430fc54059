"""Time to bug and reproducer size on a real engine's release: vLLM 44409 on 0.22.1."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from kvsan.harness.verdict import UsageError
from kvsan.models_under_test.engines import cache

RELEASE = "0.22.1"
SEEDS = 5
MEDIAN_AT_MOST_S = 30  # a wide sanity bound: the figure is in the README


@pytest.mark.slow
@pytest.mark.engines
def test_the_double_ownership_is_found_by_every_seed_and_shrunk_to_the_end() -> None:
    try:
        cache.find("vllm", RELEASE)
    except UsageError as absent:
        pytest.skip(str(absent))
    command = (sys.executable, "-m", "kvsan.ci.engine_table", "--target", f"vllm@{RELEASE}", "--seeds", str(SEEDS))
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True)

    rows = re.findall(r"^\| (\d+) \| ([\d.]+) \| \d+ \| \d+ \| yes \|$", done.stdout, re.MULTILINE)
    assert [int(seed) for seed, _ in rows] == list(range(SEEDS)), done.stdout
    assert sorted(float(seconds) for _, seconds in rows)[SEEDS // 2] < MEDIAN_AT_MOST_S
