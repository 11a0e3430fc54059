"""Simpler versions of one operation, of a whole trace and of a configuration, the boldest first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from kvsan.harness.configuration import HOST, Configuration
from kvsan.harness.operations import (
    Abort,
    Advance,
    Capture,
    Complete,
    Fail,
    Finish,
    Fork,
    Landed,
    Launch,
    Offload,
    Operation,
    Outcome,
    Preempt,
    Replay,
    Retire,
    Schedule,
    Segment,
    Spoil,
    Submit,
    Tear,
)
from kvsan.harness.tiers import HOST_TIER

Operations = tuple[Operation, ...]


def smaller(value: int, least: int) -> Iterator[int]:
    """Smaller integers, down to ``least``."""
    tried = {value}
    for candidate in (least, least + 1, value // 2, value - 1):
        if least <= candidate < value and candidate not in tried:
            tried.add(candidate)
            yield candidate


# -- one operation


def simpler_operations(operation: Operation) -> Iterator[Operation]:
    """Every simpler operation that one change of an argument, or of an end into a plainer end, gives."""
    if isinstance(operation, Submit):
        yield from _simpler_submits(operation)
    elif isinstance(operation, Schedule):
        yield from _simpler_schedules(operation)
    elif isinstance(operation, Retire):
        yield from _simpler_retires(operation)
    elif isinstance(operation, Abort | Preempt):
        yield Finish(operation.r)
    elif isinstance(operation, Capture):
        for rows in smaller(operation.rows, 1):
            yield replace(operation, rows=rows)
    elif isinstance(operation, Replay):
        yield Launch(operation.b)
    else:
        yield from _simpler_transfers(operation)


def _simpler_transfers(operation: Operation) -> Iterator[Operation]:
    """Faults between two pieces for faults in the middle of one; the first key for another."""
    if isinstance(operation, Tear):
        yield Fail(operation.t)
    elif isinstance(operation, Offload) and operation.tier != HOST_TIER:
        yield replace(operation, tier=HOST_TIER)
    elif isinstance(operation, Spoil):
        if operation.how != "flip":
            yield replace(operation, how="flip")
        for index in smaller(operation.index, 0):
            yield replace(operation, index=index)


def _simpler_submits(submit: Submit) -> Iterator[Submit]:
    if submit.engine_id:
        yield replace(submit, engine_id="")
    if submit.media:
        yield replace(submit, media=())
    if submit.adapter:
        yield replace(submit, adapter=None)
    if submit.salt:
        yield replace(submit, salt="")
    for prompt in _simpler_prompts(submit.prompt):
        yield replace(submit, prompt=prompt)
    for position, item in enumerate(submit.media):
        rest = submit.media[:position], submit.media[position + 1 :]
        for offset in smaller(item.offset, 0):
            yield replace(submit, media=(*rest[0], item._replace(offset=offset), *rest[1]))
        for length in smaller(item.length, 1):
            yield replace(submit, media=(*rest[0], item._replace(length=length), *rest[1]))


def _simpler_prompts(prompt: tuple[Segment, ...]) -> Iterator[tuple[Segment, ...]]:
    for position in range(len(prompt)):
        if len(prompt) > 1:
            yield prompt[:position] + prompt[position + 1 :]
    for position, segment in enumerate(prompt):
        before, after = prompt[:position], prompt[position + 1 :]
        if segment[0] == "out":
            yield (*before, (0, segment[-1]), *after)
        for length in smaller(segment[-1], 1):
            yield (*before, (*segment[:-1], length), *after)
        if isinstance(segment[0], int):
            for family in smaller(segment[0], 0):
                yield (*before, (family, segment[1]), *after)
    for position in range(len(prompt) - 1):
        first, second = prompt[position], prompt[position + 1]
        if isinstance(first[0], int) and isinstance(second[0], int):
            merged: Segment = (first[0], first[-1] + second[-1])
            yield (*prompt[:position], merged, *prompt[position + 2 :])


def _simpler_schedules(schedule: Schedule) -> Iterator[Schedule]:
    if schedule.delayed:
        yield replace(schedule, delayed=False)
    for external in smaller(schedule.external, 0):
        yield replace(schedule, external=external)
    for lookahead in smaller(schedule.lookahead, 0):
        yield replace(schedule, lookahead=lookahead)
    for n in smaller(schedule.n, 1):
        yield replace(schedule, n=n)


def _simpler_retires(retire: Retire) -> Iterator[Retire]:
    if retire.outcome:
        yield replace(retire, outcome=())
    for position, outcome in enumerate(retire.outcome):
        before, after = retire.outcome[:position], retire.outcome[position + 1 :]
        yield replace(retire, outcome=before + after)
        for accepted in smaller(outcome.accepted, 0):
            yield replace(retire, outcome=(*before, Outcome(outcome.r, accepted, outcome.family), *after))
        for family in smaller(outcome.family, 0):
            yield replace(retire, outcome=(*before, Outcome(outcome.r, outcome.accepted, family), *after))


# -- the whole trace at once


def _plain_prompt(submit: Submit) -> Submit:
    return replace(submit, prompt=((0, sum(segment[-1] for segment in submit.prompt)),))


def _bare(submit: Submit) -> Submit:
    return replace(submit, salt="", adapter=None, media=(), engine_id="")


_SUBMITS: tuple[Callable[[Submit], Submit], ...] = (
    lambda submit: _plain_prompt(_bare(submit)),
    _bare,
    _plain_prompt,
    lambda submit: replace(submit, engine_id=""),
    lambda submit: replace(submit, salt=""),
    lambda submit: replace(submit, adapter=None),
    lambda submit: replace(submit, media=()),
)
_SCHEDULES: tuple[Callable[[Schedule], Schedule], ...] = (
    lambda schedule: replace(schedule, lookahead=0, external=0, delayed=False),
    lambda schedule: replace(schedule, lookahead=0),
    lambda schedule: replace(schedule, external=0, delayed=False),
)


def simpler_traces(configuration: Configuration, operations: Operations) -> Iterator[tuple[Configuration, Operations]]:
    """One change made everywhere; each is worth many changes of one argument."""
    for submits in _SUBMITS:
        yield configuration, tuple(submits(one) if isinstance(one, Submit) else one for one in operations)
    for schedules in _SCHEDULES:
        yield configuration, tuple(schedules(one) if isinstance(one, Schedule) else one for one in operations)
    yield configuration, tuple(replace(one, outcome=()) if isinstance(one, Retire) else one for one in operations)
    for block_size in smaller(configuration.block_size, 1):
        scaled = tuple(_scaled(one, block_size, configuration.block_size) for one in operations)
        yield replace(configuration, block_size=block_size), scaled


def _scaled(operation: Operation, size: int, old: int) -> Operation:
    """The same operation over blocks of another size: about as many blocks, fewer tokens."""

    def scale(tokens: int) -> int:
        return -(-tokens * size // old)

    if isinstance(operation, Submit):
        prompt = tuple((*segment[:-1], scale(segment[-1])) for segment in operation.prompt)
        return replace(operation, prompt=prompt)
    if isinstance(operation, Schedule):
        external, lookahead = scale(operation.external), scale(operation.lookahead)
        return replace(operation, n=scale(operation.n), external=external, lookahead=lookahead)
    return operation


def merged_schedules(operations: Operations, start: int) -> Iterator[Operations]:
    """One chunk instead of the one at ``start`` and the next of the same request, at the time of either."""
    first = operations[start]
    if not isinstance(first, Schedule):
        return
    for later in range(start + 1, len(operations)):
        second = operations[later]
        if isinstance(second, Schedule) and second.r == first.r:
            both = replace(first, n=first.n + second.n, lookahead=max(first.lookahead, second.lookahead))
            before, between, after = operations[:start], operations[start + 1 : later], operations[later + 1 :]
            yield (*before, both, *between, *after)
            yield (*before, *between, both, *after)
            return


def whole_prefills(operations: Sequence[Operation]) -> Operations:
    """Every request computes its whole prompt in its first chunk, as far as it is not cached."""
    lengths = {one.r: sum(segment[-1] for segment in one.prompt) for one in operations if isinstance(one, Submit)}
    told = []
    for one in operations:
        length = lengths.pop(one.r, None) if isinstance(one, Schedule) else None
        told.append(replace(one, n=max(one.n, length)) if isinstance(one, Schedule) and length else one)
    return tuple(told)


def shorter_ways(operations: Operations) -> Iterator[Operations]:
    """Fewer operations for the same state: a prefill for a load that lands, one preempted request for two equal ones."""
    for position, one in enumerate(operations):
        if isinstance(one, Schedule) and one.delayed:
            yield _prefilled(operations, position, one)
        elif isinstance(one, Fork):
            yield _unforked(operations, one)
        elif isinstance(one, Tear | Complete):
            yield from _moved_on(operations, position)
    submits = [one for one in operations if isinstance(one, Submit)]
    for number, second in enumerate(submits):
        for first in submits[:number]:
            yield _preempted(operations, first, second)
            yield _forked(operations, first, second)
    transfers = list(dict.fromkeys(t for one in operations if (t := getattr(one, "t", ""))))
    for number, later in enumerate(transfers):
        for earlier in transfers[:number]:
            yield tuple(replace(one, t=earlier) if getattr(one, "t", "") == later else one for one in operations)  # type: ignore[arg-type]


def _moved_on(operations: Operations, position: int) -> Iterator[Operations]:
    """A transfer gets on by one piece, and nobody hears of it. A store's stream has the store's name."""
    for tier in dict.fromkeys(one.tier for one in operations if isinstance(one, Offload) and one.tier != HOST_TIER):
        yield (*operations[:position], Advance(tier), *operations[position + 1 :])


def _prefilled(operations: Operations, position: int, load: Schedule) -> Operations:
    """The tokens are computed: by the launch that lies between schedule and landing, or by one of their own."""
    told = list(operations)
    told[position] = replace(load, n=load.external, external=0, delayed=False)
    launches = [Launch(f"load of {load.r}")]
    for at in range(position + 1, len(told)):
        one = told[at]
        if isinstance(one, Launch):
            launches = [one]
        elif one == Landed(load.r):
            new = [] if launches[0] in told else launches
            told[at : at + 1] = [*new, Retire(launches[0].b)]
            break
    return tuple(told)


def _forked(operations: Operations, first: Submit, second: Submit) -> Operations:
    """The second request is a fork of the first, and has what its first chunk would have given it."""
    told = [one for one in operations if one is not second]
    at = next((i for i, one in enumerate(told) if isinstance(one, Schedule) and one.r == second.r), None)
    if at is not None:
        told[at] = Fork(first.r, second.r)
    return tuple(told)


def _unforked(operations: Operations, fork: Fork) -> Operations:
    """The parent does what its child did."""
    return tuple(_taken_over(one, fork.child, fork.r) for one in operations if one is not fork)


def _preempted(operations: Operations, first: Submit, second: Submit) -> Operations:
    """The first request takes the second one's part after a preemption, unless it still has something to do itself."""
    told: list[Operation] = []
    preempted = False
    for one in operations:
        if one is second:
            preempted = True
            told.append(Preempt(first.r))
        elif preempted or one != Finish(first.r):
            told.append(_taken_over(one, second.r, first.r))
    return tuple(told)


def _taken_over(operation: Operation, old: str, new: str) -> Operation:
    """One request does what another did."""
    if isinstance(operation, Retire):
        return replace(operation, outcome=tuple(o._replace(r=new) if o.r == old else o for o in operation.outcome))
    return replace(operation, r=new) if getattr(operation, "r", None) == old else operation  # type: ignore[arg-type]


# -- the configuration


def simpler_configurations(configuration: Configuration) -> Iterator[Configuration]:
    """The host's kernels, fewer options, smaller blocks, a smaller pool."""
    if configuration.kernels != HOST:
        yield replace(configuration, kernels=HOST)
    options = configuration.options
    for position in range(len(options)):
        yield replace(configuration, options=options[:position] + options[position + 1 :])
    for position, (name, value) in enumerate(options):
        if type(value) is int:
            for less in smaller(value, 1):
                yield replace(configuration, options=(*options[:position], (name, less), *options[position + 1 :]))
    for block_size in smaller(configuration.block_size, 1):
        yield replace(configuration, block_size=block_size)
    for num_units in smaller(configuration.num_units, 2):
        yield replace(configuration, num_units=num_units)


# -- readability


def ids_of(operation: Operation) -> tuple[str, ...]:
    """Requests that an operation is about."""
    return tuple(r for name in ("r", "child") if (r := getattr(operation, name, None)))


def late_submits(operations: Operations) -> Operations:
    """Every request arrives right before it is first used."""
    told = list(operations)
    for submit in [one for one in operations if isinstance(one, Submit)]:
        at = told.index(submit)
        used = next((i for i in range(at + 1, len(told)) if submit.r in ids_of(told[i])), None)
        if used is not None:
            told.insert(used - 1, told.pop(at))
    return tuple(told)


def renamed(operations: Sequence[Operation]) -> Operations:
    """Requests are r1, r2, ..., launches b1, ..., transfers t1, ... and graphs g1, ... in the order in which they appear."""
    names: dict[str, dict[str, str]] = {"r": {}, "b": {}, "t": {}, "g": {}}

    def new(letter: str, old: str) -> str:
        known = names[letter]
        return known.setdefault(old, f"{letter}{len(known) + 1}")

    def one(operation: Operation) -> Operation:
        changes: dict[str, object] = {}
        for name, letter in (("r", "r"), ("child", "r"), ("b", "b"), ("t", "t"), ("g", "g")):
            if hasattr(operation, name):
                changes[name] = new(letter, getattr(operation, name))
        if isinstance(operation, Retire):
            changes["outcome"] = tuple(outcome._replace(r=new("r", outcome.r)) for outcome in operation.outcome)
        if isinstance(operation, Submit):
            prompt = [("out", new("r", s[1]), s[-1]) if s[0] == "out" else s for s in operation.prompt]
            changes["prompt"] = tuple(prompt)
        return replace(operation, **changes)  # type: ignore[arg-type]

    return tuple(one(operation) for operation in operations)
