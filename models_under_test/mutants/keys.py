"""Bugs of the prefix-cache key: a component is missing, or two are not told apart."""

from __future__ import annotations

from collections.abc import Hashable

from kvsan.gpu_kernels.addressing import full_blocks
from kvsan.harness.operations import token_id
from kvsan.models_under_test.mutants.base import Mutant
from kvsan.models_under_test.paged.keys import KeyChain
from kvsan.models_under_test.paged.request import PagedRequest


class _NoSalt(KeyChain):
    __slots__ = ()

    def root(self, request: PagedRequest) -> Hashable:
        return (("adapter", request.adapter and tuple(request.adapter)),)


class SaltMissing(Mutant):
    """The salt is not in the key, so that tenants share what they must not even know of.

    Reports: vLLM 44701 in kind.
    """

    name = "salt_missing"
    killed_by = ("tenants",)
    keys_type = _NoSalt


class _NoAdapterId(KeyChain):
    __slots__ = ()

    def root(self, request: PagedRequest) -> Hashable:
        return ("salt", request.salt), ("adapter", request.adapter and request.adapter.name)


class AdapterIdMissing(Mutant):
    """Adapters of one name and different ids have one key.

    Reports: vLLM 30931 (real, live), 3263, 8240, SGLang 24638.
    """

    name = "adapter_id_missing"
    killed_by = ("hash_content", "hit_content")
    keys_type = _NoAdapterId


class _Untagged(KeyChain):
    __slots__ = ()

    def root(self, request: PagedRequest) -> Hashable:
        adapter = request.adapter and request.adapter.name + (
            f"#{request.adapter.id}" if request.adapter.id != 1 else ""
        )
        return tuple(part for part in (adapter, request.salt) if part)


class KeyUntagged(Mutant):
    """Adapter name and salt stand in one tuple without tags, so that equal strings collide.

    Reports: vLLM 44701 (real).
    """

    name = "key_untagged"
    killed_by = ("hash_content", "hit_content", "tenants")
    keys_type = _Untagged


class _NoMedia(KeyChain):
    __slots__ = ()

    def media_of(self, request: PagedRequest, start: int, stop: int) -> Hashable:
        return ()


class MediaMissing(Mutant):
    """Two images behind the same placeholder tokens have one key.

    Reports: vLLM 56655 (a mask that is not in the key) in kind.
    """

    name = "media_missing"
    killed_by = ("hash_content", "hit_content")
    keys_type = _NoMedia


class _NoParent(KeyChain):
    __slots__ = ()

    def parent(self, request: PagedRequest) -> int:
        return self._intern(self.root(request))


class ParentMissing(Mutant):
    """A block's key names its own tokens and not what stands before them.

    Reports: LMCache 1728 (one side's key is another's) in kind.
    """

    name = "parent_missing"
    killed_by = ("hash_content", "hit_content", "ownership")
    keys_type = _NoParent


class HashedBeforeSampled(Mutant):
    """A block is hashed with the drafts in it, and not again when other tokens were sampled: hashes are only appended.

    Reports: vLLM 49449 (tokens replaced in an already hashed block).
    """

    name = "hashed_before_sampled"
    killed_by = ("hash_content", "hit_content", "lost_hits", "ownership")

    def launch(self, b: str) -> None:
        """Put the batch on the device, and hash ahead."""
        for row in self.batch.values():
            request, known = row.request, len(row.request.tokens)
            request.tokens.extend(token_id(0, position) for position in range(known, request.scheduled))
            self.keys.upto(request, full_blocks(request.scheduled, self.block_size))
            del request.tokens[known:]
        super().launch(b)
