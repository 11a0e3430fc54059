"""Each broken kernel is refuted by the obligation that its mistake breaks, and the replay of its case confirms it.

The process that proves is another one: see `proven_broken_kernels.py`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvsan.ci.kernels.variants_attention import ATTENTION
from kvsan.ci.kernels.variants_pages import PAGES
from kvsan.ci.proofs.broken_kernels import BROKEN, OWN, Refutation
from kvsan.ci.proofs.int32_pools import INT32
from kvsan.invariants.proofs.kernels.prover import Verdict

FAST = (
    "slot-int32", "padding-written", "padding-block", "trip-too-many", "reduce-in-one-place", "shard-stride", "window-wide",
    "causal-late",
)  # fmt: skip
"""One of each kind: width, mask, block, loop, race, stride, window, guard."""

NAMES = [one.name for one in BROKEN]


def proven(*names: str) -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(Path(__file__).with_name("proven_broken_kernels.py")), *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def some() -> dict[str, Any]:
    return proven(*FAST)


@pytest.fixture(scope="module")
def everything() -> dict[str, Any]:
    return proven()


def assert_refuted(found: dict[str, Any], name: str) -> None:
    one = found["broken"][name]
    obligation = next(broken.obligation for broken in BROKEN if broken.name == name)
    assert one["status"] == "refuted", one
    assert re.fullmatch(obligation, one["what"]), one
    assert re.fullmatch(r"[\w.]+\.py:\d+", one["place"]), one
    assert one["replay"].startswith("replayed: "), one
    assert one["story"][1].startswith("program ("), one
    assert one["as_expected"]


@pytest.mark.parametrize("name", FAST)
def test_a_broken_kernel_of_each_kind_is_refuted(some: dict[str, Any], name: str) -> None:
    assert_refuted(some, name)


def test_the_kernels_that_these_are_broken_from_are_proved(some: dict[str, Any]) -> None:
    assert set(some["originals"].values()) == {"proved"}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_broken_kernel_is_refuted(everything: dict[str, Any], name: str) -> None:
    assert_refuted(everything, name)


@pytest.mark.slow
def test_every_kernel_that_is_broken_is_proved_as_it_should_be(everything: dict[str, Any]) -> None:
    assert set(everything["originals"].values()) == {"proved"}


def test_at_least_sixteen_kernels_are_broken() -> None:
    assert len(set(NAMES)) == len(NAMES) >= 16
    assert set(NAMES) <= {one.name for one in (*ATTENTION, *PAGES, *OWN)}


def test_a_kernel_that_is_proved_is_no_refutation() -> None:
    assert not Refutation(BROKEN[0], Verdict("proved", 1, 0.0), "replayed: nothing").as_expected


# The largest number that does not fit is n * a - b of a pool of n blocks (or rows), whatever is added to a pointer later.
LARGEST_INDEX = {
    "write_slot": (16 * 1024, 1024),  # the last slot's start: (n * 16 - 1) * 1024
    "read_block": (16 * 8 * 128, 1),  # the last element of the last block
    "read_latent": (64 * 576, 576),  # the last position's start
    "append_pages": (2 * 8 * 16 * 128, 128),  # the last vector's start
    "copy_row": (65_536, 65_536),  # the last row's start
}


@pytest.mark.parametrize("kernel", INT32, ids=lambda one: one.name)
def test_int32_overflows_in_the_smallest_pool_and_in_no_smaller_one(some: dict[str, Any], kernel: Any) -> None:
    scale, short = LARGEST_INDEX[kernel.name]
    found = some["int32"][kernel.name]
    assert found["smallest"] == (2**31 - 1 + short) // scale + 1
    assert found["smaller"] == "proved"
    assert found["what"].startswith("overflow of int32: ")


@pytest.mark.parametrize("kernel", INT32, ids=lambda one: one.name)
def test_the_replay_of_the_smallest_pool_overflows(some: dict[str, Any], kernel: Any) -> None:
    assert some["int32"][kernel.name]["replay"].startswith(
        f"replayed: the interpreter reports overflow in {kernel.name}"
    )


@pytest.mark.parametrize("kernel", INT32, ids=lambda one: one.name)
def test_with_int64_there_is_no_such_pool(some: dict[str, Any], kernel: Any) -> None:
    assert some["int32"][kernel.name]["wide"] == "proved"
