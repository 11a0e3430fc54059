"""Decode and prefill as cases.

The baseline is ``scaled_dot_product_attention`` on contiguous K and V, once with what it takes to gather them and once
without. In decode the q heads of a kv head are the rows of one matrix, so that K and V are read once for all of them.
"""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from kvsan.ci.gpu.cases import Case, Contestant, leave_poison, sets_beyond
from kvsan.ci.gpu.dense import gathered
from kvsan.ci.gpu.inputs import Inputs, Shape, make_inputs
from kvsan.ci.gpu.rivals import rival_contestants
from kvsan.ci.kernels.kernel_set import KernelSet
from kvsan.gpu_kernels.formats import format_named

FAR = 0.02
"""Of bfloat16 outputs: the part of its own size that a vector may be away from float32 attention.

Rounding of weights and outputs takes about 0.004 of it; the comparisons judge each element, by a bound that is derived.
"""

_PROGRAMS_OF_PROCESSOR = 4
_LEAST_TOKENS_OF_SPLIT = 256
_MOST_SPLITS = 64


def attention_case(shape: Shape, kernels: KernelSet, device: str, l2_bytes: int, processors: int) -> Case:
    """Make input sets, and a case of them whose first contestants are ours and torch's."""
    inputs = [make_inputs(shape, kernels, device) for _ in range(sets_beyond(l2_bytes, shape.moved_bytes))]
    splits = splits_for(shape, processors)
    scale = shape.head_dim**-0.5

    def ours(number: int) -> torch.Tensor:
        one = inputs[number]
        if shape.queries == 1:
            return kernels.decode(one.query, one.cache, one.tables, one.lengths, scale, splits=splits).output
        return kernels.prefill(one.query, one.starts, shape.queries, one.cache, one.tables, one.lengths, scale).output

    def contiguous(number: int) -> torch.Tensor:
        one = inputs[number]
        return sdpa(shape, one.query, one.keys, one.values)

    def gathering(number: int) -> torch.Tensor:
        one = inputs[number]
        return sdpa(shape, one.query, *gathered(one.cache, one.tables, shape.length))

    def poison(number: int) -> None:
        query = inputs[number].query
        leave_poison(query.numel() // 2, query.numel() * splits if splits > 1 else 1, device=device)

    def wrong(number: int, result: object) -> str:
        assert isinstance(result, torch.Tensor)
        return far_from_float32(shape, inputs[number], result)

    own_name = "KVSan" if splits == 1 else f"KVSan, {splits} splits"
    contestants = [Contestant(own_name, ours)]
    if format_named(shape.dtype).quantised:
        contestants.append(Contestant("SDPA, dequantised contiguous KV", contiguous))
    else:
        contestants += [Contestant("SDPA, contiguous KV", contiguous), Contestant("gather and SDPA", gathering)]
        contestants += rival_contestants(shape, inputs)
    return Case(
        shape.name, len(inputs), shape.moved_bytes, tuple(contestants), poison, wrong,
        operations=shape.operations if shape.queries > 1 else 0,
    )  # fmt: skip


def splits_for(shape: Shape, processors: int) -> int:
    """How many programs share one context, so that each processor has some and each program enough tokens."""
    if shape.queries > 1:
        return 1
    programs = shape.rows * shape.kv_heads
    wanted = -(-_PROGRAMS_OF_PROCESSOR * processors // programs)
    most = max(1, min(_MOST_SPLITS, shape.length // _LEAST_TOKENS_OF_SPLIT))
    return min(wanted, most)


def sdpa(shape: Shape, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Attend by torch, in whatever way it chooses; shapes as in ``Inputs``."""
    k, v = keys.transpose(1, 2), values.transpose(1, 2)
    if shape.queries == 1:
        q = query.view(shape.rows, shape.kv_heads, -1, shape.head_dim)
        return scaled_dot_product_attention(q, k, v).reshape(query.shape)
    q = query.view(shape.rows, shape.queries, shape.q_heads, shape.head_dim).transpose(1, 2)
    mask = causal_lower_right(shape.queries, shape.length)
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True).transpose(1, 2).reshape(query.shape)


def far_from_float32(shape: Shape, inputs: Inputs, output: torch.Tensor) -> str:
    """Say which output vector is farther than ``FAR`` from float32 attention, sequence by sequence; NaN always is."""
    group = shape.q_heads // shape.kv_heads
    mask = torch.ones((shape.queries, shape.length), dtype=torch.bool, device=output.device)
    mask = mask.tril(shape.length - shape.queries).repeat(group, 1)
    for row in range(shape.rows):
        tokens = slice(row * shape.queries, (row + 1) * shape.queries)
        q = inputs.query[tokens].float().view(shape.queries, shape.kv_heads, group, shape.head_dim)
        keys, values = gathered(inputs.cache, inputs.tables[row : row + 1], shape.length)
        k, v = (one[0].float().transpose(0, 1) for one in (keys, values))
        with sdpa_kernel(SDPBackend.MATH):
            wanted = scaled_dot_product_attention(q.permute(1, 2, 0, 3).flatten(1, 2), k, v, attn_mask=mask)
        wanted = wanted.view(shape.kv_heads, group, shape.queries, shape.head_dim).permute(2, 0, 1, 3).flatten(1, 2)
        distances = (output[tokens].float() - wanted).norm(dim=-1) / wanted.norm(dim=-1)
        near = distances <= FAR
        if not bool(near.all()):
            token, head = torch.nonzero(~near)[0].tolist()
            return (
                f"sequence {row}, query {token}, q head {head}: {float(distances[token, head]):.3g} away, at most {FAR}"
            )
    return ""
