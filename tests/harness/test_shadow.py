"""Shadow memory: what a finding tells, and which writes are damage and which are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from kvsan.harness.operations import Abort, Advance, Finish, Fork, Launch, Operation, Outcome, Retire, Schedule, Submit
from kvsan.harness.session import Session
from kvsan.harness.target import Admission, Effects, Result, Target, Zero
from kvsan.harness.verdict import Violation
from kvsan.invariants import INVARIANTS
from kvsan.models_under_test.paged import PagedManager
from kvsan.models_under_test.paged.batch import Row
from kvsan.models_under_test.paged.pool import BlockPool
from kvsan.models_under_test.paged.request import PagedRequest


def prefill(r: str, family: int, tokens: int, b: str) -> list[Operation]:
    """A request arrives and computes its whole prompt."""
    return [Submit(r, ((family, tokens),)), Schedule(r, tokens), Launch(b), Retire(b)]


def violation_of(target: Target, *operations: Operation) -> Violation:
    """What the last of some operations violates, with no invariant but shadow memory itself."""
    session = Session(target, ())
    for operation in operations[:-1]:
        assert session.step(operation)
    with pytest.raises(Violation) as caught:
        session.step(operations[-1])
    return caught.value


# -- reads


class HitsAnything(PagedManager):
    """Whatever is cached first is a hit for everybody."""

    def _find(self, request: PagedRequest, limit: int) -> list[int]:
        return [unit for unit, key in enumerate(self.pool.keys) if key is not None][:limit]


def test_a_foreign_read_names_both_requests_and_the_writer() -> None:
    second = prefill("r2", 1, 6, "b2")
    found = violation_of(HitsAnything(8, 4), *prefill("r1", 0, 4, "b1"), *second)
    assert found.kind == ("provenance", "foreign")
    assert found.message == "r2 reads position 0 from slot 4 (unit 1), which holds r1@0; expected r2@0"
    assert found.lineage == ("slot 4 was last written by operation 2 with r1@0", "slot 4 is unit 1, offset 0, group 0")


class ZeroesItsTable(PagedManager):
    """Zeroes the first slot of a request's table with every chunk, not only when the block is new."""

    def schedule(self, name: str, n: int, lookahead: int, external: int, delayed: bool) -> Admission | None:
        admission = super().schedule(name, n, lookahead, external, delayed)
        return admission and admission._replace(effects=[Zero(self.requests[name].table[0], 0, 1)])


def test_a_read_of_a_zeroed_slot_names_who_zeroed_it() -> None:
    decode = [Schedule("r1", 1), Launch("b2"), Retire("b2")]
    found = violation_of(ZeroesItsTable(8, 4), *prefill("r1", 0, 2, "b1"), *decode)
    assert found.kind == ("provenance", "unwritten")
    assert found.lineage[0] == "slot 4 was zeroed by operation 5"


class TakesFreshForCached(PagedManager):
    """Says that a prompt's first block is cached, and gives out a new one for it."""

    def lookup(self, name: str) -> int:
        return self.block_size

    def schedule(self, name: str, n: int, lookahead: int, external: int, delayed: bool) -> Admission | None:
        return super().schedule(name, self.block_size + n, lookahead, external, delayed) and Admission(self.block_size)


def test_a_read_of_what_nobody_wrote_says_so() -> None:
    found = violation_of(TakesFreshForCached(8, 4), *prefill("r1", 0, 6, "b1"))
    assert found.kind == ("provenance", "unwritten")
    assert found.lineage[0] == "slot 4 was never written"


class ForgetsABlock(PagedManager):
    """Drops the first block of a table although it is still needed, and publishes nothing."""

    def retire(self, b: str, results: Sequence[Result]) -> Effects:
        effects = super().retire(b, results)
        for request in self.requests.values():
            request.table[0] = 0
        return effects

    def publish(self, request: PagedRequest) -> None:
        pass


def test_a_read_of_the_null_unit_says_so() -> None:
    decode = [Schedule("r1", 1), Launch("b2"), Retire("b2")]
    found = violation_of(ForgetsABlock(8, 4), *prefill("r1", 0, 5, "b1"), *decode)
    assert found.kind == ("provenance", "null unit")


class OneBlockShort(PagedManager):
    """Takes one block less than is needed."""

    def blocks_needed(self, slots: int) -> int:
        return super().blocks_needed(slots) - 1


def test_a_write_behind_the_end_of_a_table_is_found() -> None:
    found = violation_of(OneBlockShort(8, 4), *prefill("r1", 0, 5, "b1"))
    assert found.kind == ("table_covers", "write")


# -- writes


class NoCopyOnWrite(PagedManager):
    """Siblings write into the block that they share."""

    def _shared_partial_block(self, request: PagedRequest, start: int) -> int | None:
        return None


def test_a_write_into_a_slot_that_a_sibling_relies_on_is_found_when_done() -> None:
    equal = [Fork("r1", "r2"), Schedule("r1", 1), Schedule("r2", 1), Launch("b2"), Retire("b2", (Outcome("r1", 0, 1),))]
    parent = [Schedule("r1", 1), Launch("b3"), Retire("b3")]
    child = [Schedule("r2", 1), Launch("b4"), Retire("b4")]
    found = violation_of(NoCopyOnWrite(8, 4), *prefill("r1", 0, 6, "b1"), *equal, *parent, *child)
    assert found.kind == ("foreign_write", "shared")
    assert found.message == "r2@7 is written into slot 11 (unit 2), where r1@7 is relied on"
    assert found.lineage[0] == "slot 11 was last written by operation 10 with r1@7"


def test_a_shared_block_may_be_filled_with_equal_content() -> None:
    session = Session(NoCopyOnWrite(8, 4), ())
    both = [Fork("r1", "r2"), Schedule("r1", 1), Schedule("r2", 1), Launch("b2"), Retire("b2")]
    assert all([session.step(operation) for operation in (*prefill("r1", 0, 6, "b1"), *both)])


class _KeepsHash(BlockPool):
    __slots__ = ()

    def allocate(self) -> int:
        unit = self._next[self.num_units]
        key, self.keys[unit] = self.keys[unit], None
        super().allocate()
        self.keys[unit] = key
        return unit


class HashStays(PagedManager):
    """Blocks keep their hash when they are given out again."""

    pool_type = _KeepsHash


def test_a_write_into_a_block_that_is_findable_by_its_hash_is_found_when_done() -> None:
    class Silent(HashStays):
        def extend(self, request: PagedRequest, fresh: int) -> None:
            super().extend(request, fresh)
            self.pool.touched.clear()

    found = violation_of(Silent(2, 4), *prefill("r1", 0, 4, "b1"), Finish("r1"), *prefill("r2", 1, 4, "b2"))
    assert found.kind == ("foreign_write", "published")
    assert "where the hash of r1@0 is relied on" in found.message
    assert found.lineage[0] == "slot 4 was last written by operation 2 with r1@0"


class TakesNullUnit(PagedManager):
    """Gives out the null block."""

    def extend(self, request: PagedRequest, fresh: int) -> None:
        super().extend(request, fresh - 1)
        request.table.append(0)


def test_a_write_into_the_null_unit_is_found() -> None:
    found = violation_of(TakesNullUnit(8, 4), *prefill("r1", 0, 4, "b1"))
    assert found.kind == ("provenance", "null write")


class CopiesBadly(PagedManager):
    """Copies on write with one argument of the copy changed."""

    change: dict[str, int]

    def _copy_on_write(self, row: Row, block: int, start: int) -> Effects:
        return [effect._replace(**self.change) for effect in super()._copy_on_write(row, block, start)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"destination": 8}, ("foreign_write", "outside the pool")),
        ({"source": -1}, ("foreign_write", "outside the pool")),
        ({"stop": 5}, ("foreign_write", "outside the unit")),
        ({"destination": 0}, ("provenance", "null write")),
    ],
    ids=str,
)
def test_a_copy_stays_inside_of_its_units(change: dict[str, int], kind: tuple[str, str]) -> None:
    target = CopiesBadly(8, 4)
    target.change = change
    found = violation_of(target, *prefill("r1", 0, 5, "b1"), Fork("r1", "r2"), Schedule("r2", 1))
    assert found.kind == kind


# -- units that are published before they are written


class PublishesAtAllocation(PagedManager):
    """Publishes when blocks are given out, legally: whoever hits them is behind their writer in the stream."""

    def __init__(self, num_units: int, block_size: int) -> None:
        super().__init__(num_units, block_size, deferred_free=False)
        self.traits = replace(self.traits, publish="allocation")

    def schedule(self, name: str, n: int, lookahead: int, external: int, delayed: bool) -> Admission | None:
        admission = super().schedule(name, n, lookahead, external, delayed)
        if admission is not None and not delayed:
            self.publish(self.requests[name])
        return admission

    def _publishable(self, request: PagedRequest) -> int:
        return min(request.scheduled, len(request.tokens))


def test_an_older_step_may_still_write_what_a_published_unit_will_lose() -> None:
    session = Session(PublishesAtAllocation(2, 4), INVARIANTS, sweep_every=1)
    first = [Submit("r1", ((0, 4),)), Schedule("r1", 4), Launch("b1"), Abort("r1")]
    second = [Submit("r2", ((1, 4),)), Schedule("r2", 4), Launch("b2")]
    for operation in (*first, *second):
        assert session.step(operation)
    assert set(session.shadow.unwritten) == {1}

    assert session.step(Advance("compute"))
    assert set(session.shadow.unwritten) == {1}
    assert session.step(Advance("compute"))
    assert session.shadow.unwritten == {}


def test_once_it_is_written_a_published_unit_is_guarded() -> None:
    class NeverWithdraws(PublishesAtAllocation):
        pool_type = _KeepsHash

        def extend(self, request: PagedRequest, fresh: int) -> None:
            super().extend(request, fresh)
            self.pool.touched.clear()

    others = [Submit("r2", ((1, 3),)), Schedule("r2", 3), Launch("b2"), Retire("b2")]
    found = violation_of(NeverWithdraws(2, 4), *prefill("r1", 0, 4, "b1"), Finish("r1"), *others)
    assert found.kind == ("foreign_write", "published")
