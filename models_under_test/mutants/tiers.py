"""Bugs of the keys of the tiers, and of a reset that should empty them."""

from __future__ import annotations

from collections.abc import Hashable
from hashlib import blake2b

from kvsan.harness.tiers import HOST_TIER
from kvsan.models_under_test.mutants.base import Mutant
from kvsan.models_under_test.paged.request import PagedRequest
from kvsan.models_under_test.paged.tiering import Tiering

# -- keys


class _OwnKeys(Tiering):
    """Makes the key of a chunk from the parts that decide its content; a seeded bug leaves one of them out."""

    def _chunk_keys(self, request: PagedRequest, chunks: int) -> list[str]:
        tokens = self.chunk_blocks * self.manager.block_size
        return [self._key(request, chunk * tokens, (chunk + 1) * tokens) for chunk in range(chunks)]

    def _key(self, request: PagedRequest, start: int, stop: int) -> str:
        return blake2b(repr(self._parts(request, start, stop)).encode(), digest_size=16).hexdigest()

    def _parts(self, request: PagedRequest, start: int, stop: int) -> Hashable:
        adapter = request.adapter and tuple(request.adapter)
        return request.salt, adapter, self._media(request, stop), tuple(request.tokens[:stop])

    def _media(self, request: PagedRequest, stop: int) -> Hashable:
        return self.manager.keys.media_of(request, 0, stop)


class _WithoutPrefix(_OwnKeys):
    def _parts(self, request: PagedRequest, start: int, stop: int) -> Hashable:
        adapter = request.adapter and tuple(request.adapter)
        media = self.manager.keys.media_of(request, start, stop)
        return request.salt, adapter, media, tuple(request.tokens[start:stop])


class TierKeyWithoutPrefix(Mutant):
    """A chunk's key is that of its own tokens; what they follow decides their keys and values too.

    Reports: vLLM 12621, 44237 in kind.
    """

    name = "tier_key_without_prefix"
    killed_by = ("tier_key", "offload_complete")
    profile = "async"
    tiering_type = _WithoutPrefix


class _WithoutSalt(_OwnKeys):
    def _parts(self, request: PagedRequest, start: int, stop: int) -> Hashable:
        adapter = request.adapter and tuple(request.adapter)
        return adapter, self._media(request, stop), tuple(request.tokens[:stop])


class TierKeyWithoutSalt(Mutant):
    """The device tells tenants apart, the tier does not.

    Reports: vLLM 44701 in kind.
    """

    name = "tier_key_without_salt"
    killed_by = ("tier_key", "offload_complete")
    profile = "async"
    tiering_type = _WithoutSalt


class _WithoutAdapter(_OwnKeys):
    def _parts(self, request: PagedRequest, start: int, stop: int) -> Hashable:
        return request.salt, self._media(request, stop), tuple(request.tokens[:stop])


class TierKeyWithoutAdapter(Mutant):
    """The adapter is not in the tier's key.

    Reports: vLLM 3263, 8240, SGLang 24638.
    """

    name = "tier_key_without_adapter"
    killed_by = ("tier_key", "offload_complete")
    profile = "async"
    tiering_type = _WithoutAdapter


class _AdapterByName(_OwnKeys):
    def _parts(self, request: PagedRequest, start: int, stop: int) -> Hashable:
        adapter = request.adapter and request.adapter.name
        return request.salt, adapter, self._media(request, stop), tuple(request.tokens[:stop])


class TierKeyAdapterByName(Mutant):
    """Adapters of one name share chunks, whatever their ids.

    Reports: vLLM 30931.
    """

    name = "tier_key_adapter_by_name"
    killed_by = ("tier_key", "offload_complete")
    profile = "async"
    tiering_type = _AdapterByName


class _WithoutMedia(_OwnKeys):
    def _media(self, request: PagedRequest, stop: int) -> Hashable:
        return ()


class TierKeyWithoutMedia(Mutant):
    """Two images behind one placeholder token have one key.

    Reports: vLLM 56655.
    """

    name = "tier_key_without_media"
    killed_by = ("tier_key", "offload_complete")
    profile = "async"
    tiering_type = _WithoutMedia


class _Untagged(_OwnKeys):
    def _parts(self, request: PagedRequest, start: int, stop: int) -> Hashable:
        adapter = request.adapter and request.adapter.name + (
            "" if request.adapter.id == 1 else f"#{request.adapter.id}"
        )
        names = tuple(name for name in (adapter, request.salt) if name)
        return names, self._media(request, stop), tuple(request.tokens[:stop])


class TierKeyUntagged(Mutant):
    """Salt and adapter stand in one list and do not say which they are.

    Reports: vLLM 44701 (real).
    """

    name = "tier_key_untagged"
    killed_by = ("tier_key", "offload_complete")
    profile = "async"
    tiering_type = _Untagged


class _OfFirstBlock(Tiering):
    def _chunk_keys(self, request: PagedRequest, chunks: int) -> list[str]:
        blocks = self.manager.keys.upto(request, chunks * self.chunk_blocks)
        return [self.manager.keys.digest(blocks[chunk * self.chunk_blocks]) for chunk in range(chunks)]


class TierKeyOfFirstBlock(Mutant):
    """A chunk of several blocks has the key of its first one; the others may be anything.

    Reports: SGLang 33450, 38941 in kind (a chunk's number taken for a block's).
    """

    name = "tier_key_of_first_block"
    killed_by = ("tier_key", "offload_complete")
    profile = "async"
    tiering_type = _OfFirstBlock


class _Short(Tiering):
    def _chunk_keys(self, request: PagedRequest, chunks: int) -> list[str]:
        return list(dict.fromkeys(key[:1] for key in super()._chunk_keys(request, chunks)))


class TierKeyTooShort(Mutant):
    """Keys are cut, and two of them are one; here there are sixteen, a hash of 32 bits takes longer.

    Reports: vLLM 12621 in kind.
    """

    name = "tier_key_too_short"
    killed_by = ("tier_key", "offload_complete")
    profile = "async"
    tiering_type = _Short


class _AsksForAnother(Tiering):
    def _find(self, request: PagedRequest, first: int) -> list[tuple[str, str]]:
        asked = [("0" + key[1:], tier) for key, tier in super()._find(request, first)]
        return [(key, tier) for key, tier in asked if self.indexes[tier].lookup(key)]


class ExistsKeyDiffers(Mutant):
    """A chunk is asked for under another key than it was stored under.

    Reports: LMCache 1728.
    """

    name = "exists_key_differs"
    killed_by = ("lost_tier_hits", "tier_key")
    profile = "async"
    tiering_type = _AsksForAnother


# -- a reset


class _ResetsNothing(Tiering):
    def reset(self) -> bool:
        """Nothing is emptied."""
        return True


class ResetLeavesTiers(Mutant):
    """A reset of the prefix cache empties the device, and the tiers go on serving.

    Reports: vLLM 57727.
    """

    name = "reset_leaves_tiers"
    killed_by = ("tier_reset",)
    profile = "async"
    tiering_type = _ResetsNothing


class _ResetsTheHost(Tiering):
    def reset(self) -> bool:
        """The stores are forgotten."""
        return not self.moves and (HOST_TIER not in self.emptied or self.host.reset())


class ResetLeavesStores(Mutant):
    """A reset empties the host, and what is behind it comes up again.

    Reports: vLLM 57727.
    """

    name = "reset_leaves_stores"
    killed_by = ("tier_reset",)
    profile = "async"
    tiering_type = _ResetsTheHost


class _ResetsWhatItCan(Tiering):
    def reset(self) -> bool:
        """Answer for what is being written, too."""
        if any(entry.pins for tier in self.emptied for entry in self.indexes[tier].entries()):
            return False
        for tier in self.emptied:
            index = self.indexes[tier]
            for entry in index.entries():
                if entry.ready:
                    index.drop(entry.key)
                    if tier != HOST_TIER:
                        self._forget(tier, [entry.key])
        return True


class ResetMissesTransfers(Mutant):
    """A reset passes over what is being written, and says that all is gone; it is served when it has arrived.

    Reports: vLLM 57727 in kind.
    """

    name = "reset_misses_transfers"
    killed_by = ("tier_reset",)
    profile = "async"
    tiering_type = _ResetsWhatItCan
