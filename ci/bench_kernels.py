"""Compare candidate host kernels: what ``gpu_kernels/host.py`` uses, against the same in torch.

    python -m kvsan.ci.bench_kernels --dtype float32

prints a markdown table. Every candidate's result is compared with the host kernel's before it is timed, and each figure
is the best of several repetitions on one thread. The losing candidates live here, so that the choice can be made again.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch

from kvsan.gpu_kernels.addressing import IntArray, blocks_for, slots_of
from kvsan.gpu_kernels.host import HostCache, HostKernels
from kvsan.gpu_kernels.interface import Bits, Float32Array, encode

CONTEXTS = (64, 256, 1024, 8192)
ROWS = (1, 4, 8)
CHUNKS = (16, 128)
BLOCK_SIZE = 16
KV_HEADS = 2
GROUP = 6
"""Query heads for each kv head: three queries of two heads, as the numbers oracle asks them."""
HEAD_DIM = 32
NUM_UNITS = 8 * blocks_for(max(CONTEXTS), BLOCK_SIZE)

Call = Callable[[], object]


class Case(NamedTuple):
    """One line of the table: a kernel, its sizes, the host kernel and its rivals by name."""

    kernel: str
    sizes: str
    host: Call
    rivals: dict[str, Call]


def torch_view(bits: Bits, dtype: str) -> torch.Tensor:
    """Return the torch tensor of a cache dtype that shares memory with bit patterns."""
    signed = torch.from_numpy(bits.view(np.int32 if dtype == "float32" else np.int16))
    return signed.view(getattr(torch, dtype))


def torch_write(
    cache: tuple[torch.Tensor, torch.Tensor], slots: IntArray, keys: Bits, values: Bits, dtype: str
) -> None:
    """Write through a slot mapping with padding, by advanced indexing."""
    index = torch.from_numpy(slots)
    real = index >= 0
    for part, bits in zip(cache, (keys, values), strict=True):
        part[index[real]] = torch_view(bits, dtype)[real]


def torch_gather(
    cache: tuple[torch.Tensor, torch.Tensor], table: IntArray, start: int, stop: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Read positions ``[start, stop)`` of one row by ``index_select``."""
    slots = torch.from_numpy(slots_of(table, start, stop, BLOCK_SIZE))
    return cache[0].index_select(0, slots), cache[1].index_select(0, slots)


def torch_decode(
    cache: tuple[torch.Tensor, torch.Tensor], queries: Float32Array, tables: IntArray, lengths: IntArray
) -> torch.Tensor:
    """Attend with all rows in one padded batch; ``[num_rows, num_q_heads, head_dim]``."""
    units = torch.from_numpy(tables)
    rows, blocks = units.shape
    keys, values = (
        part.view(-1, BLOCK_SIZE, KV_HEADS, HEAD_DIM)[units].view(rows, blocks * BLOCK_SIZE, KV_HEADS, HEAD_DIM).float()
        for part in cache
    )
    grouped = torch.from_numpy(queries).view(rows, KV_HEADS, GROUP, HEAD_DIM)
    scores = grouped @ keys.permute(0, 2, 3, 1)
    hidden = torch.arange(blocks * BLOCK_SIZE) >= torch.from_numpy(lengths)[:, None]
    scores.masked_fill_(hidden[:, None, None], -math.inf)
    weights = (scores - scores.amax(-1, keepdim=True)).exp_()
    output = (weights @ values.transpose(1, 2)) / weights.sum(-1, keepdim=True)
    return output.view(rows, KV_HEADS * GROUP, HEAD_DIM)


def torch_prefill(
    cache: tuple[torch.Tensor, torch.Tensor], queries: Float32Array, table: IntArray, length: int
) -> torch.Tensor:
    """Attend causally with the last tokens of one row; ``[num_tokens, num_q_heads, head_dim]``."""
    tokens = len(queries)
    keys, values = (part.float() for part in torch_gather(cache, table, 0, length))
    grouped = torch.from_numpy(queries).view(tokens, KV_HEADS, GROUP, HEAD_DIM).transpose(0, 1)
    scores = grouped.reshape(KV_HEADS, tokens * GROUP, HEAD_DIM) @ keys.permute(1, 2, 0)
    scores = scores.view(KV_HEADS, tokens, GROUP, length)
    hidden = torch.arange(length) > torch.arange(length - tokens, length)[:, None]
    scores.masked_fill_(hidden[None, :, None], -math.inf)
    weights = (scores - scores.amax(-1, keepdim=True)).exp_()
    sums = weights.view(KV_HEADS, tokens * GROUP, length) @ values.transpose(0, 1)
    output = sums.view(KV_HEADS, tokens, GROUP, HEAD_DIM) / weights.sum(-1, keepdim=True)
    return output.transpose(0, 1).reshape(tokens, KV_HEADS * GROUP, HEAD_DIM)


def cases(dtype: str) -> Iterator[Case]:
    """All cases of the table, over one filled cache."""
    kernels = HostKernels()
    rng = np.random.default_rng(0)
    cache = kernels.allocate(NUM_UNITS, BLOCK_SIZE, KV_HEADS, HEAD_DIM, dtype)
    keys = encode(rng.choice((-1, 1), cache.keys.shape), dtype)
    values = encode(rng.integers(-8, 8, cache.values.shape), dtype)
    kernels.write(cache, np.arange(cache.num_slots), keys, values)
    units = rng.permutation(NUM_UNITS).astype(np.int64)
    tensors = torch_view(cache.keys, dtype), torch_view(cache.values, dtype)
    yield from _byte_cases(kernels, cache, tensors, units, keys, values)
    for context in CONTEXTS:
        blocks = blocks_for(context, BLOCK_SIZE)
        for rows in ROWS:
            tables = units[: rows * blocks].reshape(rows, blocks)
            lengths = np.full(rows, context, np.int64)
            queries = _queries(rng, rows)
            yield Case(
                "decode",
                f"{rows} rows x {context}",
                lambda q=queries, t=tables, n=lengths: kernels.decode(cache, q, t, n, None).output,  # type: ignore[misc]
                {"torch": lambda q=queries, t=tables, n=lengths: torch_decode(tensors, q, t, n)},  # type: ignore[misc]
            )
        for chunk in (chunk for chunk in CHUNKS if chunk <= context):
            table = units[:blocks]
            queries = _queries(rng, chunk)
            starts, one = np.array([0, chunk]), np.array([context])
            yield Case(
                "prefill",
                f"{chunk} tokens at {context}",
                lambda q=queries, s=starts, t=table, n=one: (  # type: ignore[misc]
                    kernels.prefill(cache, q, s, t[None], n, None).output
                ),
                {"torch": lambda q=queries, t=table, n=context: torch_prefill(tensors, q, t, n)},  # type: ignore[misc]
            )


def _byte_cases(
    kernels: HostKernels,
    cache: HostCache,
    tensors: tuple[torch.Tensor, torch.Tensor],
    units: IntArray,
    keys: Bits,
    values: Bits,
) -> Iterator[Case]:
    """Cases of write, gather and copy, none of which changes what the cache holds."""
    dtype = cache.dtype
    for tokens in (1, 4, 16, 128):
        slots = np.arange(tokens)
        yield Case(
            "write",
            f"{tokens} tokens",
            lambda s=slots: kernels.write(cache, s, keys[: len(s)], values[: len(s)]),  # type: ignore[misc]
            {"torch": lambda s=slots: torch_write(tensors, s, keys[: len(s)], values[: len(s)], dtype)},  # type: ignore[misc]
        )
    for context in CONTEXTS:
        found = np.empty_like(keys[:context]), np.empty_like(values[:context])
        yield Case(
            "gather",
            f"{context} tokens",
            lambda n=context, f=found: kernels.gather(cache, units, 0, n, *f),  # type: ignore[misc]
            {"torch": lambda n=context: torch_gather(tensors, units, 0, n)},  # type: ignore[misc]
        )

    def torch_copy() -> None:
        for part in tensors:
            part[32:48] = part[16:32]

    yield Case(
        "copy",
        "1 unit of 16",
        lambda: kernels.copy(cache, 2, 2, 0, 16),
        {"torch": torch_copy},
    )


def _queries(rng: np.random.Generator, tokens: int) -> Float32Array:
    numerators = rng.integers(-31, 32, (tokens, KV_HEADS * GROUP, HEAD_DIM))
    return (numerators / 64).astype(np.float32)


def best_time_us(call: Call, budget_s: float) -> float:
    """Shortest time of one call in microseconds, over repetitions that fill a budget."""
    call()
    start = time.perf_counter()
    call()
    calls = max(1, int(budget_s / 5 / max(1e-7, time.perf_counter() - start)))
    best = math.inf
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - start) / calls)
    return best * 1e6


def check_equal(case: Case) -> None:
    """Stop if a rival that returns attention outputs disagrees with the host kernel."""
    expected = case.host()
    if isinstance(expected, np.ndarray):
        for name, call in case.rivals.items():
            error = float(np.abs(np.asarray(call()) - expected).max())
            if not error < 1e-3:
                raise SystemExit(f"{case.kernel} {case.sizes}: {name} differs from the host kernel by {error}")


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float32")
    parser.add_argument("--budget-s", type=float, default=0.2, help="time for each figure, in seconds (default 0.2)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(f"{options.dtype}, {KV_HEADS} kv heads x {GROUP} q heads x {HEAD_DIM}, blocks of {BLOCK_SIZE}, one thread\n")
    print("| kernel | sizes | host us | rivals | rival us | rival / host |")
    print("| --- | --- | --- | --- | --- | --- |")
    with torch.inference_mode():
        for case in cases(options.dtype):
            check_equal(case)
            host = best_time_us(case.host, options.budget_s)
            for name, call in case.rivals.items():
                rival = best_time_us(call, options.budget_s)
                print(
                    f"| {case.kernel} | {case.sizes} | {host:.1f} | {name} | {rival:.1f} | {rival / host:.2f} |",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
