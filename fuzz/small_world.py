"""Short random traces in tiny pools, made of what a given trace is made of.

Taking things away from a trace cannot exchange one way to a state for a shorter one: eviction under pressure for a reset of
the cache, two requests for one that is preempted. Blind draws can, and cost little: what a target cannot do at that moment
is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

from kvsan.fuzz.profiles import ASYNC
from kvsan.harness.configuration import Configuration, OptionValue
from kvsan.harness.operations import (
    Abort,
    Adapter,
    Cancel,
    Capture,
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
    Replay,
    ResetPrefixCache,
    Restart,
    Retire,
    Schedule,
    Segment,
    Spoil,
    Submit,
    Tear,
)
from kvsan.harness.registry import takes_reference_options
from kvsan.harness.tiers import HOST_TIER

_ALWAYS = ("Submit", "Schedule", "Schedule", "Schedule", "Launch")
_SOMETIMES = ("Finish", "Abort", "Preempt", "Fork", "Cancel", "Lookup", "Landed", "ResetPrefixCache")

_PREPARED = 0.7
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
        self._loses = bool(configuration.option("remote_loses", 0))
        self._has_faults = self._loses or not {"Tear", "Spoil", "Restart"}.isdisjoint(self._present)
        self._graphs = list(dict.fromkeys(one for one in like if isinstance(one, Capture)))[:2]
        self._tiers = sorted({one.tier for one in like if isinstance(one, Offload)}) or [HOST_TIER]
        self._resets = dict(ASYNC.options)["reset_reaches"] if takes_reference_options(configuration.target) else ()
        self._kinds: list[str] = []
        self._pool_tokens = self._chunk_tokens = 1
        self._reach: OptionValue = ""
        self._evicts = False

    def traces(self) -> Iterator[tuple[Configuration, tuple[Operation, ...]]]:
        """Draw for ever."""
        while True:
            self._kinds = [*_ALWAYS, *(kind for kind in _SOMETIMES if self._random.random() < self._share(kind))]
            self._kinds += [
                kind for kind in _TRANSFERS if kind in self._present or (kind == "Fail" and self._has_faults)
            ]
            self._kinds += ["Replay"] * 3 if self._graphs else []
            configuration = self._draw_configuration()
            self._pool_tokens = (configuration.num_units - 1) * configuration.block_size
            chunk_blocks = configuration.option("chunk_blocks", 1)
            assert isinstance(chunk_blocks, int)
            self._chunk_tokens = chunk_blocks * configuration.block_size
            yield configuration, tuple(self._draw_operations())

    def _share(self, kind: str) -> float:
        """How many of the traces may have a kind of operation."""
        return 0.7 if kind in self._present else 0.3

    def _draw_configuration(self) -> Configuration:
        random = self._random
        num_units = min(self._configuration.num_units, random.choice((2, 3, 4, 5, 6, 7, 9)))
        block_size = min(self._configuration.block_size, random.choice((1, 1, 2, 3)))
        options = self._draw_tiers() if "Offload" in self._present and self._resets else self._configuration.options
        drawn = replace(self._configuration, num_units=num_units, block_size=block_size, options=options)
        self._evicts = "Load" in self._present and not self._resets and random.random() < _PREPARED
        if not self._evicts:
            return drawn
        places = drawn.option("host_units", 0)
        assert isinstance(places, int)  # a prompt that fills the pool shall fill the host too
        return replace(drawn, num_units=min(self._configuration.num_units, places + 1)) if places else drawn

    def _draw_tiers(self) -> tuple[tuple[str, OptionValue], ...]:
        """Small tiers, and a reset that leaves some of them full: the shortest way to a load."""
        random = self._random
        options = dict(self._configuration.options)
        chunk_blocks = options.get("chunk_blocks", 1)
        assert isinstance(chunk_blocks, int)
        options["chunk_blocks"] = chunk_blocks = min(chunk_blocks, random.choice((1, 1, 2, 3)))
        options["host_units"] = chunk_blocks * random.choice((1, 2, 3))
        options["store_chunks"] = random.choice((1, 2, 3))
        if self._loses:
            options["remote_loses"] = random.choice((1, 7))
        last = 1 if "Load" in self._present and random.random() < _PREPARED else 0
        options["reset_reaches"] = self._reach = random.choice(self._resets[: len(self._resets) - last])
        return tuple(sorted(options.items()))

    def _draw_operations(self) -> Iterator[Operation]:
        random = self._random
        self._requests: list[str] = []
        self._launches = 0
        self._unretired: list[str] = []
        self._transfers: list[str] = []
        yield from self._graphs
        if "Offload" in self._present and random.random() < _PREPARED:
            yield from self._prepare()
        else:
            yield self._submit()
        for _ in range(12 if self._faults or "Offload" in self._present else 10):
            kind = random.choice(self._kinds)
            if kind == "Schedule":
                yield self._schedule(random.choice(self._requests))
                if random.random() < 0.7:
                    yield from self._launch()
            elif kind in ("Launch", "Replay"):
                if kind == "Replay":
                    yield from self._decode()
                yield from self._launch()
            elif kind == "Submit":
                yield self._submit()
                yield self._schedule(self._requests[-1])
            else:
                yield self._other(kind)

    def _prepare(self) -> Iterator[Operation]:
        """The first prompt goes down; where there are loads it is forgotten above the tier that it reached, and comes again."""
        random = self._random
        submit = self._submit()
        first = submit.r
        tokens = min(random.choice((1, 1, 2, 3)) * self._chunk_tokens, self._pool_tokens - 1)
        yield replace(submit, prompt=((self._families[0], max(1, tokens)),))
        yield Schedule(first, self._pool_tokens)
        if random.random() < 0.3:
            yield self._submit()
            yield self._schedule(self._requests[-1])
        yield from self._launch_and_retire()
        stores = [tier for tier in self._tiers if tier != HOST_TIER]
        needed = self._evicts or self._reach == "host"
        tiers = [HOST_TIER, *(tier for tier in stores if needed or random.random() < 0.3)]
        loads = "Load" in self._present
        for tier in tiers:
            t = self._fresh_transfer()
            yield Offload(t, first, tier)
            if loads or tier != tiers[-1] or random.random() < 0.5:
                yield Complete(t)
        if loads:
            yield from self._evict(first) if self._evicts else self._come_again(first)
            yield from self._end()
        elif random.random() < 0.5:
            yield from self._another_goes_down()

    def _another_goes_down(self) -> Iterator[Operation]:
        """Another prompt follows the first into the host, and may take its place."""
        submit = self._submit()
        yield replace(submit, prompt=((max(self._families) + 1, self._chunk_tokens),))
        yield Schedule(submit.r, self._pool_tokens)
        yield from self._launch_and_retire()
        yield Offload(self._fresh_transfer(), submit.r)

    def _evict(self, first: str) -> Iterator[Operation]:
        """Where a reset may empty every tier: another prompt takes the place of the first in the pool and in the host."""
        yield Preempt(first)
        submit = self._submit()
        yield replace(submit, prompt=((max(self._families) + 1, self._pool_tokens),))
        yield Schedule(submit.r, self._pool_tokens)
        yield from self._launch_and_retire()
        t = self._fresh_transfer()
        yield from (Offload(t, submit.r), Complete(t))
        yield Finish(submit.r)
        yield Load(self._fresh_transfer(), first)

    def _come_again(self, first: str) -> Iterator[Operation]:
        random = self._random
        yield ResetPrefixCache()
        if random.random() < 0.2:  # and its blocks are still written
            self._launches += 1
            self._unretired.append(f"b{self._launches}")
            yield from (Schedule(first, 1), Launch(self._unretired[-1]))
        if random.random() < 0.8:
            yield Preempt(first)
        if random.random() < 0.2:  # so that the device has a part of it
            yield Schedule(first, 1)
            yield from self._launch_and_retire()
            yield Preempt(first)
        yield Load(self._fresh_transfer(), first)

    def _end(self) -> Iterator[Operation]:
        """Sometimes the load fails, or is over, before anything else happens."""
        random, t = self._random, self._transfers[-1]
        if "Fail" in self._kinds and random.random() < 0.5:
            yield random.choice((Fail, Tear))(t)
        if random.random() < 0.3:
            yield Complete(t)

    def _launch_and_retire(self) -> Iterator[Operation]:
        self._launches += 1
        yield from (Launch(f"b{self._launches}"), Retire(f"b{self._launches}"))

    def _fresh_transfer(self) -> str:
        self._transfers.append(f"t{len(self._transfers) + 1}")
        return self._transfers[-1]

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

    def _decode(self) -> Iterator[Operation]:
        """A token more for one request or two, as a graph takes it."""
        some = self._random.sample(self._requests, min(len(self._requests), self._random.choice((1, 2))))
        yield from (Schedule(r, 1) for r in some)

    def _launch(self) -> Iterator[Operation]:
        random = self._random
        self._launches += 1
        self._unretired.append(f"b{self._launches}")
        if self._graphs and random.random() < 0.6:  # a batch that does not fit is launched
            yield Replay(self._unretired[-1], random.choice(self._graphs).g)
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
            return Offload(self._fresh_transfer(), r, self._random.choice(self._tiers))
        if kind == "Load":
            return Load(self._fresh_transfer(), r)
        t = self._random.choice(self._transfers[-2:])
        return Fail(t) if kind == "Fail" else Tear(t) if kind == "Tear" else Complete(t)
