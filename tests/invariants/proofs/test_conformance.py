"""What proofs think a kernel accesses, against what Triton's interpreter sees it access, on random launches.

The symbolic run of a kernel is evaluated for the numbers of a launch: every program, trip and lane. The same launch goes
through the interpreter, where the same Python function runs. Both must touch the same elements from the same lanes, enter
the same loops, and keep the same data.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np
import pytest
import z3
from evaluation import evaluator
from random_launches import RandomLaunch, random_launch

from kvsan.ci.proofs.subjects import build_of, subjects
from kvsan.invariants.proofs.kernels.execution import Access, Guard, Loop, Run, execute
from kvsan.invariants.proofs.kernels.interpreted import Interpreted, Interpreter
from kvsan.invariants.proofs.kernels.parsing import parse
from kvsan.invariants.proofs.kernels.prover import Subject
from kvsan.invariants.proofs.kernels.unknown_launch import UnknownLaunch

KERNELS = (
    "reshape_and_cache/fp16-d80-b32-g4",
    "quantise_and_cache/fp8_e4m3-d128-b16-g4",
    "quantise_and_cache/int8_per_token_head-d96-b16-g4",
    "quantise_and_cache/nvfp4-d80-b16-g4",
    "gather_tokens/nvfp4-d128-b16-g4",
    "gather_tokens/fp8_per_token_head-d128-b16-g4",
    "paged_decode/bf16-d32-b4-g6-checked-session",
    "paged_decode/int8_per_token_head-d32-b4-g6-checked-session",
    "paged_decode/nvfp4-d32-b4-g6-checked-session",
    "paged_decode/bf16-d128-b16-g4-window",
    "paged_decode/bf16-d128-b16-g4-chunk",
    "paged_decode_split/bf16-d128-b16-g4",
    "merge_splits/fp16-d80-s3",
    "paged_prefill/bf16-d32-b4-g6-checked-session",
    "paged_prefill/bf16-d128-b16-g4-window",
    "move_blocks/u8-w40",
    "move_heads/i16-w128-tp2to8",
    "move_heads/i16-w128-tp16to4",
    "concat_and_cache/bf16-l512-r64",
    "mla_decode/fp32-l256-r32-h16",
)
LAUNCHES = 2

Seen = Counter[tuple[Any, ...]]


def test_the_interpreter_accesses_what_the_symbolic_run_says(
    proved: dict[str, Subject], interpreter: Interpreter
) -> None:
    compared, kinds, empty = 0, set(), []
    for kernel in KERNELS:
        before, subject = compared, proved[kernel]
        run, places = _run(subject, subject.lowered.text), subject.lowered.places
        for number in range(LAUNCHES):
            launch = _drawn(kernel, subject, number)
            real = interpreter.run(launch.concrete)
            assert not real.error
            assert real.bug is None
            assert accesses(run, launch) == _seen(real), f"{kernel}, launch {number}"
            assert loops(run, launch) == _loops_seen(real), f"{kernel}, launch {number}"
            assert guards(run, launch, places) == _guards_seen(real, run, places), f"{kernel}, launch {number}"
            compared += sum(_seen(real).values())
            kinds |= {(one.how, one.tensor) for one in real.accesses}
        empty += [kernel] if compared == before else []
    assert compared >= 10_000
    assert not empty
    assert {how for how, _ in kinds} == {"load", "store"}


@pytest.mark.parametrize(
    ("change", "to"),
    [
        ('"arith.divsi"', '"arith.remsi"'),
        ("predicate = 2 : i64", "predicate = 3 : i64"),
        ("axis = 1 : i32}> : () ", "axis = 0 : i32}> : () "),
    ],
)
def test_other_ir_does_not_conform(proved: dict[str, Subject], interpreter: Interpreter, change: str, to: str) -> None:
    kernel = KERNELS[0]
    launch, text = _drawn(kernel, proved[kernel], 0), proved[kernel].lowered.text
    real = _seen(interpreter.run(launch.concrete))
    assert accesses(_run(proved[kernel], text), launch) == real
    assert change in text
    assert accesses(_run(proved[kernel], text.replace(change, to)), launch) != real


@pytest.fixture(scope="module")
def proved() -> dict[str, Subject]:
    """What is proved of each kernel."""
    return subjects(KERNELS)


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Interpreter]:
    """The process that interprets launches."""
    with Interpreter() as one:
        yield one


def _drawn(kernel: str, subject: Subject, number: int) -> RandomLaunch:
    return random_launch(build_of(kernel).kernel, subject, random.Random(f"{kernel} {number}"))


def _run(subject: Subject, text: str) -> Run:
    launch = UnknownLaunch(subject.signature, subject.constexprs, subject.specify)
    return execute(parse(text), subject.signature, launch)


# -- the symbolic run, evaluated


def accesses(run: Run, launch: RandomLaunch) -> Seen:
    """Program, kind, tensor, loop variables, lane and offset of every active lane."""
    found: Seen = Counter()
    for access in run.accesses:
        active, offset = evaluator(z3.And(*access.scope.conditions, access.active)), evaluator(access.offset)
        for where, given in _instances(run, launch, access):
            wanted = np.broadcast_to(active(given), access.shape)
            offsets = np.broadcast_to(offset(given), access.shape)
            for lane in map(tuple, np.argwhere(wanted).tolist()):
                found[(*where[:1], access.kind, access.tensor, *where[1:], lane, int(offsets[lane]))] += 1
    return found


def guards(run: Run, launch: RandomLaunch, places: Mapping[int, str]) -> Seen:
    """Program, place, loop variables and lane of every lane in which a guard keeps data."""
    found: Seen = Counter()
    for guard in run.guards:
        inside, condition = evaluator(z3.And(*guard.scope.conditions)), evaluator(guard.condition)
        for where, given in _instances(run, launch, guard):
            if inside(given):
                kept = np.broadcast_to(condition(given), guard.shape)
                for lane in map(tuple, np.argwhere(kept).tolist()):
                    found[(*where, places[guard.line], lane)] += 1
    return found


def loops(run: Run, launch: RandomLaunch) -> Seen:
    """Program, loop variables around it, and bounds of every loop that is entered."""
    found: Seen = Counter()
    for loop in run.loops:
        inside, bounds = evaluator(z3.And(*loop.scope.conditions)), _bounds(loop)
        for where, given in _instances(run, launch, loop):
            if inside(given):
                found[(*where, *(int(one(given)) for one in bounds))] += 1
    return found


def _instances(run: Run, launch: RandomLaunch, one: Access | Guard | Loop) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Program and loop variables, and everything by name, for each time that something may happen."""
    shape = () if isinstance(one, Loop) else one.shape
    names = {f"lane{axis}": block for axis, block in enumerate(np.indices(shape) if shape else [])}
    names |= {f"undefined.{access.line}": lambda *_: -777 for access in run.accesses}
    grid = (*launch.concrete.grid, 1, 1)[:3]
    around = [next(loop for loop in run.loops if loop.variable.eq(variable)) for variable in one.scope.loops]
    loops = [(loop.variable.decl().name(), _bounds(loop)) for loop in around]
    for program in product(*map(range, grid)):
        given = {**launch.given, **names, **{f"program{axis}": number for axis, number in enumerate(program)}}
        for variables, known in _trips(loops, given):
            yield (program, variables), known


Bounds = tuple[Callable[[Mapping[str, Any]], Any], ...]


def _bounds(loop: Loop) -> Bounds:
    return tuple(map(evaluator, (loop.start, loop.stop, loop.step)))


def _trips(loops: list[tuple[str, Bounds]], given: dict[str, Any]) -> Iterator[tuple[tuple[int, ...], dict[str, Any]]]:
    if not loops:
        yield (), given
        return
    (name, bounds), *inner = loops
    for variable in range(*(int(one(given)) for one in bounds)):
        for variables, known in _trips(inner, {**given, name: variable}):
            yield (variable, *variables), known


# -- the interpreter's


def _seen(real: Interpreted) -> Seen:
    found: Seen = Counter()
    for one in real.accesses:
        for lane, offset in zip(one.lanes, one.offsets, strict=True):
            found[(one.program, one.how, one.tensor, one.loops, lane, offset)] += 1
    return found


def _loops_seen(real: Interpreted) -> Seen:
    return Counter((one.program, one.loops, one.start, one.stop, one.step) for one in real.loops)


def _guards_seen(real: Interpreted, run: Run, places: Mapping[int, str]) -> Seen:
    """Of the selects in places in which the symbolic run has a guard."""
    wanted = {places[guard.line] for guard in run.guards}
    return Counter(
        (one.program, one.loops, one.place, lane) for one in real.guards if one.place in wanted for lane in one.taken
    )
