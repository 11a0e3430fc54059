"""``vllm-offload@X``: the reference manager, with vLLM's own index of its host tier.

Which chunks are in the host, which may go and which are being written is decided by vLLM's code of that release; the pool, the
requests, the stores below the host and the bytes are the reference manager's. So what is found is vLLM's, or a call that
vLLM's connector would not make.
"""

from __future__ import annotations

from kvsan.harness.configuration import Configuration
from kvsan.harness.verdict import UsageError
from kvsan.models_under_test.engines.vllm_offload.index import make_index
from kvsan.models_under_test.paged import PagedManager, manager_arguments
from kvsan.models_under_test.paged.tiers import index_maker
from kvsan.models_under_test.tiers.interface import TierIndex

DEFAULT_HOST_UNITS = 16


def make_target(configuration: Configuration) -> PagedManager:
    """vLLM's index of host memory (CPU offloading) at a release, such as vllm-offload@0.32.0."""
    engine, _, version = configuration.target.partition("@")
    if engine != "vllm-offload" or not version:
        raise UsageError(f"target {configuration.target!r}: expected vllm-offload@VERSION, such as vllm-offload@0.32.0")
    policy = str(configuration.option("policy", "lru"))
    of_stores = index_maker(policy)

    def make(capacity: int, first_unit: int, chunk_blocks: int) -> TierIndex:
        if not chunk_blocks:
            return of_stores(capacity, first_unit, chunk_blocks)
        return make_index(version, policy, capacity, first_unit, chunk_blocks)

    arguments = manager_arguments(configuration, make, host_units=DEFAULT_HOST_UNITS)
    return PagedManager(**arguments)
