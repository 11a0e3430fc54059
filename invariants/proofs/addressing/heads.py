"""Heads of tensor-parallel ranks: of two numbers, ranks and heads, one divides the other.

Each theorem is there twice: for ranks that hold ``share`` heads each, and for heads of which there are ``copies``.
"""

from __future__ import annotations

from kvsan.invariants.proofs.addressing.functions import Functions
from kvsan.invariants.proofs.addressing.theorem import Statement, theorem
from kvsan.invariants.proofs.term import Condition, Number, both, one_of, within


def _is_held(f: Functions, tp: Number, num_heads: Number, head: Number, replica: Number) -> Condition:
    rank = f.first_rank_of(head, tp, num_heads) + replica
    first, local = f.first_head_of(rank, tp, num_heads), f.local_head_of(head, tp, num_heads)
    return both(
        within(0, rank, tp), within(0, local, f.heads_per_rank(num_heads, tp)), first >= 0, first + local == head
    )


def _holds(f: Functions, tp: Number, num_heads: Number, tp_rank: Number, local: Number) -> Condition:
    head = f.first_head_of(tp_rank, tp, num_heads) + local
    first_rank = f.first_rank_of(head, tp, num_heads)
    return both(
        within(0, head, num_heads),
        within(first_rank, tp_rank, first_rank + f.replicas_of_head(tp, num_heads)),
        f.local_head_of(head, tp, num_heads) == local,
    )


@theorem(
    lambda *, num_heads, tp, share, head: both(num_heads == tp * share, head < num_heads),
    num_heads=1,
    tp=1,
    share=1,
    head=0,
)
def a_head_has_its_rank(f: Functions, num_heads: Number, tp: Number, share: Number, head: Number) -> Condition:
    """Where tp ranks hold share heads each, each head is on the rank that is computed, at its local index."""
    return _is_held(f, tp, num_heads, head, 0)


@theorem(
    lambda *, num_heads, copies, head, replica: both(head < num_heads, replica < copies),
    num_heads=1,
    copies=1,
    head=0,
    replica=0,
)
def a_head_has_its_replicas(
    f: Functions, num_heads: Number, copies: Number, head: Number, replica: Number
) -> Condition:
    """Where there are copies ranks for each head, each of a head's ranks holds it, at local index 0."""
    return _is_held(f, num_heads * copies, num_heads, head, replica)


@theorem(
    lambda *, num_heads, tp, share, tp_rank, local: both(num_heads == tp * share, tp_rank < tp, local < share),
    num_heads=1,
    tp=1,
    share=1,
    tp_rank=0,
    local=0,
)
def a_rank_has_its_heads(
    f: Functions, num_heads: Number, tp: Number, share: Number, tp_rank: Number, local: Number
) -> Condition:
    """Where tp ranks hold share heads each, each rank is the one that its heads are on, and knows their indices."""
    return both(_holds(f, tp, num_heads, tp_rank, local), f.heads_per_rank(num_heads, tp) == share)


@theorem(
    lambda *, num_heads, copies, tp_rank: tp_rank < num_heads * copies,
    num_heads=1,
    copies=1,
    tp_rank=0,
)
def a_replica_has_its_head(f: Functions, num_heads: Number, copies: Number, tp_rank: Number) -> Condition:
    """Where there are copies ranks for each head, each rank holds one head, and is one of that head's ranks."""
    tp = num_heads * copies
    return both(_holds(f, tp, num_heads, tp_rank, 0), f.heads_per_rank(num_heads, tp) == 1)


@theorem(
    lambda *, tp, share, tp_rank: tp_rank < tp,
    tp=1,
    share=1,
    tp_rank=0,
)
def shares_follow_each_other(f: Functions, tp: Number, share: Number, tp_rank: Number) -> Condition:
    """Where tp ranks hold share heads each, a rank's heads end where the next rank's start; the first start at 0."""
    heads = tp * share
    end = f.first_head_of(tp_rank, tp, heads) + f.heads_per_rank(heads, tp)
    return both(
        f.first_head_of(tp_rank + 1, tp, heads) == end,
        f.first_head_of(0, tp, heads) == 0,
        f.first_head_of(tp, tp, heads) == heads,
        f.replicas_of_head(tp, heads) == 1,
    )


def _moved(
    f: Functions, num_heads: Number, source_tp: Number, target_tp: Number, tp_rank: Number, local: Number, turn: Number
) -> Condition:
    head = f.first_head_of(tp_rank, target_tp, num_heads) + local
    replica = turn % f.replicas_of_head(source_tp, num_heads)
    source_rank = f.first_rank_of(head, source_tp, num_heads) + replica
    source_local = f.local_head_of(head, source_tp, num_heads)
    back = f.first_head_of(source_rank, source_tp, num_heads) + source_local
    return both(
        within(0, source_rank, source_tp),
        within(0, source_local, f.heads_per_rank(num_heads, source_tp)),
        back == head,
        within(0, tp_rank - f.first_rank_of(head, target_tp, num_heads), f.replicas_of_head(target_tp, num_heads)),
        f.local_head_of(head, target_tp, num_heads) == local,
    )


@theorem(
    lambda *, num_heads, source_tp, source_share, target_tp, target_share, tp_rank, local: both(
        num_heads == source_tp * source_share, num_heads == target_tp * target_share, tp_rank < target_tp,
        local < target_share,
    ),
    (a_rank_has_its_heads, lambda f, *, num_heads, target_tp, target_share, tp_rank, local, **_: {
        "num_heads": num_heads, "tp": target_tp, "share": target_share, "tp_rank": tp_rank, "local": local
    }),
    (a_head_has_its_rank, lambda f, *, num_heads, source_tp, source_share, target_tp, tp_rank, local, **_: {
        "num_heads": num_heads, "tp": source_tp, "share": source_share,
        "head": f.first_head_of(tp_rank, target_tp, num_heads) + local,
    }),
    num_heads=1,
    source_tp=1,
    source_share=1,
    target_tp=1,
    target_share=1,
    tp_rank=0,
    local=0,
)  # fmt: skip
def shares_move_to_shares(
    f: Functions,
    num_heads: Number,
    source_tp: Number,
    source_share: Number,
    target_tp: Number,
    target_share: Number,
    tp_rank: Number,
    local: Number,
) -> Condition:
    """A rank of another number of ranks finds each of its heads on a rank that has it, and no other head comes there."""
    return _moved(f, num_heads, source_tp, target_tp, tp_rank, local, 0)


@theorem(
    lambda *, num_heads, copies, share_tp, share, tp_rank: both(share_tp * share == num_heads, tp_rank < num_heads * copies),
    (a_replica_has_its_head, lambda f, *, num_heads, copies, tp_rank, **_: {
        "num_heads": num_heads, "copies": copies, "tp_rank": tp_rank
    }),
    (a_head_has_its_rank, lambda f, *, num_heads, copies, share_tp, share, tp_rank: {
        "num_heads": num_heads, "tp": share_tp, "share": share,
        "head": f.first_head_of(tp_rank, num_heads * copies, num_heads)
    }),
    num_heads=1,
    copies=1,
    share_tp=1,
    share=1,
    tp_rank=0,
)  # fmt: skip
def shares_move_to_replicas(
    f: Functions, num_heads: Number, copies: Number, share_tp: Number, share: Number, tp_rank: Number
) -> Condition:
    """A rank that holds a copy of a head finds it among the shares of fewer ranks."""
    return _moved(f, num_heads, share_tp, num_heads * copies, tp_rank, 0, 0)


@theorem(
    lambda *, num_heads, copies, share_tp, share, tp_rank, local, turn: both(
        share_tp * share == num_heads, tp_rank < share_tp, local < share
    ),
    (a_rank_has_its_heads, lambda f, *, num_heads, share_tp, share, tp_rank, local, **_: {
        "num_heads": num_heads, "tp": share_tp, "share": share, "tp_rank": tp_rank, "local": local
    }),
    (a_head_has_its_replicas, lambda f, *, num_heads, copies, share_tp, share, tp_rank, local, turn: {
        "num_heads": num_heads, "copies": copies, "head": f.first_head_of(tp_rank, share_tp, num_heads) + local,
        "replica": turn % f.replicas_of_head(num_heads * copies, num_heads),
    }),
    num_heads=1,
    copies=1,
    share_tp=1,
    share=1,
    tp_rank=0,
    local=0,
    turn=0,
)  # fmt: skip
def replicas_move_to_shares(
    f: Functions,
    num_heads: Number,
    copies: Number,
    share_tp: Number,
    share: Number,
    tp_rank: Number,
    local: Number,
    turn: Number,
) -> Condition:
    """A rank that holds a share finds each of its heads on any of the ranks with a copy, whichever turn it is."""
    return _moved(f, num_heads, num_heads * copies, share_tp, tp_rank, local, turn)


@theorem(
    lambda *, num_heads, copies, target_copies, tp_rank, turn: tp_rank < num_heads * target_copies,
    (a_replica_has_its_head, lambda f, *, num_heads, copies, target_copies, tp_rank, turn: {
        "num_heads": num_heads, "copies": target_copies, "tp_rank": tp_rank
    }),
    (a_head_has_its_replicas, lambda f, *, num_heads, copies, target_copies, tp_rank, turn: {
        "num_heads": num_heads, "copies": copies,
        "head": f.first_head_of(tp_rank, num_heads * target_copies, num_heads),
        "replica": turn % f.replicas_of_head(num_heads * copies, num_heads),
    }),
    num_heads=1,
    copies=1,
    target_copies=1,
    tp_rank=0,
    turn=0,
)  # fmt: skip
def replicas_move_to_replicas(
    f: Functions, num_heads: Number, copies: Number, target_copies: Number, tp_rank: Number, turn: Number
) -> Condition:
    """A rank with a copy of a head finds that head on any of the ranks with another number of copies."""
    return _moved(f, num_heads, num_heads * copies, num_heads * target_copies, tp_rank, 0, turn)


def _queries(f: Functions, tp: Number, num_heads: Number, group: Number, tp_rank: Number) -> Condition:
    num_q_heads = num_heads * group
    start = f.first_query_head_of(tp_rank, tp, num_heads, num_q_heads)
    stop = f.first_query_head_of(tp_rank + 1, tp, num_heads, num_q_heads)
    first = f.first_head_of(tp_rank, tp, num_heads)
    return both(
        first * group <= start,
        start <= stop,
        stop <= (first + f.heads_per_rank(num_heads, tp)) * group,
        f.first_query_head_of(0, tp, num_heads, num_q_heads) == 0,
        f.first_query_head_of(tp, tp, num_heads, num_q_heads) == num_q_heads,
    )


@theorem(lambda *, tp, tp_rank, **_: tp_rank < tp, tp=1, share=1, group=1, tp_rank=0)
def query_heads_go_with_shares(f: Functions, tp: Number, share: Number, group: Number, tp_rank: Number) -> Condition:
    """Where tp ranks hold share kv heads each, ranks share out all q heads in order, each those of its own kv heads."""
    return _queries(f, tp, tp * share, group, tp_rank)


@theorem(
    lambda *, num_heads, copies, tp_rank, **_: tp_rank < num_heads * copies, num_heads=1, copies=1, group=1, tp_rank=0
)
def query_heads_go_with_replicas(
    f: Functions, num_heads: Number, copies: Number, group: Number, tp_rank: Number
) -> Condition:
    """Where copies ranks have each kv head, they share out its q heads in order, to each as many, or one more."""
    tp, num_q_heads = num_heads * copies, num_heads * group
    start = f.first_query_head_of(tp_rank, tp, num_heads, num_q_heads)
    count = f.first_query_head_of(tp_rank + 1, tp, num_heads, num_q_heads) - start
    fair = one_of(count == group // copies, count == group // copies + 1)
    return both(_queries(f, tp, num_heads, group, tp_rank), fair)


STATEMENTS = (
    Statement(
        "heads",
        "every kv head is on its ranks, at an index that all of them agree on; shares are contiguous and leave none out",
        (
            a_head_has_its_rank,
            a_head_has_its_replicas,
            a_rank_has_its_heads,
            a_replica_has_its_head,
            shares_follow_each_other,
        ),
        ("ranks divide heads, or heads ranks: Layout refuses others",),
    ),
    Statement(
        "tp-relayout",
        "from one number of ranks to another, every head of every rank is read from a rank that has it: a bijection "
        "for each replica",
        (shares_move_to_shares, shares_move_to_replicas, replicas_move_to_shares, replicas_move_to_replicas),
        ("ranks divide heads, or heads ranks: Layout refuses others",),
    ),
    Statement(
        "query-heads",
        "q heads are shared out to ranks that have their kv head, in order, all of them, fairly among replicas",
        (query_heads_go_with_shares, query_heads_go_with_replicas),
        ("kv heads divide q heads",),
    ),
)
