"""Steps of the manager: which methods are run, and from which states (`manager_scenarios`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any

from kvsan.invariants.proofs.protocol import manager_scenarios as scenarios
from kvsan.invariants.proofs.protocol.induction import Scenario, Step


def _from(scenario: Callable[..., None], **choices: Any) -> Scenario:
    """One of the states that a scenario can be run from."""
    chosen: Any = update_wrapper(partial(scenario, **choices), scenario)
    chosen.__name__ = " ".join([scenario.__name__, *(f"{name}={value}" for name, value in choices.items())])
    return chosen  # type: ignore[no-any-return]


ENDS: tuple[dict[str, Any], ...] = (
    {},
    {"launches": 1},
    {"launches": 2},
    {"loading": True},
    {"scheduled": True},
    {"scheduled": True, "launches": 1},
    {"entries": 3},
    {"launches": 2, "entries": 3},
    {"loading": True, "entries": 3},
)

RETIREMENTS: tuple[dict[str, Any], ...] = (
    {},
    {"rejected": True},
    {"rejected": True, "later": True},
    {"rejected": True, "scheduled": True},
)

UNIFORM = "that every loop goes over all of its collection, turn by turn, is checked on the source"
TABLES = f"tables of one to three entries are run; {UNIFORM}"
BATCHES = f"batches of one row and two are run; {UNIFORM}"

_ENDING = ("manager._give_back", "manager._uncopy", "manager.release")

MANAGER_STEPS = (
    Step(
        "fits",
        "What the gate grants is there, and asking changes nothing",
        ("manager.fits", "manager.taken"),
        tuple(_from(scenarios.fits, hits=hits, first=first) for hits in (0, 1, 2, 3) for first in (True, False)),
        (
            "the hits of one request are found by their hashes, and are different blocks",
            f"up to three hits are run; {UNIFORM}",
        ),
    ),
    Step(
        "take_hits",
        "A request holds the cached blocks that it begins with",
        ("manager.take_hits", "manager._hold"),
        tuple(_from(scenarios.take_hits, hits=hits) for hits in (1, 2, 3)),
        (TABLES,),
    ),
    Step(
        "extend",
        "A fresh block is its request's alone",
        ("manager.extend",),
        (scenarios.extend, _from(scenarios.extend, fresh=2)),
        (f"one fresh block is run, and two of which neither had been cached; {UNIFORM}",),
    ),
    Step(
        "hold",
        "Sharing an entry counts one holder more",
        ("manager._hold",),
        tuple(_from(scenarios.hold, entries=entries) for entries in (1, 2, 3)),
        (TABLES,),
    ),
    Step(
        "schedule",
        "A request gets what it needs, and writes what is its own alone; or it is refused, and nothing changes",
        ("manager.schedule", "manager._pending_hits", "manager._find", "manager.blocks_needed"),
        tuple(_from(scenarios.schedule, first=first) for first in (True, False)),
        (
            "one new block at most, and one hit, are run here; two and three in `extend` and `take_hits`; that every loop goes "
            "over all of its collection, turn by turn, is checked on the source",
            "no eviction, and no two blocks with one hash: that is what the pool's own steps are about",
        ),
    ),
    Step(
        "write",
        "What a request writes next is its own alone, after a copy if need be",
        ("manager._shared_partial_block", "manager._copy_on_write"),
        (scenarios.write,),
    ),
    Step(
        "cancel",
        "A dropped batch leaves the tables as they were",
        ("manager.cancel", "manager._undo", "manager._uncopy", "manager.trim"),
        (
            *(_from(scenarios.cancel, copied=copied) for copied in (False, True)),
            _from(scenarios.cancel, copied=True, rows=2),
            _from(scenarios.cancel, copied=True, fresh=2),
        ),
        (BATCHES,),
    ),
    Step(
        "launch",
        "A launch keeps what it reads, the sources of its copies too",
        ("manager.launch", "manager._copied"),
        (
            *(_from(scenarios.launch, copied=copied) for copied in (False, True)),
            *(_from(scenarios.launch, copied=copied, rows=2) for copied in (False, True)),
        ),
        (f"batches of one row are run, and of two where copies' sources are parked until launches retire; {UNIFORM}",),
    ),
    Step(
        "retire",
        "What was parked is freed, what is computed is published, rejected drafts leave",
        ("manager.retire", "manager._computed", "manager._roll_back", "manager.publish", "manager.release"),
        (
            scenarios.retire_parked,
            *(_from(scenarios.retire, **choices) for choices in RETIREMENTS),
            _from(scenarios.retire_parked, tables=2, entries=2),
            scenarios.retire_two,
        ),
        (
            "one parked table and two, of one entry and two, one request and two, of one block each, are run; of two, what is "
            "computed fills no block; that every loop goes over all of its collection, turn by turn, is checked on the source",
        ),
    ),
    Step(
        "landed",
        "A load that is there is published, or freed if its request is gone",
        ("manager.landed",),
        (
            *(_from(scenarios.landed, gone=gone) for gone in (False, True)),
            *(_from(scenarios.landed, gone=True, entries=entries) for entries in (2, 3)),
        ),
        ("tables of one to three entries are given back, of one published; " + UNIFORM,),
    ),
    Step(
        "fork",
        "A child holds what it shares, and shares nothing that its parent still writes",
        ("manager.fork", "manager._shared_table", "manager._hold"),
        (
            *(_from(scenarios.fork, in_flight=in_flight) for in_flight in (False, True)),
            *(_from(scenarios.fork, in_flight=in_flight, entries=3) for in_flight in (False, True)),
        ),
        ("tables of two and three entries are run; " + UNIFORM,),
    ),
    Step(
        "publish_full",
        "What is published is full and computed",
        ("manager.publish", "manager._publishable"),
        tuple(_from(scenarios.publish, entries=entries) for entries in (1, 2)),
        (f"tables of one entry are run, and of two where no other block has the hash; {UNIFORM}",),
    ),
    Step(
        "trim",
        "Trimming gives back one holder's entry each",
        ("manager.trim",),
        tuple(_from(scenarios.trim, entries=entries, left=left) for entries, left in ((2, 1), (3, 1), (3, 0))),
        ("tables of two and three entries are run; " + UNIFORM,),
    ),
    Step(
        "release_table",
        "A table is given back entry by entry",
        ("manager.release",),
        tuple(_from(scenarios.release, entries=entries) for entries in (2, 1, 3)),
        (TABLES,),
    ),
    *(
        Step(
            how,
            f"What a request held when it ends ({how}) is freed, or kept as long as work in flight uses it",
            (f"manager.{how}", *_ENDING),
            tuple(_from(scenarios.end, how=how, **choices) for choices in ENDS),
            (
                "at most two launches are run, tables of one entry, and of three where no copy is scheduled and blocks are "
                f"parked until launches retire; {UNIFORM}",
            ),
        )
        for how in ("abort", "finish", "preempt")
    ),
)
