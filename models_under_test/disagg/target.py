"""The reference pair: two reference managers, and the two ends of their exchange."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from kvsan.gpu_kernels.sharding import Layout
from kvsan.harness.operations import Complete, Expire, Fail, Operation, Receive, Release, Send, Tear
from kvsan.harness.pair import CONSUMER, PRODUCER
from kvsan.harness.target import Target
from kvsan.models_under_test.paged import PagedManager
from kvsan.models_under_test.paged.exchange import PagedConsumer, PagedProducer

_PRODUCES: frozenset[type[Operation]] = frozenset({Send, Release, Expire})
_CONSUMES: frozenset[type[Operation]] = frozenset({Receive, Complete, Fail, Tear})


class DisaggregatedPair:
    """Implements ``kvsan.harness.pair.PairTarget``."""

    producer_type: ClassVar[type[PagedProducer]] = PagedProducer
    consumer_type: ClassVar[type[PagedConsumer]] = PagedConsumer

    def __init__(self, prefill: PagedManager, decode: PagedManager, layouts: Mapping[str, Layout]) -> None:
        for manager, operations in ((prefill, _PRODUCES), (decode, _CONSUMES)):
            manager.traits = replace(
                manager.traits,
                operations=manager.traits.operations | operations,
                late_notices=True,
                preempts_loading=True,
            )
        self.pools: Mapping[str, Target] = {PRODUCER: prefill, CONSUMER: decode}
        self.layouts = layouts
        self.producer = self.producer_type(prefill)
        self.consumer = self.consumer_type(decode)

    def source_layout(self) -> Layout:
        """The consumer was told how the producer's pages are laid out."""
        return self.layouts[PRODUCER]
