"""Sequences of calls on one vLLM release, in a process of its own; prints what was seen as JSON."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from typing import Any

from kvsan.harness.configuration import Configuration, OptionValue
from kvsan.harness.operations import Adapter
from kvsan.harness.target import Request, Result
from kvsan.harness.verdict import UsageError
from kvsan.models_under_test.engines.vllm import VllmTarget, make_target

VERSION = sys.argv[1]
HYBRID = ("full", "sliding:8")


def made(groups: tuple[str, ...] = ("full",), units: int = 33, **options: OptionValue) -> VllmTarget:
    chosen = tuple(sorted(options.items()))
    return make_target(Configuration(f"vllm@{VERSION}", units, 4, groups, options=chosen))


def refusal(groups: tuple[str, ...] = ("full",), **options: OptionValue) -> str:
    try:
        made(groups, **options)
    except UsageError as error:
        return str(error)
    return ""


def prefill(target: VllmTarget, request: Request) -> int:
    """Submit, look up, compute the whole prompt, sample one token; return the hit."""
    target.submit(request)
    hit = target.lookup(request.name)
    rest = len(request.tokens) - hit
    assert target.schedule(request.name, rest, 0, 0, False) is not None
    step(target, [Result(request.name, len(request.tokens), 0, [7])])
    return hit


def step(target: VllmTarget, results: list[Result]) -> None:
    target.launch("b")
    target.retire("b", results)


def units_of(target: VllmTarget, name: str) -> list[int]:
    return [unit for table in target.view().tables(name) for unit in table if unit]


def disagreements(target: VllmTarget) -> list[str]:
    """Places where parts of the view contradict each other."""
    view = target.view()
    held = Counter(unit for name in view.requests() for unit in units_of(target, name))
    queue = list(view.free_queue())
    found = [f"unit {u} count" for u in range(1, len(view.ref_counts())) if view.ref_count(u) != held[u]]
    found += [f"unit {u} free" for u in range(1, len(view.ref_counts())) if view.is_free(u) != (u in queue)]
    found += [f"unit {u} held and free" for u in queue if held[u]]
    found += [f"key of {u}" for key in list(view.keys()) for u in view.published(key) if view.key(u) != key]
    found += ["length of the queue"] if view.num_free() != len(queue) else []
    return found + (["front of the queue"] if queue and view.free_front() != queue[0] else [])


def sharing() -> dict[str, Any]:
    target = made()
    first = prefill(target, Request("a", range(10)))
    second = prefill(target, Request("b", [*range(8), 50, 51]))
    shared = target.view().tables("a")[0][:2] == target.view().tables("b")[0][:2]
    seen = {"hits": [first, second], "shared": shared, "keys": len(list(target.view().keys()))}
    target.finish("a")
    target.abort("b")
    seen |= {"free": target.view().num_free(), "left": sorted(target.view().requests())}
    return seen | {"reset": target.reset_prefix_cache(), "keys_after": len(list(target.view().keys()))}


def preemption() -> list[int]:
    target = made()
    prefill(target, Request("a", range(12)))
    target.preempt("a")
    held = len(units_of(target, "a"))
    hit = target.lookup("a")
    admitted = target.schedule("a", 13 - hit, 0, 0, False)
    assert admitted is not None
    return [held, hit, admitted.hit]


def refused() -> bool:
    target = made(units=5)
    target.submit(Request("a", range(40)))
    return target.schedule("a", 40, 0, 0, False) is None and target.view().num_free() == 4


def loading() -> list[int]:
    """Published units before and after a delayed load has landed."""
    target = made()
    target.submit(Request("a", range(14)))
    assert target.schedule("a", 0, 0, 8, True) is not None
    before = len(list(target.view().keys()))
    target.landed("a")
    return [before, len(list(target.view().keys()))]


def in_flight_abort(**options: OptionValue) -> list[int]:
    """Free units while the aborted request's step is in flight, and after it."""
    target = made(**options)
    target.submit(Request("a", range(10)))
    assert target.schedule("a", 10, 0, 0, False) is not None
    target.launch("b1")
    target.abort("a")
    free = target.view().num_free()
    target.retire("b1", [])
    return [free, target.view().num_free()]


def walk(groups: tuple[str, ...], seed: int) -> list[str]:
    """Random steps one at a time; the ledger must name all that changed, and no part of the view contradict another."""
    draw, target = random.Random(seed), made(groups)
    tokens: dict[str, int] = {}
    before = snapshot(target)
    for number in range(120):
        name = draw.choice([*tokens, ""])
        if not name:
            name = f"r{number}"
            tokens[name] = draw.randrange(2, 30)
            family = draw.randrange(3)
            target.submit(Request(name, [family * 99 + at for at in range(tokens[name])]))
        elif draw.random() < 0.2:
            target.finish(name)
            del tokens[name]
        else:
            start = target.lookup(name) if not units_of(target, name) else tokens[name] - 1
            if target.schedule(name, tokens[name] - start, 0, 0, False) is not None:
                step(target, [Result(name, tokens[name], 0, [draw.randrange(2)])])
                tokens[name] += 1
            elif units_of(target, name):
                target.preempt(name)
        after, delta = snapshot(target), target.delta()
        untold = [
            str(key) for key in after if after[key] != before.get(key) and key not in {*delta.units, *delta.requests}
        ]
        if found := disagreements(target) + [f"{key} changed untold" for key in untold]:
            return found
        before = after
    return []


def snapshot(target: VllmTarget) -> dict[int | str, object]:
    view = target.view()
    units: dict[int | str, object] = {
        unit: (view.ref_count(unit), view.key(unit), view.is_free(unit)) for unit in range(1, len(view.ref_counts()))
    }
    return units | {name: view.tables(name) for name in view.requests()}


class Published:
    """A request's published blocks, asked of vLLM's own hash map."""

    block_size = 4

    def __init__(self, target: VllmTarget, name: str) -> None:
        manager: Any = target._manager
        request = target._requests[name].request
        hashes = request.block_hashes if hasattr(request, "block_hashes") else manager.req_to_block_hashes[name]
        self._pool, self._hashes = manager.block_pool, hashes
        self._grouped = hasattr(manager, "coordinator")

    def has(self, group: int, block: int) -> bool:
        arguments = (self._hashes[block], [group]) if self._grouped else (self._hashes[block],)
        return self._pool.get_cached_block(*arguments) is not None


def promises(groups: tuple[str, ...], eagle: bool, seed: int) -> list[int]:
    """Count look-ups that gave less than promised, and look-ups, under eviction."""
    draw, target = random.Random(seed), made(groups, eagle=eagle, drafts=0)
    broken = looked_up = 0
    for number in range(150):
        family = draw.randrange(4)
        prompt = [family * 99 + at for at in range(draw.randrange(2, 50))]
        target.submit(Request(f"r{number}", prompt))
        hit = target.lookup(f"r{number}")
        promised = target.traits.promised_hit
        assert promised is not None
        broken += hit < promised(Published(target, f"r{number}"), len(prompt))
        looked_up += 1
        if target.schedule(f"r{number}", len(prompt) - hit, 0, 0, False) is not None:
            step(target, [Result(f"r{number}", len(prompt), 0, [1])])
        target.finish(f"r{number}")
    return [broken, looked_up]


def double_ownership() -> bool | None:
    """vLLM 33775, 44409: a local hit and external tokens, two groups; None where the scheduler does not do that."""
    if refusal(HYBRID):
        return None
    target = made(("full", "sliding:64"))
    if not target.traits.allows.external:  # type: ignore[attr-defined]
        return None
    for name, prompt in (("a", range(17)), ("c", range(500, 544))):
        prefill(target, Request(name, prompt))
        target.finish(name)
    target.submit(Request("b", [*range(16), *range(900, 930)]))
    assert target.lookup("b") == 16
    target.schedule("b", 14, 0, 16, False)
    units = units_of(target, "b")
    return len(units) != len(set(units))


def shared_between(salt: str, first: Adapter | None, second: Adapter | None) -> int:
    target = made()
    prefill(target, Request("a", range(12), adapter=first))
    return prefill(target, Request("b", range(12), salt, second))


def main() -> None:
    kinds = [groups for groups in (("full",), ("sliding:8",), HYBRID) if not refusal(groups)]
    target = made()
    seen = {
        "sharing": sharing(),
        "preemption": preemption(),
        "refused": refused(),
        "loading": loading() if target.traits.allows.delayed else None,  # type: ignore[attr-defined]
        "in_flight_abort": in_flight_abort(),
        "in_flight_abort_consumer": None if refusal(kv_consumer=True) else in_flight_abort(kv_consumer=True),
        "walks": {"+".join(groups): [found for seed in range(4) for found in walk(groups, seed)] for groups in kinds},
        "promises": {
            f"{'+'.join(groups)}{' eagle' if eagle else ''}": promises(groups, eagle, 1)
            for groups in kinds
            for eagle in (False, True)
        },
        "double_ownership": double_ownership(),
        "adapter_as_salt": shared_between("X", Adapter("X", 7), None) if target.traits.salts else None,
        "adapter_ids": shared_between("", Adapter("X", 7), Adapter("X", 8)),
        "adapter_or_none": shared_between("", Adapter("X", 7), None),
        "second_release": refusal_of_other_release(),
        "unknown_option": refusal(speed=3),
        "many_groups": refusal(("full", "sliding:8", "full")),
    }
    print(json.dumps(seen))


def refusal_of_other_release() -> str:
    try:
        make_target(Configuration("vllm@0.0.1"))
    except UsageError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main()
