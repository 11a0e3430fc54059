"""The surface of vLLM's KV-cache manager, release by release: how it is imported, made and called.

Signatures drift from 0.8.5 to 0.32.0; what a release does not take is left out, decided once by its signatures. One
release can be loaded in a process, because it stays in ``sys.modules``.

What changed, by the first of the releases tried that has it:

- 0.9.2: cache groups (``KVCacheManager`` over a coordinator), ``cache_salt``, delayed caching.
- 0.10.2: the request hashes its own blocks (``block_hasher``); drafts are cut off at ``request.num_tokens``.
- 0.14.1: ``num_external_computed_tokens``; before, external tokens are part of ``num_new_tokens``.
- 0.24.0: ``has_scheduled_reqs`` and ``watermark``.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kvsan.harness.operations import Adapter
from kvsan.harness.target import Group, Request
from kvsan.harness.verdict import UsageError
from kvsan.models_under_test.engines import cache, standins

MAX_MODEL_LEN = 1 << 14
"""Longest request, in tokens, that managers are made for."""


class Chunk(NamedTuple):
    """Arguments of one allocation: tokens to compute (``drafts`` of them guesses), and what precedes them."""

    n: int
    drafts: int
    lookahead: int
    external: int
    delayed: bool
    hit: int
    blocks: Any


@dataclass(frozen=True, slots=True)
class Lora:
    """What vLLM's hashing reads of a ``LoRARequest``: the path goes with the name, the int id with name and id."""

    lora_name: str
    lora_int_id: int

    @property
    def lora_path(self) -> str:
        """Where the adapter would be loaded from."""
        return f"adapters/{self.lora_name}"


class Surface:
    """One loaded release."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.numbers = cache.version_numbers(version)
        self._manager_class = importlib.import_module("vllm.v1.core.kv_cache_manager").KVCacheManager
        self._interface = importlib.import_module("vllm.v1.kv_cache_interface")
        request_module = importlib.import_module("vllm.v1.request")
        self._request_class = request_module.Request
        self.status = request_module.RequestStatus
        self._hashing()
        sampling = importlib.import_module("vllm.sampling_params")
        self._sampling = sampling.SamplingParams(max_tokens=MAX_MODEL_LEN, temperature=0.0)
        self._manager_takes = _parameters(self._manager_class.__init__)
        allocate = _parameters(self._manager_class.allocate_slots)
        self._takes_hit = "num_new_computed_tokens" in allocate
        self._takes_external = "num_external_computed_tokens" in allocate
        self._takes_drafts = "num_draft_tokens" in allocate
        self.takes_running = "has_scheduled_reqs" in allocate
        self.takes_delay = "delay_cache_blocks" in allocate
        self.takes_watermark = "watermark" in self._manager_takes
        self.has_groups = importlib.util.find_spec("vllm.v1.core.kv_cache_coordinator") is not None
        self.frees_hashes = hasattr(self._manager_class, "free_block_hashes")
        request_takes = _parameters(self._request_class.__init__)
        self.salts = "cache_salt" in request_takes
        self._request_fixed = _request_constants(request_takes, self._sampling)

    def _hashing(self) -> None:
        utils = importlib.import_module("vllm.v1.core.kv_cache_utils")
        try:
            sha256 = importlib.import_module("vllm.utils.hashing").sha256
        except ImportError:
            sha256 = importlib.import_module("vllm.utils").sha256
        if hasattr(utils, "init_none_hash"):
            utils.init_none_hash(sha256)
        make = getattr(utils, "get_request_block_hasher", None)
        self._hasher: Callable[[int], Any] | None = None if make is None else lambda size: make(size, sha256)

    def block_hasher(self, block_size: int) -> Any:
        """Make the function that hashes a request's full blocks; None where the manager does that itself."""
        return None if self._hasher is None else self._hasher(block_size)

    def manager(self, num_units: int, block_size: int, groups: Sequence[Group], eagle: bool, watermark: int) -> Any:
        """Make a manager; UsageError if the release has none for these groups."""
        if len(groups) > 1 and not self.has_groups:
            raise UsageError(f"vllm {self.version} has one cache group, got {len(groups)}; groups begin with 0.9.2")
        specs = [self._spec(group, block_size) for group in groups]
        interface = self._interface
        try:
            entries = [interface.KVCacheGroupSpec([f"layer{i}"], spec) for i, spec in enumerate(specs)]
            config = _call(
                interface.KVCacheConfig,
                num_blocks=num_units,
                kv_cache_tensors=[],
                tensors={},
                kv_cache_groups=entries,
            )
            arguments = {
                "kv_cache_config": config,
                "kv_cache_spec": specs[0],
                "max_model_len": MAX_MODEL_LEN,
                "max_num_batched_tokens": MAX_MODEL_LEN,
                "max_in_flight_tokens": MAX_MODEL_LEN,
                "scheduler_block_size": block_size,
                "hash_block_size": block_size,
                "enable_caching": True,
                "caching_hash_algo": "sha256",
                "use_eagle": eagle,
                "watermark": (watermark + 0.5) / num_units if watermark else 0.0,
            }
            return self._manager_class(**{k: v for k, v in arguments.items() if k in self._manager_takes})
        except (AssertionError, ValueError, NotImplementedError) as error:
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            kinds = ", ".join(group.kind for group in groups)
            raise UsageError(f"vllm {self.version} makes no manager for groups {kinds}: {reason[:200]}") from error

    def _spec(self, group: Group, block_size: int) -> Any:
        shape = {"block_size": block_size, "num_kv_heads": 1, "head_size": 8, "use_mla": False}
        torch = importlib.import_module("torch")
        if group.kind == "full":
            return _call(self._interface.FullAttentionSpec, **shape, dtype=torch.float32)
        return _call(self._interface.SlidingWindowSpec, **shape, dtype=torch.float32, sliding_window=group.window)

    def request(self, request: Request, hasher: Any, lora: Lora | None) -> Any:
        """Make vLLM's request object; it keeps a copy of the tokens."""
        arguments = dict(self._request_fixed)
        arguments["request_id"] = request.name
        arguments["prompt_token_ids"] = list(request.tokens)
        arguments["lora_request"] = lora
        if self.salts:
            arguments["cache_salt"] = request.salt or None
        if hasher is not None:
            arguments["block_hasher"] = hasher
        return self._request_class(**arguments)

    def lookup(self, manager: Any, request: Any) -> tuple[Any, int]:
        """Look a prefix up: the blocks, in the release's own form, and the tokens they hold."""
        blocks, hit = manager.get_computed_blocks(request)[:2]
        return blocks, hit

    def allocate(self, manager: Any, request: Any, chunk: Chunk, anyone_running: bool) -> bool:
        """Ask for the slots of a chunk; False if refused."""
        arguments: dict[str, Any] = {"num_lookahead_tokens": chunk.lookahead}
        n = chunk.n
        if chunk.external:
            if self._takes_external:
                arguments["num_external_computed_tokens"] = chunk.external
            else:
                n += chunk.external
        if chunk.blocks is not None:
            arguments["new_computed_blocks"] = chunk.blocks
            if self._takes_hit:
                arguments["num_new_computed_tokens"] = chunk.hit
        if chunk.delayed:
            arguments["delay_cache_blocks"] = True
        if self._takes_drafts:
            arguments["num_draft_tokens"] = chunk.drafts
        if self.takes_running:
            arguments["has_scheduled_reqs"] = anyone_running
        return manager.allocate_slots(request, n, **arguments) is not None


_loaded: Surface | None = None


def load(version: str) -> Surface:
    """Import a release from the engines cache into this process; the second call returns the same surface.

    UsageError if it is not in the cache, cannot be imported, or another release is loaded already.
    """
    global _loaded
    if _loaded is not None:
        if _loaded.version != version:
            raise UsageError(f"vllm {version}: this process holds vllm {_loaded.version}; one release a process")
        return _loaded
    folder = cache.find("vllm", version)
    os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
    standins.install()
    importlib.import_module("torch")
    if cache.version_numbers(version) < (0, 9):
        # 0.8.x reaches into torch._inductor while it is half imported otherwise.
        importlib.import_module("torch._inductor.compile_fx")
    sys.path.insert(0, str(folder))
    silenced = logging.root.manager.disable
    # Importing warns about what is absent; later the manager warns about every reset that it refuses.
    logging.disable(logging.WARNING)
    try:
        _loaded = Surface(version)
    except ImportError as error:
        sys.path.remove(str(folder))
        missing = f"; pip install 'kvsan[engines]' has what it needs ({error.name})" if error.name else ""
        raise UsageError(f"vllm {version} cannot be imported: {error}{missing}") from error
    finally:
        logging.disable(silenced)
    logging.getLogger("vllm").setLevel(logging.ERROR)
    return _loaded


def lora_of(adapter: Adapter | None, known: dict[Adapter, Lora]) -> Lora | None:
    """Return vLLM's form of an adapter.

    ``vllm/lora/request.py`` asks that ``lora_int_id`` be unique to an adapter, so adapters are numbered as they appear.
    """
    if adapter is None:
        return None
    lora = known.get(adapter)
    if lora is None:
        lora = known[adapter] = Lora(adapter.name, len(known) + 1)
    return lora


def _request_constants(takes: frozenset[str], sampling: Any) -> Mapping[str, Any]:
    every = {
        "prompt": None,
        "sampling_params": sampling,
        "pooling_params": None,
        "eos_token_id": None,
        "arrival_time": 0.0,
        "multi_modal_inputs": None,
        "multi_modal_hashes": None,
        "multi_modal_placeholders": None,
        "multi_modal_kwargs": None,
    }
    return {name: value for name, value in every.items() if name in takes}


def _parameters(function: Any) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def _call(function: Any, **arguments: Any) -> Any:
    takes = _parameters(function)
    return function(**{name: value for name, value in arguments.items() if name in takes})
