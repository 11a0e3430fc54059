"""The story of a finding: a few lines that say what happened, when, to whom, and how to see it again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvsan.harness.verdict import Finding, Violation

if TYPE_CHECKING:
    from kvsan.harness.session import Session

_UNIT = re.compile(r"\bunit (\d+)")
_MARGIN = 14


def owners(session: Session, violation: Violation) -> Iterator[str]:
    """Say who has the units that a violation names, by the harness's own books."""
    books = session.books
    for unit in sorted({int(number) for number in _UNIT.findall(violation.message)}):
        if unit not in books.all_units:
            continue
        places = [
            f"{request.r} (block {block})"
            for request in books.requests.values()
            for table in request.tables
            for block, held in enumerate(table)
            if held == unit
        ]
        publication = books.publications.get(unit)
        if publication is not None:
            places.append(f"the prefix cache, as {publication.publisher.r}'s block {publication.block}")
        if any(unit in table for parked in books.parked.values() for tables in parked for table in tables):
            places.append("a launch or load in flight of an ended request")
        yield f"unit {unit} is held by {', '.join(places) or 'nobody'}"


def headline(finding: Finding) -> str:
    """Invariant and cause."""
    return f"{finding.invariant} [{finding.cause}]"


def where(finding: Finding) -> str:
    """Name the first bad step."""
    operations = finding.trace.operations
    if finding.step < len(operations):
        return f"operation {finding.step}: {operations[finding.step]!r}"
    return "the end of the session"


def account(finding: Finding, *, beyond_contract: bool = False) -> list[str]:
    """Tell what happened, which step did it, and what is known of those involved."""
    title = f"VIOLATION {headline(finding)}"
    if beyond_contract:
        title += " (beyond the target's contract: decides no exit code)"
    lines = [title, f"  {finding.message}", _line("first bad", where(finding))]
    for number, line in enumerate(finding.lineage):
        lines.append(_line("" if number else "lineage", line))
    return lines


def story(finding: Finding, path: str | None, *, beyond_contract: bool = False) -> list[str]:
    """Tell a finding in about six lines; ``path`` is where its trace lies, None if it could not be written."""
    same, tried = finding.replays
    count = len(finding.trace.operations)
    length = f"{count} operation{'' if count == 1 else 's'}, deterministic {same}/{tried}"
    lines = account(finding, beyond_contract=beyond_contract)
    if path is None:
        return [*lines, _line("trace", f"not on file ({length})")]
    replay = f"kvsan replay {path}" + (" --beyond-contract" if beyond_contract else "")
    return [*lines, _line("trace", f"{path} ({length})"), _line("replay", replay)]


def _line(name: str, text: str) -> str:
    return f"  {name:{_MARGIN}}{text}"
