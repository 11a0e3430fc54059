"""The case of a decode step through a graph: right as it is, and wrong where a batch is not copied to where the graph reads."""

from __future__ import annotations

import pytest
import torch

from kvsan.ci.gpu.graph_cases import graph_case
from kvsan.ci.gpu.inputs import Shape
from kvsan.ci.kernels.kernel_set import KERNELS
from kvsan.gpu_kernels.cuda_graphs import DecodeBatch, DecodeGraph

SHAPE = Shape(rows=2, length=20, queries=1, q_heads=4, kv_heads=2, head_dim=32, block_size=16)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def what_is_wrong() -> list[str]:
    case = graph_case(SHAPE, KERNELS, DEVICE, processors=2)
    ours = case.contestants[0].call
    assert ours is not None
    found = []
    for number in range(case.sets):
        case.poison(number)
        found.append(case.wrong(number, ours(number)))
    return found


def test_a_replay_equals_an_eager_step_for_every_batch() -> None:
    assert what_is_wrong() == [""] * 4


@pytest.mark.parametrize("forgotten", ["tables", "lengths", "slots", "query"])
def test_what_is_not_copied_is_seen(forgotten: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fill = DecodeGraph.fill

    def fill_the_rest(graph: DecodeGraph, batch: DecodeBatch) -> None:
        kept = getattr(graph.static, forgotten).clone()
        fill(graph, batch)
        getattr(graph.static, forgotten).copy_(kept)

    monkeypatch.setattr(DecodeGraph, "fill", fill_the_rest)
    assert all(what_is_wrong())
