"""Any list of operations is a trace: on a correct manager none violates anything, and none makes KVSan itself fail.

The generator draws what an engine might do. This draws what nobody would: ids that collide, outcomes for others, loads longer
than prompts, lookahead without end, in any order.
"""

from __future__ import annotations

from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

from kvsan.harness.operations import (
    Abort,
    Adapter,
    Advance,
    Cancel,
    Capture,
    Finish,
    Fork,
    Landed,
    Launch,
    Lookup,
    Media,
    Operation,
    Outcome,
    Preempt,
    Replay,
    ResetPrefixCache,
    Retire,
    Schedule,
    Submit,
)
from kvsan.harness.session import Session
from kvsan.harness.target import Target
from kvsan.invariants import INVARIANTS
from kvsan.models_under_test.graphs.runner import FILLS, GraphRunner
from kvsan.models_under_test.paged import PagedManager

requests = st.sampled_from(["r1", "r2", "r3"])
launches = st.sampled_from(["b1", "b2", "b3", "b4", "closing"])
names = st.sampled_from(["", "", "e1", "r1", "r2"])
lengths = st.sampled_from([1, 1, 2, 3, 4, 5, 7, 12, 40, 65_535])
families = st.sampled_from([0, 0, 1])
segments = st.tuples(families, st.integers(1, 13)) | st.tuples(st.just("out"), requests, st.integers(1, 5))
adapters = st.none() | st.builds(Adapter, st.just("a"), st.integers(1, 2))
media = st.lists(st.builds(Media, st.sampled_from("xy"), st.integers(0, 3), st.integers(1, 4)), max_size=2).map(tuple)
outcomes = st.lists(st.builds(Outcome, requests, st.sampled_from([0, 1, 2, 9]), families), max_size=2).map(tuple)

submits = st.builds(
    Submit, requests, st.lists(segments, min_size=1, max_size=3).map(tuple), names, adapters, media, names
)
schedules = st.builds(Schedule, requests, lengths, st.sampled_from([0, 0, 1, 70]), st.sampled_from([0, 0, 1, 4, 9]))
operations: st.SearchStrategy[Operation] = st.one_of(
    submits,
    schedules,
    schedules,
    st.builds(Schedule, requests, lengths, external=st.integers(1, 9), delayed=st.just(True)),
    st.builds(Launch, launches),
    st.builds(Launch, launches),
    st.builds(Retire, launches, outcomes),
    st.builds(Advance, st.sampled_from(["compute", "copy"])),
    st.builds(Fork, requests, st.sampled_from(["r1", "r2", "r3", "r4", "e1"])),
    st.sampled_from([Cancel(), ResetPrefixCache()]),
    st.one_of(*(st.builds(kind, requests) for kind in (Lookup, Landed, Finish, Abort, Preempt))),
)


@settings(max_examples=250, deadline=None, derandomize=True)
@given(
    first=submits,
    rest=st.lists(operations, max_size=40),
    num_units=st.sampled_from([3, 5, 9, 14]),
    block_size=st.integers(1, 4),
    deferred_free=st.booleans(),
    watermark=st.sampled_from([0, 0, 1, 20]),
)
def test_any_list_of_operations_runs_clean_on_the_reference(
    first: Submit, rest: list[Operation], num_units: int, block_size: int, deferred_free: bool, watermark: int
) -> None:
    target = PagedManager(num_units, block_size, deferred_free=deferred_free, watermark=watermark)
    session = Session(target, INVARIANTS, sweep_every=1)
    for operation in (first, *rest):
        session.step(operation)
    session.close()
    assert not session.requests


graphs = st.sampled_from(["g1", "g2", "g3", "b1"])
replays = st.builds(Replay, launches, graphs)
captures = st.builds(Capture, graphs, st.sampled_from([1, 2, 3, 8, 9]))
decodes = st.builds(Schedule, requests, st.just(1))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    rest=st.lists(st.one_of(operations, captures, replays, replays, decodes, decodes), max_size=40),
    num_units=st.sampled_from([5, 9, 14]),
    block_size=st.integers(1, 4),
    fills=st.sampled_from(FILLS),
)
def test_any_list_of_operations_runs_clean_on_the_reference_runner(
    rest: list[Operation], num_units: int, block_size: int, fills: str
) -> None:
    target = GraphRunner(cast(Target, PagedManager(num_units, block_size)), fills)
    session = Session(cast(Target, target), INVARIANTS, sweep_every=1)
    begun = [Submit("r1", ((0, 2),)), Schedule("r1", 2), Launch("b9"), Retire("b9"), Capture("g1", 2)]
    for operation in (*begun, *rest):
        session.step(operation)
    session.close()
    assert session.counts["Capture"] > 0
    assert not session.requests
