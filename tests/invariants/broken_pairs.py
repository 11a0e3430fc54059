"""Reference pairs with one method broken, for what an invariant of an exchange says and no seeded bug makes it say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvsan.gpu_kernels.sharding import Layout
from kvsan.harness.pair import Receiving, Sending
from kvsan.models_under_test.disagg import DisaggregatedPair
from kvsan.models_under_test.paged.exchange import Offered, PagedConsumer, PagedProducer


class OffersOtherUnits(DisaggregatedPair):
    class _Producer(PagedProducer):
        def send(self, t: str, name: str) -> Sending | None:
            granted = super().send(t, name)
            return granted and granted._replace(units=granted.units[::-1])

    producer_type = _Producer


class OffersUnitsOfNoPool(DisaggregatedPair):
    class _Producer(PagedProducer):
        def send(self, t: str, name: str) -> Sending | None:
            granted = super().send(t, name)
            return granted and granted._replace(units=(99,))

    producer_type = _Producer


class ServesUnitsOfNoPool(DisaggregatedPair):
    class _Producer(PagedProducer):
        def _served(self, offered: Offered) -> Sequence[int]:
            return [99]

    producer_type = _Producer


class ServesNobody(DisaggregatedPair):
    class _Producer(PagedProducer):
        def claim(self, t: str) -> Sequence[int] | None:
            return None

    producer_type = _Producer


class GivesBackAtTheClaim(DisaggregatedPair):
    class _Producer(PagedProducer):
        def _served(self, offered: Offered) -> Sequence[int]:
            self._give_back(offered)
            return offered.units

    producer_type = _Producer


class TakesOneRankForTwo(DisaggregatedPair):
    def source_layout(self) -> Layout:
        return replace(super().source_layout(), tp=2)


class NeverExpires(DisaggregatedPair):
    class _Producer(PagedProducer):
        def expire(self, t: str) -> bool:
            return False

    producer_type = _Producer


class RemembersReleased(DisaggregatedPair):
    class _Producer(PagedProducer):
        def pending(self) -> list[str]:
            return ["t1"]

    producer_type = _Producer


class PullsTooMuch(DisaggregatedPair):
    class _Consumer(PagedConsumer):
        def receive(self, t: str, name: str, tokens: int) -> Receiving | None:
            return super().receive(t, name, tokens + self.manager.block_size)

    consumer_type = _Consumer


class PullsIntoWhatOthersHold(DisaggregatedPair):
    class _Consumer(PagedConsumer):
        def receive(self, t: str, name: str, tokens: int) -> Receiving | None:
            granted = super().receive(t, name, tokens)
            others = [one for one in self.manager.requests.values() if one.name != name and one.table]
            for other in others if granted else ():
                unit = self.manager.requests[name].table[-1]
                self.manager.pool.touch(unit)
                other.table.append(unit)
                self.manager.changed.append(other.name)
            return granted

    consumer_type = _Consumer
