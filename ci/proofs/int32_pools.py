"""From which pool on int32 overflows in the kernels of `int32_kernels`, and what these have to do.

Strides are those of contiguous tensors, so the smallest pool in which int32 overflows is a number: ``block * 16384`` does
not fit from block 2**31 / 16384 = 131072 on, which a pool of 131073 blocks is the first to have. `smallest_pool` finds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvsan.gpu_kernels.addressing import block_of, offset_of, unit_of
from kvsan.gpu_kernels.compile.build import Build
from kvsan.invariants.proofs.kernels.catalogue import subject_of
from kvsan.invariants.proofs.kernels.prover import Subject, Verdict, prove
from kvsan.invariants.proofs.kernels.specification import At, Load, Loop, Specification, Specify, Store, Tensor
from kvsan.invariants.proofs.obligation import REFUTED
from kvsan.invariants.proofs.term import Condition, Number, both, implies, within


def write_slot_specification(k: Any) -> Specification:
    """One token a program."""
    blocks, tokens = k.size("num_blocks"), k.size("num_tokens")

    def slot(at: At) -> Any:
        return k.read("slot_mapping", at.program[0])

    return Specification(
        grid=(tokens,),
        tensors={
            "cache": Tensor((blocks, k.BLOCK_SIZE, k.VECTOR), (k.BLOCK_SIZE * k.VECTOR, k.VECTOR, 1)),
            "new": Tensor((tokens, k.VECTOR), (k.VECTOR, 1)),
            "slot_mapping": Tensor(
                (tokens,),
                (1,),
                contents=lambda slot, _: within(-1, slot, blocks * k.BLOCK_SIZE),
                pairs=lambda one, slot, other, another: implies(both(one[0] != other[0], slot >= 0), slot != another),
            ),
        },
        accesses=(
            Load("slot_mapping", lambda at: (at.program[0],)),
            Load("new", lambda at: (at.program[0], at.lane[0])),
            Store(
                "cache",
                lambda at: (unit_of(slot(at), k.BLOCK_SIZE), offset_of(slot(at), k.BLOCK_SIZE), at.lane[0]),
                lambda at: slot(at) >= 0,
            ),
        ),
        loops=(),
        guards=(),
    )


def read_block_specification(k: Any) -> Specification:
    """One entry of a table and one head a program."""
    blocks, entries = k.size("num_blocks"), k.size("num_entries")
    shape = blocks, k.BLOCK_SIZE, k.HEADS, k.HEAD_DIM
    return Specification(
        grid=(entries, k.HEADS),
        tensors={
            "cache": Tensor(shape, _contiguous(*shape)),
            "out": Tensor(
                (entries, k.HEADS, k.BLOCK_SIZE, k.HEAD_DIM), _contiguous(entries, k.HEADS, k.BLOCK_SIZE, k.HEAD_DIM)
            ),
            "table": Tensor((entries,), (1,), contents=lambda block, _: within(0, block, blocks)),
        },
        accesses=(
            Load("table", lambda at: (at.program[0],)),
            Load("cache", lambda at: (k.read("table", at.program[0]), at.lane[0], at.program[1], at.lane[1])),
            Store("out", lambda at: (at.program[0], at.program[1], at.lane[0], at.lane[1])),
        ),
        loops=(),
        guards=(),
    )


def read_latent_specification(k: Any) -> Specification:
    """One position a program."""
    blocks, tokens = k.size("num_blocks"), k.size("num_tokens")
    shape = blocks, k.BLOCK_SIZE, k.WIDTH

    def whole(at: At) -> Condition:
        holds: Condition = at.lane[0] < k.WIDTH
        return holds

    def element(at: At) -> tuple[Number, ...]:
        block = k.read("table", block_of(at.program[0], k.BLOCK_SIZE))
        return block, offset_of(at.program[0], k.BLOCK_SIZE), at.lane[0]

    return Specification(
        grid=(tokens,),
        tensors={
            "cache": Tensor(shape, _contiguous(*shape)),
            "out": Tensor((tokens, k.WIDTH), (k.WIDTH, 1)),
            "table": Tensor((tokens,), (1,), contents=lambda block, _: within(0, block, blocks)),
        },
        accesses=(
            Load("table", lambda at: (block_of(at.program[0], k.BLOCK_SIZE),)),
            Load("cache", element, whole),
            Store("out", lambda at: (at.program[0], at.lane[0]), whole),
        ),
        loops=(),
        guards=(),
    )


def append_pages_specification(k: Any) -> Specification:
    """One sequence and head a program; no two sequences append to one page."""
    blocks, rows = k.size("num_blocks"), k.size("num_rows")
    shape = blocks, 2, k.HEADS, k.PAGE_SIZE, k.HEAD_DIM
    new = rows, 2, k.HEADS, k.HEAD_DIM
    return Specification(
        grid=(rows, k.HEADS),
        tensors={
            "pages": Tensor(shape, _contiguous(*shape)),
            "new": Tensor(new, _contiguous(*new)),
            "table": Tensor(
                (rows,),
                (1,),
                contents=lambda page, _: within(0, page, blocks),
                pairs=lambda row, page, other, another: implies(row[0] != other[0], page != another),
            ),
            "places": Tensor((rows,), (1,), contents=lambda place, _: within(0, place, k.PAGE_SIZE)),
        },
        accesses=(
            Load("table", lambda at: (at.program[0],)),
            Load("places", lambda at: (at.program[0],)),
            Load("new", lambda at: (at.program[0], at.loop, at.program[1], at.lane[0])),
            Store(
                "pages",
                lambda at: (
                    k.read("table", at.program[0]), at.loop, at.program[1], k.read("places", at.program[0]), at.lane[0],
                ),
            ),
        ),
        loops=(Loop(lambda _: 0, lambda _: 2, 1),),
        guards=(),
    )  # fmt: skip


def copy_row_specification(k: Any) -> Specification:
    """One sequence a program; the entries are data here."""
    rows = k.size("num_rows")
    return Specification(
        grid=(rows,),
        tensors={
            "table": Tensor((rows, k.MAX_BLOCKS), (k.MAX_BLOCKS, 1)),
            "out": Tensor((rows, k.ENTRIES), (k.ENTRIES, 1)),
        },
        accesses=(
            Load("table", lambda at: (at.program[0], at.lane[0])),
            Store("out", lambda at: (at.program[0], at.lane[0])),
        ),
        loops=(),
        guards=(),
    )


def _contiguous(*shape: Number) -> tuple[Number, ...]:
    strides: list[Number] = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return tuple(strides)


_KERNELS = "kvsan.ci.proofs.int32_kernels"


@dataclass(frozen=True, slots=True)
class Int32Kernel:
    """A kernel of `int32_kernels`: its specification, types and sizes; ``size``: what grows until int32 overflows."""

    name: str
    specify: Specify
    types: Mapping[str, str]
    constexprs: Mapping[str, int]
    source: str
    size: str = "num_blocks"

    def build(self, wide: bool) -> Build:
        """Its build; ``wide``: with the fix."""
        constexprs = {**self.constexprs, "WIDE": wide}
        name = "int64" if wide else "int32"
        return Build(f"{_KERNELS}:{self.name}", name, dict(self.types), constexprs, tuple(self.types))


INT32 = (
    Int32Kernel(
        "write_slot", write_slot_specification, {"cache": "*fp16", "new": "*fp16", "slot_mapping": "*i32"},
        {"VECTOR": 1024, "BLOCK_SIZE": 16}, "vLLM 1486",
    ),
    Int32Kernel(
        "read_block", read_block_specification, {"cache": "*bf16", "out": "*bf16", "table": "*i32"},
        {"BLOCK_SIZE": 16, "HEADS": 8, "HEAD_DIM": 128}, "vLLM 50427",
    ),
    Int32Kernel(
        "read_latent", read_latent_specification, {"cache": "*bf16", "out": "*bf16", "table": "*i32"},
        {"BLOCK_SIZE": 64, "WIDTH": 576, "DIM": 1024}, "vLLM 47671",
    ),
    Int32Kernel(
        "append_pages", append_pages_specification, {"pages": "*fp16", "new": "*fp16", "table": "*i32", "places": "*i32"},
        {"HEADS": 8, "PAGE_SIZE": 16, "HEAD_DIM": 128}, "FlashInfer 527",
    ),
    Int32Kernel(
        "copy_row", copy_row_specification, {"table": "*i32", "out": "*i32"}, {"MAX_BLOCKS": 65_536, "ENTRIES": 16},
        "", "num_rows",
    ),
)  # fmt: skip


def at_most(specify: Specify, size: str, most: int) -> Specify:
    """A specification that assumes a size to be ``most`` at most."""

    def capped(k: Any) -> Specification:
        whole = specify(k)
        return replace(whole, assume=(*whole.assume, k.size(size) <= most))

    return capped


def verdict_of(kernel: Int32Kernel, wide: bool, most: int | None = None) -> tuple[Subject, Verdict]:
    """Prove a kernel, for pools of ``most`` blocks at most unless None."""
    specify = kernel.specify if most is None else at_most(kernel.specify, kernel.size, most)
    subject = subject_of(kernel.build(wide), specify)
    return subject, prove(subject)


def smallest_pool(kernel: Int32Kernel) -> tuple[int, Subject, Verdict, Verdict]:
    """Smallest size in which int32 overflows, with the refutation there and the verdict on all smaller ones.

    One obligation fails first, and another may fail in a smaller pool: whatever is refuted is asked for again, one smaller.
    """
    subject, refutation = verdict_of(kernel, wide=False)
    while True:
        assert refutation.status == REFUTED, refutation.reason
        assert refutation.case is not None
        size = refutation.case.numbers[kernel.size]
        smaller, below = verdict_of(kernel, False, size - 1)
        if below.status != REFUTED:
            return size, subject, refutation, below
        subject, refutation = smaller, below
