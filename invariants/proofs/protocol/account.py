"""A counterexample told in words: the pool before the step, who holds what, the step, and what does not hold after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kvsan.invariants.proofs.protocol.induction import Broken
from kvsan.invariants.proofs.protocol.state import NOT_QUEUED


def account(broken: Broken) -> tuple[str, ...]:
    """Lines that tell a counterexample."""
    values = broken.values
    return (
        f"Before the step every clause holds: a pool of {values['units']} blocks, block 0 the null block.",
        *(f"  {line}" for line in _blocks(values)),
        f"  free queue: {_queue(values) or 'empty'}",
        *([f"  {line}"] if (line := _numbers(values)) else []),
        f"Step: {broken.scenario.__name__}. {(broken.scenario.__doc__ or '').strip()}",
        f"After it this does not hold ({broken.goal.name}{_where(broken)}): {broken.goal.statement}.",
    )


def _blocks(values: Mapping[str, int]) -> Iterator[str]:
    """Every block: its count, who is known to hold it, its hash."""
    for unit in range(1, values["units"]):
        known = [name for name in _unit_names(values) if values[name] == unit]
        rest = values.get(f"rest[{unit}]", 0)
        parts = [f"block {unit}: count {values[f'references[{unit}]']}"]
        if known:
            parts.append(f"is the step's {' and '.join(known)}")
        if rest:
            parts.append(f"named by {rest} other {'entry' if rest == 1 else 'entries'}")
        if values.get(f"tail[{unit}]"):
            parts.append("its holder's to write")
        if values.get(f"keyed[{unit}]"):
            parts.append(f"hash {values[f'key[{unit}]']}")
        yield ", ".join(parts)


def _unit_names(values: Mapping[str, int]) -> list[str]:
    return [name for name in UNIT_NAMES if name in values]


UNIT_NAMES = (
    *("unit", "first", "second", "third", "old", "copy", "fresh", "another", "parked", "hit0", "hit1", "hit2"),
    *("other_unit", "other_old", "other_copy", "other_fresh"),
)
"""What scenarios call their blocks."""


def _queue(values: Mapping[str, int]) -> str:
    units = values["units"]
    walked: list[str] = []
    unit = values[f"next[{units}]"] - 1
    while unit not in (units, NOT_QUEUED) and len(walked) < units:
        walked.append(str(unit))
        unit = values[f"next[{unit}]"] - 1
    return " ".join(walked)


def _numbers(values: Mapping[str, int]) -> str:
    """Numbers of the scenario that are no blocks."""
    names = [name for name in values if "[" not in name and name not in (*UNIT_NAMES, "units", "any block", "any key")]
    return ", ".join(f"{name.replace('_', ' ')} {values[name]}" for name in names)


def _where(broken: Broken) -> str:
    about = {"key": "any key", "block": "any block"}.get(broken.about, "")
    return f", {about.removeprefix('any ')} {broken.values[about]}" if about in broken.values else ""
