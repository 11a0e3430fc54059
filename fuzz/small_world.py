"""Short random traces in tiny pools, made of what a given trace is made of.

Taking things away from a trace cannot exchange one way to a state for a shorter one: eviction under pressure for a reset of
the cache, two requests for one that is preempted. Blind draws can, and cost little: what a target cannot do at that moment
is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

from kvsan.harness.configuration import Configuration
from kvsan.harness.operations import (
    Abort,
    Adapter,
    Cancel,
    Complete,
    Fail,
    Finish,
    Fork,
    Landed,
    Launch,
    Load,
    Lookup,
    Media,
    Offload,
    Operation,
    Outcome,
    Preempt,
    ResetPrefixCache,
    Restart,
    Retire,
    Schedule,
    Segment,
    Spoil,
    Submit,
    Tear,
)
from kvsan.harness.tiers import HOST_TIER

_ALWAYS = ("Submit", "Schedule", "Schedule", "Schedule", "Launch")
_SOMETIMES = ("Finish", "Abort", "Preempt", "Fork", "Cancel", "Lookup", "Landed", "ResetPrefixCache")

_TRANSFERS = ("Offload", "Load", "Complete", "Fail", "Tear", "Spoil", "Restart")

_OF_ONE_REQUEST: dict[str, Callable[[str], Operation]] = {
    "Finish": Finish,
    "Abort": Abort,
    "Preempt": Preempt,
    "Lookup": Lookup,
    "Landed": Landed,
}


class SmallWorld:
    """Draws traces; ``like`` says which kinds of operation and which arguments they may use."""

    def __init__(self, configuration: Configuration, like: tuple[Operation, ...], random: Random) -> None:
        self._configuration = configuration
        self._random = random
        submits = [one for one in like if isinstance(one, Submit)]
        schedules = [one for one in like if isinstance(one, Schedule)]
        self._salts = sorted({one.salt for one in submits}) or [""]
        self._adapters: list[Adapter | None] = [None, *sorted({a for one in submits if (a := one.adapter)})]
        self._media: list[tuple[Media, ...]] = sorted({one.media for one in submits}) or [()]
        self._families = sorted({s[0] for one in submits for s in one.prompt if isinstance(s[0], int)})[:2] or [0]
        self._external = any(one.external for one in schedules)
        self._delayed = any(one.delayed for one in schedules)
        self._lookahead = any(one.lookahead for one in schedules)
        self._outcomes = any(isinstance(one, Retire) and one.outcome for one in like)
        self._present = {type(one).__name__ for one in like}
        self._faults = [one for one in like if isinstance(one, Spoil | Restart)]
        self._tiers = sorted({one.tier for one in like if isinstance(one, Offload)}) or [HOST_TIER]
        self._kinds: list[str] = []
        self._pool_tokens = 1

    def traces(self) -> Iterator[tuple[Configuration, tuple[Operation, ...]]]:
        """Draw for ever."""
        while True:
            self._kinds = [*_ALWAYS, *(kind for kind in _SOMETIMES if self._random.random() < self._share(kind))]
            self._kinds += [kind for kind in _TRANSFERS if kind in self._present]
            configuration = self._draw_configuration()
            self._pool_tokens = (configuration.num_units - 1) * configuration.block_size
            yield configuration, tuple(self._draw_operations())

    def _share(self, kind: str) -> float:
        """How many of the traces may have a kind of operation."""
        return 0.7 if kind in self._present else 0.3

    def _draw_configuration(self) -> Configuration:
        random = self._random
        num_units = min(self._configuration.num_units, random.choice((2, 3, 4, 5, 6, 7, 9)))
        block_size = min(self._configuration.block_size, random.choice((1, 1, 2, 3)))
        return replace(self._configuration, num_units=num_units, block_size=block_size)

    def _draw_operations(self) -> Iterator[Operation]:
        random = self._random
        self._requests: list[str] = []
        self._launches = 0
        self._unretired: list[str] = []
        self._transfers: list[str] = []
        yield self._submit()
        for _ in range(12 if self._faults or "Offload" in self._present else 10):
            kind = random.choice(self._kinds)
            if kind == "Schedule":
                yield self._schedule(random.choice(self._requests))
                if random.random() < 0.7:
                    yield from self._launch()
            elif kind == "Launch":
                yield from self._launch()
            elif kind == "Submit":
                yield self._submit()
                yield self._schedule(self._requests[-1])
            else:
                yield self._other(kind)

    def _submit(self) -> Submit:
        random = self._random
        self._requests.append(f"r{len(self._requests) + 1}")
        prompt: list[Segment] = [(random.choice(self._families), random.choice((1, 2, 3, 4, self._pool_tokens)))]
        if len(self._families) > 1 and random.random() < 0.5:
            prompt.append((random.choice(self._families), random.choice((1, 2, 3))))
        salt, adapter, media = random.choice(self._salts), random.choice(self._adapters), random.choice(self._media)
        return Submit(self._requests[-1], tuple(prompt), salt, adapter, media)

    def _schedule(self, r: str) -> Schedule:
        random = self._random
        external = random.choice((0, 1, 2)) if self._external else 0
        lookahead = random.choice((0, 1, 2)) if self._lookahead else 0
        delayed = external > 0 and self._delayed and random.random() < 0.5
        return Schedule(
            r, random.choice((1, 1, 2, 3, self._pool_tokens, self._pool_tokens)), lookahead, external, delayed
        )

    def _launch(self) -> Iterator[Operation]:
        random = self._random
        self._launches += 1
        self._unretired.append(f"b{self._launches}")
        yield Launch(self._unretired[-1])
        while self._unretired and random.random() < 0.8:
            yield Retire(self._unretired.pop(0), self._outcome())

    def _outcome(self) -> tuple[Outcome, ...]:
        random = self._random
        if not self._outcomes or random.random() < 0.5:
            return ()
        return (Outcome(random.choice(self._requests), random.choice((0, 0, 1)), random.choice((0, 1))),)

    def _other(self, kind: str) -> Operation:
        r = self._random.choice(self._requests)
        if kind == "Fork":
            self._requests.append(f"r{len(self._requests) + 1}")
            return Fork(r, self._requests[-1])
        if kind == "Cancel":
            return Cancel()
        if kind == "ResetPrefixCache":
            return ResetPrefixCache()
        if kind in _TRANSFERS:
            return self._transfer(kind, r)
        return _OF_ONE_REQUEST[kind](r)

    def _transfer(self, kind: str, r: str) -> Operation:
        """A transfer begins, or something happens to one of the last two."""
        if kind in ("Spoil", "Restart"):
            return self._random.choice([one for one in self._faults if type(one).__name__ == kind])
        if kind == "Offload" or not self._transfers:
            self._transfers.append(f"t{len(self._transfers) + 1}")
            return Offload(self._transfers[-1], r, self._random.choice(self._tiers))
        if kind == "Load":
            self._transfers.append(f"t{len(self._transfers) + 1}")
            return Load(self._transfers[-1], r)
        t = self._random.choice(self._transfers[-2:])
        return Fail(t) if kind == "Fail" else Tear(t) if kind == "Tear" else Complete(t)
