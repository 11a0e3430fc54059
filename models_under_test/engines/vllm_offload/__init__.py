"""vLLM's own index of its host tier (CPU offloading) at a real release, as an index that the reference manager can use.

Read it in this order: ``surface`` (what each release's manager is called, promises and asserts, and how vLLM's connector
calls it), ``state`` (what is read back from a manager), ``index`` (the two behind ``TierIndex``).
"""

from kvsan.models_under_test.engines.vllm_offload.index import VllmOffloadIndex, make_index
from kvsan.models_under_test.engines.vllm_offload.surface import available_policies

__all__ = ["VllmOffloadIndex", "available_policies", "make_index"]
