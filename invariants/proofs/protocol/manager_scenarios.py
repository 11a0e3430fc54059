"""States that the manager's steps are run from, and the methods that are run in them.

Requests, rows and launches are the manager's own; their tables have a few known entries.

All other entries of all other tables are the rest (`state`). A table that is known has its own few blocks at the front, as
numbers of blocks count from its first one. Loops over a table or over fresh blocks are run for one turn or two; the state
between two turns is one in which the clauses hold, so that any number of turns does no other thing.
"""

from __future__ import annotations

from typing import Any

import z3

from kvsan.gpu_kernels.addressing import block_of, blocks_for, offset_of
from kvsan.harness.target import Result
from kvsan.invariants.proofs.protocol.bench import Bench
from kvsan.invariants.proofs.protocol.state import UNITS, entry, following, keyed
from kvsan.invariants.proofs.term import Truth, both, either, implies

# -- getting blocks


def fits(bench: Bench, hits: int, first: bool) -> None:
    """The gate: blocks are asked for, and some of them were found in the cache."""
    bench.is_part = True
    manager, pool = bench.manager, bench.pool
    found = [bench.unit(f"hit{number}") for number in range(hits)]
    request = bench.request("r", [] if first else [bench.unit("first")])
    fresh = bench.number("fresh")
    manager.watermark = bench.number("watermark")
    for unit in found:
        bench.require(bench.is_keyed(unit))
    bench.begin()
    taken = sum((either(pool.references[unit] == 0, 1, 0) for unit in found), start=fresh)
    granted = bool(manager.fits(request, found, fresh))
    if granted:
        bench.expect(
            "room", "what is granted is there: fresh blocks and hits that nobody holds", taken <= pool.num_free
        )


def take_hits(bench: Bench, hits: int) -> None:
    """A request begins with blocks that were found in the cache."""
    bench.is_part = True
    found = [bench.unit(f"hit{number}") for number in range(hits)]
    request = bench.request("r", [])
    for unit in found:
        bench.require(bench.is_keyed(unit))
    bench.begin()
    bench.manager.take_hits(request, found)


def extend(bench: Bench) -> None:
    """A fresh block joins a table."""
    bench.is_part = True
    request = bench.request("r", [bench.unit("unit")], retired=bench.number("retired"))
    bench.require(blocks_for(request.retired, bench.manager.block_size) <= 1)
    bench.require(bench.pool.num_free >= 1)
    bench.begin()
    bench.manager.extend(request, 1)
    bench.expect("alone", "a fresh block is the request's alone, without a hash", bench.is_alone(request.table[-1]))


def hold(bench: Bench) -> None:
    """An entry of a table that is shared gets one more holder."""
    bench.is_part = True
    unit = bench.unit("unit")
    bench.request("r", [unit], retired=bench.number("retired", 1))
    bench.begin()
    bench.manager._hold([unit])
    bench.hand.append(unit)


def schedule(bench: Bench, first: bool) -> None:
    """A request is scheduled, or refused: it begins with a hit and a new block, or goes on in the block that it has."""
    manager, size = bench.manager, bench.manager.block_size
    n, lookahead, retired, scheduled = bench.number("n", 1), bench.number("lookahead"), 0, 0
    if not first:
        retired, scheduled = bench.number("retired"), bench.number("scheduled", 1)
    table = [] if first else [bench.unit("unit")]
    request = bench.request("r", table, retired=retired, scheduled=scheduled, hits=[0] if first else [])
    manager.watermark = bench.number("watermark")
    bench.require(blocks_for(scheduled + n + lookahead, size) <= len(table) + first)
    hit = entry(z3.Int("key_of_block_0"), z3.IntVal(0)) if first else None
    bench.leaves_first = hit
    _without_evictions(bench, hit)
    bench.begin()
    admission = manager.schedule("r", n, lookahead, 0, False)
    if admission is None:
        same = both(request.scheduled == scheduled, len(request.table) == len(table), not manager.batch)
        bench.expect("refused", "a refusal changes nothing", same)
        return
    start: Any = either(first, admission.hit, scheduled)
    bench.expect("scheduled", "what is scheduled follows what was, or the hit", request.scheduled == start + n)
    for number, unit in enumerate(request.table):
        written = block_of(start, size) <= number
        bench.expect("alone", ALONE, implies(written, bench.is_alone(unit)))


def _without_evictions(bench: Bench, hit: z3.ArithRef | None) -> None:
    """Let blocks that are given out have no hash, and no two blocks have one hash."""
    if bench.values is not None:
        return
    bench.pool.by_key.without_lists = True
    front = following(UNITS)
    for unit in (front, following(front)):
        bench.require(
            Truth(z3.Or(unit == UNITS, z3.BoolVal(False) if hit is None else unit == hit, z3.Not(keyed(unit))))
        )


# -- writing

ALONE = "what is written is the writer's alone, without a hash"


def write(bench: Bench) -> None:
    """A request goes on: the block of its next token is copied first if somebody else counts on it."""
    bench.is_part = True
    retired, start = bench.number("retired"), bench.number("start")
    request = bench.request("r", [bench.unit("unit")], retired=retired, scheduled=start)
    manager, size = bench.manager, bench.manager.block_size
    bench.require(retired <= start)
    bench.require(blocks_for(retired, size) <= 1)
    bench.require(bench.pool.num_free >= 1)
    bench.begin()
    row = bench.parts.row(request, start, 1)
    block = manager._shared_partial_block(request, start)
    if block is not None:
        old = request.table[block]
        [copy] = manager._copy_on_write(row, block, start)
        manager.batch["r"] = row
        goes = both(copy.source == old, copy.destination == request.table[block])
        bench.expect("source", "a copy goes from the block that the table had to the one that it has", goes)
        whole = both(copy.start == 0, copy.stop == offset_of(start, size))
        bench.expect("copied", "a copy takes all that lies before the next token", whole)
    for number, unit in enumerate(request.table):
        written = block_of(start, size) <= number
        bench.expect("alone", ALONE, implies(written, bench.is_alone(unit)))


def cancel(bench: Bench, copied: bool) -> None:
    """A scheduled batch is dropped: the copy is not made, and the fresh block goes back."""
    old, fresh = bench.unit("old"), bench.unit("fresh")
    first = bench.unit("copy") if copied else old
    retired, start, scheduled = bench.number("retired", 1), bench.number("start"), bench.number("scheduled")
    request = bench.request("r", [first, fresh], retired=retired, scheduled=scheduled)
    bench.row(request, start, 1, (0, old) if copied else None)
    bench.begin()
    bench.manager.cancel()
    table = request.table
    bench.expect("length", "a cancelled batch leaves as many blocks as there were", len(table) == 1)
    bench.expect("undone", "a cancelled batch leaves the block that was to be copied", table[0] == old)


def launch(bench: Bench, copied: bool) -> None:
    """A scheduled batch goes to the device, with the copies that belong to it."""
    unit, old, scheduled = bench.unit("unit"), bench.unit("old"), bench.number("scheduled")
    request = bench.request("r", [unit], retired=bench.number("retired", 1), scheduled=scheduled)
    bench.row(request, bench.number("start"), 1, (0, old) if copied else None)
    bench.manager.deferred_free = bench.flag("deferred_free")
    bench.begin()
    bench.manager.launch("b1")
    bench.use("b1", unit, *([old] if copied else []))


def retire_parked(bench: Bench) -> None:
    """A launch has retired, and a request that was in it has ended."""
    bench.manager.deferred_free = bench.flag("deferred_free")
    parked = bench.unit("parked")
    bench.launch("b1").parked.append([parked])
    bench.launch("b2")
    bench.use("b1", parked)
    bench.begin()
    bench.manager.retire("b1", [])


def retire(bench: Bench, later: bool = False, rejected: bool = False, scheduled: bool = False) -> None:
    """A launch has retired: what it has computed is published, and drafts that were rejected are rolled back."""
    unit, retired, known = bench.unit("unit"), bench.number("retired"), bench.number("scheduled")
    computed, drafts = bench.number("computed"), bench.number("rejected", 1) if rejected else 0
    manager = bench.manager
    request = bench.request("r", [unit], retired=retired, scheduled=known)
    request.published = bench.number("published", 0, 1)
    bench.require(retired <= computed)
    if scheduled:
        start = bench.number("start")
        bench.row(request, start, 1, (0, bench.unit("old")))
        bench.require(start <= known)
        bench.require(computed + drafts <= start)
    bench.require(computed + drafts <= known)
    manager.deferred_free = bench.flag("deferred_free")
    bench.launch("b1", request)
    bench.use("b1", unit)
    if later:
        bench.launch("b2", request)
        bench.use("b2", unit)
    bench.compute(request.table, computed)
    bench.begin()
    manager.retire("b1", [Result("r", computed, drafts, [])])
    bench.expect("known", "a request counts as retired what is computed", request.retired <= computed)


def landed(bench: Bench, gone: bool) -> None:
    """A delayed load is there: it is published, or its blocks are free if the request is gone."""
    unit, scheduled = bench.unit("unit"), bench.number("scheduled")
    manager = bench.manager
    bench.loading.add("r")
    if gone:
        manager.loads["r"] = [unit]
    else:
        request = bench.request("r", [unit], loading=True, scheduled=scheduled)
        bench.compute(request.table, scheduled)
    bench.begin()
    bench.loading.clear()
    manager.landed("r")


# -- sharing


def fork(bench: Bench, in_flight: bool) -> None:
    """A child shares what its parent has retired."""
    table = [bench.unit("first"), bench.unit("second")]
    parent = bench.request("r", table, retired=bench.number("retired", 1), scheduled=bench.number("scheduled"))
    if in_flight:
        bench.launch("b1", parent)
        bench.use("b1", *table)
    bench.begin()
    bench.manager.fork("r", "c")
    child = bench.manager.requests["c"]
    bench.expect("retired", "a child counts on no more than its parent has retired", child.retired <= parent.retired)


def publish(bench: Bench) -> None:
    """What a request has retired, and not more, becomes findable."""
    unit, retired, scheduled = bench.unit("unit"), bench.number("retired"), bench.number("scheduled")
    request = bench.request("r", [unit], retired=retired, scheduled=scheduled)
    request.published = bench.number("published", 0, 1)
    bench.compute(request.table, retired)
    bench.begin()
    bench.manager.publish(request)


# -- giving blocks back


def trim(bench: Bench) -> None:
    """The last block of a table goes back."""
    bench.is_part = True
    request = bench.request("r", [bench.unit("first"), bench.unit("last")], retired=bench.number("retired"))
    bench.require(blocks_for(request.retired, bench.manager.block_size) <= 1)
    bench.begin()
    bench.manager.trim(request, 1)
    bench.expect("length", "a table is trimmed to the length that was asked for", len(request.table) == 1)


def release(bench: Bench) -> None:
    """The entries of a table that is no request's any more go back, one by one."""
    table = [bench.unit("first"), bench.unit("last")]
    bench.hand += table
    bench.begin()
    bench.hand.clear()
    bench.manager.release(table)


def end(bench: Bench, how: str, launches: int = 0, loading: bool = False, scheduled: bool = False) -> None:
    """A request ends or is preempted, in some state: in flight, in the scheduled batch with a copy, or waiting for a load."""
    unit, retired = bench.unit("unit"), bench.number("retired", int(scheduled))
    manager = bench.manager
    request = bench.request("r", [unit], retired=retired, scheduled=bench.number("scheduled"), loading=loading)
    manager.deferred_free = bench.flag("deferred_free")
    old = bench.unit("old") if scheduled else None
    for number in range(launches):
        bench.launch(f"b{number + 1}", request)
        bench.use(f"b{number + 1}", old if scheduled else unit)
    if scheduled:
        bench.row(request, bench.number("start"), 1, (0, old))
    if loading:
        bench.loading.add("r")
        bench.use("r", unit)
    bench.compute(request.table, retired)
    bench.begin()
    getattr(manager, how)("r")
