"""Numbers of ranks by what they hold."""

from __future__ import annotations

from kvsan.invariants.proofs.addressing.arithmetic import (
    divisions_combine,
    products_grow,
    quotients_are_read_back,
    quotients_below,
)
from kvsan.invariants.proofs.addressing.functions import Functions
from kvsan.invariants.proofs.addressing.theorem import Statement, theorem
from kvsan.invariants.proofs.term import Condition, Number, both, within


@theorem(
    lambda *, tp, dcp, pcp, tp_rank, cp_rank: both(tp_rank < tp, cp_rank < dcp * pcp),
    (quotients_are_read_back, lambda f, *, tp, dcp, tp_rank, cp_rank, **_: {
        "size": dcp, "whole": cp_rank // dcp * tp + tp_rank, "rest": cp_rank % dcp
    }),
    (divisions_combine, lambda f, *, tp, dcp, tp_rank, cp_rank, **_: {
        "size": dcp, "count": tp, "number": f.rank_of(tp_rank, cp_rank, tp, dcp)
    }),
    (quotients_are_read_back, lambda f, *, tp, dcp, tp_rank, cp_rank, **_: {
        "size": tp, "whole": cp_rank // dcp, "rest": tp_rank
    }),
    (quotients_below, lambda f, *, dcp, pcp, cp_rank, **_: {"size": dcp, "count": pcp, "number": cp_rank}),
    (products_grow, lambda f, *, tp, dcp, pcp, cp_rank, **_: {"size": tp, "few": cp_rank // dcp + 1, "many": pcp}),
    (products_grow, lambda f, *, tp, dcp, pcp, tp_rank, cp_rank: {
        "size": dcp, "few": cp_rank // dcp * tp + tp_rank + 1, "many": pcp * tp
    }),
    tp=1,
    dcp=1,
    pcp=1,
    tp_rank=0,
    cp_rank=0,
)  # fmt: skip
def a_rank_knows_what_it_holds(
    f: Functions, tp: Number, dcp: Number, pcp: Number, tp_rank: Number, cp_rank: Number
) -> Condition:
    """The number of a pair of ranks is one of tp * dcp * pcp, and gives both back."""
    rank = f.rank_of(tp_rank, cp_rank, tp, dcp)
    return both(
        within(0, rank, tp * dcp * pcp), f.tp_rank_of(rank, tp, dcp) == tp_rank, f.cp_rank_of(rank, tp, dcp) == cp_rank
    )


@theorem(
    lambda *, tp, dcp, pcp, rank: rank < tp * dcp * pcp,
    (divisions_combine, lambda f, *, tp, dcp, rank, **_: {"size": dcp, "count": tp, "number": rank}),
    (quotients_below, lambda f, *, tp, dcp, pcp, rank: {"size": dcp * tp, "count": pcp, "number": rank}),
    (products_grow, lambda f, *, tp, dcp, pcp, rank: {"size": dcp, "few": rank // (dcp * tp) + 1, "many": pcp}),
    (quotients_are_read_back, lambda f, *, tp, dcp, rank, **_: {
        "size": dcp, "whole": rank // (dcp * tp), "rest": rank % dcp
    }),
    tp=1,
    dcp=1,
    pcp=1,
    rank=0,
)  # fmt: skip
def every_rank_holds_something(f: Functions, tp: Number, dcp: Number, pcp: Number, rank: Number) -> Condition:
    """Each of tp * dcp * pcp ranks is the one of its own pair of ranks."""
    tp_rank, cp_rank = f.tp_rank_of(rank, tp, dcp), f.cp_rank_of(rank, tp, dcp)
    return both(within(0, tp_rank, tp), within(0, cp_rank, dcp * pcp), f.rank_of(tp_rank, cp_rank, tp, dcp) == rank)


STATEMENTS = (
    Statement(
        "rank-numbers",
        "ranks, and pairs of a tensor-parallel and a context-parallel rank, correspond one to one",
        (a_rank_knows_what_it_holds, every_rank_holds_something),
    ),
)
