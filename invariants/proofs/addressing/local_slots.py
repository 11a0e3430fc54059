"""The pages that the tokens of a context-parallel rank fill, and the slots there.

Offsets are written as rounds, runs and rest; `positions_are_rounds_runs_and_rest` says that all of them can be.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvsan.invariants.proofs.addressing.arithmetic import products_grow, quotients_are_read_back
from kvsan.invariants.proofs.addressing.functions import Functions
from kvsan.invariants.proofs.addressing.slots import no_two_share_a_slot
from kvsan.invariants.proofs.addressing.theorem import Statement, theorem
from kvsan.invariants.proofs.addressing.tokens import positions_are_rounds_runs_and_rest
from kvsan.invariants.proofs.term import Condition, Number, both, negation, one_of, within


@theorem(
    lambda *, interleave, cp, rounds, holder, rest, position: both(
        position == (rounds * cp + holder) * interleave + rest, holder < cp, rest < interleave
    ),
    (products_grow, lambda f, *, interleave, cp, holder, **_: {"size": interleave, "few": holder + 1, "many": cp}),
    (quotients_are_read_back, lambda f, *, interleave, cp, rounds, holder, rest, **_: {
        "size": interleave * cp, "whole": rounds, "rest": holder * interleave + rest
    }),
    (quotients_are_read_back, lambda f, *, interleave, cp, rounds, holder, rest, **_: {
        "size": interleave, "whole": rounds * cp + holder, "rest": rest
    }),
    (quotients_are_read_back, lambda f, *, cp, rounds, holder, **_: {"size": cp, "whole": rounds, "rest": holder}),
    interleave=1,
    cp=1,
    rounds=0,
    holder=0,
    rest=0,
    position=0,
)  # fmt: skip
def rounds_runs_and_rest_are_dealt(
    f: Functions, interleave: Number, cp: Number, rounds: Number, holder: Number, rest: Number, position: Number
) -> Condition:
    """After some rounds, some runs and some tokens, the runs are the holder, which has a run of each round and the rest."""
    return both(
        f.holder_of(position, interleave, cp) == holder,
        f.local_of(position, interleave, cp) == rounds * interleave + rest,
    )


@theorem(
    lambda *, interleave, runs, cp, unit, rounds, holder, rest, offset: both(
        offset == (rounds * cp + holder) * interleave + rest, rounds < runs, holder < cp, rest < interleave
    ),
    (rounds_runs_and_rest_are_dealt, lambda f, *, runs, unit, offset, **numbers: {**numbers, "position": offset}),
    (products_grow, lambda f, *, interleave, runs, rounds, **_: {"size": interleave, "few": rounds + 1, "many": runs}),
    (quotients_are_read_back, lambda f, *, interleave, runs, rounds, rest, **_: {
        "size": interleave * runs, "whole": 0, "rest": rounds * interleave + rest
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
def local_slots_are_slots(
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
    """The local slot of an offset of a virtual block is the slot, in its unit's page, of its local position."""
    block_size, local = interleave * runs, rounds * interleave + rest
    local_slot = f.local_slot_of(unit, offset, interleave, cp, block_size)
    return both(local_slot == f.slot_of(unit, local, block_size), within(0, local, block_size))


@theorem(
    lambda *, interleave, runs, cp, rounds, holder, rest, offset, **_: both(
        offset == (rounds * cp + holder) * interleave + rest, rounds < runs, holder < cp, rest < interleave
    ),
    (local_slots_are_slots, lambda f, **numbers: numbers),
    (rounds_runs_and_rest_are_dealt, lambda f, *, runs, unit, offset, **numbers: {**numbers, "position": offset}),
    (rounds_runs_and_rest_are_dealt, lambda f, *, runs, unit, rounds, offset, interleave, cp, **numbers: {
        **numbers, "interleave": interleave, "cp": cp, "rounds": unit * runs + rounds,
        "position": f.slot_of(unit, offset, interleave * runs * cp),
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
    """A slot of the whole, or a position whose block it is, is dealt like its offset: to a local slot of the same page."""
    block_size = interleave * runs
    local_slot = f.local_slot_of(unit, offset, interleave, cp, block_size)
    slot = f.slot_of(unit, offset, block_size * cp)
    return both(
        f.local_of(slot, interleave, cp) == local_slot,
        f.holder_of(slot, interleave, cp) == f.holder_of(offset, interleave, cp),
        f.block_of(local_slot, block_size) == unit,
    )


def _dealt(
    of: Number, rounds: Number, rest: Number, offset: Number, numbers: Mapping[str, Number]
) -> dict[str, Number]:
    """One of two offsets, as `local_slots_are_slots` has them."""
    shared = {name: numbers[name] for name in ("interleave", "runs", "cp", "holder")}
    return {**shared, "unit": of, "rounds": rounds, "rest": rest, "offset": offset}


@theorem(
    lambda *, interleave, runs, cp, holder, unit, rounds, rest, other_unit, other_rounds, other_rest: both(
        holder < cp, rounds < runs, rest < interleave, other_rounds < runs, other_rest < interleave,
        one_of(unit != other_unit, rounds != other_rounds, rest != other_rest),
    ),
    (local_slots_are_slots, lambda f, *, unit, rounds, rest, **numbers: _dealt(
        unit, rounds, rest, (rounds * numbers["cp"] + numbers["holder"]) * numbers["interleave"] + rest, numbers
    )),
    (local_slots_are_slots, lambda f, *, other_unit, other_rounds, other_rest, **numbers: _dealt(
        other_unit, other_rounds, other_rest,
        (other_rounds * numbers["cp"] + numbers["holder"]) * numbers["interleave"] + other_rest, numbers,
    )),
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
        "local-slots",
        "a slot is dealt like a position: to the page that the block table names, and no two of one rank to one place",
        (
            positions_are_rounds_runs_and_rest,
            local_slots_are_slots,
            slots_are_dealt_like_positions,
            no_two_share_a_local_slot,
        ),
        ("interleave divides the block size: Layout refuses others",),
    ),
)
