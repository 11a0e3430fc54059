"""Steps of the pool alone: each of its methods, called in any state in which its caller may call it.

Who takes a reference records it in a table, and who gives one back has taken it out of one: here that entry is in the hand
of the caller (`Bench.hand`); the manager's steps have the tables themselves.
"""

from __future__ import annotations

from kvsan.invariants.proofs.protocol.bench import Bench
from kvsan.invariants.proofs.protocol.induction import Step
from kvsan.invariants.proofs.term import both, negation, one_of, same


def allocate(bench: Bench) -> None:
    """A block is taken from the front of a queue that is not empty."""
    bench.require(bench.pool.num_free >= 1)
    bench.begin()
    free = bench.pool.num_free
    unit = bench.pool.allocate()
    bench.hand.append(unit)
    bench.expect("withdrawn", "a block that is given out has no hash any more", negation(bench.is_keyed(unit)))
    bench.expect("fresh", "one block less is free", bench.pool.num_free == free - 1)


def touch(bench: Bench) -> None:
    """One more holder, of a block that is held already or was found by its hash."""
    unit = bench.unit("unit")
    bench.require(bench.is_keyed(unit))
    bench.begin()
    bench.pool.touch(unit)
    bench.hand.append(unit)


def touch_held(bench: Bench) -> None:
    """One more holder, of a block that an entry names which lies in what its request has retired."""
    unit = bench.unit("unit")
    bench.hand.append(unit)
    bench.begin()
    bench.pool.touch(unit)
    bench.hand.append(unit)


def release(bench: Bench) -> None:
    """A holder gives a block back."""
    unit = bench.unit("unit")
    bench.hand.append(unit)
    bench.begin()
    bench.hand.clear()
    bench.pool.release(unit)


def publish(bench: Bench) -> None:
    """A block that is held, has no hash, and is behind nobody's retired tokens becomes findable."""
    unit, key = bench.unit("unit"), bench.key("key")
    bench.hand.append(unit)
    bench.require(negation(bench.is_keyed(unit)))
    bench.begin()
    bench.pool.publish(unit, key)
    bench.expect("findable", "a published block is found under its key", bench.is_keyed(unit))


def withdraw(bench: Bench) -> None:
    """A hash is taken back."""
    unit = bench.unit("unit")
    bench.require(bench.is_keyed(unit))
    bench.begin()
    bench.pool.withdraw(unit)
    bench.expect("withdrawn", "the block has no hash any more", negation(bench.is_keyed(unit)))


def find(bench: Bench) -> None:
    """A key is looked up."""
    key = bench.key("key")
    bench.begin()
    unit = bench.pool.find(key)
    if unit is not None:
        bench.expect("found", "a block that is found has the key as its hash", bench.has_key(unit, key))
    else:
        hidden = one_of(*(bench.has_key(other, key) for other in bench.any_blocks()))
        bench.expect("missed", "what is not found no block has as its hash", negation(hidden))


def front(bench: Bench) -> None:
    """The next block to be given out is asked for."""
    unit = bench.unit("unit")
    bench.begin()
    first = bench.pool.front()
    nothing = bench.pool.num_free == 0
    bench.expect("empty", "there is none if and only if none is free", nothing if first is None else negation(nothing))
    if first is not None:
        longest = both(bench.pool.references[first] == 0, bench.pool._previous[first] == bench.pool.num_units)
        bench.expect("first", "the next block to be given out is nobody's, and none has been free for longer", longest)
    queued = bool(bench.pool.is_queued(unit))
    free = bench.pool.references[unit] == 0
    bench.expect("queued", "a block is queued, by its links, if and only if nobody holds it", same(free, queued))


POOL_STEPS = (
    Step(
        "allocate",
        "Giving a block out evicts what it cached, and nothing else",
        ("pool.allocate", "pool._unlink", "pool.withdraw"),
        (allocate,),
    ),
    Step(
        "touch",
        "Taking a reference takes a cached block out of the free queue",
        ("pool.touch", "pool._unlink"),
        (touch, touch_held),
    ),
    Step(
        "release",
        "The last holder's release queues the block, and no other",
        ("pool.release", "pool.append"),
        (release,),
    ),
    Step("publish", "Publishing adds the block to its key's units", ("pool.publish",), (publish,)),
    Step("find", "A look-up finds a block with the key, if there is one", ("pool.find",), (find,)),
    Step("front", "The pool knows what is free", ("pool.front", "pool.is_queued"), (front,)),
    Step("withdraw", "Withdrawing takes the block, and only it, out of the map", ("pool.withdraw",), (withdraw,)),
)
