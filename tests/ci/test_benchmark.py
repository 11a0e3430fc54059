"""The benchmark measures what it says it does; how fast is not asserted here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvsan.ci import benchmark, benchmark_trace
from kvsan.fuzz.replay import open_session
from kvsan.harness.operations import Finish
from kvsan.harness.trace import Trace
from kvsan.harness.verdict import UsageError
from kvsan.models_under_test.paged import make_target


@pytest.fixture(scope="module")
def trace() -> Trace:
    return benchmark_trace.load()


def test_the_benchmark_trace_is_the_mix_that_it_is_said_to_be(trace: Trace) -> None:
    mix = benchmark_trace.mix_of(trace)
    assert (trace.configuration.num_units, trace.configuration.block_size) == (512, 16)
    assert mix.least_live >= 8
    assert mix.context_tokens >= 256
    assert mix.four_rows_share >= 0.25


def test_a_trace_that_skips_is_refused(trace: Trace) -> None:
    skipping = replace(trace, operations=(Finish("nobody"), *trace.operations))
    with pytest.raises(UsageError, match="skips"):
        benchmark_trace.mix_of(skipping)


def test_a_trace_can_follow_itself_under_other_names(trace: Trace) -> None:
    session = open_session(make_target, trace.configuration, numbers=False)
    for suffix in (".0", ".1"):
        for operation in benchmark_trace.renamed(trace.operations[:2000], suffix):
            session.step(operation)
        benchmark.rest(session)
    assert not session.requests
    assert sum(session.skipped.values()) < 20


def test_in_an_aged_pool_allocations_evict(trace: Trace) -> None:
    configuration = replace(trace.configuration, num_units=2048)
    session = open_session(make_target, configuration, numbers=False)
    benchmark.age(session, configuration)
    view = session.books.view
    assert view.num_free() == 2047
    assert all(view.key(unit) is not None for unit in view.free_queue()[:1800])


def test_parts_of_a_step_add_up(trace: Trace) -> None:
    parts = benchmark.time_by_part(Trace(trace.configuration, trace.operations[:1000]))
    assert sum(share for _, share in parts) == pytest.approx(1)
