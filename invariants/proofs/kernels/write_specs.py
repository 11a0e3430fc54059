"""Specifications of the kernels that write through a slot mapping, in ``write.py``, ``quant.py``, ``mla.py``."""

from __future__ import annotations

from typing import Any

from kvsan.gpu_kernels import formats
from kvsan.gpu_kernels.addressing import offset_of, unit_of
from kvsan.invariants.proofs.kernels.attention_specs import LARGEST_GRID, LARGEST_INT, strides
from kvsan.invariants.proofs.kernels.execution import STORE
from kvsan.invariants.proofs.kernels.specification import (
    Access,
    At,
    Complete,
    Load,
    Specification,
    Store,
    Tensor,
)
from kvsan.invariants.proofs.term import Condition, Number, both, ceil_div, implies, within

TOKENS = LARGEST_INT - 16
"""Most tokens of a launch: int32 has room for the end of the last tile."""

STRIDE_NOTE = "Strides are not negative, and below 2**31 as arguments of type int32."
SLOT_NOTES = ("A slot mapping holds -1 or slots of the pool, no slot twice.", STRIDE_NOTE)


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


def every_scale(k: Any, access: int, heads: Number) -> Complete:
    """Completeness of the scales that tokens and heads have for themselves."""
    whole = every_token(k, access, heads, 1)

    def place(token: Number, head: Number) -> At:
        at = whole.place(token, head, 0)
        return At(at.program, at.lane[:1])

    return Complete(
        "the scale of every token that has a slot is written",
        access,
        ("token", "head"),
        lambda token, head: whole.given(token, head, 0),
        lambda token, head: whole.index(token, head, 0),
        place,
    )


def every_token(k: Any, access: int, heads: Number, width: Number) -> Complete:
    """Completeness of a write: no token that has a slot is left out."""

    def index(token: Number, head: Number, d: Number) -> tuple[Number, ...]:
        slot = k.read("slot_mapping", token)
        return unit_of(slot, k.BLOCK_SIZE), offset_of(slot, k.BLOCK_SIZE), head, d

    return Complete(
        "every token that has a slot is written",
        access,
        ("token", "head", "d"),
        lambda token, head, d: both(
            within(0, token, k.num_tokens),
            k.read("slot_mapping", token) >= 0,
            within(0, head, heads),
            within(0, d, width),
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
        tensors={
            **new_tokens(k, given, heads),
            "keys": cache,
            "values": cache,
            "slot_mapping": slot_mapping(k, blocks),
        },
        accesses=(
            Load("slot_mapping", lambda at: (token_of(k, at),), lambda at: there(k, at)),
            *(Load(name, lambda at: (token_of(k, at), at.program[1], at.lane[1]), whole) for name in ("key", "value")),
            *(Store(f"{name}s", element, whole, name) for name in ("key", "value")),
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
    theorems = [
        every_scale(k, number, heads)
        if one.tensor.endswith("_scales") and not packed
        else every_token(k, number, heads, k.HEAD_DIM // 16 if one.tensor.endswith("_scales") else codes.shape[3])
        for number, one in enumerate(accesses)
        if one.kind == STORE
    ]
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
        theorems=theorems,
        notes=SLOT_NOTES,
        limits={"most tokens of a launch": TOKENS, "largest num_blocks": LARGEST_INT},
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
            Store("cache", lambda at: (*place_of(k, at), at.lane[1]), up_to(k.LATENT), "latent"),
            Load("rope", new, up_to(k.ROPE)),
            Store("cache", lambda at: (*place_of(k, at), k.LATENT + at.lane[1]), up_to(k.ROPE), "rope"),
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
                    within(0, token, k.num_tokens), k.read("slot_mapping", token) >= 0, within(0, d, width)
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
