"""What a step must leave besides the clauses: of requests and rows, of work in flight, and of what is published."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import z3

from kvsan.gpu_kernels.addressing import blocks_for, full_blocks
from kvsan.invariants.proofs.term import condition_of, lift

if TYPE_CHECKING:
    from kvsan.invariants.proofs.protocol.bench import Bench

IN_FLIGHT = "a block that work in flight uses is held until that work has retired"
REQUESTS = (
    "what is published was retired, what is retired was scheduled, tables cover what is scheduled, and what launches a request "
    "knows of are in flight"
)
COMPUTED = "a block that is published is computed whole"


def requests_hold(manager: Any) -> Iterator[z3.BoolRef]:
    """What holds of each request and of each row of the scheduled batch, between two steps.

    What is published was retired, what is retired was scheduled, and the table covers what is scheduled. The launches that a
    request knows of are in flight, the oldest first. A row begins behind
    what its request has retired, or without a table; its copy is of the block that it begins in, which is retired in part.
    """
    size = manager.block_size
    for request in manager.requests.values():
        yield condition_of(request.published <= full_blocks(request.retired, size))
        yield condition_of(request.published >= 0)
        yield z3.BoolVal(request.launches == [b for b in manager.launches if b in request.launches])
        yield condition_of(request.retired <= request.scheduled)
        yield condition_of(blocks_for(request.scheduled, size) <= len(request.table))
    for row in manager.batch.values():
        continues = z3.And(
            condition_of(row.request.retired <= row.start),
            condition_of(blocks_for(row.start, size) <= row.table_length),
            condition_of(row.table_length <= len(row.request.table)),
        )
        yield z3.Or(condition_of(row.table_length == 0), continues)
        if row.copied is not None:
            block = row.copied[0]
            yield condition_of(row.start < (block + 1) * size)
            yield condition_of(block < blocks_for(row.request.retired, size))


def flights(bench: Bench) -> z3.BoolRef:
    """Whether each block that a launch or load in flight uses is held by what outlives it.

    That is its request, which knows of the launch; or the launch itself, or a later one, with which its table is parked. Without
    deferred free, launches are protected by the order of their stream.
    """
    used = [(work, lift(unit)) for work, unit in bench.uses if work in bench.manager.launches or work in bench.loading]
    return z3.And(*(z3.Or(*_keepers(bench, work, unit)) for work, unit in used))


def publications(bench: Bench, unit: z3.ArithRef) -> z3.BoolRef:
    """Whether a unit that has become findable may be: it is a block that is computed whole."""
    return z3.Or(*(z3.And(lift(one) == unit, condition_of(whole)) for one, whole in bench.computed))


def _keepers(bench: Bench, work: str, unit: z3.ArithRef) -> Iterator[z3.BoolRef]:
    manager = bench.manager
    tables = [*manager.loads.values()]
    if work in bench.loading:
        tables += [one.table for one in manager.requests.values() if one.name == work and one.loading]
    else:
        yield z3.Not(condition_of(manager.deferred_free))
        launches = list(manager.launches)
        for b in launches[launches.index(work) :]:
            tables += manager.launches[b].parked
        tables += [one.table for one in manager.requests.values() if work in one.launches]
    yield from (unit == lift(one) for table in tables for one in table)
