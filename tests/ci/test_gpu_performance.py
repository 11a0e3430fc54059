"""What is timed on a GPU is right before it is timed, and how it is timed; how fast is not asserted here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from kvsan.ci.gpu import comparisons, measuring, performance, report, rivals, timing
from kvsan.ci.gpu.attention_cases import attention_case, far_from_float32, splits_for
from kvsan.ci.gpu.cases import Case, Contestant, sets_beyond
from kvsan.ci.gpu.comparisons import Outcome
from kvsan.ci.gpu.dense import gathered
from kvsan.ci.gpu.inputs import Shape, make_inputs
from kvsan.ci.gpu.memory_cases import Moved, copy_case, write_case
from kvsan.ci.kernels.kernel_set import KERNELS, KernelSet
from kvsan.gpu_kernels.formats import FORMATS
from kvsan.gpu_kernels.launching import Attended
from kvsan.gpu_kernels.layout import PagedCache

SHAPE = Shape(rows=2, length=20, queries=1, q_heads=4, kv_heads=2, head_dim=32, block_size=16)
PREFILL = replace(SHAPE, queries=5)
MOVED = Moved(amount=20, kv_heads=2, head_dim=32, block_size=16)


def test_a_spread_is_median_and_quartiles() -> None:
    assert timing.spread([4.0, 1.0, 3.0, 2.0, 5.0]) == timing.Spread(3.0, 2.0, 4.0, 5)
    assert timing.spread([2.0]) == timing.Spread(2.0, 2.0, 2.0, 1)
    with pytest.raises(ValueError, match="no samples"):
        timing.spread([])


def test_one_sample_is_the_mean_over_all_input_sets_in_turn() -> None:
    ticks = iter((10.0, 16.0))
    called: list[int] = []

    sample = timing.ClockTimer(lambda: next(ticks)).sampler(called.append, 3)

    assert sample() == 2.0
    assert called == [0, 1, 2]


def test_a_gpu_sample_is_one_replay_between_events_behind_a_filler(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    class Fake:
        """Stands for streams, events and graphs of a device that is not there."""

        def __init__(self, **options: Any) -> None:
            self.name = "start" if events.count("event") % 2 == 0 else "stop"
            events.extend(["event"] if options else [])

        def wait_stream(self, other: Any) -> None: ...

        def record(self) -> None:
            events.append(self.name)

        def replay(self) -> None:
            events.append("replay")

        def synchronize(self) -> None:
            events.append("wait")

        def elapsed_time(self, other: Any) -> float:
            return 6.0

    @contextmanager
    def inside(what: Any) -> Iterator[None]:
        events.append("enter")
        yield
        events.append("leave")

    class Filler:
        def fill_(self, number: int) -> None:
            events.append("fill")

    cuda = {name: Fake for name in ("Stream", "Event", "CUDAGraph", "current_stream")}
    for name, fake in {**cuda, "stream": inside, "graph": inside, "synchronize": lambda: None}.items():
        monkeypatch.setattr(f"torch.cuda.{name}", fake)
    monkeypatch.setattr("torch.empty", lambda *size, **options: Filler())

    sample = timing.CudaTimer(1 << 20).sampler(lambda number: events.append(f"call {number}"), 2)
    calls = ["call 0", "call 1"]
    warmed, captured = ["enter", *calls, *calls, "leave"], ["enter", *calls, "leave"]
    assert events[: len(warmed + captured)] == warmed + captured

    events.clear()
    assert sample() == pytest.approx(0.003)
    assert events == ["fill", "start", "replay", "stop", "wait"]


def test_input_sets_are_together_larger_than_the_cache() -> None:
    assert [sets_beyond(100, size) for size in (1, 30, 100, 1000)] == [16, 14, 4, 2]


def work(number: int) -> int:
    return number


def case_of(*contestants: Contestant, wrong: Callable[[int, object], str] = lambda number, result: "") -> Case:
    return Case("case", 2, 4096, contestants, lambda number: None, wrong, operations=10)


def measured(case: Case, budget_s: float = 0.0, most: int = 4) -> tuple[list[measuring.Timed], list[str]]:
    return measuring.measure(case, timing.ClockTimer(), "cpu", 1024, budget_s, most)


def test_each_contestant_is_poisoned_checked_and_timed_in_turn() -> None:
    events: list[str] = []
    first, second = (Contestant(name, lambda number, name=name: events.append(f"{name}{number}")) for name in "ab")
    case = replace(
        case_of(first, second),
        poison=lambda number: events.append(f"poison{number}"),
        wrong=lambda number, result: events.append(f"check{number}") or "",
    )

    timed, failures = measured(case, budget_s=60, most=2)

    checks = [event for name in "ab" for n in (0, 1) for event in (f"poison{n}", f"{name}{n}", f"check{n}")]
    assert events == checks + ["a0", "a1", "b0", "b1"] * 2
    assert [(one.contestant, one.ours) for one in timed] == [("a", True), ("b", False), (measuring.COPY, False)]
    assert [one.seconds.samples for one in timed if one.seconds] == [2, 2, 2]
    assert failures == []


def test_a_wrong_output_of_ours_fails_and_nothing_is_timed() -> None:
    timed, failures = measured(case_of(Contestant("KVSan", work), wrong=lambda number, result: "NaN" * number))

    assert timed == []
    assert failures == ["case: KVSan: wrong on input set 1: NaN"]


def test_a_wrong_output_of_somebody_else_is_told_and_not_timed() -> None:
    ours, other = Contestant("KVSan", lambda number: 0), Contestant("other", lambda number: 1)

    timed, failures = measured(case_of(ours, other, wrong=lambda number, result: "far" if result else ""))

    assert failures == []
    assert [(one.contestant, one.note) for one in timed if one.seconds is None] == [
        ("other", "wrong on input set 0: far")
    ]


def test_what_cannot_be_timed_is_told() -> None:
    class Refusing(timing.ClockTimer):
        def sampler(self, call: timing.Call, sets: int) -> Callable[[], float]:
            if call is other.call:
                raise RuntimeError("operation not permitted when stream is capturing")
            return super().sampler(call, sets)

    other = Contestant("other", lambda number: None)
    timed, failures = measuring.measure(case_of(Contestant("KVSan", work), other), Refusing(), "cpu", 1024, 0)

    assert failures == []
    assert timed[1].note == "RuntimeError: operation not permitted when stream is capturing"


def first_wrong(case: Case) -> str:
    call = case.contestants[0].call
    assert call is not None
    case.poison(0)
    return case.wrong(0, call(0))


@pytest.mark.parametrize("shape", [SHAPE, PREFILL, replace(SHAPE, dtype="int8_per_token_head")])
def test_attention_cases_are_checked_on_their_own_data(shape: Shape) -> None:
    name = "decode" if shape.queries == 1 else "prefill"

    def spoil(change: Callable[[torch.Tensor], Any]) -> str:
        def broken(*args: Any, **options: Any) -> Attended:
            attended = getattr(KERNELS, name)(*args, **options)
            change(attended.output)
            return attended

        return first_wrong(attention_case(shape, replace(KERNELS, **{name: broken}), "cpu", 1024, 1))

    assert spoil(lambda output: None) == ""
    assert "sequence 1, query 0, q head 3" in spoil(lambda output: output[-shape.queries, 3].mul_(1.05))
    assert "nan away" in spoil(lambda output: output[0, 0, 5].fill_(float("nan")))


@pytest.mark.parametrize("shape", [SHAPE, PREFILL])
def test_torch_agrees_with_float32_however_it_is_asked(shape: Shape) -> None:
    case = attention_case(shape, KERNELS, "cpu", 1024, 1)

    calls = {one.name: one.call for one in case.contestants}

    for name in ("SDPA, contiguous KV", "gather and SDPA"):
        call = calls[name]
        assert call is not None
        assert case.wrong(1, call(1)) == ""


@pytest.mark.parametrize("dtype", [name for name, form in FORMATS.items() if form.quantised])
def test_pages_are_read_without_our_kernels_as_they_are_by_them(dtype: str) -> None:
    inputs = make_inputs(replace(SHAPE, dtype=dtype), KERNELS, "cpu")

    found = gathered(inputs.cache, inputs.tables[1:], SHAPE.length)

    for side, expected in zip(
        found, KERNELS.quant_gather(inputs.cache, inputs.tables[1], 0, SHAPE.length), strict=True
    ):
        assert torch.equal(side[0], expected)
        assert 0.5 < float(side.std()) < 1.5


def test_a_case_of_another_shape_would_be_seen() -> None:
    inputs = make_inputs(SHAPE, KERNELS, "cpu")

    assert far_from_float32(SHAPE, inputs, torch.zeros_like(inputs.query))


def leave_out(kernel: Callable[..., None], name: str) -> KernelSet:
    return replace(KERNELS, **{name: kernel})


def write_one_too_many(key: torch.Tensor, value: torch.Tensor, cache: PagedCache, slots: torch.Tensor) -> None:
    KERNELS.write(key, value, cache, slots)
    spare = next(slot for slot in range(cache.num_blocks * cache.block_size) if slot not in slots.tolist())
    cache.values[spare // cache.block_size, spare % cache.block_size] = 0


@pytest.mark.parametrize(
    ("kernel", "seen"),
    [
        (KERNELS.write, ""),
        (lambda key, value, cache, slots: KERNELS.write(key, value, cache, slots[:-1]), "K: 64 elements"),
        (write_one_too_many, "V: 64 elements"),
    ],
    ids=["sound", "last token", "spare slot"],
)
def test_writes_are_checked_in_all_of_the_cache(kernel: Callable[..., None], seen: str) -> None:
    case = write_case(MOVED, replace(KERNELS, write=kernel), "cpu", 1024)

    found = first_wrong(case)

    assert found.startswith(seen)
    assert bool(found) == bool(seen)


def copy_backwards(cache: PagedCache, pairs: torch.Tensor) -> None:
    KERNELS.copy_blocks(cache, pairs.flip(1))


@pytest.mark.parametrize(
    ("kernel", "seen"),
    [
        (KERNELS.copy_blocks, ""),
        (lambda cache, pairs: KERNELS.copy_blocks(cache, pairs[1:]), "K: 1024 elements"),
        (copy_backwards, "K of a source was written"),
    ],
    ids=["sound", "first pair", "backwards"],
)
def test_copies_are_checked_bit_for_bit(kernel: Callable[..., None], seen: str) -> None:
    case = copy_case(replace(MOVED, amount=3), replace(KERNELS, copy_blocks=kernel), "cpu", 1024)

    found = first_wrong(case)

    assert found.startswith(seen)
    assert bool(found) == bool(seen)


def test_least_bytes_and_operations_of_attention() -> None:
    assert SHAPE.moved_bytes == 2 * 2 * 20 * 2 * 32 * 2 + 2 * 2 * 4 * 32 * 2
    assert replace(SHAPE, dtype="nvfp4").moved_bytes == 2 * 2 * 20 * 2 * (16 + 2) + 2 * 2 * 4 * 32 * 2
    assert replace(SHAPE, dtype="int8_per_token_head").moved_bytes == 2 * 2 * 20 * 2 * (32 + 4) + 2 * 2 * 4 * 32 * 2
    assert PREFILL.operations == 4 * 2 * (16 + 17 + 18 + 19 + 20) * 4 * 32


@pytest.mark.parametrize(
    ("rows", "length", "queries", "splits"), [(64, 4096, 1, 2), (1, 65536, 1, 64), (1, 512, 1, 2), (1, 65536, 512, 1)]
)
def test_splits_keep_processors_busy_with_enough_tokens_each(rows: int, length: int, queries: int, splits: int) -> None:
    shape = Shape(rows, length, queries, 32, 8, 128, 16)

    assert splits_for(shape, 132) == splits


def test_a_rival_that_is_not_installed_is_said_and_one_that_fails_too(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [make_inputs(SHAPE, KERNELS, "cpu")]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    notes = [one.note for one in rivals.rival_contestants(SHAPE, inputs)]
    assert notes == ["not installed"] * 2

    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr("importlib.import_module", lambda name: object())
    long = replace(SHAPE, length=512)
    flash, flashinfer = rivals.rival_contestants(long, inputs)
    assert flash.call is not None
    assert flashinfer.call is None
    assert flashinfer.note.startswith("AttributeError")


def test_flash_attn_is_given_pages_of_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = replace(SHAPE, length=512)
    inputs = [make_inputs(shape, KERNELS, "cpu")]

    class FlashAttn:
        @staticmethod
        def flash_attn_with_kvcache(
            q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cache_seqlens: Any, block_table: Any, causal: bool
        ) -> torch.Tensor:
            assert causal
            keys, values = (one[block_table.long()].flatten(1, 2)[:, : int(cache_seqlens[0])] for one in (k, v))
            group = q.shape[2] // k.shape[2]
            heads = (one.repeat_interleave(group, 2).transpose(1, 2) for one in (keys, values))
            return torch.nn.functional.scaled_dot_product_attention(q.transpose(1, 2), *heads).transpose(1, 2)

    contestant = rivals._flash_attn("flash-attn", FlashAttn, shape, inputs)

    assert contestant.call is not None
    output = contestant.call(0)
    assert isinstance(output, torch.Tensor)
    assert far_from_float32(shape, inputs[0], output) == ""


def test_performance_is_driven_over_every_tiny_case() -> None:
    lines: list[str] = []

    timed, failures = performance.measure_all(performance.TINY_WORK, KERNELS, performance.host_machine(), lines.append)

    assert failures == []
    cases = list(dict.fromkeys(one.case for one in timed))
    assert [case.split(",")[0] for case in cases] == [
        "decode",
        "prefill",
        "decode",
        "step of decode",
        "write",
        "block copy",
    ]
    assert len(lines) == len(cases)
    for case in cases:
        assert next(one for one in timed if one.case == case and one.seconds).ours


AROUND = report.Surroundings("A GPU", "1.2", "2.11", "3.6", "2026-12-01")


def timed_by(name: str, seconds: float | None, moved: int = 1000, ours: bool = False) -> measuring.Timed:
    times = None if seconds is None else timing.Spread(seconds, seconds * 0.9, seconds * 1.2, 9)
    return measuring.Timed("case", name, ours, times, moved, 4_000_000_000, "" if seconds else "not installed")


def test_the_tables_start_with_the_machine_and_tell_ratios() -> None:
    timed = [timed_by("KVSan", 1e-3, ours=True), timed_by("SDPA", 2e-3), timed_by("other", None)]
    timed.append(replace(timed_by(measuring.COPY, 1e-3, 2000), operations=0))
    tallies = [comparisons.Tally("write", 3), comparisons.Tally("decode", 5, [Outcome("decode", "", ("x",))], 0.25)]

    lines = report.markdown(AROUND, tallies, timed, 60).splitlines()

    assert lines[0] == "Machine: A GPU, driver 1.2; torch 2.11, triton 3.6; 2026-12-01."
    assert "| write | 3 | 0 | bit for bit |" in lines
    assert "| decode | 5 | 1 | 0.25 |" in lines
    assert lines[-4:] == [
        "| case | KVSan | 1000.0 | 900.0 to 1200.0 | 0 | 50% | 4 | 1.00 |",
        "|  | SDPA | 2000.0 | 1800.0 to 2400.0 | 0 | 25% | 2 | 2.00 |",
        "|  | other | not installed | | | | | |",
        "|  | torch copy | 1000.0 | 900.0 to 1200.0 | 0 | 100% |  |  |",
    ]


def test_json_holds_the_same_and_no_number_that_json_lacks() -> None:
    tallies = [comparisons.Tally("decode", 5, [], float("nan"))]

    record = json.loads(
        report.as_json(AROUND, tallies, [timed_by("KVSan", 1e-3, ours=True)], ["x"], 7), parse_constant=pytest.fail
    )

    assert record["comparisons"] == [{"kind": "decode", "problems": 5, "failures": 0, "worst_share": "nan"}]
    assert record["performance"][0]["seconds"]["median"] == 1e-3
    assert (record["machine"], record["seed"], record["failures"]) == ("A GPU", 7, ["x"])
