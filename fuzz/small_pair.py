"""Short random traces of a pair in tiny pools, made of what a given trace is made of; see ``fuzz/small_world.py``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from kvsan.harness.configuration import Configuration
from kvsan.harness.operations import (
    Abort,
    Advance,
    Complete,
    Expire,
    Fail,
    Finish,
    Launch,
    Operation,
    Preempt,
    Receive,
    Release,
    Retire,
    Schedule,
    Send,
    Submit,
    Tear,
)
from kvsan.harness.pair import CONSUMER, NET_STREAM, PRODUCER

_OF_A_TRANSFER: dict[str, type[Complete | Fail | Tear | Release | Expire]] = {
    kind.__name__: kind for kind in (Complete, Fail, Tear, Release, Expire)
}
_OF_A_REQUEST: dict[str, type[Finish | Abort | Preempt]] = {kind.__name__: kind for kind in (Finish, Abort, Preempt)}
_LENGTHS = (1, 2, 3, 4)
_DRAWS = 9


class SmallPair:
    """Draws traces; ``like`` says which kinds of operation they may use."""

    def __init__(self, configuration: Configuration, like: tuple[Operation, ...], random: Random) -> None:
        self._configuration = configuration
        self._random = random
        present = {type(one).__name__ for one in like}
        self._kinds = ["prefill", "alone", "go on", "go on", "Send", "pull", "pull"]
        self._kinds += [kind for kind in (*_OF_A_TRANSFER, *_OF_A_REQUEST) if kind in present]
        self._kinds += ["Advance"] * ("Advance" in present)

    def traces(self) -> Iterator[tuple[Configuration, tuple[Operation, ...]]]:
        """Draw for ever."""
        random, given = self._random, self._configuration
        while True:
            num_units = min(given.num_units, random.choice((2, 3, 4, 5, 7)))
            block_size = min(given.block_size, random.choice((1, 2, 2, 3)))
            yield replace(given, num_units=num_units, block_size=block_size), tuple(self._draw_operations())

    def _draw_operations(self) -> Iterator[Operation]:
        self._prompts: dict[str, int] = {}
        self._pools: dict[str, str] = {}
        self._transfers: dict[str, str] = {}
        self._unretired: dict[str, list[str]] = {PRODUCER: [], CONSUMER: []}
        self._launches = 0
        self._retires = {PRODUCER: 0.9, CONSUMER: self._random.choice((0.1, 0.5, 0.9))}
        yield from self._compute(PRODUCER)
        for _ in range(_DRAWS):
            kind = self._random.choice(self._kinds)
            if kind == "prefill":
                yield from self._compute(PRODUCER)
            elif kind == "alone":
                yield from self._compute(CONSUMER)
            elif kind == "go on":
                r = self._random.choice(list(self._pools))
                yield Schedule(r, self._random.choice((1, 1, 2)))
                yield from self._launch(self._pools[r])
            else:
                yield from self._exchange(kind)

    def _exchange(self, kind: str) -> Iterator[Operation]:
        random = self._random
        if kind == "Advance":
            yield Advance(random.choice((NET_STREAM, f"{PRODUCER}.compute", f"{CONSUMER}.compute")))
        elif kind in _OF_A_REQUEST:
            yield _OF_A_REQUEST[kind](random.choice(list(self._pools)))
        elif kind == "Send" or not self._transfers:
            t = f"t{len(self._transfers) + 1}"
            self._transfers[t] = random.choice([r for r, pool in self._pools.items() if pool == PRODUCER])
            yield Send(t, self._transfers[t])
        elif kind == "pull":
            t = random.choice(list(self._transfers)[-2:])
            r = self._submitted(CONSUMER)
            yield Submit(r, ((self._prompts[self._transfers[t]], random.choice(_LENGTHS) + 1),), at=CONSUMER)
            yield Receive(t, r)
        else:
            yield _OF_A_TRANSFER[kind](random.choice(list(self._transfers)[-2:]))

    def _submitted(self, pool: str) -> str:
        r = f"r{len(self._pools) + 1}"
        self._pools[r] = pool
        return r

    def _compute(self, pool: str) -> Iterator[Operation]:
        """A request arrives and computes its prompt, of a family that says whose it is."""
        r, length = self._submitted(pool), self._random.choice(_LENGTHS)
        self._prompts[r] = self._random.choice((0, 0, 1)) if pool == PRODUCER else self._random.choice((0, 2))
        yield Submit(r, ((self._prompts[r], length),), at=pool)
        yield Schedule(r, length)
        yield from self._launch(pool)

    def _launch(self, pool: str) -> Iterator[Operation]:
        random = self._random
        if random.random() < 0.8:
            self._launches += 1
            self._unretired[pool].append(f"b{self._launches}")
            yield Launch(f"b{self._launches}", pool)
        while self._unretired[pool] and random.random() < self._retires[pool]:
            yield Retire(self._unretired[pool].pop(0))
