"""A transfer moves what it says it moves, between places that are its own.

Statement: a load writes only units that its request alone holds, behind the prefix that the device already has, each once, and
leaves a token of the prompt to compute; an offload reads only units of its request's table, of tokens that have retired.

Why: other requests read the blocks of a shared prefix while a load writes them again.

Reports: vLLM 43559, 48375 (a block computed by nobody between two boundaries), SGLang 35769.

Does not see: host units; ``transfer_pins`` and ``tier_content`` do.

Mutant: ``load_over_hits``, ``offload_of_unretired``, ``load_leaves_nothing``, ``load_one_block_late``.
"""

from __future__ import annotations

from kvsan.gpu_kernels.addressing import blocks_for, full_blocks
from kvsan.harness.invariant import Invariant
from kvsan.harness.step import Step
from kvsan.harness.transfer import Transfer


class TransferEnds(Invariant):
    """Checks the device's end of a transfer in the step that began it, when tables are known."""

    id = "transfer_ends"

    def applies(self) -> bool:
        """Only with tiers."""
        return self.books.tiers is not None

    def after_step(self, step: Step) -> None:
        """Judge the transfer that the step began."""
        transfer = step.begun
        if transfer is None:
            return
        if transfer.kind == "load":
            self._check_load(transfer)
        else:
            self._check_offload(transfer)

    def _check_load(self, transfer: Transfer) -> None:
        request, (start, stop) = transfer.request, transfer.loading
        size = self.traits.block_size
        own = request.tables[0][start // size : blocks_for(stop, size)]
        if stop >= len(request.life.tokens):
            raise self.violated(
                "nothing left", f"{transfer.t} brings {request.r}@{start}..{stop - 1}: no token is left to compute"
            )
        for effect in transfer.copies():
            self._check_place(transfer, effect.source, effect.destination)
            if effect.destination not in own:
                raise self.violated(
                    "hit", f"{transfer.t} writes unit {effect.destination}, which {request.r} already has"
                )
        for unit in own:
            if self.books.holders[unit] != 1:
                raise self.violated("shared", f"{transfer.t} writes unit {unit}, which {self.books.holders[unit]} hold")
            if unit not in transfer.written:
                raise self.violated(
                    "left out", f"{transfer.t} loads {request.r}@{start}..{stop - 1}, but not unit {unit}"
                )

    def _check_offload(self, transfer: Transfer) -> None:
        request = transfer.request
        computed = request.tables[0][: full_blocks(request.retired, self.traits.block_size)]
        for effect in transfer.copies():
            if effect.source not in computed:
                raise self.violated(
                    "not retired",
                    f"{transfer.t} reads unit {effect.source}, where {request.r} has computed nothing yet",
                )
            self._check_place(transfer, effect.destination, effect.source)

    def _check_place(self, transfer: Transfer, host_unit: int, unit: int) -> None:
        """A page of a chunk belongs to one block of the request."""
        chunk, place = transfer.place_of(host_unit)
        table, block = transfer.request.tables[0], chunk.block + place
        if block >= len(table) or table[block] != unit:
            raise self.violated(
                "elsewhere",
                f"{transfer.t} moves host unit {host_unit}, {transfer.request.r}'s block {block}, and unit {unit}, which is "
                "not that block",
            )
