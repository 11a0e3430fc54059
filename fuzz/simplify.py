"""Simpler versions of one operation and of a configuration, the boldest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvsan.harness.configuration import Configuration
from kvsan.harness.operations import Operation, Outcome, Retire, Schedule, Segment, Submit


def smaller(value: int, least: int) -> Iterator[int]:
    """Smaller integers, down to ``least``."""
    tried = {value}
    for candidate in (least, least + 1, value // 4, value // 2, value - value // 8, value - 1):
        if least <= candidate < value and candidate not in tried:
            tried.add(candidate)
            yield candidate


def simpler_operations(operation: Operation) -> Iterator[Operation]:
    """Every simpler operation that one change of an argument gives."""
    if isinstance(operation, Submit):
        yield from _simpler_submits(operation)
    elif isinstance(operation, Schedule):
        yield from _simpler_schedules(operation)
    elif isinstance(operation, Retire):
        yield from _simpler_retires(operation)


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
            yield (*before, (*segment[:-1], length), *after)  # type: ignore[misc]
        if isinstance(segment[0], int):
            for family in smaller(segment[0], 0):
                yield (*before, (family, segment[1]), *after)  # type: ignore[misc]
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


def simpler_configurations(configuration: Configuration) -> Iterator[Configuration]:
    """Fewer options, smaller blocks, a smaller pool."""
    options = configuration.options
    for position in range(len(options)):
        yield replace(configuration, options=options[:position] + options[position + 1 :])
    for block_size in smaller(configuration.block_size, 1):
        yield replace(configuration, block_size=block_size)
    for num_units in smaller(configuration.num_units, 2):
        yield replace(configuration, num_units=num_units)
