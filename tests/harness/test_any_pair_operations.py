"""Any list of operations is a trace of a pair too: on the reference none violates anything, and none makes KVSan itself fail."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvsan.fuzz.replay import open_session
from kvsan.harness.configuration import Configuration
from kvsan.harness.operations import (
    Abort,
    Advance,
    Cancel,
    Complete,
    Expire,
    Fail,
    Finish,
    Fork,
    Landed,
    Launch,
    Lookup,
    Operation,
    Preempt,
    Receive,
    Release,
    ResetPrefixCache,
    Retire,
    Schedule,
    Send,
    Submit,
    Tear,
)
from kvsan.models_under_test.disagg import make_target

requests = st.sampled_from(["r1", "r2", "r3", "r4"])
launches = st.sampled_from(["b1", "b2", "b3", "closing"])
transfers = st.sampled_from(["t1", "t2", "t3", "r1"])
pools = st.sampled_from(["p0", "p0", "p1", "p1", "p2"])
segments = st.tuples(st.sampled_from([0, 0, 1]), st.integers(1, 9)) | st.tuples(st.just("out"), requests, st.just(2))
prompts = st.lists(segments, min_size=1, max_size=2).map(tuple)
streams = st.sampled_from(["p0.compute", "p0.copy", "p1.compute", "p1.copy", "net", "compute", "p1.net"])

prefills = st.builds(
    lambda r, prompt, at, b: [Submit(r, prompt, at=at), Schedule(r, 20), Launch(b, at), Retire(b)],
    requests, prompts, pools, launches,
)  # fmt: skip
pulls = st.builds(
    lambda t, r, other, prompt: [Send(t, r), Submit(other, prompt, at="p1"), Receive(t, other)],
    transfers, requests, requests, prompts,
)  # fmt: skip
single: st.SearchStrategy[Operation] = st.one_of(
    st.builds(Schedule, requests, st.integers(1, 9), st.sampled_from([0, 3]), st.sampled_from([0, 4]), st.booleans()),
    st.builds(Launch, launches, pools),
    st.builds(Retire, launches),
    st.builds(Advance, streams),
    st.builds(Fork, requests, requests),
    st.builds(Cancel, pools),
    st.builds(ResetPrefixCache, pools),
    st.one_of(*(st.builds(kind, transfers, requests) for kind in (Send, Receive))),
    st.one_of(*(st.builds(kind, transfers) for kind in (Release, Expire, Complete, Fail, Tear))),
    st.one_of(*(st.builds(kind, requests) for kind in (Lookup, Landed, Finish, Abort, Preempt))),
)
traces = st.lists(prefills | pulls | single.map(lambda one: [one]), max_size=30)
options = st.fixed_dictionaries(
    {
        "decode_tp": st.sampled_from([1, 4]),
        "decode_dcp": st.sampled_from([1, 2]),
        "decode_block": st.sampled_from([0, 3]),
        "prefill_tp": st.sampled_from([1, 2]),
        "prefill_pcp": st.sampled_from([1, 2]),
        "deferred_free": st.booleans(),
    }
)


@settings(max_examples=150, deadline=None)
@given(traces, options)
def test_any_list_of_operations_runs_clean(trace: list[list[Operation]], drawn: dict[str, int]) -> None:
    configuration = Configuration("disagg", 7, 2, options=tuple(sorted(drawn.items())))
    session = open_session(make_target, configuration, numbers=False, sweep_every=3)  # type: ignore[arg-type]
    for operations in trace:
        for operation in operations:
            session.step(operation)
    session.close()
    assert all(part.books.held == 0 for part in session.parts)
