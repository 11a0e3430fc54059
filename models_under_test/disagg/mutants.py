"""Seeded bugs of an exchange: the reference pair with one small step done wrong, each from a public report or in kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, replace
from typing import ClassVar

from kvsan.gpu_kernels.addressing import IntArray
from kvsan.gpu_kernels.sharding import Layout
from kvsan.harness.configuration import Configuration
from kvsan.harness.pair import Receiving
from kvsan.models_under_test.disagg.options import pair_arguments
from kvsan.models_under_test.disagg.target import DisaggregatedPair
from kvsan.models_under_test.naming import mutant_named
from kvsan.models_under_test.paged import PagedManager
from kvsan.models_under_test.paged.exchange import Incoming, Offered, PagedConsumer, PagedProducer
from kvsan.models_under_test.paged.request import PagedRequest


class PairMutant(DisaggregatedPair):
    """One seeded bug. ``killed_by`` are the checks that each must see it, the first the most telling."""

    name: ClassVar[str]
    killed_by: ClassVar[tuple[str, ...]]


# -- the producer


class FreedUnread(PairMutant):
    """A request's blocks are free when it ends, read or not (vLLM 52234)."""

    class _Producer(PagedProducer):
        def _hold(self, units: Sequence[int]) -> None:
            pass

        def _give_back(self, offered: Offered) -> None:
            pass

    producer_type = _Producer
    name = "freed_unread"
    killed_by = ("exchange_pins", "ref_counts", "free_iff_unreferenced")


class ExpiresWhileRead(PairMutant):
    """The producer loses patience although a reader has claimed the offer (vLLM 52234 in kind)."""

    class _Producer(PagedProducer):
        def expire(self, t: str) -> bool:
            self._give_back(self.offers.pop(t))
            return True

    producer_type = _Producer
    name = "expires_while_read"
    killed_by = ("exchange_pins",)


class ExpiryLeaks(PairMutant):
    """What is given up is forgotten, and its blocks with it (vLLM 46283 in kind)."""

    class _Producer(PagedProducer):
        def expire(self, t: str) -> bool:
            offered = self.offers[t]
            return not offered.claimed and self.offers.pop(t) is offered

    producer_type = _Producer
    name = "expiry_leaks"
    killed_by = ("ref_counts", "conservation", "free_iff_unreferenced")


class ReleasedTwice(PairMutant):
    """A notice that comes twice frees twice (vLLM 43226, ascend 14283)."""

    class _Producer(PagedProducer):
        def __init__(self, manager: PagedManager) -> None:
            super().__init__(manager)
            self._known: dict[str, Offered] = {}

        def released(self, t: str) -> None:
            self._known[t] = self.offers.pop(t, self._known.get(t, Offered(PagedRequest("", []), [])))
            self._give_back(self._known[t])

    producer_type = _Producer
    name = "released_twice"
    killed_by = ("ref_counts", "free_iff_unreferenced", "exchange_pins", "target.crash", "conservation")


class UnknownNoticeCrashes(PairMutant):
    """A notice of a transfer that is unknown, or over, raises (vLLM 25067, 46240)."""

    class _Producer(PagedProducer):
        def released(self, t: str) -> None:
            self._give_back(self.offers.pop(t))

    producer_type = _Producer
    name = "unknown_notice_crashes"
    killed_by = ("target.crash",)


class TableOfTheMoment(PairMutant):
    """A reader is told which blocks the request has now, not which were sent: it may be preempted, or gone."""

    class _Producer(PagedProducer):
        def _served(self, offered: Offered) -> Sequence[int]:
            return offered.request.table

    producer_type = _Producer
    name = "table_of_the_moment"
    killed_by = ("exchange_content", "exchange_pins")


class ServesWhatHasEnded(PairMutant):
    """A reader that comes too late is served all the same (vLLM 52234)."""

    class _Producer(PagedProducer):
        def __init__(self, manager: PagedManager) -> None:
            super().__init__(manager)
            self._sent: dict[str, list[int]] = {}

        def claim(self, t: str) -> Sequence[int] | None:
            if t in self.offers:
                self._sent[t] = self.offers[t].units
            return super().claim(t) or self._sent.get(t)

        def expire(self, t: str) -> bool:
            self._sent[t] = self.offers[t].units
            return super().expire(t)

    producer_type = _Producer
    name = "serves_what_has_ended"
    killed_by = ("exchange_content",)


class OffersTheScheduled(PairMutant):
    """What is scheduled is offered as if it were computed: the pull is not ordered after compute (vLLM 45704)."""

    class _Producer(PagedProducer):
        def _sendable(self, request: PagedRequest) -> int:
            return request.scheduled

    producer_type = _Producer
    name = "offers_the_scheduled"
    killed_by = ("exchange_content",)


class OffersPendingCopy(PairMutant):
    """A partial block is offered before the copy on write that fills it was made.

    Reports: the reference pair itself, until this harness was pointed at it: a first offer shared the partial block, so that
    the next token got a copy of it, and a second offer named the copy.
    """

    class _Producer(PagedProducer):
        def _sendable(self, request: PagedRequest) -> int:
            return request.retired

    producer_type = _Producer
    name = "offers_pending_copy"
    killed_by = ("order", "exchange_content")


# -- the consumer


class AbortFreesTheReceived(PairMutant):
    """An abort frees the blocks that a pull is writing (vLLM 32255)."""

    class _Consumer(PagedConsumer):
        def park(self, request: PagedRequest) -> None:
            self.manager.release(request.table)
            self.incoming[request.load].parked = []

    consumer_type = _Consumer
    name = "abort_frees_the_received"
    killed_by = ("exchange_pins", "deferred_free", "free_iff_unreferenced")


class CompletionLost(PairMutant):
    """The end of a pull whose request is gone is not heard: its blocks stay for ever (vLLM 46283)."""

    class _Consumer(PagedConsumer):
        def complete(self, t: str, success: bool) -> None:
            if t in self.incoming and self.incoming[t].parked is None:
                super().complete(t, success)

    consumer_type = _Consumer
    name = "completion_lost"
    killed_by = ("exchange_leaks", "conservation", "ref_counts", "free_iff_unreferenced")


class PublishedBeforeLanded(PairMutant):
    """Blocks are found by others as soon as they are allocated for a pull (vLLM 42359)."""

    class _Consumer(PagedConsumer):
        def receive(self, t: str, name: str, tokens: int) -> Receiving | None:
            granted = super().receive(t, name, tokens)
            if granted is not None:
                request = self.manager.requests[name]
                request.retired = request.scheduled
                self.manager.publish(request)
            return granted

    consumer_type = _Consumer
    name = "published_before_landed"
    killed_by = ("exchange_unlanded",)


class FailedPullKept(PairMutant):
    """A pull that failed is taken for one that did not (vLLM 49250 in kind)."""

    class _Consumer(PagedConsumer):
        def _resume(self, incoming: Incoming, success: bool) -> None:
            super()._resume(incoming, True)

    consumer_type = _Consumer
    name = "failed_pull_kept"
    killed_by = ("exchange_unlanded", "provenance", "testimony", "hash_content", "append_only", "table_covers")


class PullsOverHits(PairMutant):
    """All of the prefix is pulled, over the blocks that others read already (vLLM 43559 in kind)."""

    class _Consumer(PagedConsumer):
        def receive(self, t: str, name: str, tokens: int) -> Receiving | None:
            granted = super().receive(t, name, tokens)
            return granted and Receiving(0, tokens, granted.after)

    consumer_type = _Consumer
    name = "pulls_over_hits"
    killed_by = ("exchange_unlanded", "ownership")


class PullUnordered(PairMutant):
    """Without deferred free, the pull does not wait for the last user of the blocks that it writes (vLLM 45704, 31341)."""

    class _Consumer(PagedConsumer):
        def _after(self) -> tuple[str, ...]:
            return ()

    consumer_type = _Consumer
    name = "pull_unordered"
    killed_by = ("order", "provenance", "foreign_write")


# -- layouts


class _DealtReplicas(Layout):
    """Rank r holds head r modulo their number: replicas of a head are not neighbours."""

    def first_head(self, tp_rank: int) -> int:
        return tp_rank * self.heads % self.num_kv_heads

    def first_rank(self, head: int) -> int:
        return head // self.heads


class _PagesTimesDcp(Layout):
    """The page that a block table names is scaled by the ranks that its tokens are on."""

    def pages(self, table: Sequence[int] | IntArray, local: IntArray) -> IntArray:
        return Layout.pages(self, table, local) * self.dcp


class ReplicasDealt(PairMutant):
    """Where ranks replicate heads, the reader takes the wrong ones for replicas."""

    name = "replicas_dealt"
    killed_by = ("exchange_content",)

    def source_layout(self) -> Layout:
        """Deal replicas in turn."""
        return _DealtReplicas(*astuple(super().source_layout()))


class PageTimesDcp(PairMutant):
    """The reader scales pages by the number of ranks that share their tokens (SGLang 38941)."""

    name = "page_times_dcp"
    killed_by = ("exchange_content",)

    def source_layout(self) -> Layout:
        """Scale the pages."""
        return _PagesTimesDcp(*astuple(super().source_layout()))


class SourceTakenForNhd(PairMutant):
    """Head-major pages are read as slot-major ones (vLLM 37703, 46204)."""

    name = "source_taken_for_nhd"
    killed_by = ("exchange_content",)

    def source_layout(self) -> Layout:
        """All pages are slot-major."""
        return replace(super().source_layout(), memory_layout="NHD")


class TpForgotten(PairMutant):
    """The reader takes the source for one rank: pages are as large as all heads, and there are no others to ask."""

    name = "tp_forgotten"
    killed_by = ("exchange_content",)

    def source_layout(self) -> Layout:
        """One rank holds all heads."""
        return replace(super().source_layout(), tp=1)


class InterleaveForgotten(PairMutant):
    """The reader takes tokens to be dealt one by one."""

    name = "interleave_forgotten"
    killed_by = ("exchange_content",)

    def source_layout(self) -> Layout:
        """Runs are of one token."""
        return replace(super().source_layout(), interleave=1)


MUTANTS: dict[str, type[PairMutant]] = {
    found.name: found
    for found in list(vars().values())
    if isinstance(found, type) and issubclass(found, PairMutant) and found is not PairMutant
}
"""Every mutant by name."""


def make_target(configuration: Configuration) -> PairMutant:
    """Seeded bug NAME over the reference pair, as disagg-mutant:NAME."""
    return mutant_named(configuration.target, MUTANTS)(*pair_arguments(configuration))
