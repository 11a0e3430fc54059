"""The target: what vLLM's scheduler does around its KV-cache manager, and nothing more.

The scheduler keeps four numbers on a request that the manager reads, and they follow ``v1/core/sched/scheduler.py``
and ``async_scheduler.py``:

    schedule        num_computed_tokens = hit + external, then += n as soon as the step is scheduled
                    num_output_placeholders += 1 + drafts, if the step reaches the known end (asynchronous scheduling)
                    num_in_flight_tokens += n (0.32.0)
    output          num_computed_tokens -= rejected; tokens appended; placeholders and in-flight tokens go down;
                    with asynchronous scheduling cache_blocks(num_computed_tokens - num_output_placeholders)
    load landed     cache_blocks(num_computed_tokens); the last known token is computed even if it was loaded
    preempted       num_computed_tokens = num_output_placeholders = 0, blocks freed
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvsan.harness.configuration import Configuration
from kvsan.harness.operations import Adapter
from kvsan.harness.target import Admission, Delta, Effects, Request, Result
from kvsan.harness.verdict import UsageError
from kvsan.models_under_test.engines.vllm.ledger import Ledger
from kvsan.models_under_test.engines.vllm.surface import Chunk, Lora, Surface, load, lora_of
from kvsan.models_under_test.engines.vllm.traits import Options, read_options, traits_of
from kvsan.models_under_test.engines.vllm.view import VllmView


@dataclass(slots=True)
class _Held:
    """A live request: vLLM's own object, a look-up that waits for its allocation, and the launches it is in."""

    request: Any
    pending: tuple[Any, int] | None = None
    launches: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Row:
    """A request's part of a step; stale once the request was preempted or has ended."""

    held: _Held
    n: int
    stale: bool = False


@dataclass(slots=True)
class _Step:
    """A launched step: its rows by request, and blocks that are freed when its output is there."""

    rows: dict[str, _Row]
    deferred: list[list[Any]] = field(default_factory=list)


class VllmTarget:
    """Implements ``kvsan.harness.target.Target`` over one ``KVCacheManager``."""

    def __init__(self, configuration: Configuration, surface: Surface, options: Options) -> None:
        self.traits = traits_of(configuration, surface, options)
        self._surface = surface
        self._status = surface.status
        self._async = options.async_scheduling
        self._defers = options.kv_consumer
        groups = self.traits.groups
        self._manager = surface.manager(
            configuration.num_units, configuration.block_size, groups, options.eagle, options.watermark
        )
        self._hasher = surface.block_hasher(configuration.block_size)
        self._requests: dict[str, _Held] = {}
        self._adapters: dict[Adapter, Lora] = {}
        self._batch: dict[str, _Row] = {}
        self._steps: dict[str, _Step] = {}
        self._ledger = Ledger(self._manager.block_pool, configuration.num_units)
        self._view = VllmView(self._manager)

    def submit(self, request: Request) -> None:
        """Take a new request; where the release has it, its prompt is hashed now."""
        lora = lora_of(request.adapter, self._adapters)
        self._requests[request.name] = _Held(self._surface.request(request, self._hasher, lora))

    def lookup(self, name: str) -> int:
        """Look the prefix up, as ``schedule()`` does right before it allocates."""
        held = self._requests[name]
        held.pending = self._surface.lookup(self._manager, held.request)
        return held.pending[1]

    def schedule(self, name: str, n: int, lookahead: int, external: int, delayed: bool) -> Admission | None:
        """Allocate; a first chunk takes the hit of the pending look-up, or looks up now."""
        held = self._requests[name]
        request = held.request
        blocks, hit = None, 0
        if request.num_computed_tokens == 0:
            if held.pending is None:
                self.lookup(name)
            assert held.pending is not None
            (blocks, hit), held.pending = held.pending, None
        self._ledger.request(name)
        start = request.num_computed_tokens + hit + external
        drafts = max(0, start + n - request.num_tokens - self._placeholders(request))
        request.spec_token_ids = [-1] * drafts
        chunk = Chunk(n, drafts, lookahead, external, delayed, hit, blocks)
        running = self._surface.takes_running and self._anyone_running()
        if not self._surface.allocate(self._manager, request, chunk, running):
            return None
        if delayed:
            request.num_computed_tokens = start
            request.status = self._status.WAITING_FOR_REMOTE_KVS
        else:
            self._advance(held, start, n, drafts)
        return Admission(hit)

    def _advance(self, held: _Held, start: int, n: int, drafts: int) -> None:
        """Count a step as computed as soon as it is scheduled (``_update_after_schedule``)."""
        request = held.request
        request.status = self._status.RUNNING
        request.num_computed_tokens = start + n
        request.spec_token_ids = []
        if hasattr(request, "num_in_flight_tokens"):
            request.num_in_flight_tokens += n
        if self._async and start + n >= request.num_tokens + request.num_output_placeholders:
            request.num_output_placeholders += 1 + drafts
        self._batch[request.request_id] = _Row(held, n)

    def _placeholders(self, request: Any) -> int:
        return int(request.num_output_placeholders) if self._async else 0

    def _anyone_running(self) -> bool:
        return any(held.request.status == self._status.RUNNING for held in self._requests.values())

    def cancel(self) -> Effects:
        """Refuse: vLLM launches what it has scheduled; the traits leave this operation out."""
        raise NotImplementedError("vLLM does not cancel a scheduled batch")

    def launch(self, b: str) -> None:
        """Note which requests the step holds."""
        for row in self._batch.values():
            row.held.launches.append(b)
        self._steps[b] = _Step(self._batch)
        self._batch = {}

    def retire(self, b: str, results: Sequence[Result]) -> Effects:
        """Take a step's output (``update_from_output``); rows of preempted or ended requests only count down."""
        step = self._steps.pop(b)
        for row in step.rows.values():
            if not row.stale:
                row.held.launches.remove(b)
            if hasattr(row.held.request, "num_in_flight_tokens"):
                row.held.request.num_in_flight_tokens -= row.n
        for blocks in step.deferred:
            self._manager.block_pool.free_blocks(reversed(blocks))
        for result in results:
            row = step.rows[result.name]
            if not row.stale:
                self._take_output(row.held.request, result)
        return ()

    def _take_output(self, request: Any, result: Result) -> None:
        self._ledger.request(result.name)
        request.num_computed_tokens -= result.rejected
        if result.sampled:
            request.append_output_token_ids(list(result.sampled))
        if self._async and result.sampled:
            request.num_output_placeholders -= result.rejected + len(result.sampled)
            assert request.num_output_placeholders >= 0
            self._manager.cache_blocks(request, request.num_computed_tokens - request.num_output_placeholders)

    def landed(self, name: str) -> None:
        """Publish a request's loaded blocks (``_update_waiting_for_remote_kv``)."""
        request = self._requests[name].request
        self._ledger.request(name)
        loaded = request.num_computed_tokens
        request.num_computed_tokens = min(loaded, request.num_tokens - 1)
        request.status = self._status.WAITING
        # Up to 0.17.1 the last known token is left out before caching, later after it.
        self._manager.cache_blocks(request, loaded if self._surface.numbers >= (0, 20) else request.num_computed_tokens)

    def fork(self, name: str, child: str) -> Effects:
        """Refuse: vLLM has no fork; the traits leave this operation out."""
        raise NotImplementedError(f"vLLM does not fork a request ({name} to {child})")

    def finish(self, name: str) -> None:
        """Free a completed request."""
        self._end(name, self._status.FINISHED_STOPPED)

    def abort(self, name: str) -> None:
        """Free a request whose client has gone."""
        self._end(name, self._status.FINISHED_ABORTED)

    def _end(self, name: str, status: Any) -> None:
        held = self._requests.pop(name)
        held.request.status = status
        self._free(held)
        if self._surface.frees_hashes:
            self._manager.free_block_hashes(held.request)

    def preempt(self, name: str) -> None:
        """Free a running request's blocks; it starts again from its first token (``_preempt_request``)."""
        held = self._requests[name]
        self._free(held)
        request = held.request
        request.status = self._status.PREEMPTED
        request.num_computed_tokens = 0
        request.spec_token_ids = []
        if self._async:
            request.num_output_placeholders = 0

    def _free(self, held: _Held) -> None:
        """Free a table, at once or with the last step that uses it; what is in flight becomes stale."""
        request = held.request
        name = request.request_id
        held.pending = None
        self._ledger.request(name)
        self._batch.pop(name, None)
        in_flight, held.launches = held.launches, []
        for b in in_flight:
            self._steps[b].rows[name].stale = True
        if self._defers and in_flight:
            self._steps[in_flight[-1]].deferred.append(self._manager.pop_blocks_for_free(request))
        else:
            self._manager.free(request)

    def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache; vLLM refuses while a block is in use."""
        return bool(self._manager.reset_prefix_cache())

    def view(self) -> VllmView:
        """Everything the manager holds, live."""
        return self._view

    def delta(self) -> Delta:
        """Requests that calls were about, and blocks that they went through the block pool with."""
        return self._ledger.read()


def make_target(configuration: Configuration) -> VllmTarget:
    """vLLM's V1 KV-cache manager at a release from the engines cache, such as vllm@0.22.1."""
    engine, _, version = configuration.target.partition("@")
    if engine != "vllm" or not version:
        raise UsageError(f"target {configuration.target!r}: expected vllm@VERSION, such as vllm@0.22.1")
    if configuration.num_units < 2:
        raise UsageError(f"target {configuration.target}: num_units: expected 2 or more, one is the null block")
    surface = load(version)
    return VllmTarget(configuration, surface, read_options(configuration, surface))
