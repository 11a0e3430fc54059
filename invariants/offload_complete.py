"""What is offloaded is offloaded whole.

Statement (trait ``offloads_all``): after an offload to the host was granted, every full chunk of what the request has
computed is there or on its way; and it is granted where nothing of the request is on its way and there is room for what is
missing, in free host units and in chunks of others that nobody reads or writes.

Why: one chunk that is left out ends every later hit where it is missing.

Reports: vLLM 48596 (last block never stored), 47046, 35846 (a store evicts its own prefix), 55461 (no candidate is found
although there is one).

Does not see: offloads to stores.

Mutant: ``last_chunk_never_stored``, ``evicts_its_own_prefix``, ``evicts_though_there_is_room``.
"""

from __future__ import annotations

from kvsan.gpu_kernels.addressing import full_blocks
from kvsan.harness.expectation import Expected
from kvsan.harness.invariant import Invariant
from kvsan.harness.operations import Offload
from kvsan.harness.step import Step
from kvsan.harness.tiers import HOST_TIER


class OffloadComplete(Invariant):
    """Checks the host's index after an offload to it."""

    id = "offload_complete"
    every_step = True

    def applies(self) -> bool:
        """Only where it is promised."""
        return self.books.tiers is not None and self.traits.offloads_all

    def after_step(self, step: Step) -> None:
        """Judge an offload to the host, begun or refused."""
        operation, tiers = step.operation, self.books.tiers
        if not isinstance(operation, Offload) or operation.tier != HOST_TIER:
            return
        assert tiers is not None
        request = next(one for one in self.books.requests.values() if one.r == operation.r)
        missing = self._missing(request)
        if not missing:
            return
        if step.begun is not None:
            raise self.violated(
                "left out", f"{operation.t} offloads {request.r}, but not its chunk of blocks {missing[0]} and on"
            )
        room = self._room(request)
        if len(missing) <= room and not self._is_on_its_way(request):
            raise self.violated(
                "refused",
                f"{operation.t} was refused: {request.r} has {len(missing)} chunks to store, and the host has room for {room}",
            )

    def _missing(self, request: Expected) -> list[int]:
        """First block of each full chunk that is not in the host, in any state."""
        tiers, blocks = self.books.tiers, self.traits.chunk_blocks
        assert tiers is not None
        return [
            block
            for block in range(0, full_blocks(request.retired, self.traits.block_size) // blocks * blocks, blocks)
            if not any(tiers.view.entry(HOST_TIER, key) for key in tiers.keys_of(request, block))
        ]

    def _room(self, request: Expected) -> int:
        """Chunks that fit into what is free, and into what may be evicted for this request."""
        tiers = self.books.tiers
        assert tiers is not None
        own = self._keys(request)
        idle = sum(entry.ready and not entry.pins and entry.key not in own for entry in tiers.view.entries(HOST_TIER))
        return tiers.view.free_host_units() // self.traits.chunk_blocks + idle

    def _keys(self, request: Expected) -> set[str]:
        """Keys that stand for full chunks of the request."""
        tiers, size = self.books.tiers, self.traits.chunk_blocks
        assert tiers is not None
        chunks = full_blocks(request.retired, self.traits.block_size) // size
        return {key for chunk in range(chunks) for key in tiers.keys_of(request, chunk * size)}

    def _is_on_its_way(self, request: Expected) -> bool:
        """Whether something goes down that a new offload could be told to wait for."""
        tiers = self.books.tiers
        assert tiers is not None
        keys = self._keys(request)
        return any(key in keys for transfer in tiers.in_flight.values() for _, key in transfer.tier_writes())
