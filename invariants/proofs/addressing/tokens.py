"""Tokens of context-parallel ranks, dealt round robin in runs."""

from __future__ import annotations

from kvsan.invariants.proofs.addressing.arithmetic import divisions_combine, products_grow, quotients_are_read_back
from kvsan.invariants.proofs.addressing.functions import Functions
from kvsan.invariants.proofs.addressing.theorem import Statement, theorem
from kvsan.invariants.proofs.term import Condition, Number, both, either, implies, within


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
    if rest + 1 < interleave:
        return {"rounds": rounds, "holder": holder, "rest": rest + 1}
    if holder + 1 < cp:
        return {"rounds": rounds, "holder": holder + 1, "rest": 0}
    return {"rounds": rounds + 1, "holder": 0, "rest": 0}


@theorem(
    lambda *, interleave, cp, rounds, holder, rest, tokens, cp_rank: both(
        tokens == (rounds * cp + holder) * interleave + rest, holder < cp, cp_rank < cp, rest < interleave
    ),
    (lengths_follow_rounds, lambda f, **numbers: numbers),
    (lengths_follow_rounds, lambda f, *, interleave, cp, rounds, holder, rest, tokens, cp_rank: {
        "interleave": interleave, "cp": cp, "cp_rank": cp_rank, "tokens": tokens + 1,
        **_next(interleave, cp, rounds, holder, rest),
    }),
    interleave=1,
    cp=1,
    rounds=0,
    holder=0,
    rest=0,
    tokens=0,
    cp_rank=0,
)  # fmt: skip
def the_holder_has_one_more(
    f: Functions,
    interleave: Number,
    cp: Number,
    rounds: Number,
    holder: Number,
    rest: Number,
    tokens: Number,
    cp_rank: Number,
) -> Condition:
    """After some rounds, some runs and some tokens, one token more is held by the holder, and by no other rank."""
    length = f.local_length_of(tokens, cp_rank, interleave, cp)
    return f.local_length_of(tokens + 1, cp_rank, interleave, cp) == length + either(holder == cp_rank, 1, 0)


def _as_rounds(f: Functions, interleave: Number, cp: Number, cp_rank: Number, tokens: Number) -> dict[str, Number]:
    """Some tokens as rounds, runs and rest."""
    return {
        "interleave": interleave, "cp": cp, "cp_rank": cp_rank, "tokens": tokens,
        "rounds": tokens // (interleave * cp), "holder": f.holder_of(tokens, interleave, cp),
        "rest": tokens % interleave,
    }  # fmt: skip


@theorem(
    lambda *, interleave, cp, cp_rank, tokens: cp_rank < cp,
    (positions_are_rounds_runs_and_rest, lambda f, *, interleave, cp, tokens, **_: {
        "interleave": interleave, "cp": cp, "position": tokens
    }),
    (lengths_follow_rounds, _as_rounds),
    (the_holder_has_one_more, _as_rounds),
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
)
