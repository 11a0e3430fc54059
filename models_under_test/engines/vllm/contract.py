"""The calls that vLLM's own scheduler makes, as rules; outside them the manager promises nothing.

One engine step is ``schedule()``, which looks up and allocates for every request of the batch and preempts to make
room; then the launch; then ``update_from_output()``, which rolls drafts back, appends tokens and finishes. With two
steps in flight (asynchronous scheduling, ``EngineCore.step_with_batch_queue``) the next ``schedule()`` comes before the
last ``update_from_output()``, but never inside it. File names are those below ``vllm/v1``; the release is named where a
rule depends on it, otherwise it holds from 0.8.5 to 0.32.0.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsan.harness.operations import (
    Abort,
    Advance,
    Finish,
    Landed,
    Launch,
    Lookup,
    Operation,
    Preempt,
    ResetPrefixCache,
    Retire,
    Schedule,
    Submit,
)
from kvsan.harness.target import RequestState, SessionState


@dataclass(frozen=True, slots=True)
class Contract:
    """What one release's scheduler does with one configuration; called as a ``Traits.allows`` rule.

    - ``external``, ``delayed``: whether its scheduler gets external tokens with these cache groups.
    - ``preempts_in_flight``: whether a request with a step in flight may be preempted.
    """

    max_in_flight: int
    external: bool
    delayed: bool
    preempts_in_flight: bool

    def __call__(self, request: RequestState | None, session: SessionState, operation: Operation) -> bool:
        """Whether the scheduler would make this call now."""
        # The device runs by itself.
        if isinstance(operation, Advance):
            return True
        # core/sched/scheduler.py: schedule() calls get_computed_blocks and allocate_slots for one request with
        # nothing in between that could take or withdraw the blocks of the hit. (What only gives blocks back or adds
        # hashes cannot do that; a look-up that leads to nothing is made again.)
        if session.lookup_pending is not None and isinstance(operation, Lookup | Schedule | Preempt | ResetPrefixCache):
            own = request is not None and request.looked_up
            if not own or not isinstance(operation, Lookup | Schedule):
                return False
        if isinstance(operation, Submit):
            return True
        if isinstance(operation, Lookup | Schedule | Preempt):
            return self._in_schedule(request, session, operation)
        # engine/core.py, step() and step_with_batch_queue(): what schedule() has returned is launched at once.
        if isinstance(operation, Launch):
            return session.launches_in_flight < self.max_in_flight
        # An output taken between two requests of a batch is to the manager, which does not see launches, what it is
        # between two batches of one request each, and step_with_batch_queue() makes those.
        if isinstance(operation, Retire):
            return True
        # engine/core.py: landed loads, aborts and utility calls are taken between schedule() calls, so never while a
        # batch is put together.
        if session.batch_size:
            return False
        # core/sched/scheduler.py: finished loads are noted in update_from_output() (_update_from_kv_xfer_finished),
        # and taken in by the schedule() after it.
        if isinstance(operation, Landed):
            return request is not None and request.loading and self._may_act(session)
        if isinstance(operation, ResetPrefixCache):
            return self._may_act(session)
        if isinstance(operation, Finish | Abort):
            return self._may_end(request, session)
        return False

    def _may_act(self, session: SessionState) -> bool:
        """One step at a time: nothing is called between the launch and the output (engine/core.py, step())."""
        return self.max_in_flight > 1 or not session.launches_in_flight

    def _may_end(self, request: RequestState | None, session: SessionState) -> bool:
        # core/sched/scheduler.py, finish_requests(), 0.20.2 and later: blocks of a request that waits for a load are
        # freed only when the load has landed; before, freeing them is vLLM 32255. Neither is asked of the manager.
        return request is not None and not request.loading and self._may_act(session)

    def _in_schedule(self, request: RequestState | None, session: SessionState, operation: Operation) -> bool:
        """Rules of what happens inside ``schedule()``."""
        # engine/core.py: a new schedule() only while the batch queue has room (assert len(batch_queue) < its size).
        if request is None or session.launches_in_flight >= self.max_in_flight:
            return False
        # core/sched/scheduler.py: once a step; a loading request (WAITING_FOR_REMOTE_KVS) is skipped.
        if request.in_batch or request.loading:
            return False
        if isinstance(operation, Preempt):
            # core/sched/scheduler.py: the victim comes from the end of `running`, so it holds blocks and is not in
            # the batch yet. 0.32.0 spares one with a step in flight if its frees are deferred
            # (_request_blocks_can_be_freed).
            return request.scheduled > 0 and (self.preempts_in_flight or not request.in_flight)
        if request.scheduled == 0 and request.in_flight:
            # A request preempted in flight waits for that output first: schedule() of 0.32.0 skips it
            # (num_stale_output_tokens); before, a batch queue of two has the same effect, since a step that preempts
            # admits nobody (`if not preempted_reqs`) and the output is taken before the next schedule().
            return False
        if isinstance(operation, Lookup):
            # core/sched/scheduler.py: get_computed_blocks only `if request.num_computed_tokens == 0`.
            return request.scheduled == 0
        assert isinstance(operation, Schedule)
        return self._may_load(request, operation)

    def _may_load(self, request: RequestState, operation: Schedule) -> bool:
        if not operation.external:
            return not operation.delayed
        # core/sched/scheduler.py: get_num_new_matched_tokens only `if request.num_computed_tokens == 0`; with
        # load_kv_async num_new_tokens is 0, and effective_lookahead_tokens too.
        if not self.external or request.scheduled > 0:
            return False
        return not operation.delayed or (self.delayed and not operation.lookahead)
