"""The reference manager, one behaviour at a time."""

from __future__ import annotations

import pytest

from kvsan.harness.configuration import Configuration
from kvsan.harness.operations import Adapter, Media
from kvsan.harness.target import Copy, Request, Result
from kvsan.harness.verdict import UsageError
from kvsan.models_under_test.paged import PagedManager, make_target
from kvsan.models_under_test.paged.pool import BlockPool


def prefilled(manager: PagedManager, name: str, tokens: list[int], **key: object) -> None:
    """Submit a request, compute its prompt in one launch, and sample the token 900."""
    manager.submit(Request(name, tokens, **key))  # type: ignore[arg-type]
    hit = manager.lookup(name)
    assert manager.schedule(name, len(tokens) - hit, 0, 0, False) is not None
    manager.launch(f"prefill of {name}")
    manager.retire(f"prefill of {name}", [Result(name, len(tokens), 0, [900])])


def table(manager: PagedManager, name: str) -> list[int]:
    return list(manager.view().tables(name)[0])


# -- the pool


def test_blocks_are_given_out_from_the_front_and_come_back_at_the_end() -> None:
    pool = BlockPool(4)
    first = pool.allocate()
    pool.release(first)
    assert pool.queue() == [2, 3, 1]


def test_the_null_block_is_never_free() -> None:
    assert BlockPool(4).queue() == [1, 2, 3]


def test_touching_a_free_block_takes_it_out_of_the_middle_of_the_queue() -> None:
    pool = BlockPool(5)
    pool.touch(3)
    assert (pool.queue(), pool.num_free, pool.is_queued(3)) == ([1, 2, 4], 3, False)


def test_eviction_withdraws_the_hash() -> None:
    pool = BlockPool(2)
    unit = pool.allocate()
    pool.publish(unit, 77)
    pool.release(unit)
    assert pool.find(77) == unit
    pool.allocate()
    assert pool.find(77) is None


def test_several_blocks_may_have_one_hash() -> None:
    pool = BlockPool(4)
    blocks = [pool.allocate(), pool.allocate()]
    for unit in blocks:
        pool.publish(unit, 77)
    assert list(pool.published(77)) == blocks
    pool.withdraw(blocks[0])
    assert pool.find(77) == blocks[1]


def test_releasing_a_block_that_nobody_holds_raises() -> None:
    with pytest.raises(RuntimeError, match="nobody holds it"):
        BlockPool(2).release(1)


# -- hits


def test_a_finished_prefix_is_hit() -> None:
    manager = PagedManager(8, 2)
    prefilled(manager, "a", [1, 2, 3, 4, 5])
    held = table(manager, "a")
    manager.finish("a")
    prefilled(manager, "b", [1, 2, 3, 4, 9])
    assert table(manager, "b")[:2] == held[:2]


def test_a_full_hit_recomputes_the_last_block() -> None:
    manager = PagedManager(8, 2)
    prefilled(manager, "a", [1, 2, 3, 4])
    manager.submit(Request("b", [1, 2, 3, 4]))
    assert manager.lookup("b") == 2


def test_a_hit_that_was_evicted_since_the_lookup_is_not_used() -> None:
    manager = PagedManager(4, 2)
    prefilled(manager, "a", [1, 2, 3])
    manager.finish("a")
    manager.submit(Request("b", [1, 2, 3]))
    assert manager.lookup("b") == 2
    manager.reset_prefix_cache()
    admission = manager.schedule("b", 3, 0, 0, False)
    assert admission is not None
    assert admission.hit == 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"salt": "x"}, {"salt": "y"}),
        ({"salt": "x"}, {"adapter": Adapter("x", 1)}),
        ({"adapter": Adapter("x", 1)}, {"adapter": Adapter("x", 2)}),
        ({"media": (Media("x", 0, 2),)}, {"media": (Media("y", 0, 2),)}),
        ({"media": (Media("x", 0, 1),)}, {"media": (Media("x", 1, 1),)}),
        ({"media": (Media("x", 0, 2),)}, {}),
    ],
)
def test_what_decides_content_or_tenancy_is_in_the_key(one: dict[str, object], other: dict[str, object]) -> None:
    manager = PagedManager(8, 2)
    prefilled(manager, "a", [1, 2, 3], **one)
    manager.submit(Request("b", [1, 2, 3], **other))  # type: ignore[arg-type]
    assert manager.lookup("b") == 0


def test_media_behind_a_block_is_not_in_its_key() -> None:
    manager = PagedManager(8, 2)
    prefilled(manager, "a", [1, 2, 3, 4, 5], media=(Media("x", 2, 2),))
    manager.submit(Request("b", [1, 2, 3, 4, 5], media=(Media("y", 2, 2),)))
    assert manager.lookup("b") == 2


# -- fork and copy on write


def test_a_fork_shares_every_block() -> None:
    manager = PagedManager(8, 2)
    prefilled(manager, "a", [1, 2, 3])
    manager.fork("a", "b")
    assert table(manager, "b") == table(manager, "a")
    assert [manager.view().ref_count(unit) for unit in table(manager, "a")] == [2, 2]


def test_the_first_writer_copies_the_shared_partial_block() -> None:
    manager = PagedManager(8, 2)
    prefilled(manager, "a", [1, 2, 3])
    manager.fork("a", "b")
    shared = table(manager, "a")[1]
    admission = manager.schedule("b", 1, 0, 0, False)
    assert admission is not None
    assert admission.effects == (Copy(shared, table(manager, "b")[1], 0, 1),)
    assert table(manager, "a")[1] == shared != table(manager, "b")[1]


def test_a_partial_block_that_a_parent_has_filled_and_published_is_copied() -> None:
    manager = PagedManager(8, 4)
    prefilled(manager, "a", [1, 2])
    for b in ("b1", "b2"):
        manager.schedule("a", 1, 0, 0, False)
        manager.launch(b)
    manager.fork("a", "b")  # shares a block that is half full, and is being filled
    for computed, b in ((3, "b1"), (4, "b2")):
        manager.retire(b, [Result("a", computed, 0, [computed])])
    manager.finish("a")
    shared = table(manager, "b")[0]
    assert manager.pool.keys[shared] is not None
    admission = manager.schedule("b", 1, 0, 0, False)
    assert admission is not None
    assert admission.effects == (Copy(shared, table(manager, "b")[0], 0, 2),)


def test_a_full_shared_block_is_not_copied() -> None:
    manager = PagedManager(8, 2)
    prefilled(manager, "a", [1, 2])
    manager.fork("a", "b")
    admission = manager.schedule("b", 1, 0, 0, False)
    assert admission is not None
    assert admission.effects == ()


# -- refusal and cancel


def test_a_refusal_changes_nothing() -> None:
    manager = PagedManager(3, 2)
    prefilled(manager, "a", [1, 2, 3])
    manager.submit(Request("b", [1, 2, 3, 4, 5]))
    manager.lookup("b")
    before = list(manager.pool.references), manager.pool.queue()
    assert manager.schedule("b", 3, 0, 0, False) is None
    assert (list(manager.pool.references), manager.pool.queue()) == before


def test_cancel_restores_references_and_tables() -> None:
    manager = PagedManager(8, 2)
    prefilled(manager, "a", [1, 2, 3])
    manager.fork("a", "b")
    before = list(manager.pool.references), table(manager, "a"), table(manager, "b"), manager.pool.num_free
    manager.schedule("a", 2, 0, 0, False)
    manager.schedule("b", 2, 0, 0, False)
    manager.cancel()
    assert (list(manager.pool.references), table(manager, "a"), table(manager, "b"), manager.pool.num_free) == before


def test_the_watermark_holds_for_first_admissions_only() -> None:
    manager = PagedManager(4, 2, watermark=2)
    prefilled(manager, "a", [1, 2])
    manager.submit(Request("b", [5]))
    manager.lookup("b")
    assert manager.schedule("b", 1, 0, 0, False) is None
    assert manager.schedule("a", 1, 0, 0, False) is not None


# -- freeing


def launched(*, deferred_free: bool) -> PagedManager:
    """Give a manager whose request ``a`` holds one block and is in a launch that has not retired."""
    manager = PagedManager(4, 2, deferred_free=deferred_free)
    manager.submit(Request("a", [1]))
    manager.lookup("a")
    manager.schedule("a", 1, 0, 0, False)
    manager.launch("step")
    return manager


def test_deferred_free_waits_for_the_launch() -> None:
    manager = launched(deferred_free=True)
    manager.abort("a")
    assert manager.view().num_free() == 2
    manager.retire("step", [])
    assert manager.view().num_free() == 3


def test_stream_ordered_free_is_at_once() -> None:
    manager = launched(deferred_free=False)
    manager.abort("a")
    assert manager.view().num_free() == 3


@pytest.mark.parametrize("deferred_free", [True, False])
def test_blocks_that_a_load_writes_wait_for_it(deferred_free: bool) -> None:
    manager = PagedManager(4, 2, deferred_free=deferred_free)
    manager.submit(Request("a", [1, 2, 3]))
    manager.lookup("a")
    manager.schedule("a", 0, 0, 2, True)
    manager.abort("a")
    assert manager.view().num_free() == 2
    manager.landed("a")
    assert manager.view().num_free() == 3


def test_the_tail_of_a_prefix_is_evicted_before_its_head() -> None:
    manager = PagedManager(4, 1)
    prefilled(manager, "a", [1, 2, 3])
    held = table(manager, "a")
    manager.finish("a")
    assert manager.view().free_queue() == held[::-1]


# -- drafts


def test_rejected_drafts_are_rolled_back_with_their_blocks() -> None:
    manager = PagedManager(8, 2)
    prefilled(manager, "a", [1, 2])
    manager.schedule("a", 4, 0, 0, False)
    assert len(table(manager, "a")) == 3
    manager.launch("drafts")
    manager.retire("drafts", [Result("a", 3, 3, [7])])
    assert len(table(manager, "a")) == 2


def test_only_computed_full_blocks_are_published() -> None:
    manager = PagedManager(8, 2)
    prefilled(manager, "a", [1, 2, 3])
    first, second = table(manager, "a")
    assert manager.view().key(first) is not None
    assert manager.view().key(second) is None


# -- configuration


def test_unknown_option_is_bad_input() -> None:
    with pytest.raises(UsageError, match="unknown option 'watermarks'; it has deferred_free"):
        make_target(Configuration(options=(("watermarks", 1),)))


def test_other_groups_are_bad_input() -> None:
    with pytest.raises(UsageError, match="it has one group"):
        make_target(Configuration(groups=("full", "sliding")))
