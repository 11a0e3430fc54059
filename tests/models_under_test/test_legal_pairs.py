"""Pairs that do it otherwise, and rightly: no check may hold that against them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from kvsan.fuzz.known import KnownFindings
from kvsan.fuzz.profiles import DISAGG
from kvsan.fuzz.search import Reporter, Search, SearchSettings
from kvsan.gpu_kernels.sharding import Layout
from kvsan.harness.configuration import Configuration
from kvsan.harness.pair import Receiving, Sending
from kvsan.models_under_test.disagg import DisaggregatedPair, pair_arguments
from kvsan.models_under_test.paged import PagedManager
from kvsan.models_under_test.paged.exchange import Offered, PagedConsumer, PagedProducer
from kvsan.models_under_test.paged.request import PagedRequest


class OffersFullBlocks(DisaggregatedPair):
    """What is in a partial block is computed again."""

    class _Producer(PagedProducer):
        def _sendable(self, request: PagedRequest) -> int:
            return request.retired // self.manager.block_size * self.manager.block_size

    producer_type = _Producer


class OffersPromptsAlone(DisaggregatedPair):
    """Nothing is offered while something is in flight."""

    class _Producer(PagedProducer):
        def _sendable(self, request: PagedRequest) -> int:
            return 0 if request.launches or request.name in self.manager.batch else request.retired

    producer_type = _Producer


class PullsOneUnit(DisaggregatedPair):
    """The consumer takes less than it could get."""

    class _Consumer(PagedConsumer):
        def receive(self, t: str, name: str, tokens: int) -> Receiving | None:
            hits = self.manager.lookup(name)
            return super().receive(t, name, min(tokens, hits + self.manager.block_size))

    consumer_type = _Consumer


class IgnoresItsCache(DisaggregatedPair):
    """The consumer pulls all of it into blocks of its own, whatever it has."""

    class _Consumer(PagedConsumer):
        def receive(self, t: str, name: str, tokens: int) -> Receiving | None:
            self.manager.reusable_blocks = lambda _request: 0  # type: ignore[method-assign]
            try:
                return super().receive(t, name, tokens)
            finally:
                del self.manager.reusable_blocks  # type: ignore[method-assign]

        def _after(self) -> tuple[str, ...]:
            return "compute", "copy"

    consumer_type = _Consumer


class OffersNothing(DisaggregatedPair):
    """Who does not want to serve a reader does not send."""

    class _Producer(PagedProducer):
        def send(self, t: str, name: str) -> Sending | None:
            return None

    producer_type = _Producer


class AnswersInArrays(DisaggregatedPair):
    """Units and numbers of tokens are of NumPy."""

    class _Producer(PagedProducer):
        def send(self, t: str, name: str) -> Sending | None:
            granted = super().send(t, name)
            return granted and Sending(np.int64(granted.tokens), np.array(granted.units))  # type: ignore[arg-type]

        def _served(self, offered: Offered) -> Sequence[int]:
            return np.array(offered.units)  # type: ignore[return-value]

    producer_type = _Producer


class NamesTheConsumerFirst(DisaggregatedPair):
    """A mapping has no order."""

    def __init__(self, prefill: PagedManager, decode: PagedManager, layouts: Mapping[str, Layout]) -> None:
        super().__init__(prefill, decode, layouts)
        self.pools = dict(reversed(self.pools.items()))


class ServesACopyOfTheList(DisaggregatedPair):
    """What is served is not the producer's own list."""

    class _Producer(PagedProducer):
        def _served(self, offered: Offered) -> Sequence[int]:
            return tuple(offered.units)

    producer_type = _Producer


VARIANTS = (
    OffersFullBlocks,
    OffersPromptsAlone,
    PullsOneUnit,
    IgnoresItsCache,
    OffersNothing,
    AnswersInArrays,
    NamesTheConsumerFirst,
    ServesACopyOfTheList,
)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_legal_pair_is_clean(variant: type[DisaggregatedPair]) -> None:
    settings = SearchSettings(Configuration("disagg"), DISAGG, seed=1, steps=8_000, numbers=0.1)
    factory = lambda configuration: variant(*pair_arguments(configuration))  # noqa: E731
    summary = Search(factory, settings, KnownFindings(), Reporter()).run()  # type: ignore[arg-type, return-value]
    assert summary.findings == []
