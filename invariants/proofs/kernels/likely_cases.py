"""Counterexamples that could happen: the same obligation broken where tensors look like those that people allocate.

A solver makes numbers small, strides of 0 among them, so that the elements of a tensor share memory. Nobody allocates such
a tensor, specifications leave it out in words, and the interpreter sees neither bounds nor races in it. A refuted obligation
is therefore asked again with contiguous tensors, then with any whose dimensions are nested in their order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import z3

from kvsan.invariants.proofs.kernels.specification import Tensor
from kvsan.invariants.proofs.kernels.unknown_launch import UnknownLaunch
from kvsan.invariants.proofs.obligation import REFUTED, Answer, Obligation
from kvsan.invariants.proofs.solver import Limits, solve
from kvsan.invariants.proofs.term import Number, condition_of, one_of

LONGEST_MS = 1000
"""How long a likelier case is looked for, each time."""


def likelier(launch: UnknownLaunch, obligation: Obligation, answer: Answer, limits: Limits) -> Answer:
    """Another refutation of an obligation, if a likelier one is found; else the ``answer`` that is there."""
    short = replace(limits, timeout_ms=min(limits.timeout_ms, LONGEST_MS))
    tensors = launch.specification.tensors.values()
    for contiguous in (True, False):
        nested = tuple(one for tensor in tensors for one in _nested(tensor, contiguous))
        found = solve(replace(obligation, hypotheses=(*obligation.hypotheses, *nested)), short)
        if found.status == REFUTED:
            return replace(found, seconds=answer.seconds + found.seconds)
    return answer


def _nested(tensor: Tensor, contiguous: bool) -> Iterator[z3.BoolRef]:
    """That strides are those of a contiguous tensor, or else that each is larger than all that later dimensions span."""
    last: Number = 0
    for axis in reversed(range(len(tensor.shape))):
        size, stride = tensor.shape[axis], tensor.strides[axis]
        if contiguous and axis + 1 < len(tensor.shape):
            yield condition_of(stride == tensor.shape[axis + 1] * tensor.strides[axis + 1])
        elif not contiguous:
            yield condition_of(one_of(stride > last, size == 1))
        last = last + (size - 1) * stride
