"""The reference manager's tiers, one decision at a time."""

from __future__ import annotations

import subprocess
import sys

from kvsan.harness.configuration import Configuration, OptionValue
from kvsan.harness.operations import Adapter
from kvsan.harness.target import Copy, Request, Result
from kvsan.harness.tiers import Get, Put
from kvsan.models_under_test.paged import PagedManager, make_target


def tiered(num_units: int = 12, block_size: int = 2, **options: OptionValue) -> PagedManager:
    given = {"host_units": 8, "stores": "disk", **options}
    return make_target(Configuration(num_units=num_units, block_size=block_size, options=tuple(given.items())))


def prefilled(manager: PagedManager, name: str, tokens: list[int], **key: object) -> None:
    manager.submit(Request(name, tokens, **key))  # type: ignore[arg-type]
    hit = manager.lookup(name)
    assert manager.schedule(name, len(tokens) - hit, 0, 0, False) is not None
    manager.launch(f"prefill of {name}")
    manager.retire(f"prefill of {name}", [Result(name, len(tokens), 0, [900])])


def gone_down(manager: PagedManager, tokens: list[int], *tiers: str) -> None:
    """Leave the chunks of a prompt in tiers, and nothing on the device."""
    prefilled(manager, "old", tokens)
    for tier in tiers:
        assert manager.offload(f"to {tier}", "old", tier) is not None
        manager.complete(f"to {tier}", True)
    manager.finish("old")
    for unit, key in enumerate(manager.pool.keys):
        if key is not None:
            manager.pool.withdraw(unit)


def test_only_whole_chunks_of_what_has_retired_go_down() -> None:
    manager = tiered(chunk_blocks=2)
    prefilled(manager, "a", list(range(11)))  # five full blocks, two full chunks
    manager.schedule("a", 5, 0, 0, False)  # what is only scheduled does not count
    granted = manager.offload("t", "a", "host")
    assert granted is not None
    assert [(chunk.block, len(chunk.units)) for chunk in granted.chunks] == [(0, 2), (2, 2)]
    assert [effect.source for effect in granted.effects if isinstance(effect, Copy)] == manager.requests["a"].table[:4]


def test_copies_down_wait_for_compute_and_copies_up_for_their_chunk() -> None:
    manager = tiered(deferred_free=False)
    gone_down(manager, [1, 2, 3], "host", "disk")
    for entry in manager.tiers.entries("host"):
        manager.tiers.host.drop(entry.key)
    manager.submit(Request("b", [1, 2, 3]))
    manager.lookup("b")
    loading = manager.load("t", "b")
    assert loading is not None
    get, copy = loading.effects
    assert isinstance(get, Get)
    assert isinstance(copy, Copy)
    assert (get.stream, copy.stream, copy.after) == ("disk", "load", ("disk", "compute"))


def test_what_is_in_the_host_goes_to_a_store_and_nothing_else() -> None:
    manager = tiered()
    prefilled(manager, "a", [1, 2, 3])
    assert manager.offload("t", "a", "disk") is None
    manager.offload("up", "a", "host")
    assert manager.offload("early", "a", "disk") is None  # still on its way
    manager.complete("up", True)
    granted = manager.offload("down", "a", "disk")
    assert granted is not None
    assert [type(effect) for effect in granted.effects] == [Put]


def test_the_last_token_is_never_loaded() -> None:
    manager = tiered()
    gone_down(manager, [1, 2, 3, 4, 5], "host")
    manager.submit(Request("b", [1, 2, 3, 4]))
    manager.lookup("b")
    loading = manager.load("t", "b")
    assert loading is not None
    assert (loading.hit, loading.tokens) == (0, 2)


def test_tenants_and_adapters_do_not_share_chunks() -> None:
    manager = tiered()
    gone_down(manager, [1, 2, 3], "host")
    for name, key in (("b", {"salt": "x"}), ("c", {"adapter": Adapter("a", 1)})):
        manager.submit(Request(name, [1, 2, 3], **key))  # type: ignore[arg-type]
        manager.lookup(name)
        assert manager.load(f"t {name}", name) is None


def test_a_chunk_has_the_same_name_in_every_process() -> None:
    script = (
        "from kvsan.models_under_test.paged import make_target\n"
        "from kvsan.harness.configuration import Configuration\n"
        "from kvsan.harness.target import Request\n"
        "m = make_target(Configuration(block_size=2)); m.submit(Request('a', [1, 2, 3, 4], 'salt'))\n"
        "print(m.keys.digest(m.keys.upto(m.requests['a'], 2)[1]))\n"
    )
    names = {
        subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(names) == 1


def test_a_load_that_could_starve_with_another_is_refused() -> None:
    manager = tiered(num_units=8)  # seven blocks
    gone_down(manager, [1, 2, 3], "host")
    for name in ("a", "b"):
        manager.submit(Request(name, [1, 2, *range(10, 20)]))  # a block from the host, and five to compute
    manager.lookup("a")
    assert manager.load("first", "a") is not None
    manager.lookup("b")
    assert manager.load("second", "b") is not None  # five are left, which is enough for one of them
    manager.complete("first", True)
    assert manager.schedule("a", 2, 0, 0, False) is not None
    assert manager.schedule("b", 2, 0, 0, False) is None  # hers would be the block that the first needs


def test_a_copy_on_write_is_no_block_towards_the_goal() -> None:
    manager = tiered(num_units=9)  # eight blocks
    gone_down(manager, [1, 2, 3], "host")
    manager.submit(Request("a", [1, 2, *range(10, 21)]))  # seven blocks in all
    manager.lookup("a")
    assert manager.load("t", "a") is not None
    manager.complete("t", True)
    manager.schedule("a", 1, 0, 0, False)
    manager.launch("b")
    manager.retire("b", [Result("a", 3, 0, [])])
    manager.fork("a", "child")  # shares a block that the next token goes into
    assert manager.pool.num_free == 6
    assert manager.schedule("a", 3, 0, 0, False) is not None  # a copy and a new block; five of five remain
    assert manager.pool.num_free == 4
