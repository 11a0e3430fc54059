"""Each check of kernels can fail: what is broken by a wrapper is seen, and by which check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from kvsan.ci.kernels.checks import check
from kvsan.ci.kernels.kernel_set import KERNELS, KernelSet
from kvsan.ci.kernels.problems import (
    Attending,
    CacheSpec,
    CopyProblem,
    DecodeProblem,
    GatherProblem,
    LatentDecodeProblem,
    LatentSpec,
    LatentWriteProblem,
    PrefillProblem,
    Problem,
    ReshardProblem,
    TransferProblem,
    WriteProblem,
)
from kvsan.gpu_kernels.interface import KERNEL_BUGS, KernelBug
from kvsan.gpu_kernels.launching import Attended, Masking
from kvsan.gpu_kernels.layout import PagedCache

SPEC = CacheSpec("float16", 4, 2, 32)
REAL = Attending(SPEC, 2, 0.2, output_dtype="float32")
CODES = replace(REAL, codes=True)
WRITE = WriteProblem(SPEC, blocks=4, tokens=9, skipped=1, padded=2, input_dtype="float16")
DECODE = DecodeProblem(REAL, (11, 6))
DECODE_CODES = DecodeProblem(CODES, (11, 6))
PREFILL = PrefillProblem(REAL, ((3, 11), (2, 6)), padded=1)
COPY = CopyProblem(SPEC, 4, 2, 1, 3)
TRANSFER = TransferProblem(SPEC, 3, 2, "pages HND")
RESHARD = ReshardProblem("float16", 4, 2, 4, 1, 4, 32)
GATHER = GatherProblem(SPEC, 9, 2, 9)
LATENT = LatentSpec("float32", 4, 32, 16)
LATENT_WRITE = LatentWriteProblem(LATENT, 4, 9)
LATENT_DECODE = LatentDecodeProblem(LATENT, 3, (11, 6), 0.2, "float32", codes=True)
SOUND = (WRITE, DECODE, DECODE_CODES, PREFILL, COPY, TRANSFER, RESHARD, GATHER, LATENT_WRITE, LATENT_DECODE)


def quantised(problem: Any, dtype: str) -> Any:
    if isinstance(problem, WriteProblem | GatherProblem):
        return replace(problem, cache=replace(problem.cache, dtype=dtype))
    cache = replace(problem.attending.cache, dtype=dtype)
    return replace(problem, attending=replace(problem.attending, cache=cache))


@pytest.mark.parametrize("problem", SOUND, ids=lambda problem: type(problem).__name__)
def test_sound_kernels_pass(problem: Problem) -> None:
    assert check(problem) == []


def after(name: str, change: Callable[..., None]) -> KernelSet:
    """Kernels of which one, when it is done, changes what it returned or was given."""

    def broken(*args: Any, **options: Any) -> Any:
        result = getattr(KERNELS, name)(*args, **options)
        change(result, *args)
        return result

    return replace(KERNELS, **{name: broken})


def before(name: str, change: Callable[..., tuple[Any, ...]]) -> KernelSet:
    """Kernels of which one is given something else than it should."""

    def broken(*args: Any, **options: Any) -> Any:
        return getattr(KERNELS, name)(*change(*args), **options)

    return replace(KERNELS, **{name: broken})


def nudge(which: str, place: tuple[int, ...], factor: float = 1.0, step: float = 0.0) -> Callable[..., None]:
    def change(attended: Attended, *_: Any) -> None:
        tensor = getattr(attended, which)
        tensor[place] = tensor[place] * factor + step

    return change


def change_spare_slot(_: Any, key: torch.Tensor, value: torch.Tensor, cache: PagedCache, slots: torch.Tensor) -> None:
    spare = next(slot for slot in range(cache.num_blocks * cache.block_size) if slot not in slots.tolist())
    cache.values[spare // cache.block_size, spare % cache.block_size, 1, 3] = 0.0


def change_gap(_: Any, key: torch.Tensor, value: torch.Tensor, cache: PagedCache, slots: torch.Tensor) -> None:
    gap = cache.values.storage_offset() * 2 - 1
    torch.empty(0, dtype=torch.uint8).set_(cache.values.untyped_storage())[gap] = 0


def zero_first(*args: Any) -> None:
    args[1][0, 0] = 0.0


def wider_window(query: Any, cache: Any, tables: Any, lengths: Any, scale: float, masking: Masking) -> tuple[Any, ...]:
    return query, cache, tables, lengths, scale, Masking(masking.window + 1)


def one_more(query: Any, cache: Any, tables: Any, lengths: Any, *rest: Any) -> tuple[Any, ...]:
    return query, cache, tables, lengths + 1, *rest


def one_less(query: Any, cache: Any, tables: Any, lengths: Any, *rest: Any) -> tuple[Any, ...]:
    return query, cache, tables, lengths - 1, *rest


def half_scale(*args: Any) -> tuple[Any, ...]:
    query, cache, tables, lengths, scale, masking = args
    return query, replace(cache, value_scale=cache.value_scale / 2), tables, lengths, scale, masking


def next_block(query: Any, cache: Any, tables: torch.Tensor, *rest: Any) -> tuple[Any, ...]:
    return query, cache, tables.roll(1, 1), *rest


def later_slots(key: Any, value: Any, cache: Any, slots: torch.Tensor) -> tuple[Any, ...]:
    return key, value, cache, slots.roll(1)


def double_scale(_: Any, key: torch.Tensor, value: torch.Tensor, cache: PagedCache, slots: torch.Tensor) -> None:
    slot = int(slots.max())
    assert cache.value_scales is not None
    cache.value_scales[slot // cache.block_size, slot % cache.block_size, 0, 0] *= 2


NARROW = replace(DECODE, attending=replace(REAL, window=5))
ODD = replace(WRITE, cache=replace(SPEC, block_size=1, kv_heads=1, head_dim=33), blocks=12)
INT8_WRITE = quantised(WRITE, "int8_per_token_head")
FP8 = quantised(DECODE_CODES, "fp8_e4m3")

BROKEN: list[tuple[str, Problem, KernelSet, str]] = [
    ("slots of other tokens", WRITE, before("write", later_slots), "bytes"),
    ("an unused slot", WRITE, after("write", change_spare_slot), "untouched"),
    ("the gap behind K", ODD, after("write", change_gap), "untouched"),
    ("the input", WRITE, after("write", zero_first), "untouched"),
    ("a scale doubled", INT8_WRITE, after("quant_write", double_scale), "bytes"),
    ("K and V swapped", GATHER, replace(KERNELS, quant_gather=lambda *a: KERNELS.quant_gather(*a)[::-1]), "bytes"),
    ("one position on", GATHER, before("quant_gather", lambda c, t, a, b: (c, t, a - 1, b - 1)), "bytes"),
    ("the copy's last slot", COPY, before("copy_blocks", lambda c, p, a, b: (c, p, a, b - 1)), "bytes"),
    ("a slot too many", COPY, before("copy_blocks", lambda c, p, a, b: (c, p, a, b + 1)), "untouched"),
    ("blocks in another order", TRANSFER, before("gather_blocks", lambda c, b: (c, b.flip(0))), "bytes"),
    ("other targets", TRANSFER, before("scatter_blocks", lambda f, c, b: (f, c, (b + 1) % c.num_blocks)), "untouched"),
    ("ranks reversed", RESHARD, before("reshard", lambda s, h, r: (s.flip(0), h, r)), "bytes"),
    ("an output", DECODE, after("decode", nudge("output", (1, 2, 3), step=0.01)), "reference"),
    ("sums alone", DECODE, after("decode", nudge("sums", (1, 2, 3), step=0.01)), "reference"),
    ("no output", DECODE, after("decode", nudge("output", (0, 0, 0), step=float("nan"))), "reference"),
    ("a log-sum-exp", DECODE, after("decode", nudge("lse", (1, 2), step=1e-4)), "lse"),
    ("a sum", DECODE_CODES, after("decode", nudge("sums", (slice(None),), step=1.0)), "zero"),
    ("a row sum", DECODE_CODES, after("decode", nudge("row_sums", (slice(None),), step=1.0)), "zero"),
    ("a rounding", DECODE_CODES, after("decode", nudge("output", (slice(None),), factor=1 + 2.0**-23)), "needle"),
    ("the query", DECODE, after("decode", lambda result, query, *_: query.zero_()), "untouched"),
    ("the cache", DECODE, after("decode", lambda result, query, cache, *_: cache.keys[0].zero_()), "untouched"),
    ("a window off by one", NARROW, before("decode", wider_window), "reference"),
    ("a token too many", DECODE, before("decode", one_more), "reference"),
    ("a token too few", DECODE, before("decode", one_less), "reference"),
    ("another block", DECODE, before("decode", next_block), "interpreter: precondition"),
    ("a tensor's scale", FP8, before("decode", half_scale), "zero"),
    ("outputs of padding", PREFILL, after("prefill", lambda result, *_: result.lse[5].zero_()), "untouched"),
    ("the latent part", LATENT_WRITE, before("mla_write", lambda a, b, *rest: (a.roll(1, 1), b, *rest)), "bytes"),
    ("latent needles", LATENT_DECODE, after("mla", nudge("output", (slice(None),), factor=1 + 2.0**-23)), "needle"),
]


@pytest.mark.skipif(torch.cuda.is_available(), reason="what leaves its tensor is seen by the interpreter")
@pytest.mark.parametrize(("problem", "kernels", "seen"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN])
def test_what_is_broken_is_seen(problem: Problem, kernels: KernelSet, seen: str) -> None:
    assert seen in {failure.check for failure in check(problem, kernels)}


@pytest.mark.parametrize("kind", KERNEL_BUGS)
def test_what_the_interpreter_saw_is_a_failure(kind: str) -> None:
    def broken(*args: Any) -> None:
        raise KernelBug(kind, "reshape_and_cache", "write.py", 7, (0, 0, 0), 0, "store of keys")

    (failure,) = check(WRITE, replace(KERNELS, write=broken))

    assert failure.check == f"interpreter: {kind}"
    assert "reshape_and_cache" in failure.what


def multiplies_by_zero(
    query: torch.Tensor,
    cache: PagedCache,
    tables: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    masking: Masking,
    **_: Any,
) -> Attended:
    """Decode as many engines do it: what is not seen gets the weight 0, and is multiplied."""
    rows, heads = query.shape[:2]
    group = heads // cache.num_kv_heads
    output, lse = torch.empty(query.shape), torch.empty((rows, heads))
    for row, length in enumerate(lengths.tolist()):
        blocks = tables[row, : -(-length // cache.block_size)].long()
        keys, values = (one[blocks].flatten(0, 1).float() for one in (cache.keys, cache.values))
        masked = torch.arange(len(keys)) >= length
        for head in range(heads):
            scores = keys[:, head // group] @ query[row, head].float() * scale
            weights = scores.masked_fill(masked, float("-inf")).softmax(0)
            output[row, head] = weights @ values[:, head // group]
            lse[row, head] = scores[~masked].logsumexp(0)
    return Attended(output, lse, output, lse)


@pytest.mark.parametrize(("poison", "seen"), [("finite", set()), ("nan", {"reference"})])
def test_kernels_that_multiply_by_zero_need_a_finite_sentinel(poison: str, seen: set[str]) -> None:
    attending = replace(REAL, cache=replace(SPEC, poison=poison), checked=False)

    failures = check(DecodeProblem(attending, (11, 6)), replace(KERNELS, decode=multiplies_by_zero), "cpu")

    assert {failure.check for failure in failures} == seen


def test_a_problem_prints_as_python_that_makes_it_again() -> None:
    assert all(eval(repr(problem)) == problem for problem in SOUND)
