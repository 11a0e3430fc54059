"""Which chunks go to make room: the least recently used, or what an adaptive replacement cache (ARC) would let go.

A policy knows keys and nothing of places, pins or transfers; what must stay it asks of a predicate. ``admit`` is one call
because in ARC a chunk that comes back decides, by the list that remembers it, who goes::

        evicted <- B1 <- [ T1 ]  |  [ T2 ] -> B2 -> evicted        T1 seen once, T2 seen again; B1, B2 remember keys only
                         ^ new      ^ used again
                           |T1| is steered towards a target: up by a return from B1, down by a return from B2

After Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache", FAST 2003, figure 4. Where it deviates:

- **Batches.** Several chunks are admitted in one call, as if one after the other, but a chunk of the batch is never the
  victim of a later one: a batch that evicts its own head would be stored in vain. Ghosts are trimmed when all are in.
- **All or nothing.** Victims are chosen on a simulated state, and only a batch that fits changes anything. The paper's
  request cannot fail.
- **Chunks that must stay.** Chunks that are not evictable are passed over in their list; when a list has no other, the
  victim comes from the other list, though the target says otherwise.
- **Free places.** Chunks are also forgotten without an eviction (a failed write, a damaged copy), so a place may be free
  after the start-up phase; then nobody is evicted. A chunk forgotten so leaves no ghost: its going says nothing of its use.
- **Hits and admissions are separate calls.** A hit of the paper is ``touch``, a miss is ``admit``; a look-up that misses
  and is not followed by a store teaches nothing.

Costs are O(1) amortised for each key, and one step for each chunk that must stay and is passed over.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from typing import Protocol

Evictable = Callable[[str], bool]

_Keys = OrderedDict[str, None]  # least recently used first; a dict would pay for every hole left at its front


class EvictionPolicy(Protocol):
    """Order in which chunks leave a tier. Every key is admitted before it is touched or removed."""

    def admit(self, keys: Sequence[str], victims: int, evictable: Evictable) -> tuple[str, ...] | None:
        """Take in distinct new keys, as just used, for which ``victims`` others go; None and no change if too few may."""

    def touch(self, key: str) -> None:
        """Note that a key was used."""

    def remove(self, key: str) -> None:
        """Forget a key that left for another reason than room."""

    def clear(self) -> None:
        """Forget everything."""

    def resident(self) -> Collection[str]:
        """Keys that are there."""


class Lru:
    """Least recently used goes first."""

    __slots__ = ("_order",)

    def __init__(self) -> None:
        self._order: _Keys = OrderedDict()

    def admit(self, keys: Sequence[str], victims: int, evictable: Evictable) -> tuple[str, ...] | None:
        """Walk from the least recently used key on."""
        chosen = tuple(islice(filter(evictable, self._order), victims))
        if len(chosen) < victims:
            return None
        for key in chosen:
            del self._order[key]
        self._order.update(dict.fromkeys(keys))
        return chosen

    def touch(self, key: str) -> None:
        """Move to the end."""
        self._order.move_to_end(key)

    def remove(self, key: str) -> None:
        """Forget; KeyError if it is not there."""
        del self._order[key]

    def clear(self) -> None:
        """Forget everything."""
        self._order.clear()

    def resident(self) -> Collection[str]:
        """Least recently used first."""
        return self._order.keys()


class Arc:
    """Adaptive replacement cache of ``capacity`` keys, which remembers as many more that have gone."""

    __slots__ = ("_capacity", "_ghosts_once", "_ghosts_twice", "_once", "_target", "_twice")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._target = 0.0
        self._once: _Keys = OrderedDict()
        self._twice: _Keys = OrderedDict()
        self._ghosts_once: _Keys = OrderedDict()
        self._ghosts_twice: _Keys = OrderedDict()

    def admit(self, keys: Sequence[str], victims: int, evictable: Evictable) -> tuple[str, ...] | None:
        """Take the keys in one by one: a ghost moves the target, then a victim goes if there is no place left."""
        target, once = self._target, len(self._once)
        ghosts = [len(self._ghosts_once), len(self._ghosts_twice)]
        candidates = {True: filter(evictable, self._once), False: filter(evictable, self._twice)}
        chosen: list[str] = []
        for position, key in enumerate(keys):
            target = self._steer(target, key, ghosts)
            if position >= len(keys) - victims:
                from_once = self._from_once(once, target, key)
                victim = next(candidates[from_once], None) or next(candidates[not from_once], None)
                if victim is None:
                    return None
                chosen.append(victim)
                once -= victim in self._once
                ghosts[victim not in self._once] += 1
            once += not self._is_ghost(key)
        self._target = target
        self._let_go(chosen)
        self._take_in(keys)
        return tuple(chosen)

    def _is_ghost(self, key: str) -> bool:
        return key in self._ghosts_once or key in self._ghosts_twice

    def _steer(self, target: float, key: str, ghosts: list[int]) -> float:
        """Move the target towards the list whose ghost came back, and take that ghost off their numbers."""
        once, twice = ghosts
        if key in self._ghosts_once:
            ghosts[0] -= 1
            return min(float(self._capacity), target + max(1.0, twice / once))
        if key in self._ghosts_twice:
            ghosts[1] -= 1
            return max(0.0, target - max(1.0, once / twice))
        return target

    def _from_once(self, once: int, target: float, key: str) -> bool:
        """REPLACE of the paper: whether the victim is one that was seen once only."""
        return once > 0 and (once > target or (once == target and key in self._ghosts_twice))

    def _let_go(self, victims: Sequence[str]) -> None:
        for key in victims:
            if key in self._once:
                del self._once[key]
                self._ghosts_once[key] = None
            else:
                del self._twice[key]
                self._ghosts_twice[key] = None

    def _take_in(self, keys: Sequence[str]) -> None:
        for key in keys:
            (self._twice if self._is_ghost(key) else self._once)[key] = None
            self._ghosts_once.pop(key, None)
            self._ghosts_twice.pop(key, None)
        self._trim_ghosts()

    def _trim_ghosts(self) -> None:
        """At most ``capacity`` keys seen once, there or gone, and twice the capacity in all."""
        while self._ghosts_once and len(self._once) + len(self._ghosts_once) > self._capacity:
            self._ghosts_once.popitem(last=False)
        seen_once, there = len(self._once) + len(self._ghosts_once), len(self._twice)
        while self._ghosts_twice and seen_once + there + len(self._ghosts_twice) > 2 * self._capacity:
            self._ghosts_twice.popitem(last=False)

    def touch(self, key: str) -> None:
        """A second use makes it one of those that were seen again."""
        if key in self._once:
            del self._once[key]
            self._twice[key] = None
        else:
            self._twice.move_to_end(key)

    def remove(self, key: str) -> None:
        """Forget without a ghost; KeyError if it is not there."""
        del (self._once if key in self._once else self._twice)[key]

    def clear(self) -> None:
        """Forget everything, ghosts and target too."""
        for keys in (self._once, self._twice, self._ghosts_once, self._ghosts_twice):
            keys.clear()
        self._target = 0.0

    def resident(self) -> Collection[str]:
        """Seen once first, each list least recently used first."""
        return [*self._once, *self._twice]

    def remembered(self) -> tuple[Collection[str], Collection[str]]:
        """Ghosts: keys that went after one use, and after more."""
        return self._ghosts_once.keys(), self._ghosts_twice.keys()
