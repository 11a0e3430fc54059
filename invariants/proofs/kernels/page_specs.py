"""Specifications of the kernels that write, read back and move pages: ``write.py``, ``quant.py``, ``copy.py``, ``mla.py``."""

from __future__ import annotations

from typing import Any

from kvsan.gpu_kernels import formats
from kvsan.gpu_kernels.addressing import block_of, heads_per_rank, offset_of, unit_of
from kvsan.gpu_kernels.sharding import first_head_of, first_rank_of, local_head_of
from kvsan.invariants.proofs.kernels.attention_specs import LARGEST_GRID, LARGEST_INT, POSITIONS, strides
from kvsan.invariants.proofs.kernels.specification import (
    Access,
    At,
    Complete,
    Load,
    Specification,
    Store,
    Tensor,
)
from kvsan.invariants.proofs.term import Condition, Number, both, ceil_div, implies, negation, within

TOKENS = LARGEST_INT - 16
"""Most tokens of a launch: int32 has room for the end of the last tile."""

SLOT_NOTES = (
    "A slot mapping holds -1 or slots of the pool, no slot twice.",
    "Strides are not negative, and below 2**31 as arguments of type int32.",
)


def slot_mapping(k: Any, blocks: Number) -> Tensor:
    """One slot a token, or -1; no other slot comes twice."""
    return Tensor(
        (k.num_tokens,),
        (1,),
        contents=lambda slot, _: within(-1, slot, blocks * k.BLOCK_SIZE),
        pairs=lambda token, slot, other, another: implies(both(token[0] != other[0], slot >= 0), slot != another),
    )


def token_of(k: Any, at: At) -> Number:
    """Token of a lane."""
    return at.program[0] * k.TOKENS + at.lane[0]


def there(k: Any, at: At) -> Condition:
    """Whether a lane has a token."""
    return token_of(k, at) < k.num_tokens


def written(k: Any, at: At) -> Condition:
    """Whether a lane's token is written."""
    return both(there(k, at), k.read("slot_mapping", token_of(k, at)) >= 0)


def place_of(k: Any, at: At) -> tuple[Number, Number]:
    """Block, and offset in it, to which a lane's token goes."""
    slot = k.read("slot_mapping", token_of(k, at))
    return unit_of(slot, k.BLOCK_SIZE), offset_of(slot, k.BLOCK_SIZE)


def every_token(k: Any, access: int, heads: Number, width: int) -> Complete:
    """Completeness of a write: no token that has a slot is left out."""

    def index(token: Number, head: Number, d: Number) -> tuple[Number, ...]:
        slot = k.read("slot_mapping", token)
        return unit_of(slot, k.BLOCK_SIZE), offset_of(slot, k.BLOCK_SIZE), head, d

    return Complete(
        "every token that has a slot is written",
        access,
        ("token", "head", "d"),
        lambda token, head, d: both(
            within(0, token, k.num_tokens), k.read("slot_mapping", token) >= 0, within(0, head, heads), within(0, d, width)
        ),
        index,
        lambda token, head, d: At((token // k.TOKENS, head, 0), (token % k.TOKENS, d)),
    )


def reshape_and_cache(k: Any) -> Specification:
    """Plain K and V through a slot mapping."""
    blocks, heads = k.size("num_blocks"), k.size("num_kv_heads", most=LARGEST_GRID)
    given = k.size("padded_tokens", most=TOKENS)
    cache = Tensor((blocks, k.BLOCK_SIZE, heads, k.HEAD_DIM), (k.stride_block, k.stride_slot, k.stride_head, 1))

    def whole(at: At) -> Condition:
        return both(written(k, at), at.lane[1] < k.HEAD_DIM)

    def element(at: At) -> tuple[Number, ...]:
        return *place_of(k, at), at.program[1], at.lane[1]

    return Specification(
        grid=(ceil_div(k.num_tokens, k.TOKENS), heads),
        tensors={**new_tokens(k, given, heads), "keys": cache, "values": cache, "slot_mapping": slot_mapping(k, blocks)},
        accesses=(
            Load("slot_mapping", lambda at: (token_of(k, at),), lambda at: there(k, at)),
            *(Load(name, lambda at: (token_of(k, at), at.program[1], at.lane[1]), whole) for name in ("key", "value")),
            *(Store(name, element, whole) for name in ("keys", "values")),
        ),
        assume=(within(1, k.num_tokens, given + 1), *strides(k, f"{NEW_STRIDES} stride_block stride_slot stride_head")),
        loops=(),
        guards=(),
        theorems=(every_token(k, 3, heads, k.HEAD_DIM), every_token(k, 4, heads, k.HEAD_DIM)),
        notes=SLOT_NOTES,
        limits={"most tokens of a launch": TOKENS, "largest num_blocks": LARGEST_INT},
    )


NEW_STRIDES = "stride_kt stride_kh stride_vt stride_vh"


def new_tokens(k: Any, tokens: Number, heads: Number) -> dict[str, Tensor]:
    """K and V that are written."""
    shape = tokens, heads, k.HEAD_DIM
    return {
        "key": Tensor(shape, (k.stride_kt, k.stride_kh, 1)),
        "value": Tensor(shape, (k.stride_vt, k.stride_vh, 1)),
    }


def quantised_tensors(k: Any, blocks: Number, heads: Number) -> tuple[Tensor, Tensor]:
    """Codes and scales of one side."""
    packed = k.FORMAT == formats.NVFP4
    width, scales = (k.HEAD_DIM // 2, k.HEAD_DIM // 16) if packed else (k.HEAD_DIM, 1)
    codes = Tensor((blocks, k.BLOCK_SIZE, heads, width), (k.stride_block, k.stride_slot, k.stride_head, 1))
    scale_strides = k.scale_stride_block, k.scale_stride_slot, k.scale_stride_head, 1
    return codes, Tensor((blocks, k.BLOCK_SIZE, heads, scales), scale_strides)


def quantise_and_cache(k: Any) -> Specification:
    """K and V as codes and scales, through a slot mapping."""
    blocks, heads = k.size("num_blocks"), k.size("num_kv_heads", most=LARGEST_GRID)
    given = k.size("padded_tokens", most=TOKENS)
    packed = k.FORMAT == formats.NVFP4
    codes, scales = quantised_tensors(k, blocks, heads)

    def element(at: At) -> tuple[Number, ...]:
        return *place_of(k, at), at.program[1], at.lane[1]

    def up_to(width: int) -> Any:
        return lambda at: both(written(k, at), at.lane[1] < width)

    accesses: list[Access] = [Load("slot_mapping", lambda at: (token_of(k, at),), lambda at: there(k, at))]
    for name in ("key", "value"):
        accesses.append(Load(name, lambda at: (token_of(k, at), at.program[1], at.lane[1]), up_to(k.HEAD_DIM)))
    for side in ("key", "value"):
        if packed:
            accesses.append(Store(f"{side}_scales", element, up_to(k.HEAD_DIM // 16)))
        elif k.FORMAT == formats.PER_TOKEN_HEAD:
            accesses.append(
                Store(f"{side}_scales", lambda at: (*place_of(k, at), at.program[1], 0), lambda at: written(k, at))
            )
        accesses.append(Store(f"{side}s", element, up_to(k.HEAD_DIM // 2 if packed else k.HEAD_DIM)))
    last = len(accesses) - 1
    return Specification(
        grid=(ceil_div(k.num_tokens, k.TOKENS), heads),
        tensors={
            **new_tokens(k, given, heads),
            **{"keys": codes, "values": codes, "key_scales": scales, "value_scales": scales},
            "slot_mapping": slot_mapping(k, blocks),
        },
        accesses=accesses,
        assume=(
            within(1, k.num_tokens, given + 1),
            *strides(k, f"{NEW_STRIDES} stride_block stride_slot stride_head"),
            *strides(k, "scale_stride_block scale_stride_slot scale_stride_head"),
        ),
        loops=(),
        guards=(),
        theorems=(every_token(k, last, heads, k.HEAD_DIM // 2 if packed else k.HEAD_DIM),),
        notes=SLOT_NOTES,
        limits={"most tokens of a launch": TOKENS, "largest num_blocks": LARGEST_INT},
    )


def gather_tokens(k: Any) -> Specification:
    """Positions of one sequence read back."""
    blocks, heads = k.size("num_blocks"), k.size("num_kv_heads", most=LARGEST_GRID)
    entries = k.size("max_blocks", most=POSITIONS)
    codes, scales = quantised_tensors(k, blocks, heads)
    tokens = k.stop - k.start

    def position(at: At) -> Number:
        return k.start + at.program[0] * k.TOKENS + at.lane[0]

    def needed(at: At) -> Condition:
        return position(at) < k.stop

    def whole(at: At) -> Condition:
        return both(needed(at), at.lane[1] < k.HEAD_DIM)

    def vector(at: At) -> tuple[Number, ...]:
        block = k.read("table", block_of(position(at), k.BLOCK_SIZE))
        return block, offset_of(position(at), k.BLOCK_SIZE), at.program[1]

    accesses = [Load("table", lambda at: (block_of(position(at), k.BLOCK_SIZE),), needed)]
    if k.FORMAT == formats.NVFP4:
        accesses.append(Load("cache", lambda at: (*vector(at), at.lane[1] // 2), whole))
        accesses.append(Load("scales", lambda at: (*vector(at), at.lane[1] // 16), whole))
    else:
        accesses.append(Load("cache", lambda at: (*vector(at), at.lane[1]), whole))
    if k.FORMAT == formats.PER_TOKEN_HEAD:
        accesses.append(Load("scales", lambda at: (*vector(at), 0), needed))
    accesses.append(Store("result", lambda at: (position(at) - k.start, at.program[1], at.lane[1]), whole))
    everything = Complete(
        "every position is read back",
        len(accesses) - 1,
        ("token", "head", "d"),
        lambda token, head, d: both(within(0, token, tokens), within(0, head, heads), within(0, d, k.HEAD_DIM)),
        lambda token, head, d: (token, head, d),
        lambda token, head, d: At((token // k.TOKENS, head, 0), (token % k.TOKENS, d)),
    )
    return Specification(
        grid=(ceil_div(tokens, k.TOKENS), heads),
        tensors={
            "cache": codes,
            "scales": scales,
            "table": Tensor(
                (entries,),
                (1,),
                contents=lambda block, entry: implies(
                    within(block_of(k.start, k.BLOCK_SIZE), entry, ceil_div(k.stop, k.BLOCK_SIZE)), within(0, block, blocks)
                ),
            ),
            "result": Tensor((tokens, heads, k.HEAD_DIM), (k.stride_rt, k.stride_rh, 1)),
        },
        accesses=accesses,
        assume=(
            k.start >= 0, k.start < k.stop, k.stop <= POSITIONS, k.stop <= entries * k.BLOCK_SIZE,
            *strides(k, "stride_block stride_slot stride_head stride_rt stride_rh"),
            *strides(k, "scale_stride_block scale_stride_slot scale_stride_head"),
        ),
        loops=(),
        guards=(),
        theorems=(everything,),
        notes=("The entries of the block table that are needed name blocks of the pool.", SLOT_NOTES[1]),
        limits={"longest sequence": POSITIONS, "largest num_blocks": LARGEST_INT},
    )  # fmt: skip


def move_blocks(k: Any) -> Specification:
    """Slots of blocks to other blocks, perhaps of the same cache."""
    sources, targets = k.size("num_source_blocks"), k.size("num_target_blocks")
    heads = k.size("num_heads", most=LARGEST_GRID)
    pairs, slots = k.size("num_pairs"), k.size("block_size", most=POSITIONS)

    def slot(at: At) -> Number:
        return at.program[1] * k.SLOTS + at.lane[0]

    def moved(at: At) -> Condition:
        return both(within(k.start, slot(at), k.stop), at.lane[1] < k.WIDTH)

    def element(blocks: str) -> Any:
        return lambda at: (k.read(blocks, at.program[0]), slot(at), at.program[2], at.lane[1])

    everything = Complete(
        "every slot of the range is copied",
        3,
        ("pair", "slot", "head", "d"),
        lambda pair, slot, head, d: both(
            within(0, pair, pairs), within(k.start, slot, k.stop), within(0, head, heads), within(0, d, k.WIDTH)
        ),
        lambda pair, slot, head, d: (k.read("target_blocks", pair), slot, head, d),
        lambda pair, slot, head, d: At((pair, slot // k.SLOTS, head), (slot % k.SLOTS, d)),
    )
    return Specification(
        grid=(pairs, ceil_div(slots, k.SLOTS), heads),
        tensors={
            "source": Tensor((sources, slots, heads, k.WIDTH), (k.stride_sb, k.stride_ss, k.stride_sh, 1)),
            "target": Tensor((targets, slots, heads, k.WIDTH), (k.stride_tb, k.stride_ts, k.stride_th, 1)),
            "source_blocks": Tensor((pairs,), (1,), contents=lambda block, _: within(0, block, sources)),
            "target_blocks": Tensor(
                (pairs,),
                (1,),
                contents=lambda block, _: within(0, block, targets),
                pairs=lambda pair, block, other, another: implies(pair[0] != other[0], block != another),
            ),
        },
        accesses=(
            Load("source_blocks", lambda at: (at.program[0],)),
            Load("target_blocks", lambda at: (at.program[0],)),
            Load("source", element("source_blocks"), moved),
            Store("target", element("target_blocks"), moved),
        ),
        assume=(
            k.start >= 0, k.start <= k.stop, k.stop <= slots, ceil_div(slots, k.SLOTS) <= LARGEST_GRID,
            *strides(k, "stride_sb stride_ss stride_sh stride_tb stride_ts stride_th"),
        ),
        loops=(),
        guards=(),
        theorems=(everything,),
        aliases=(("source", "target"),),
        any_two=lambda one, other: implies(
            both(k.shares("source", "target"), one.program[0] != other.program[0]),
            k.read("source_blocks", one.program[0]) != k.read("target_blocks", other.program[0]),
        ),
        notes=(
            "Blocks are in the pool, no block is a target twice; inside one pool none is a target of one pair and a source of another.",
            SLOT_NOTES[1],
        ),
        limits={"largest num_blocks": LARGEST_INT},
    )  # fmt: skip


def move_heads(k: Any) -> Specification:
    """Heads from the ranks that hold them to those of another tensor-parallel layout."""
    sources, targets = (heads_per_rank(k.NUM_HEADS, ranks) for ranks in (k.SOURCE_RANKS, k.TARGET_RANKS))

    def rank(at: At) -> Number:
        return at.program[0] // k.num_blocks

    def block(at: At) -> Number:
        return at.program[0] % k.num_blocks

    def slot(at: At) -> Number:
        return at.program[1] * k.SLOTS + at.lane[0]

    def moved(at: At) -> Condition:
        return both(slot(at) < k.BLOCK_SIZE, at.lane[1] < k.WIDTH)

    def head(at: At) -> Number:
        return first_head_of(rank(at), k.TARGET_RANKS, k.NUM_HEADS) + at.program[2]

    def origin(at: At) -> tuple[Number, ...]:
        holder = first_rank_of(head(at), k.SOURCE_RANKS, k.NUM_HEADS)
        return holder, block(at), slot(at), local_head_of(head(at), k.SOURCE_RANKS, k.NUM_HEADS), at.lane[1]

    everything = Complete(
        "every head of every rank arrives",
        1,
        ("rank", "block", "slot", "head", "d"),
        lambda rank, block, slot, head, d: both(
            within(0, rank, k.TARGET_RANKS), within(0, block, k.num_blocks), within(0, slot, k.BLOCK_SIZE),
            within(0, head, targets), within(0, d, k.WIDTH),
        ),
        lambda rank, block, slot, head, d: (rank, block, slot, head, d),
        lambda rank, block, slot, head, d: At(
            (rank * k.num_blocks + block, slot // k.SLOTS, head), (slot % k.SLOTS, d)
        ),
    )  # fmt: skip
    return Specification(
        grid=(k.TARGET_RANKS * k.num_blocks, -(-k.BLOCK_SIZE // k.SLOTS), targets),
        tensors={
            "source": Tensor(
                (k.SOURCE_RANKS, k.num_blocks, k.BLOCK_SIZE, sources, k.WIDTH),
                (k.stride_sr, k.stride_sb, k.stride_ss, k.stride_sh, 1),
            ),
            "target": Tensor(
                (k.TARGET_RANKS, k.num_blocks, k.BLOCK_SIZE, targets, k.WIDTH),
                (k.stride_tr, k.stride_tb, k.stride_ts, k.stride_th, 1),
            ),
        },
        accesses=(
            Load("source", origin, moved),
            Store("target", lambda at: (rank(at), block(at), slot(at), at.program[2], at.lane[1]), moved),
        ),
        assume=(
            within(1, k.num_blocks, LARGEST_INT // k.TARGET_RANKS + 1),
            *strides(k, "stride_sr stride_sb stride_ss stride_sh stride_tr stride_tb stride_ts stride_th"),
        ),
        loops=(),
        guards=(),
        theorems=(everything,),
        notes=("One of the number of heads and each number of ranks divides the other.", SLOT_NOTES[1]),
        limits={"largest num_blocks times target ranks": LARGEST_INT},
    )


def concat_and_cache(k: Any) -> Specification:
    """Latent and RoPE parts through a slot mapping."""
    blocks, given = k.size("num_blocks"), k.size("padded_tokens", most=TOKENS)

    def up_to(width: int) -> Any:
        return lambda at: both(written(k, at), at.lane[1] < width)

    def new(at: At) -> tuple[Number, ...]:
        return token_of(k, at), at.lane[1]

    return Specification(
        grid=(ceil_div(k.num_tokens, k.TOKENS),),
        tensors={
            "latent": Tensor((given, k.LATENT), (k.stride_lt, 1)),
            "rope": Tensor((given, k.ROPE), (k.stride_rt, 1)),
            "cache": Tensor((blocks, k.BLOCK_SIZE, k.LATENT + k.ROPE), (k.stride_block, k.stride_slot, 1)),
            "slot_mapping": slot_mapping(k, blocks),
        },
        accesses=(
            Load("slot_mapping", lambda at: (token_of(k, at),), lambda at: there(k, at)),
            Load("latent", new, up_to(k.LATENT)),
            Store("cache", lambda at: (*place_of(k, at), at.lane[1]), up_to(k.LATENT)),
            Load("rope", new, up_to(k.ROPE)),
            Store("cache", lambda at: (*place_of(k, at), k.LATENT + at.lane[1]), up_to(k.ROPE)),
        ),
        assume=(within(1, k.num_tokens, given + 1), *strides(k, "stride_lt stride_rt stride_block stride_slot")),
        loops=(),
        guards=(),
        theorems=tuple(
            Complete(
                f"the {name} part of every token that has a slot is written",
                access,
                ("token", "d"),
                lambda token, d, width=width: both(
                    within(0, token, k.num_tokens), negation(k.read("slot_mapping", token) < 0), within(0, d, width)
                ),
                lambda token, d, first=first: (
                    unit_of(k.read("slot_mapping", token), k.BLOCK_SIZE),
                    offset_of(k.read("slot_mapping", token), k.BLOCK_SIZE),
                    first + d,
                ),
                lambda token, d: At((token // k.TOKENS, 0, 0), (token % k.TOKENS, d)),
            )
            for name, access, first, width in (("latent", 2, 0, k.LATENT), ("RoPE", 4, k.LATENT, k.ROPE))
        ),
        notes=SLOT_NOTES,
        limits={"most tokens of a launch": TOKENS, "largest num_blocks": LARGEST_INT},
    )
