"""Specifications of the kernels that read pages back and move them, in ``quant.py`` and ``copy.py``."""

from __future__ import annotations

from typing import Any

from kvsan.gpu_kernels import formats
from kvsan.gpu_kernels.addressing import block_of, heads_per_rank, offset_of
from kvsan.gpu_kernels.sharding import first_head_of, first_rank_of, local_head_of
from kvsan.invariants.proofs.kernels.attention_specs import LARGEST_GRID, LARGEST_INT, POSITIONS, strides
from kvsan.invariants.proofs.kernels.specification import Access, At, Complete, Load, Specification, Store, Tensor
from kvsan.invariants.proofs.kernels.write_specs import STRIDE_NOTE, quantised_tensors
from kvsan.invariants.proofs.term import Condition, Number, both, ceil_div, implies, within


class _Gather:
    """Formulas of ``gather_tokens``: positions of one sequence, through its block table."""

    def __init__(self, k: Any) -> None:
        self.k = k
        self.heads = k.size("num_kv_heads", most=LARGEST_GRID)

    def position(self, at: At) -> Number:
        return self.k.start + at.program[0] * self.k.TOKENS + at.lane[0]

    def needed(self, at: At) -> Condition:
        return self.position(at) < self.k.stop

    def whole(self, at: At) -> Condition:
        return both(self.needed(at), at.lane[1] < self.k.HEAD_DIM)

    def entry(self, at: At) -> Any:
        return block_of(self.position(at), self.k.BLOCK_SIZE)  # type: ignore[arg-type]

    def vector(self, at: At) -> tuple[Any, ...]:
        offset = offset_of(self.position(at), self.k.BLOCK_SIZE)  # type: ignore[arg-type]
        return self.k.read("table", self.entry(at)), offset, at.program[1]

    def elements(self, tensor: str, per_element: int) -> Access:
        return Load(tensor, lambda at: (*self.vector(at), at.lane[1] // per_element), self.whole)

    def accesses(self) -> list[Access]:
        found = [Load("table", lambda at: (self.entry(at),), self.needed)]
        if self.k.FORMAT == formats.NVFP4:
            found += [self.elements("cache", 2), self.elements("scales", 16)]
        else:
            found.append(self.elements("cache", 1))
        if self.k.FORMAT == formats.PER_TOKEN_HEAD:
            found.append(Load("scales", lambda at: (*self.vector(at), 0), self.needed))
        result = Store(
            "result",
            lambda at: (self.position(at) - self.k.start, at.program[1], at.lane[1]),
            self.whole,
            "cache" if self.k.FORMAT == formats.PLAIN else None,
        )
        return [*found, result]

    def tensors(self, entries: Number) -> dict[str, Tensor]:
        k, blocks = self.k, self.k.size("num_blocks")
        codes, scales = quantised_tensors(k, blocks, self.heads)

        def used(block: Number, entry: Number) -> Condition:
            needed = within(block_of(k.start, k.BLOCK_SIZE), entry, ceil_div(k.stop, k.BLOCK_SIZE))
            return implies(needed, within(0, block, blocks))

        result = Tensor((k.stop - k.start, self.heads, k.HEAD_DIM), (k.stride_rt, k.stride_rh, 1))
        return {"cache": codes, "scales": scales, "table": Tensor((entries,), (1,), used), "result": result}

    def complete(self, access: int) -> Complete:
        k, tokens = self.k, self.k.stop - self.k.start
        return Complete(
            "every position is read back",
            access,
            ("token", "head", "d"),
            lambda token, head, d: both(
                within(0, token, tokens), within(0, head, self.heads), within(0, d, k.HEAD_DIM)
            ),
            lambda token, head, d: (token, head, d),
            lambda token, head, d: At((token // k.TOKENS, head, 0), (token % k.TOKENS, d)),
        )


def gather_tokens(k: Any) -> Specification:
    """Positions of one sequence read back."""
    gather, entries = _Gather(k), k.size("max_blocks", most=POSITIONS)
    accesses = gather.accesses()
    names = "stride_block stride_slot stride_head stride_rt stride_rh"
    scales = "scale_stride_block scale_stride_slot scale_stride_head"
    return Specification(
        grid=(ceil_div(k.stop - k.start, k.TOKENS), gather.heads),
        tensors=gather.tensors(entries),
        accesses=accesses,
        assume=(
            k.start >= 0,
            k.start < k.stop,
            k.stop <= POSITIONS,
            k.stop <= entries * k.BLOCK_SIZE,
            *strides(k, f"{names} {scales}"),
        ),
        loops=(),
        guards=(),
        theorems=(gather.complete(len(accesses) - 1),),
        notes=("The entries of the block table that are needed name blocks of the pool.", STRIDE_NOTE),
        limits={"longest sequence": POSITIONS, "largest num_blocks": LARGEST_INT},
    )


class _Blocks:
    """Formulas of ``move_blocks``: slots of one block to another, perhaps of the same cache."""

    def __init__(self, k: Any) -> None:
        self.k = k
        self.pairs, self.slots = k.size("num_pairs"), k.size("block_size", most=POSITIONS)
        self.heads = k.size("num_heads", most=LARGEST_GRID)

    def slot(self, at: At) -> Number:
        return at.program[1] * self.k.SLOTS + at.lane[0]

    def moved(self, at: At) -> Condition:
        return both(within(self.k.start, self.slot(at), self.k.stop), at.lane[1] < self.k.WIDTH)

    def element(self, blocks: str, at: At) -> tuple[Any, ...]:
        return self.k.read(blocks, at.program[0]), self.slot(at), at.program[2], at.lane[1]

    def apart(self, one: At, other: At) -> Condition:
        """Inside one pool, what one pair reads no other pair writes."""
        mine, others = self.k.read("source_blocks", one.program[0]), self.k.read("target_blocks", other.program[0])
        return implies(both(self.k.shares("source", "target"), one.program[0] != other.program[0]), mine != others)

    def tensors(self) -> dict[str, Tensor]:
        k, rest = self.k, (self.slots, self.heads, self.k.WIDTH)
        sources, targets = k.size("num_source_blocks"), k.size("num_target_blocks")
        return {
            "source": Tensor((sources, *rest), (k.stride_sb, k.stride_ss, k.stride_sh, 1)),
            "target": Tensor((targets, *rest), (k.stride_tb, k.stride_ts, k.stride_th, 1)),
            "source_blocks": Tensor((self.pairs,), (1,), lambda block, _: within(0, block, sources)),
            "target_blocks": Tensor(
                (self.pairs,),
                (1,),
                lambda block, _: within(0, block, targets),
                lambda pair, block, other, another: implies(pair[0] != other[0], block != another),
            ),
        }

    def complete(self) -> Complete:
        k = self.k

        def given(pair: Number, slot: Number, head: Number, d: Number) -> Condition:
            ranges = within(0, pair, self.pairs), within(k.start, slot, k.stop), within(0, head, self.heads)
            return both(*ranges, within(0, d, k.WIDTH))

        return Complete(
            "every slot of the range is copied",
            3,
            ("pair", "slot", "head", "d"),
            given,
            lambda pair, slot, head, d: (k.read("target_blocks", pair), slot, head, d),
            lambda pair, slot, head, d: At((pair, slot // k.SLOTS, head), (slot % k.SLOTS, d)),
        )


def move_blocks(k: Any) -> Specification:
    """Slots of blocks to other blocks."""
    blocks = _Blocks(k)
    tiles = ceil_div(blocks.slots, k.SLOTS)
    return Specification(
        grid=(blocks.pairs, tiles, blocks.heads),
        tensors=blocks.tensors(),
        accesses=(
            Load("source_blocks", lambda at: (at.program[0],)),
            Load("target_blocks", lambda at: (at.program[0],)),
            Load("source", lambda at: blocks.element("source_blocks", at), blocks.moved),
            Store("target", lambda at: blocks.element("target_blocks", at), blocks.moved, "source"),
        ),
        assume=(
            k.start >= 0,
            k.start <= k.stop,
            k.stop <= blocks.slots,
            tiles <= LARGEST_GRID,
            *strides(k, "stride_sb stride_ss stride_sh stride_tb stride_ts stride_th"),
            implies(
                k.shares("source", "target"),
                both(k.stride_sb == k.stride_tb, k.stride_ss == k.stride_ts, k.stride_sh == k.stride_th),
            ),
        ),
        loops=(),
        guards=(),
        theorems=(blocks.complete(),),
        aliases=(("source", "target"),),
        any_two=blocks.apart,
        notes=(
            "Blocks are in the pool, and no block is a target twice.",
            "Inside one pool no block is a target of one pair and a source of another, and strides are the same.",
            STRIDE_NOTE,
        ),
        limits={"largest num_blocks": LARGEST_INT},
    )


class _Heads:
    """Formulas of ``move_heads``: which rank has a head, by the functions of ``sharding``."""

    def __init__(self, k: Any) -> None:
        self.k = k
        self.sources, self.targets = (heads_per_rank(k.NUM_HEADS, ranks) for ranks in (k.SOURCE_RANKS, k.TARGET_RANKS))

    def rank(self, at: At) -> Any:
        return at.program[0] // self.k.num_blocks

    def block(self, at: At) -> Any:
        return at.program[0] % self.k.num_blocks

    def slot(self, at: At) -> Any:
        return at.program[1] * self.k.SLOTS + at.lane[0]

    def moved(self, at: At) -> Condition:
        return both(self.slot(at) < self.k.BLOCK_SIZE, at.lane[1] < self.k.WIDTH)

    def origin(self, at: At) -> tuple[Any, ...]:
        k = self.k
        head = first_head_of(self.rank(at), k.TARGET_RANKS, k.NUM_HEADS) + at.program[2]
        holder, there = (of(head, k.SOURCE_RANKS, k.NUM_HEADS) for of in (first_rank_of, local_head_of))
        return holder, self.block(at), self.slot(at), there, at.lane[1]

    def goal(self, at: At) -> tuple[Any, ...]:
        return self.rank(at), self.block(at), self.slot(at), at.program[2], at.lane[1]

    def complete(self) -> Complete:
        k = self.k

        def given(rank: Number, block: Number, slot: Number, head: Number, d: Number) -> Condition:
            numbers = (
                (rank, k.TARGET_RANKS),
                (block, k.num_blocks),
                (slot, k.BLOCK_SIZE),
                (head, self.targets),
                (d, k.WIDTH),
            )
            return both(*(within(0, number, size) for number, size in numbers))

        return Complete(
            "every head of every rank arrives",
            1,
            ("rank", "block", "slot", "head", "d"),
            given,
            lambda rank, block, slot, head, d: (rank, block, slot, head, d),
            lambda rank, block, slot, head, d: At(
                (rank * k.num_blocks + block, slot // k.SLOTS, head), (slot % k.SLOTS, d)
            ),
        )


def move_heads(k: Any) -> Specification:
    """Heads from the ranks that hold them to those of another tensor-parallel layout."""
    heads, inner = _Heads(k), (k.num_blocks, k.BLOCK_SIZE)
    source = k.stride_sr, k.stride_sb, k.stride_ss, k.stride_sh, 1
    target = k.stride_tr, k.stride_tb, k.stride_ts, k.stride_th, 1
    return Specification(
        grid=(k.TARGET_RANKS * k.num_blocks, -(-k.BLOCK_SIZE // k.SLOTS), heads.targets),
        tensors={
            "source": Tensor((k.SOURCE_RANKS, *inner, heads.sources, k.WIDTH), source),
            "target": Tensor((k.TARGET_RANKS, *inner, heads.targets, k.WIDTH), target),
        },
        accesses=(Load("source", heads.origin, heads.moved), Store("target", heads.goal, heads.moved, "source")),
        assume=(
            within(1, k.num_blocks, LARGEST_INT // k.TARGET_RANKS + 1),
            *strides(k, "stride_sr stride_sb stride_ss stride_sh stride_tr stride_tb stride_ts stride_th"),
        ),
        loops=(),
        guards=(),
        theorems=(heads.complete(),),
        notes=("One of the number of heads and each number of ranks divides the other.", STRIDE_NOTE),
        limits={"largest num_blocks times target ranks": LARGEST_INT},
    )
