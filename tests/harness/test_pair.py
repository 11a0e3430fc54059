"""The session of a pair: which pool an operation is about, when a pulled token has arrived, and who may free what when."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from kvsan.fuzz.replay import open_session, run
from kvsan.gpu_kernels.sharded import RanksDisagree
from kvsan.gpu_kernels.sharding import Layout
from kvsan.harness.configuration import Configuration, OptionValue
from kvsan.harness.fingerprint import Fingerprint
from kvsan.harness.kernel_faults import runs_kernels
from kvsan.harness.operations import (
    Abort,
    Advance,
    Cancel,
    Complete,
    Expire,
    Fail,
    Finish,
    Fork,
    Launch,
    Operation,
    Preempt,
    Receive,
    Release,
    ResetPrefixCache,
    Retire,
    Schedule,
    Send,
    Submit,
    Tear,
)
from kvsan.harness.pair_checks import check_pair
from kvsan.harness.pair_session import PairSession
from kvsan.harness.target import Group
from kvsan.harness.verdict import UsageError, Violation
from kvsan.invariants import INVARIANTS
from kvsan.models_under_test.disagg import DisaggregatedPair, make_target, pair_arguments

PREFILL = (Submit("r1", ((0, 6),)), Schedule("r1", 6), Launch("b1"), Retire("b1"))
SENT = (*PREFILL, Send("t1", "r1"), Finish("r1"), Submit("r2", ((0, 6), ("out", "r1", 1)), at="p1"))
PULLING = (*SENT, Receive("t1", "r2"))
NET = Advance("net")


def opened(numbers: bool = False, block_size: int = 2, **options: OptionValue) -> PairSession:
    configuration = Configuration("disagg", 8, block_size, options=tuple(sorted(options.items())))
    session = open_session(make_target, configuration, numbers=numbers, sweep_every=1)
    assert isinstance(session, PairSession)
    return session


def started(*operations: Operation, numbers: bool = False, block_size: int = 2, **options: OptionValue) -> PairSession:
    """Session over two pools of eight units, after operations that must all have been executed."""
    session = opened(numbers, block_size, **options)
    ran = [session.step(operation) for operation in operations]
    assert all(ran), ran
    return session


def held_by_p0(session: PairSession) -> int:
    return session.sessions["p0"].books.held


def retired(session: PairSession, r: str = "r2") -> int:
    return session.sessions["p1"].requests[r].retired


# -- which pool


def test_a_request_lives_where_it_was_submitted() -> None:
    session = started(
        *PREFILL, Submit("r2", ((0, 6),), at="p1"), Schedule("r2", 6), Launch("b2", at="p1"), Retire("b2")
    )
    assert [list(one.requests) for one in session.parts] == [["r1"], ["r2"]]
    assert retired(session) == 6


@pytest.mark.parametrize(
    "operation",
    [
        Submit("r1", ((0, 6),), at="p1"),
        Submit("r2", ((0, 6),), at="p2"),
        Launch("b1", at="p1"),
        Launch("b2", at="p1"),
        Cancel("p1"),
        Schedule("r9", 1),
        Advance("compute"),
        Advance("p1.net"),
        Receive("t1", "r1"),
        Complete("t1"),
        ResetPrefixCache("p2"),
    ],
    ids=repr,
)
def test_what_names_another_pools_id_or_no_pool_is_skipped(operation: Operation) -> None:
    session = started(*PREFILL, Schedule("r1", 1))
    assert not session.step(operation)
    assert session.skipped.total() == 1


def test_a_fork_may_not_take_an_id_of_the_other_pool() -> None:
    session = started(*PREFILL, Submit("r2", ((0, 6),), at="p1"))
    assert not session.step(Fork("r1", "r2"))
    assert session.step(Fork("r1", "r3"))


def test_the_prompt_of_one_pool_may_repeat_what_the_other_generated() -> None:
    session = started(*SENT)
    p0, p1 = session.sessions["p0"], session.sessions["p1"]
    sender = next(one for one in p0.known if one.r == "r1")
    assert p1.requests["r2"].life.tokens == sender.life.tokens


def test_pools_are_judged_apart_although_their_units_have_the_same_numbers() -> None:
    session = started(
        *PREFILL, Submit("r2", ((1, 6),), at="p1"), Schedule("r2", 6), Launch("b2", at="p1"), Retire("b2")
    )
    tables = [one.books.view.tables(r)[0] for one, r in zip(session.parts, ("r1", "r2"), strict=True)]
    assert tables[0] == tables[1]
    session.close()


# -- a pull


def test_a_request_waits_until_its_pull_is_complete() -> None:
    session = started(*PULLING)
    assert not session.step(Schedule("r2", 1))
    assert session.step(Complete("t1"))
    assert retired(session) == 6
    assert session.step(Schedule("r2", 1))


def test_a_token_has_arrived_when_every_rank_has_each_of_its_heads() -> None:
    session = started(*PULLING, decode_tp=4)
    p1 = session.sessions["p1"]
    table = p1.books.view.tables("r2")[0]
    pieces = session.exchange.in_flight["t1"].left
    assert pieces == 4
    for left in range(pieces - 1, -1, -1):
        session.step(NET)
        assert bool(p1.shadow.blocks[table[:3]].all()) is (left == 0)


def test_only_what_both_begin_with_is_pulled_in_whole_units() -> None:
    other = Submit("r2", ((0, 5), (1, 4)), at="p1")
    session = started(*PREFILL, Send("t1", "r1"), other, Receive("t1", "r2"), Complete("t1"))
    assert retired(session) == 4


@pytest.mark.parametrize(
    "submit", [Submit("r2", ((1, 9),), at="p1"), Submit("r2", ((0, 9),), "tenant", at="p1")], ids=["tokens", "salt"]
)
def test_nothing_is_pulled_for_other_tokens_or_another_tenant(submit: Submit) -> None:
    session = started(*PREFILL, Send("t1", "r1"), submit)
    assert not session.step(Receive("t1", "r2"))


def test_a_pull_brings_what_the_pool_does_not_have() -> None:
    had = (Submit("r0", ((0, 4),), at="p1"), Schedule("r0", 4), Launch("b0", at="p1"), Retire("b0"))
    session = started(*had, *PULLING)
    transfer = session.exchange.in_flight["t1"]
    assert transfer.loading == (4, 6)
    assert transfer.written == session.sessions["p1"].books.view.tables("r2")[0][2:]


def test_a_pool_that_has_everything_refuses_and_goes_on_alone() -> None:
    had = (Submit("r0", ((0, 6),), at="p1"), Schedule("r0", 6), Launch("b0", at="p1"), Retire("b0"))
    session = started(*had, *PULLING, Schedule("r2", 1))
    assert session.counts["receive refused"] == 1
    assert not session.exchange.in_flight


def test_blocks_of_the_two_pools_need_not_be_of_one_size() -> None:
    session = started(*PULLING, Complete("t1"), Schedule("r2", 4), Launch("b2", at="p1"), Retire("b2"), decode_block=3)
    assert [one.traits.block_size for one in session.parts] == [2, 3]
    session.close()


LAYOUTS = list(product((1, 2, 4, 8), (1, 2), (1, 2)))


@pytest.mark.parametrize(("tp", "dcp", "pcp"), LAYOUTS)
def test_attention_after_a_pull_is_exact_between_any_two_layouts(tp: int, dcp: int, pcp: int) -> None:
    decode = (Submit("r2", ((0, 20), ("out", "r1", 1), (3, 3)), at="p1"), Receive("t1", "r2"), Complete("t1"),
              Schedule("r2", 9), Launch("b2", at="p1"), Retire("b2"))  # fmt: skip
    for to_tp, to_dcp, to_pcp in LAYOUTS[:: 3 if tp > 1 else 2]:
        session = started(
            Submit("r1", ((0, 20),)), Schedule("r1", 20), Launch("b1"), Retire("b1"), Send("t1", "r1"), *decode,
            numbers=True, block_size=8, kv_heads=4, decode_block=4,
            prefill_tp=tp, prefill_dcp=dcp, prefill_pcp=pcp, prefill_interleave=4, prefill_layout="HND",
            decode_tp=to_tp, decode_dcp=to_dcp, decode_pcp=to_pcp, decode_interleave=2,
        )  # fmt: skip
        assert session.counts["pull between layouts"] == 1
        session.close()
        numbers = session.sessions["p1"].executor.numbers
        assert numbers is not None
        assert numbers.outputs_compared > 0


def test_ranks_that_disagree_are_a_violation() -> None:
    @runs_kernels
    def gather() -> None:
        raise RanksDisagree("K", 1, 3, 2, 0)

    with pytest.raises(Violation) as caught:
        gather()
    assert caught.value.kind == ("numbers", "replicas")
    assert caught.value.needs_kernels


# -- going wrong


@pytest.mark.parametrize("fault", [Fail("t1"), Tear("t1")], ids=["failed", "torn"])
@pytest.mark.parametrize("moved", [0, 2])
def test_a_pull_that_fails_leads_to_recomputing(fault: Operation, moved: int) -> None:
    session = started(*PULLING, *[NET] * moved, fault, Complete("t1"), numbers=True, decode_tp=4)
    assert (retired(session), session.sessions["p1"].books.held) == (0, 0)
    for operation in (Schedule("r2", 7), Launch("b2", at="p1"), Retire("b2"), Release("t1")):
        assert session.step(operation)
    session.close()


def test_half_of_a_torn_piece_has_arrived() -> None:
    session = started(*PULLING, Tear("t1"))
    p1 = session.sessions["p1"]
    arrived = p1.shadow.blocks[p1.books.view.tables("r2")[0][:3]].reshape(-1) != 0
    assert arrived.tolist() == [True] * 3 + [False] * 3


def test_an_offer_outlives_its_request_until_it_is_released() -> None:
    session = started(*PULLING)
    assert held_by_p0(session) == 3
    assert not session.step(Release("t1"))
    assert session.step(Complete("t1"))
    assert held_by_p0(session) == 3
    assert session.step(Release("t1"))
    assert held_by_p0(session) == 0


@pytest.mark.parametrize("end", [Finish("r1"), Abort("r1"), Preempt("r1")], ids=lambda end: type(end).__name__)
def test_the_end_of_the_sender_does_not_touch_what_is_read(end: Operation) -> None:
    session = started(*PREFILL, Send("t1", "r1"), Submit("r2", ((0, 7),), at="p1"), Receive("t1", "r2"), end)
    for operation in (Submit("r3", ((5, 8),)), Schedule("r3", 8), Launch("b3"), Retire("b3"), Complete("t1")):
        assert session.step(operation)
    assert retired(session) == 6


def test_notices_may_come_twice_or_of_nobody() -> None:
    session = started(*PULLING, Complete("t1"), Release("t1"), Release("t1"), Release("t9"), Complete("t1"))
    assert {"release of the released", "release of the unknown", "completion told twice"} <= set(session.counts)
    session.close()


def test_an_offer_that_nobody_wants_expires() -> None:
    session = started(*SENT, Expire("t1"))
    assert held_by_p0(session) == 0
    assert not session.step(Expire("t1"))


def test_an_offer_that_is_read_does_not_expire() -> None:
    session = started(*PULLING, Expire("t1"))
    assert held_by_p0(session) == 3
    assert session.counts["expiry refused"] == 1


@pytest.mark.parametrize("end", [Expire("t1"), Release("t1")], ids=["expired", "released"])
def test_who_comes_too_late_is_refused_and_recomputes(end: Operation) -> None:
    session = started(*SENT, end, Receive("t1", "r2"))
    assert session.exchange.in_flight["t1"].works == []
    for operation in (Complete("t1"), Schedule("r2", 7), Launch("b2", at="p1"), Retire("b2")):
        assert session.step(operation)
    assert session.counts["claim refused"] == session.counts["recompute after a failed load"] == 1


@pytest.mark.parametrize("end", [Abort("r2"), Preempt("r2")], ids=lambda end: type(end).__name__)
def test_blocks_of_a_receiver_that_leaves_stay_until_the_pull_is_over(end: Operation) -> None:
    session = started(*PULLING, end)
    books = session.sessions["p1"].books
    assert books.held == 3
    assert session.step(Complete("t1"))
    assert books.held == 0
    session.close()


def test_an_offer_is_not_pulled_twice() -> None:
    session = started(*PULLING, Complete("t1"), Submit("r3", ((0, 9),), at="p1"))
    assert not session.step(Receive("t1", "r3"))


# -- the whole


def test_any_sub_list_of_a_trace_is_a_trace() -> None:
    whole = [*PULLING, Schedule("r2", 1), Expire("t1"), NET, Complete("t1"), Release("t1"), Schedule("r2", 1),
             Launch("b2", at="p1"), Abort("r2"), Retire("b2")]  # fmt: skip
    random = np.random.default_rng(3)
    for _ in range(200):
        some = [operation for operation in whole if random.random() < 0.7]
        assert run(opened(), some).violation is None


def test_a_session_has_no_more_attributes_than_python_finds_fast() -> None:
    """CPython shares the keys of instances with up to 30 attributes; the 31st cost each step 5%."""
    for part in opened().parts:
        assert max(len(vars(one)) for one in (part, part.books, part.executor)) <= 30


def test_one_device_orders_both_pools() -> None:
    session = started(*PULLING)
    assert session.device.streams == ("p0.compute", "p0.copy", "p1.compute", "p1.copy", "net")
    assert session.sessions["p1"].device.streams == ("p1.compute", "p1.copy", "net")


def test_states_of_a_pair_have_a_fingerprint_of_both_pools() -> None:
    def hashes(at: str) -> list[str]:
        session = opened()
        fingerprint = Fingerprint(session)
        return [
            fingerprint.update()
            for operation in (Submit("r1", ((0, 6),), at=at), Schedule("r1", 6))
            if session.step(operation)
        ]

    assert hashes("p0") == hashes("p0")
    assert hashes("p0") != hashes("p1")


# -- a pair that is none


def with_traits(**traits: Any) -> DisaggregatedPair:
    pair = make_target(Configuration("disagg", 8, 2))
    manager: Any = pair.pools["p1"]
    manager.traits = replace(manager.traits, **traits)
    return pair


def without(**attributes: Any) -> DisaggregatedPair:
    pair = make_target(Configuration("disagg", 8, 2))
    vars(pair).update(attributes)
    return pair


@pytest.mark.parametrize("trait", [{"tiers": ("host",)}, {"graph_rows": 4}], ids=str)
def test_pools_of_a_pair_have_no_tiers_and_no_graphs(trait: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="pool p1 of a pair: expected one without tiers"):
        check_pair(with_traits(**trait))


POOLS = make_target(Configuration("disagg", 8, 2)).pools
OTHER_HEADS = {"p0": Layout(block_size=2), "p1": Layout(block_size=2, num_kv_heads=4)}


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (
            without(pools={"prefill": POOLS["p0"], "decode": POOLS["p1"]}),
            "pools are prefill, decode; expected p0, which",
        ),
        (without(pools={"p0": POOLS["p0"]}), "pools are p0; expected p0, which computes, and p1, which pulls"),
        (without(layouts={}), "layouts are {}; expected a kvsan.gpu_kernels.sharding.Layout for each pool"),
        (without(layouts=None), "layouts are None; expected"),
        (without(layouts=OTHER_HEADS), "layouts are of 2 and of 4 kv heads; expected as many"),
        (without(producer=None), "producer is None, which has no method send; expected a kvsan.harness.pair.Producer"),
        (without(consumer=7), "consumer is 7, which has no method receive; expected a kvsan.harness.pair.Consumer"),
        (without(source_layout=None), "has no method source_layout; expected a kvsan.harness.pair.PairTarget"),
        (
            with_traits(block_size=4),
            "pool p1 of a pair has block_size 4; expected the 2 tokens that a unit of its layout",
        ),
        (with_traits(groups=(Group(), Group())), "pool p1 of a pair has 2 cache groups; expected one"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("numbers", [False, True])
def test_what_is_no_pair_is_bad_input(pair: DisaggregatedPair, message: str, numbers: bool) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        open_session(lambda _: pair, Configuration("disagg", 8, 2), numbers=numbers)  # type: ignore[arg-type, return-value]


def answering(method: str, answer: Callable[[Any], Any]) -> PairSession:
    """Session over the reference pair, one of whose methods answers otherwise."""
    pair = make_target(Configuration("disagg", 8, 2))
    owner: Any = next(one for one in (pair.producer, pair.consumer, pair) if hasattr(one, method))
    right = getattr(owner, method)
    setattr(owner, method, lambda *arguments: answer(right(*arguments)))
    return PairSession(pair, INVARIANTS, {}, sweep_every=1)


def drive(session: PairSession, operations: tuple[Operation, ...]) -> None:
    for operation in operations:
        session.step(operation)


@pytest.mark.parametrize(
    ("method", "answer", "message"),
    [
        ("send", lambda right: tuple(right), "send returned (6, (1, 2, 3)); expected Sending or None"),
        ("send", lambda right: right._replace(tokens="6"), "send returned tokens '6'; expected a number of tokens"),
        ("send", lambda right: right._replace(tokens=0), "send returned tokens 0; expected a number of tokens, at least 1"),
        ("send", lambda right: right._replace(units=None), "send returned units None; expected a sequence of units"),
        ("send", lambda right: right._replace(units="ab"), "send returned units 'ab'; expected a sequence of units"),
        ("claim", lambda right: 7, "claim returned 7; expected a sequence of units"),
        ("claim", lambda right: [[unit] for unit in right], "claim returned [[1], [2], [3]]; expected a sequence"),
        ("receive", lambda right: tuple(right), "receive returned (0, 6, ()); expected Receiving or None"),
        ("receive", lambda right: right._replace(hit=None), "receive returned hit None; expected a number of tokens"),
        ("receive", lambda right: right._replace(tokens=6.0), "receive returned tokens 6.0; expected a number"),
        ("receive", lambda right: right._replace(after="compute"), "receive returned after 'compute'; expected names"),
        ("receive", lambda right: right._replace(after=("net",)), "receive returned after 'net'; expected streams of"),
        ("source_layout", lambda right: None, "source_layout returned None; expected a kvsan.gpu_kernels.sharding"),
        ("source_layout", lambda right: replace(right, num_kv_heads=4), "source_layout returned num_kv_heads 4; expected 2"),
    ],
)  # fmt: skip
def test_what_no_method_may_answer_is_bad_input(method: str, answer: Callable[[Any], Any], message: str) -> None:
    session = answering(method, answer)
    with pytest.raises(UsageError, match=re.escape(message)):
        drive(session, PULLING)


def test_an_offer_of_tokens_that_nobody_knows_is_a_violation() -> None:
    session = answering("send", lambda right: right._replace(tokens=10**9))
    with pytest.raises(Violation, match="t1 offers 1000000000 tokens of r1, of which 6 have retired"):
        drive(session, SENT)


def test_what_the_pair_itself_raises_is_a_crash_of_the_target() -> None:
    class NoHandshake(DisaggregatedPair):
        def source_layout(self) -> Layout:
            raise RuntimeError("no handshake")

    session = PairSession(NoHandshake(*pair_arguments(Configuration("disagg", 8, 2))), INVARIANTS, {})
    with pytest.raises(Violation) as caught:
        drive(session, PULLING)
    assert caught.value.kind == ("target.crash", "RuntimeError")


def test_what_a_claim_does_to_the_producer_is_judged_in_the_step_of_the_pull() -> None:
    counts: list[int] = []

    def counted(units: Any) -> Any:
        counts.append(session.sessions["p0"].steps)
        session.target.producer.released("t1")  # behind the back of whoever reads
        return units

    session = answering("claim", counted)
    with pytest.raises(Violation) as caught:
        drive(session, PULLING)
    assert session.position == len(PULLING) - 1
    assert (caught.value.invariant, caught.value.lineage[0]) == ("exchange_pins", "seen in pool p0")
    assert counts == [session.sessions["p0"].steps]
