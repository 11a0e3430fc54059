"""Refutes kernels and replays the cases, right and tampered with; prints what comes of each as JSON.

A process of its own, because one that interprets kernels, as that of the tests does, cannot compile them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kvsan.ci.proofs.broken_kernels import BROKEN, BrokenKernel, broken_build, only_races, written
from kvsan.gpu_kernels.compile.build import Build
from kvsan.harness.verdict import HarnessError
from kvsan.invariants.proofs.kernels.catalogue import subject_of
from kvsan.invariants.proofs.kernels.interpreted import Interpreter
from kvsan.invariants.proofs.kernels.lowering import TTGIR
from kvsan.invariants.proofs.kernels.prover import Subject, Verdict, prove
from kvsan.invariants.proofs.kernels.replaying import replay
from kvsan.invariants.proofs.kernels.specification import Specification, Specify, Tensor
from kvsan.invariants.proofs.kernels.write_specs import reshape_and_cache

Contents = dict[str, dict[tuple[int, ...], int]]


class Desk:
    """Refutes, and replays."""

    def __init__(self, folder: str, interpreter: Interpreter) -> None:
        self._folder = folder
        self._interpreter = interpreter
        self.found: dict[str, str] = {}

    def broken(self, name: str) -> BrokenKernel:
        return next(one for one in BROKEN if one.name == name)

    def refute(self, build: Build, specify: Specify, level: str = "ttir") -> tuple[Build, Subject, Verdict]:
        subject = subject_of(build, specify, level, "sm_90" if level == TTGIR else None)
        return build, subject, prove(subject)

    def of(self, name: str, specify: Specify | None = None, level: str = "ttir") -> tuple[Build, Subject, Verdict]:
        broken = self.broken(name)
        return self.refute(broken_build(broken), specify or broken.specification(), level)

    def show(
        self, name: str, refuted: tuple[Build, Subject, Verdict], contents: Contents | None = None, **numbers: int
    ) -> None:
        """Replay, with other ``numbers`` and ``contents`` than the solver found if some are given."""
        build, subject, verdict = refuted
        if verdict.case is not None and (numbers or contents):
            case = replace(
                verdict.case,
                numbers={**verdict.case.numbers, **numbers},
                contents={**verdict.case.contents, **(contents or {})},
            )
            verdict = replace(verdict, case=case)
        try:
            self.found[name] = replay(build, subject, verdict, self._interpreter, self._folder)
        except HarnessError as error:
            self.found[name] = f"HarnessError: {error}"


def changed(specify: Specify, change: Callable[[Any, Specification], Specification]) -> Specify:
    return lambda k: change(k, specify(k))


def too_few_programs(k: Any, whole: Specification) -> Specification:
    """Tokens rounded down."""
    return replace(
        whole, grid=(k.num_tokens // k.TOKENS, whole.grid[1]), assume=(*whole.assume, k.num_tokens >= k.TOKENS)
    )


def small_blocks(k: Any, whole: Specification) -> Specification:
    """Blocks of one slot less than the kernel takes them to have."""
    blocks, slots, heads, width = whole.tensors["keys"].shape
    small = Tensor((blocks, slots - 1, heads, width), whole.tensors["keys"].strides)
    return replace(whole, tensors={**whole.tensors, "keys": small})


def everything(desk: Desk) -> None:
    address = desk.of("padding-block")
    offset = address[2].case.numbers["offset"]
    desk.show("address", address)
    desk.show("address, another", address, offset=offset + 1)
    desk.show("address, expected another", address, expected_offset=offset + 7)
    desk.show("address, of TTGIR", desk.of("padding-block", level="ttgir"))
    mask = desk.of("padding-written")
    desk.show("mask", mask)
    desk.show("mask, not there", mask, happens=0)
    left = desk.of("merge-stale")
    desk.show("mask, left out", left)
    desk.show("mask, not left out", left, program2=0, loop0=0, contents={"seq_lens": {(0,): 1}})
    wide = desk.of("slot-int32")
    desk.show("overflow", wide)
    desk.show("overflow, of a small number", wide, contents={"slot_mapping": {(0,): 1}})
    loop = desk.of("window-wide")
    desk.show("loop", loop)
    desk.show("loop, another start", loop, start=loop[2].case.numbers["start"] + 5)
    guard = desk.of("causal-late")
    desk.show("guard", guard)
    desk.show("guard, not taken", guard, taken=0)
    race = desk.of("reduce-in-one-place")
    desk.show("race", race)
    desk.show("race, of another lane", race, other_lane0=race[2].case.numbers["other_lane0"] + 1)
    bounds = desk.of(
        "merge-reads-neighbour", changed(only_races, lambda k, whole: replace(whole, tensors=whole.tensors))
    )
    desk.show("bounds", bounds)
    desk.show("bounds, elsewhere", bounds, offset=bounds[2].case.numbers["offset"] + 1)
    right = desk.broken("padding-block").build()
    left_out = desk.refute(right, changed(reshape_and_cache, too_few_programs))
    desk.show("left out", left_out)
    desk.show(
        "left out, but need not be there",
        left_out,
        contents={"slot_mapping": {(left_out[2].case.numbers["token"],): -1}},
    )
    strides = {"stride_block": 2048, "stride_slot": 128, "stride_head": 128}
    desk.show("left out, but is there", left_out, contents={"slot_mapping": {(0,): 3}}, token=0, head=0, d=0, **strides)
    outside = desk.refute(right, changed(reshape_and_cache, small_blocks))
    desk.show("outside", outside)
    desk.show("outside, elsewhere", outside, index1=outside[2].case.numbers["index1"] + 1)
    desk.show("nothing", desk.refute(right, reshape_and_cache))
    tile = replace(desk.broken("write-block-of-tile"), configuration="fp16-d80-b32-g4")
    desk.show("too large", desk.refute(broken_build(tile), reshape_and_cache))
    long = desk.of("token-too-many")
    desk.show("too long", long, max_blocks=2**20, contents={"seq_lens": {(0,): 2**24}})


if __name__ == "__main__":
    with written() as folder, Interpreter() as interpreter:
        desk = Desk(folder, interpreter)
        everything(desk)
        print(json.dumps(desk.found))
