"""A case in which elements share memory is exchanged for one in which they do not, if there is such a one."""

from __future__ import annotations

from typing import Any

import z3

from kvsan.invariants.proofs.kernels.likely_cases import likelier
from kvsan.invariants.proofs.kernels.specification import Specification, Tensor
from kvsan.invariants.proofs.kernels.unknown_launch import UnknownLaunch
from kvsan.invariants.proofs.obligation import Answer, Obligation
from kvsan.invariants.proofs.solver import Limits, solve

BLOCKS, BLOCK, SLOT = z3.Ints("num_blocks stride_block stride_slot")


def specification(k: Any) -> Specification:
    blocks = k.size("num_blocks")
    cache = Tensor((blocks, 16, 128), (k.stride_block, k.stride_slot, 1))
    return Specification(grid=(blocks,), tensors={"cache": cache}, assume=(k.stride_block >= 0, k.stride_slot >= 0))


def cases(goal: z3.BoolRef) -> tuple[Answer, Answer]:
    """A refutation, and the likelier one."""
    launch = UnknownLaunch({"stride_block": "i32", "stride_slot": "i32"}, {}, specification)
    watch = {"num_blocks": BLOCKS, "stride_block": BLOCK, "stride_slot": SLOT}
    obligation = Obligation("strides", tuple(launch.assumptions), goal, 0, watch)
    answer = solve(obligation)
    return answer, likelier(launch, obligation, answer, Limits())


def test_a_likely_case_is_contiguous() -> None:
    first, likely = cases(BLOCKS > 3)
    assert (first.values["stride_block"], first.values["stride_slot"]) == (0, 0)
    assert likely.values == {"num_blocks": 1, "stride_block": 2048, "stride_slot": 128}


def test_where_no_contiguous_case_is_known_elements_are_different_memory_at_least() -> None:
    _, likely = cases(z3.Implies(BLOCKS > 1, BLOCK == 16 * SLOT))
    assert likely.values["stride_slot"] >= 128
    assert likely.values["stride_block"] > 15 * likely.values["stride_slot"] + 127
    assert likely.values["stride_block"] != 16 * likely.values["stride_slot"]


def test_a_case_that_needs_elements_to_share_memory_is_kept() -> None:
    first, likely = cases(z3.Implies(BLOCKS > 1, BLOCK >= SLOT))
    assert first.values["stride_block"] < first.values["stride_slot"]
    assert likely is first
