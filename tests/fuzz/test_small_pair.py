"""Small traces of a pair, drawn to find a shorter way to a violation; and two transfers that become one."""

from __future__ import annotations

from itertools import islice
from random import Random

from kvsan.fuzz.replay import open_session, run
from kvsan.fuzz.simplify import shorter_ways
from kvsan.fuzz.small_pair import SmallPair
from kvsan.harness.configuration import Configuration
from kvsan.harness.operations import Complete, Operation, Receive, Release, Schedule, Send, Submit
from kvsan.models_under_test.disagg import make_target

LIKE: tuple[Operation, ...] = (Send("t1", "r1"), Receive("t1", "r2"), Complete("t1"), Release("t1"))


def test_small_traces_pull_and_are_clean_on_the_reference_pair() -> None:
    pulls = 0
    for configuration, operations in islice(SmallPair(Configuration("disagg", 8, 4), LIKE, Random(1)).traces(), 100):
        session = open_session(make_target, configuration, numbers=False)  # type: ignore[arg-type]
        assert run(session, operations).violation is None
        pulls += session.counts["pull"]
    assert pulls > 20


def test_small_traces_use_the_faults_that_are_there() -> None:
    drawn = [one for _, trace in islice(SmallPair(Configuration("disagg", 8, 4), LIKE, Random(2)).traces(), 100)
             for one in trace]  # fmt: skip
    kinds = {type(one).__name__ for one in drawn}
    assert kinds == {"Submit", "Schedule", "Launch", "Retire", "Send", "Receive", "Complete", "Release"}


def test_one_transfer_does_what_two_did() -> None:
    two = (Submit("r1", ((0, 2),)), Schedule("r1", 2), Send("t1", "r1"), Send("t2", "r1"), Complete("t2"))
    assert (*two[:3], Send("t1", "r1"), Complete("t1")) in list(shorter_ways(two))
