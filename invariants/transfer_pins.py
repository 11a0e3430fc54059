"""What a transfer reads or writes stays where it is until the manager has heard the end of it.

Statement: while a transfer is in flight, no device unit at its end is in the free queue, its chunks are in the index of the
host with the same host units and in the index of the store that it reads or writes, pinned where it reads them, no two of
its chunks share a host unit, and no other transfer writes a host unit that it uses.

Why: the copy in flight reads or writes somebody else's memory.

Reports: vLLM 32255, 52360, 29870 (stores and loads in flight over blocks that were reused), 31341 (host buffer reused under
an asynchronous copy), 39702 (a host hit that was not pinned), SGLang 35769, LMCache 1756.

Does not see: ends that a target does not name in its effects.

Mutant: ``offload_unpinned``, ``host_hit_unpinned``, ``evicts_what_is_written``.
"""

from __future__ import annotations

from kvsan.harness.invariant import Invariant
from kvsan.harness.step import Step
from kvsan.harness.tiers import HOST_TIER
from kvsan.harness.transfer import Transfer


class TransferPins(Invariant):
    """Checks both ends of everything in flight."""

    id = "transfer_pins"
    every_step = True

    def applies(self) -> bool:
        """Only with tiers."""
        return self.books.tiers is not None

    def on_transfer(self, transfer: Transfer) -> None:
        """No two transfers may meet in a host unit unless both read it."""
        tiers = self.books.tiers
        assert tiers is not None
        units = transfer.host_units()
        if len(set(units)) < len(units):
            twice = next(unit for unit in units if units.count(unit) > 1)
            raise self.violated("two chunks", f"{transfer.t} has host unit {twice} for two of its pages")
        writes = set(transfer.host_writes())
        for other in tiers.in_flight.values():
            if other is not transfer:
                others = set(other.host_writes())
                met = writes.intersection(other.host_units()) | others.intersection(transfer.host_units())
                if met:
                    raise self.violated(
                        "two transfers",
                        f"host unit {min(met)} is used by {transfer.t} and {other.t}, one of which writes it",
                    )

    def _check_indexes(self) -> None:
        """Whatever began, ended or was emptied may have cost others their chunks or pins."""
        tiers = self.books.tiers
        assert tiers is not None
        entry = tiers.view.entry
        for transfer in tiers.in_flight.values():
            for chunk in transfer.chunks:
                in_host = entry(HOST_TIER, chunk.key)
                if in_host is None or in_host.units != chunk.units:
                    raise self.violated(
                        "evicted",
                        f"{transfer.t} is in flight, and the host no longer has its chunk in units {chunk.units}",
                    )
                if chunk.tier != HOST_TIER and entry(chunk.tier, chunk.key) is None:
                    raise self.violated(
                        "evicted", f"{transfer.t} is in flight, and its chunk is no longer in {chunk.tier}"
                    )
            for tier, key in transfer.tier_reads():
                read = entry(tier, key)
                if read is not None and not read.pins:
                    raise self.violated(
                        "unpinned", f"{transfer.t} reads chunk {key[:12]} in {tier}, and nobody pins it"
                    )

    def after_step(self, step: Step) -> None:
        """Device units at either end are nobody else's to take, and chunks stay in their indexes."""
        tiers = self.books.tiers
        assert tiers is not None
        if not tiers.in_flight:
            return
        if step.begun or step.completed or step.ended or step.reset:
            self._check_indexes()
        is_free = self.view.is_free
        for transfer in tiers.in_flight.values():
            for unit in (*transfer.held, *transfer.written):
                if is_free(unit):
                    raise self.violated("freed", f"unit {unit} is free although transfer {transfer.t} still uses it")
