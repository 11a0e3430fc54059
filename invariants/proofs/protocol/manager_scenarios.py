"""States that the manager's steps are run from, and the methods that are run in them.

Requests, rows and launches are the manager's own; their tables have a few known entries.

All other entries of all other tables are the rest (`state`). A table that is known has its own few blocks at the front, as
numbers of blocks count from its first one. Tables of one to three entries are run, one row of a batch and two, one parked
table and two. That a loop does with the fourth entry what it does with the third is not run: it is read off the source (`loops`).
"""

from __future__ import annotations

from typing import Any

import z3

from kvsan.gpu_kernels.addressing import block_of, blocks_for, offset_of
from kvsan.harness.target import Result
from kvsan.invariants.proofs.protocol.bench import Bench
from kvsan.invariants.proofs.protocol.state import UNITS, entry, following, keyed
from kvsan.invariants.proofs.term import Truth, both, either, implies

ENTRIES = ("unit", "second", "third")
"""Names of a table's entries."""


def _entries(bench: Bench, number: int) -> list[Any]:
    return [bench.unit(name) for name in ENTRIES[:number]]


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


def extend(bench: Bench, fresh: int = 1) -> None:
    """Fresh blocks join a table; of two, none had been cached."""
    bench.is_part = True
    request = bench.request("r", [bench.unit("unit")], retired=bench.number("retired"))
    bench.require(blocks_for(request.retired, bench.manager.block_size) <= 1)
    bench.require(bench.pool.num_free >= fresh)
    if fresh > 1:
        bench.leaves_first = following(UNITS)
        _without_evictions(bench, None)
    bench.begin()
    bench.manager.extend(request, fresh)
    bench.expect("length", "a table grows by as many blocks as were asked for", len(request.table) == 1 + fresh)
    for unit in request.table[1:]:
        bench.expect("alone", "a fresh block is the request's alone, without a hash", bench.is_alone(unit))


def hold(bench: Bench, entries: int) -> None:
    """Each entry of a table that is shared gets one more holder."""
    bench.is_part = True
    table = _entries(bench, entries)
    retired = bench.number("retired", 1)
    bench.request("r", table, retired=retired)
    bench.require(blocks_for(retired, bench.manager.block_size) >= entries)
    bench.begin()
    bench.manager._hold(table)
    bench.hand += table


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


ROWS = {"r": "", "s": "other_"}
"""Requests of a batch, and what the names of their blocks and numbers begin with."""


def cancel(bench: Bench, copied: bool, rows: int = 1, fresh: int = 1) -> None:
    """A scheduled batch is dropped: copies are not made, and fresh blocks go back."""
    kept = {}
    for name in [*ROWS][:rows]:
        mark = ROWS[name]
        old = kept[name] = bench.unit(f"{mark}old")
        new = [bench.unit(f"{mark}{one}") for one in ("fresh", "another")[:fresh]]
        first = bench.unit(f"{mark}copy") if copied else old
        retired, start = bench.number(f"{mark}retired", 1), bench.number(f"{mark}start")
        request = bench.request(name, [first, *new], retired=retired, scheduled=bench.number(f"{mark}scheduled"))
        bench.row(request, start, 1, (0, old) if copied else None)
    bench.begin()
    bench.manager.cancel()
    for name, old in kept.items():
        table = bench.manager.requests[name].table
        bench.expect("length", "a cancelled batch leaves as many blocks as there were", len(table) == 1)
        bench.expect("undone", "a cancelled batch leaves the block that was to be copied", table[0] == old)
    bench.expect("dropped", "no row is left of a cancelled batch", not bench.manager.batch)


def launch(bench: Bench, copied: bool, rows: int = 1) -> None:
    """A scheduled batch goes to the device, with the copies that belong to it."""
    used = []
    for name in [*ROWS][:rows]:
        mark = ROWS[name]
        unit, old = bench.unit(f"{mark}unit"), bench.unit(f"{mark}old")
        retired, scheduled = bench.number(f"{mark}retired", 1), bench.number(f"{mark}scheduled")
        request = bench.request(name, [unit], retired=retired, scheduled=scheduled)
        bench.row(request, bench.number(f"{mark}start"), 1, (0, old) if copied else None)
        used += [unit, old] if copied else [unit]
    if rows == 1:
        bench.manager.deferred_free = bench.flag("deferred_free")
    bench.begin()
    bench.manager.launch("b1")
    bench.use("b1", *used)
    bench.expect("dropped", "no row is left of a batch that is launched", not bench.manager.batch)


def retire_parked(bench: Bench, tables: int = 1, entries: int = 1) -> None:
    """A launch has retired, and requests that were in it have ended."""
    bench.manager.deferred_free = bench.flag("deferred_free")
    parked = bench.unit("parked")
    bench.launch("b1").parked.append([parked])
    if tables > 1:
        bench.manager.launches["b1"].parked.append(_entries(bench, entries))
    bench.launch("b2")
    bench.use("b1", parked)
    bench.begin()
    bench.manager.retire("b1", [])


def retire_two(bench: Bench) -> None:
    """A launch of two requests has retired: each is told what is computed of it."""
    results, requests = [], []
    bench.manager.deferred_free = bench.flag("deferred_free")
    for name, mark in ROWS.items():
        unit, retired, scheduled = (
            bench.unit(f"{mark}unit"),
            bench.number(f"{mark}retired"),
            bench.number(f"{mark}scheduled"),
        )
        computed = bench.number(f"{mark}computed")
        request = bench.request(name, [unit], retired=retired, scheduled=scheduled)
        bench.require(both(retired <= computed, computed <= scheduled, computed < bench.manager.block_size))
        requests.append(request)
        results.append(Result(name, computed, 0, []))
    launch = bench.launch("b1", *requests)
    bench.begin()
    bench.manager.retire("b1", results)
    for request, result in zip(launch.requests, results, strict=True):
        bench.expect("known", "a request counts as retired what is computed", request.retired == result.computed)


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


def landed(bench: Bench, gone: bool, entries: int = 1) -> None:
    """A delayed load is there: it is published, or its blocks are free if the request is gone."""
    table, scheduled = _entries(bench, entries), bench.number("scheduled")
    manager = bench.manager
    bench.loading.add("r")
    if gone:
        manager.loads["r"] = table
    else:
        request = bench.request("r", table, loading=True, scheduled=scheduled)
        bench.compute(request.table, scheduled)
    bench.begin()
    bench.loading.clear()
    manager.landed("r")


# -- sharing


def fork(bench: Bench, in_flight: bool, entries: int = 2) -> None:
    """A child shares what its parent has retired."""
    table = _entries(bench, entries)
    parent = bench.request("r", table, retired=bench.number("retired", 1), scheduled=bench.number("scheduled"))
    if in_flight:
        bench.launch("b1", parent)
        bench.use("b1", *table)
    bench.begin()
    bench.manager.fork("r", "c")
    child = bench.manager.requests["c"]
    bench.expect("retired", "a child counts on no more than its parent has retired", child.retired <= parent.retired)


def publish(bench: Bench, entries: int) -> None:
    """What a request has retired, and not more, becomes findable; of two blocks no other has the hash."""
    table, retired, scheduled = _entries(bench, entries), bench.number("retired"), bench.number("scheduled")
    request = bench.request("r", table, retired=retired, scheduled=scheduled)
    request.published = bench.number("published", 0, entries)
    if entries > 1 and bench.values is None:
        bench.pool.by_key.without_lists = True
    bench.compute(request.table, retired)
    bench.begin()
    bench.manager.publish(request)


# -- giving blocks back


def trim(bench: Bench, entries: int, left: int) -> None:
    """The last blocks of a table go back."""
    bench.is_part = True
    request = bench.request("r", _entries(bench, entries), retired=bench.number("retired"))
    bench.require(blocks_for(request.retired, bench.manager.block_size) <= left)
    bench.begin()
    bench.manager.trim(request, left)
    bench.expect("length", "a table is trimmed to the length that was asked for", len(request.table) == left)


def release(bench: Bench, entries: int) -> None:
    """The entries of a table that is no request's any more go back, one by one."""
    table = _entries(bench, entries)
    bench.hand += table
    bench.begin()
    bench.hand.clear()
    bench.manager.release(table)


def end(
    bench: Bench, how: str, launches: int = 0, loading: bool = False, scheduled: bool = False, entries: int = 1
) -> None:
    """A request ends or is preempted, in some state: in flight, in the scheduled batch with a copy, or waiting for a load."""
    table, retired = _entries(bench, entries), bench.number("retired", int(scheduled))
    manager = bench.manager
    request = bench.request("r", table, retired=retired, scheduled=bench.number("scheduled"), loading=loading)
    if entries == 1:
        manager.deferred_free = bench.flag("deferred_free")
    old = bench.unit("old") if scheduled else None
    for number in range(launches):
        bench.launch(f"b{number + 1}", request)
        bench.use(f"b{number + 1}", *([old, *table[1:]] if scheduled else table))
    if scheduled:
        bench.row(request, bench.number("start"), 1, (0, old))
    if loading:
        bench.loading.add("r")
        bench.use("r", *table)
    bench.compute(request.table, retired)
    bench.begin()
    getattr(manager, how)("r")
    bench.expect("left", "a request that has ended is in no batch", "r" not in manager.batch)
