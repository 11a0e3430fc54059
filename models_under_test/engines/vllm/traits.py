"""What each release promises: ``Traits`` by version, groups and options, each difference with its source.

Sources are files below ``vllm/v1/core`` of the named release.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsan.harness.configuration import Configuration
from kvsan.harness.operations import OPERATIONS, Cancel, Fork
from kvsan.harness.target import Group, Traits
from kvsan.harness.verdict import UsageError
from kvsan.models_under_test.engines.vllm.contract import Contract
from kvsan.models_under_test.engines.vllm.hits import Promise, promised_hit
from kvsan.models_under_test.engines.vllm.surface import MAX_MODEL_LEN, Surface

_MAX_DRAFTS = 4
_OPTIONS = ("async_scheduling", "drafts", "eagle", "kv_consumer", "watermark")


@dataclass(frozen=True, slots=True)
class Options:
    """A vLLM configuration, as far as it decides what the manager does.

    - ``eagle``: prefix hits give a block back for the drafting head.
    - ``async_scheduling``: two steps in flight; default: where the release has it.
    - ``drafts``: most draft tokens in a step, up to 4. Default: 4, but 0 up to 0.9.2, which crashes when accepted
      drafts have outrun its hashes (``find_longest_cache_hit`` of a preempted request, ``cache_full_blocks`` of a small
      window).
    - ``kv_consumer``: blocks of a request with a step in flight are freed when that step's output is there, as
      sched/scheduler.py, ``_free_request_blocks``, does for a consumer of external tokens with several steps in flight
      (0.24.0 and later): a load that no stream orders could write to them. Without it frees are at once, and the
      session orders loads after compute.
    - ``watermark``: blocks that a first admission leaves free (0.24.0 and later).
    """

    eagle: bool
    async_scheduling: bool
    drafts: int
    kv_consumer: bool
    watermark: int

    @property
    def max_in_flight(self) -> int:
        """Steps in flight: ``max_concurrent_batches`` of vLLM's executors without pipeline parallelism."""
        return 2 if self.async_scheduling else 1


def read_options(configuration: Configuration, surface: Surface) -> Options:
    """Options of a configuration, defaults by release; UsageError for those that the release does not have."""
    where = f"target {configuration.target}"
    for name, _ in configuration.options:
        if name not in _OPTIONS:
            raise UsageError(f"{where}: unknown option {name!r}; it has {', '.join(_OPTIONS)}")
    async_scheduling = configuration.option("async_scheduling", _has_async(surface)) is True
    # 0.10.2's AsyncScheduler has no drafts ("TODO: Support speculative decoding"); 0.11.2's has.
    most_drafts = 0 if async_scheduling and surface.numbers < (0, 11) else _MAX_DRAFTS
    options = Options(
        eagle=configuration.option("eagle", False) is True,
        async_scheduling=async_scheduling,
        drafts=int(configuration.option("drafts", 0 if surface.numbers < (0, 10) else most_drafts)),
        kv_consumer=configuration.option("kv_consumer", False) is True,
        watermark=int(configuration.option("watermark", 0)),
    )
    _check(where, configuration, surface, options, most_drafts)
    return options


def _check(where: str, configuration: Configuration, surface: Surface, options: Options, most_drafts: int) -> None:
    """UsageError for options that the release does not have, or values out of range."""
    if options.async_scheduling and not _has_async(surface):
        raise UsageError(f"{where}: option async_scheduling: begins with vllm 0.10.2")
    if options.kv_consumer and not (options.async_scheduling and surface.numbers >= (0, 24)):
        raise UsageError(f"{where}: option kv_consumer: begins with vllm 0.24.0, with async_scheduling")
    if not 0 <= options.drafts <= most_drafts:
        raise UsageError(f"{where}: option drafts: expected 0 to {most_drafts}, got {options.drafts}")
    if options.watermark and not surface.takes_watermark:
        raise UsageError(f"{where}: option watermark: vllm {surface.version} has none; it begins with 0.24.0")
    if not 0 <= options.watermark < configuration.num_units:
        raise UsageError(f"{where}: option watermark: expected 0 to {configuration.num_units - 1} blocks")


def _has_async(surface: Surface) -> bool:
    """sched/async_scheduler.py is in 0.10.2 and later."""
    return surface.numbers >= (0, 10, 2)


def traits_of(configuration: Configuration, surface: Surface, options: Options) -> Traits:
    """Traits of a release with these groups and options."""
    groups = configuration.parsed_groups()
    all_full = all(group.kind == "full" for group in groups)
    single_full = all_full and len(groups) == 1
    return Traits(
        num_units=configuration.num_units,
        block_size=configuration.block_size,
        groups=groups,
        # block_pool.py: null_block is the first block that is taken from the free queue.
        null_unit=0,
        # No fork, no cancel: n > 1 is separate requests, and a scheduled batch is always launched.
        operations=frozenset(OPERATIONS) - {Fork, Cancel},
        # kv_cache_manager.py, allocate_slots: cache_blocks before anything is computed.
        publish="allocation",
        # block_pool.py: up to 0.22.1 free_blocks appends, and a request is freed from its last block; from 0.23.0 on
        # blocks without a hash go to the front. With several groups or a window the order of tables matters too.
        free_order="lru" if single_full and surface.numbers < (0, 23) else "any",
        deferred_free=options.kv_consumer,
        # kv_cache_manager.py, allocate_slots, 0.24.0: not applied when nobody runs (has_scheduled_reqs); no promise.
        watermark=0,
        max_in_flight=options.max_in_flight,
        max_drafts=options.drafts,
        max_lookahead=options.drafts,
        max_model_len=MAX_MODEL_LEN,
        # A connector's get_num_new_matched_tokens gives whole blocks; allocate_slots relies on it.
        external_unit=configuration.block_size,
        salts=surface.salts,
        media=False,
        # kv_cache_manager.py, allocate_slots: remove_skipped_blocks frees what is outside a window before the check
        # that may refuse ("We can do this even if we cannot schedule this request").
        atomic_refusal=all_full,
        judge_admission=False,
        promised_hit=_promise(surface, groups, options),
        allows=_contract(surface, groups, options),
    )


def _promise(surface: Surface, groups: tuple[Group, ...], options: Options) -> Promise | None:
    # kv_cache_manager.py up to 0.9.2: req_to_block_hashes grows only as blocks are cached, and accepted drafts are
    # cached a step later; a request preempted in between is looked up with fewer hashes than it has full blocks.
    if surface.numbers < (0, 10) and options.drafts:
        return None
    return promised_hit(groups, options.eagle, each_gives_back=surface.numbers < (0, 20))


def _contract(surface: Surface, groups: tuple[Group, ...], options: Options) -> Contract:
    single = len(groups) == 1
    return Contract(
        max_in_flight=options.max_in_flight,
        # sched/scheduler.py, __init__, 0.9.2 and 0.10.2: "Multiple KV cache groups are not currently supported with KV
        # connectors".
        external=single or surface.numbers >= (0, 11),
        # sched/scheduler.py, _update_waiting_for_remote_kv, up to 0.17.1: `(block_ids,) = ...`, one group.
        delayed=surface.takes_delay and (single or surface.numbers >= (0, 20)),
        # sched/scheduler.py, schedule(), 0.32.0: `if not self._request_blocks_can_be_freed(preempted_req): break`;
        # 0.24.0 preempts and defers.
        preempts_in_flight=options.async_scheduling and not (options.kv_consumer and surface.numbers >= (0, 32)),
    )
