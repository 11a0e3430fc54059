"""vLLM's V1 KV-cache manager at a real release, driven as vLLM's own scheduler drives it.

Read it in this order: ``surface`` (how each release's manager is made and called), ``target`` (what the scheduler does
around those calls), ``traits`` and ``contract`` (what a release promises, and which calls its scheduler makes),
``hits`` (which hit it owes).
"""

from kvsan.models_under_test.engines.vllm.target import VllmTarget, make_target

__all__ = ["VllmTarget", "make_target"]
