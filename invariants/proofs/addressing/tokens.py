"""Tokens of context-parallel ranks, dealt round robin in runs, and the pages that they fill there."""

from __future__ import annotations

from collections.abc import Mapping

from kvsan.invariants.proofs.addressing.arithmetic import divisions_combine, products_grow, quotients_are_read_back
from kvsan.invariants.proofs.addressing.functions import Functions
from kvsan.invariants.proofs.addressing.slots import no_two_share_a_slot
from kvsan.invariants.proofs.addressing.theorem import Statement, theorem
from kvsan.invariants.proofs.term import Condition, Number, both, either, implies, negation, one_of, within


@theorem(
    None,
    (divisions_combine, lambda f, *, interleave, cp, position: {"size": interleave, "count": cp, "number": position}),
    interleave=1,
    cp=1,
    position=0,
)
def a_position_has_a_holder(f: Functions, interleave: Number, cp: Number, position: Number) -> Condition:
    """A position is on one of the ranks, at a local position from which it is found again."""
    holder, local = f.holder_of(position, interleave, cp), f.local_of(position, interleave, cp)
    return both(within(0, holder, cp), local >= 0, f.position_of(holder, local, interleave, cp) == position)


@theorem(
    lambda *, cp, cp_rank, **_: cp_rank < cp,
    (divisions_combine, lambda f, *, interleave, cp, cp_rank, local: {
        "size": interleave, "count": cp, "number": f.position_of(cp_rank, local, interleave, cp)
    }),
    (quotients_are_read_back, lambda f, *, interleave, cp, cp_rank, local: {
        "size": interleave, "whole": local // interleave * cp + cp_rank, "rest": local % interleave
    }),
    (quotients_are_read_back, lambda f, *, interleave, cp, cp_rank, local: {
        "size": cp, "whole": local // interleave, "rest": cp_rank
    }),
    interleave=1,
    cp=1,
    cp_rank=0,
    local=0,
)  # fmt: skip
def a_local_position_is_one_position(
    f: Functions, interleave: Number, cp: Number, cp_rank: Number, local: Number
) -> Condition:
    """A rank's local position is a position that is on that rank, at that local position."""
    position = f.position_of(cp_rank, local, interleave, cp)
    return both(
        position >= 0,
        f.holder_of(position, interleave, cp) == cp_rank,
        f.local_of(position, interleave, cp) == local,
    )


@theorem(
    lambda *, cp, cp_rank, local, later, **_: both(cp_rank < cp, local < later),
    (products_grow, lambda f, *, interleave, cp, cp_rank, local, later: {
        "size": cp * interleave, "few": local // interleave + 1, "many": later // interleave
    }),
    interleave=1,
    cp=1,
    cp_rank=0,
    local=0,
    later=0,
)  # fmt: skip
def local_positions_ascend(
    f: Functions, interleave: Number, cp: Number, cp_rank: Number, local: Number, later: Number
) -> Condition:
    """On one rank, later local positions are later positions."""
    return f.position_of(cp_rank, local, interleave, cp) < f.position_of(cp_rank, later, interleave, cp)


@theorem(
    lambda *, interleave, cp, rounds, holder, rest, tokens, cp_rank: both(
        tokens == (rounds * cp + holder) * interleave + rest, holder < cp, cp_rank < cp, rest < interleave
    ),
    (products_grow, lambda f, *, interleave, cp, holder, **_: {"size": interleave, "few": holder + 1, "many": cp}),
    (products_grow, lambda f, *, interleave, holder, cp_rank, **_: {
        "size": interleave, "few": holder + 1, "many": cp_rank
    }),
    (products_grow, lambda f, *, interleave, holder, cp_rank, **_: {
        "size": interleave, "few": cp_rank + 1, "many": holder
    }),
    (quotients_are_read_back, lambda f, *, interleave, cp, rounds, holder, rest, **_: {
        "size": interleave * cp, "whole": rounds, "rest": holder * interleave + rest
    }),
    interleave=1,
    cp=1,
    rounds=0,
    holder=0,
    rest=0,
    tokens=0,
    cp_rank=0,
)  # fmt: skip
def lengths_follow_rounds(
    f: Functions,
    interleave: Number,
    cp: Number,
    rounds: Number,
    holder: Number,
    rest: Number,
    tokens: Number,
    cp_rank: Number,
) -> Condition:
    """After whole rounds, and runs of a round, and tokens of a run, ranks before the holder have a run more than after."""
    own = either(cp_rank < holder, interleave, either(cp_rank == holder, rest, 0))
    return f.local_length_of(tokens, cp_rank, interleave, cp) == rounds * interleave + own


@theorem(
    None,
    (divisions_combine, lambda f, *, interleave, cp, position: {"size": interleave, "count": cp, "number": position}),
    interleave=1,
    cp=1,
    position=0,
)
def positions_are_rounds_runs_and_rest(f: Functions, interleave: Number, cp: Number, position: Number) -> Condition:
    """A position is some rounds, some runs and some tokens; the runs are its holder, and the rest is less than a run."""
    rounds, rest = position // (interleave * cp), position % interleave
    holder = f.holder_of(position, interleave, cp)
    return both(
        rounds >= 0,
        within(0, holder, cp),
        within(0, rest, interleave),
        position == (rounds * cp + holder) * interleave + rest,
        f.local_of(position, interleave, cp) == rounds * interleave + rest,
    )


def _next(interleave: Number, cp: Number, rounds: Number, holder: Number, rest: Number) -> dict[str, Number]:
    """Rounds, runs and rest of a position, of the next one."""
    run_ends = rest + 1 == interleave
    round_ends = both(run_ends, holder + 1 == cp)
    return {
        "rounds": either(round_ends, rounds + 1, rounds),
        "holder": either(round_ends, 0, either(run_ends, holder + 1, holder)),
        "rest": either(run_ends, 0, rest + 1),
    }


@theorem(
    lambda *, interleave, cp, cp_rank, tokens: cp_rank < cp,
    (positions_are_rounds_runs_and_rest, lambda f, *, interleave, cp, tokens, **_: {
        "interleave": interleave, "cp": cp, "position": tokens
    }),
    (lengths_follow_rounds, lambda f, *, interleave, cp, cp_rank, tokens: {
        "interleave": interleave, "cp": cp, "cp_rank": cp_rank, "tokens": tokens,
        "rounds": tokens // (interleave * cp), "holder": f.holder_of(tokens, interleave, cp),
        "rest": tokens % interleave,
    }),
    (lengths_follow_rounds, lambda f, *, interleave, cp, cp_rank, tokens: {
        "interleave": interleave, "cp": cp, "cp_rank": cp_rank, "tokens": tokens + 1, **_next(
            interleave, cp, tokens // (interleave * cp), f.holder_of(tokens, interleave, cp), tokens % interleave
        ),
    }),
    interleave=1,
    cp=1,
    cp_rank=0,
    tokens=0,
)  # fmt: skip
def lengths_count_tokens(f: Functions, interleave: Number, cp: Number, cp_rank: Number, tokens: Number) -> Condition:
    """A rank holds none of 0 tokens, and one more of one token more if and only if it holds that one: at this length."""
    length = f.local_length_of(tokens, cp_rank, interleave, cp)
    holds = f.holder_of(tokens, interleave, cp) == cp_rank
    return both(
        f.local_length_of(tokens + 1, cp_rank, interleave, cp) == length + either(holds, 1, 0),
        implies(holds, f.local_of(tokens, interleave, cp) == length),
    )


@theorem(lambda *, cp, cp_rank, **_: cp_rank < cp, interleave=1, cp=1, cp_rank=0)
def of_no_tokens_none_are_held(f: Functions, interleave: Number, cp: Number, cp_rank: Number) -> Condition:
    """A rank holds none of 0 tokens."""
    return f.local_length_of(0, cp_rank, interleave, cp) == 0


@theorem(
    lambda *, interleave, runs, cp, unit, rounds, holder, rest, offset: both(
        offset == (rounds * cp + holder) * interleave + rest, rounds < runs, holder < cp, rest < interleave
    ),
    (products_grow, lambda f, *, interleave, cp, holder, **_: {"size": interleave, "few": holder + 1, "many": cp}),
    (products_grow, lambda f, *, interleave, runs, rounds, **_: {"size": interleave, "few": rounds + 1, "many": runs}),
    (quotients_are_read_back, lambda f, *, interleave, cp, rounds, holder, rest, **_: {
        "size": interleave * cp, "whole": rounds, "rest": holder * interleave + rest
    }),
    (quotients_are_read_back, lambda f, *, interleave, cp, rounds, holder, rest, **_: {
        "size": interleave, "whole": rounds * cp + holder, "rest": rest
    }),
    (quotients_are_read_back, lambda f, *, interleave, runs, cp, unit, rounds, holder, rest, **_: {
        "size": interleave * cp, "whole": unit * runs + rounds, "rest": holder * interleave + rest
    }),
    (quotients_are_read_back, lambda f, *, interleave, runs, cp, unit, rounds, holder, rest, **_: {
        "size": interleave, "whole": (unit * runs + rounds) * cp + holder, "rest": rest
    }),
    (quotients_are_read_back, lambda f, *, cp, rounds, holder, **_: {"size": cp, "whole": rounds, "rest": holder}),
    (quotients_are_read_back, lambda f, *, runs, cp, unit, rounds, holder, **_: {
        "size": cp, "whole": unit * runs + rounds, "rest": holder
    }),
    (quotients_are_read_back, lambda f, *, interleave, runs, unit, rounds, rest, **_: {
        "size": interleave * runs, "whole": unit, "rest": rounds * interleave + rest
    }),
    interleave=1,
    runs=1,
    cp=1,
    unit=0,
    rounds=0,
    holder=0,
    rest=0,
    offset=0,
)  # fmt: skip
def slots_are_dealt_like_positions(
    f: Functions,
    interleave: Number,
    runs: Number,
    cp: Number,
    unit: Number,
    rounds: Number,
    holder: Number,
    rest: Number,
    offset: Number,
) -> Condition:
    """The local slot of an offset of a virtual block is its unit's slot of its local position, and so is a slot dealt."""
    block_size = interleave * runs
    local_slot = f.local_slot_of(unit, offset, interleave, cp, block_size)
    slot = f.slot_of(unit, offset, block_size * cp)
    return both(
        local_slot == f.slot_of(unit, rounds * interleave + rest, block_size),
        f.local_of(slot, interleave, cp) == local_slot,
        f.holder_of(slot, interleave, cp) == f.holder_of(offset, interleave, cp),
        f.block_of(local_slot, block_size) == unit,
    )


def _dealt(
    of: Number, rounds: Number, rest: Number, offset: Number, numbers: Mapping[str, Number]
) -> dict[str, Number]:
    """One of two offsets, as `slots_are_dealt_like_positions` has them."""
    shared = {name: numbers[name] for name in ("interleave", "runs", "cp", "holder")}
    return {**shared, "unit": of, "rounds": rounds, "rest": rest, "offset": offset}


@theorem(
    lambda *, interleave, runs, cp, holder, unit, rounds, rest, other_unit, other_rounds, other_rest: both(
        holder < cp, rounds < runs, rest < interleave, other_rounds < runs, other_rest < interleave,
        one_of(unit != other_unit, rounds != other_rounds, rest != other_rest),
    ),
    (slots_are_dealt_like_positions, lambda f, *, unit, rounds, rest, **all: _dealt(
        unit, rounds, rest, (rounds * all["cp"] + all["holder"]) * all["interleave"] + rest, all
    )),
    (slots_are_dealt_like_positions, lambda f, *, other_unit, other_rounds, other_rest, **all: _dealt(
        other_unit, other_rounds, other_rest,
        (other_rounds * all["cp"] + all["holder"]) * all["interleave"] + other_rest, all,
    )),
    (products_grow, lambda f, *, interleave, runs, rounds, **_: {"size": interleave, "few": rounds + 1, "many": runs}),
    (products_grow, lambda f, *, interleave, runs, other_rounds, **_: {
        "size": interleave, "few": other_rounds + 1, "many": runs
    }),
    (quotients_are_read_back, lambda f, *, interleave, rounds, rest, **_: {
        "size": interleave, "whole": rounds, "rest": rest
    }),
    (quotients_are_read_back, lambda f, *, interleave, other_rounds, other_rest, **_: {
        "size": interleave, "whole": other_rounds, "rest": other_rest
    }),
    (no_two_share_a_slot, lambda f, *, interleave, runs, unit, rounds, rest, other_unit, other_rounds, other_rest, **_: {
        "block_size": interleave * runs, "unit": unit, "offset": rounds * interleave + rest,
        "other_unit": other_unit, "other_offset": other_rounds * interleave + other_rest,
    }),
    interleave=1,
    runs=1,
    cp=1,
    holder=0,
    unit=0,
    rounds=0,
    rest=0,
    other_unit=0,
    other_rounds=0,
    other_rest=0,
)  # fmt: skip
def no_two_share_a_local_slot(
    f: Functions,
    interleave: Number,
    runs: Number,
    cp: Number,
    holder: Number,
    unit: Number,
    rounds: Number,
    rest: Number,
    other_unit: Number,
    other_rounds: Number,
    other_rest: Number,
) -> Condition:
    """Of one rank, two offsets of a virtual block, or offsets of two distinct units, have two local slots."""
    offset = (rounds * cp + holder) * interleave + rest
    other_offset = (other_rounds * cp + holder) * interleave + other_rest
    return negation(
        f.local_slot_of(unit, offset, interleave, cp, interleave * runs)
        == f.local_slot_of(other_unit, other_offset, interleave, cp, interleave * runs)
    )


STATEMENTS = (
    Statement(
        "context-parallel",
        "positions, and pairs of a rank and a local position, correspond one to one and in order on each rank",
        (a_position_has_a_holder, a_local_position_is_one_position, local_positions_ascend),
    ),
    Statement(
        "local-length",
        "local_length counts exactly the tokens that a rank holds, and is where the next one that it holds goes",
        (of_no_tokens_none_are_held, lengths_count_tokens),
    ),
    Statement(
        "local-slots",
        "a slot is dealt like a position: to the page that the block table names, and no two of one rank to one place",
        (positions_are_rounds_runs_and_rest, slots_are_dealt_like_positions, no_two_share_a_local_slot),
        ("interleave divides the block size: Layout refuses others",),
    ),
)
