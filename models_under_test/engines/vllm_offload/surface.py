"""The surface of vLLM's offload managers, release by release: how they are imported, made and called.

An offload manager lives in the scheduler and knows which chunks are in host memory and where; it moves no bytes. Sources
are files below ``vllm/v1`` of the named release; the caller, "the connector", is ``distributed/kv_transfer/kv_connector/v1/
offloading_connector.py`` up to 0.17.1 and ``offloading/scheduler.py`` beside it from 0.19.0 on.

The API, by the first of the releases tried that has it
-------------------------------------------------------

- 0.11.0: ``kv_offload/lru_manager.py`` over ``backends/cpu.py``; keys are block hashes; ``lookup(keys)`` is the length of
  the hit. 0.11.2: ``arc_manager.py`` too.
- 0.19.0: ``cpu/manager.py``, one ``CPUOffloadingManager`` over ``cpu/policies/{lru,arc}.py``; keys that are offered for
  storing are not evicted by that.
- 0.20.2: a key is a block hash and a group; a ``ReqContext`` comes along; ``lookup(key)`` is one answer.
- 0.22.1: ``lookup`` is None for a chunk being written (the request is asked again later); ``reset_cache``.
- 0.23.0: ``on_new_request``, ``on_request_finished``.
- 0.24.0: LRU order is that in which chunks became evictable; ``touch`` passes over chunks in transfer.
- 0.32.0: chunks instead of blocks in the names, ``LookupResult``; recency is noted once a request, when it finishes, from
  what it loaded and offered for storing; the connector does not call ``touch`` any more.

What every release promises
---------------------------

- One count a chunk (``ref_cnt``): -1 while it is being written, then the number of loads that read it. Only a chunk at 0
  is evicted. Places are numbers from 0 on, reused last in first out.
- ``prepare_load`` asserts that each chunk is there and written, and pins it. ``complete_load`` asserts a pin.
- ``prepare_store`` passes over keys that are there, written or not, and returns only the others as keys to store. None: it
  cannot make room; from 0.19.0 on nothing has changed then. A key twice in one call takes two places and loses one:
  the connector's keys are chained hashes of one request, and do not repeat.
- ``complete_store`` may only be given what its own ``prepare_store`` returned: any chunk that is being written becomes
  ready, whoever writes it. ``success=False`` forgets what is not ready; up to 0.17.1 ARC forgets ready ones as well, and
  loses their places. The connector never passes it: workers assert that transfers succeed.
- ``touch`` takes a request's keys from its first chunk on and makes the *first* the most recent: tails go first.
- ``reset_cache`` forgets everything at once, pinned or not; the connector has workers flush all jobs, and passes over
  their completions afterwards.

How the connector calls it
--------------------------

1. ``get_num_new_matched_tokens``: ``touch`` of all keys of the request (up to 0.28.0), ``lookup`` from the local hit on. A
   chunk in another request's load makes the request wait (0.17.1 on, with prefix caching).
2. ``update_state_after_alloc``, same step: ``prepare_load`` of the chunks that it promised. Nothing is stored in between.
3. ``build_connector_meta``, end of the step: for each request ``prepare_store`` of its new full chunks, then ``touch`` of
   all its keys (up to 0.28.0), those just prepared included. After None it tries again in the next step.
4. ``update_connector_output``, a later step: ``complete_store`` and ``complete_load`` with a set of keys, once a transfer
   has finished on every worker. Up to 0.20.2 the stores of a request are completed together when it has finished, and
   from 0.14.1 on at its preemption, whose step first flushes them on the workers.
5. ``on_request_finished`` (0.23.0 on) after the last ``prepare_*`` of a request; completions may still come.

What is wrong with them, in the releases tried
----------------------------------------------

- 0.11.2 to 0.14.1, ARC: ``touch`` of a chunk being written raises KeyError and has forgotten the chunk (vLLM 34576); as
  the connector touches what it has just prepared, the first store of a request is enough.
- 0.11.2 to 0.17.1: ``prepare_store`` may evict keys of its own call that are there (vLLM 35846).
- 0.11.2 to 0.17.1, ARC: a ``prepare_store`` that returns None has evicted chunks, and no event says so (vLLM 37874).
- 0.11.2 to 0.28.0, ARC: None although there is room: while T1 is below its target only T2 is looked at (vLLM 55461).
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import itertools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kvsan.harness.verdict import UsageError
from kvsan.models_under_test.engines import cache
from kvsan.models_under_test.engines.vllm import surface as vllm_surface

POLICIES = ("lru", "arc")
"""Eviction policies that are looked for in a release."""

_FIRST = "0.11.0"
_CALLS = ("lookup", "touch", "prepare_load", "complete_load", "prepare_store", "complete_store")


class StoreGrant(NamedTuple):
    """What a ``PrepareStoreOutput`` says: keys to store and the place of each, and the keys that made room."""

    keys: list[bytes]
    places: list[int]
    evicted: list[bytes]


def available_policies(version: str) -> tuple[str, ...]:
    """Eviction policies of a release in the engines cache, which is not loaded; UsageError if it has no manager."""
    folder = cache.find("vllm", version) / "vllm" / "v1" / "kv_offload"
    found = tuple(policy for policy in POLICIES if any(path.is_file() for path in _sources(folder, policy)))
    if found:
        return found
    early = cache.version_numbers(version) < cache.version_numbers(_FIRST)
    reason = f"they begin with {_FIRST}" if early else "expected them in v1/kv_offload"
    raise UsageError(f"vllm {version} has no offload managers: {reason}")


def _sources(folder: Path, policy: str) -> tuple[Path, ...]:
    return (folder / f"{policy}_manager.py", folder / "cpu" / "policies" / f"{policy}.py")


class OffloadSurface:
    """One loaded release. Engine keys are bytes; a ``context`` is vLLM's ``ReqContext``, None where there is none."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.policies = available_policies(version)
        package = "vllm.v1.kv_offload"
        self._base = _first_module(f"{package}.base", f"{package}.abstract")
        if importlib.util.find_spec(f"{package}.lru_manager") is None:
            self._backend = None
            manager = importlib.import_module(f"{package}.cpu.manager").CPUOffloadingManager
            self._managers = dict.fromkeys(self.policies, manager)
        else:
            self._backend = importlib.import_module(f"{package}.backends.cpu").CPUBackend
            self._managers = {
                policy: getattr(
                    importlib.import_module(f"{package}.{policy}_manager"), f"{policy.upper()}OffloadingManager"
                )
                for policy in self.policies
            }
        manager = self._managers[self.policies[0]]
        takes = {name: inspect.signature(getattr(manager, name)).parameters for name in _CALLS}
        self._contextual = {name for name, parameters in takes.items() if "req_context" in parameters}
        self._looks_up_one = "key" in takes["lookup"]
        self._keys_have_groups = hasattr(self._base, "make_offload_key")
        self.protects_offered = self._backend is None
        self.resets = hasattr(manager, "reset_cache")
        self._requests = itertools.count(1)

    def manager(self, policy: str, capacity: int) -> Any:
        """Make a manager of ``capacity`` chunks; UsageError if the release does not have the policy."""
        if policy not in self.policies:
            has = ", ".join(self.policies)
            raise UsageError(f"vllm {self.version}: offload policy {policy!r}: expected one of {has}")
        made = self._managers[policy]
        if self._backend is not None:
            return made(self._backend(block_size=1, num_blocks=capacity))
        arguments = {"num_chunks": capacity, "num_blocks": capacity, "block_size": 1, "cache_policy": policy}
        takes = inspect.signature(made).parameters
        return made(**{name: value for name, value in arguments.items() if name in takes})

    def key(self, key: str) -> bytes:
        """Return the engine's form of a key: its characters are the block hash, of cache group 0."""
        block_hash = key.encode("ascii")
        return bytes(self._base.make_offload_key(block_hash, 0)) if self._keys_have_groups else block_hash

    def name(self, key: bytes) -> str:
        """Return the key that ``key`` made this of."""
        block_hash = self._base.get_offload_block_hash(key) if self._keys_have_groups else key
        return bytes(block_hash).decode("ascii")

    def begin(self, manager: Any) -> Any:
        """Announce a request to the manager and return its context."""
        if not self._contextual:
            return None
        takes = inspect.signature(self._base.ReqContext).parameters
        context = self._base.ReqContext(**({"req_id": f"r{next(self._requests)}"} if "req_id" in takes else {}))
        if hasattr(manager, "on_new_request"):
            manager.on_new_request(context)
        return context

    def finish(self, manager: Any, context: Any) -> None:
        """Tell the manager that a request prepares nothing more; what it has prepared may still be completed."""
        if hasattr(manager, "on_request_finished"):
            manager.on_request_finished(context)

    def lookup(self, manager: Any, key: bytes, context: Any) -> bool:
        """Whether a chunk is there and written; what is being written is no hit, whatever the release calls it."""
        if not self._looks_up_one:
            return bool(manager.lookup([key]) == 1)
        answer = self.call(manager, "lookup", key, context)
        return answer is True or getattr(answer, "name", "") == "HIT"

    def call(self, manager: Any, name: str, keys: Any, context: Any, **options: Any) -> Any:
        """Call one of the manager's methods on keys, with the context where the release takes it."""
        if name in self._contextual:
            options["req_context"] = context
        return getattr(manager, name)(keys, **options)

    def prepare_store(self, manager: Any, keys: Sequence[bytes], context: Any) -> StoreGrant | None:
        """Make room for those of the keys that are not there; None if the manager cannot."""
        output = self.call(manager, "prepare_store", keys, context)
        if output is None:
            return None
        if hasattr(output, "keys_to_store"):
            stored, evicted = output.keys_to_store, output.evicted_keys
        else:
            stored, evicted = output.block_hashes_to_store, output.block_hashes_evicted
        return StoreGrant(list(stored), output.store_spec.block_ids.tolist(), list(evicted))


_loaded: OffloadSurface | None = None


def load(version: str) -> OffloadSurface:
    """Import a release's offload managers into this process; the second call returns the same surface.

    UsageError if the release is not in the cache, has none, cannot be imported, or another one is loaded already.
    """
    global _loaded
    if _loaded is not None and _loaded.version == version:
        return _loaded
    available_policies(version)
    vllm_surface.load(version)
    silenced = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        _loaded = OffloadSurface(version)
    except ImportError as error:
        raise UsageError(f"vllm {version}: its offload managers cannot be imported: {error}") from error
    finally:
        logging.disable(silenced)
    return _loaded


def _first_module(*names: str) -> Any:
    """Import the first of some modules that exists."""
    return importlib.import_module(next(name for name in names if importlib.util.find_spec(name) is not None))
