"""Where in a kernel's source an operation of its IR comes from.

The compiler prints locations as names, defined at the outermost level: ``#loc5 = loc("tiles.py":150:5)``; a function that was
inlined is ``callsite(callee at caller)``, and a named value ``"blocks"(#loc5)``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

OPERATION = re.compile(r'^(\s*)(?:%[\w:]+ = )?"([\w.]+)"\(')
_ALIAS = re.compile(r"^(#loc\d*) = loc\((.*)\)$")
_REFERENCE = re.compile(r"loc\((#loc\d*)\)\s*$")
_FILE = re.compile(r'^"([^"]+)":(\d+):\d+$')
_CALL = re.compile(r"^callsite\((#loc\d*) at (#loc\d*)\)$")
_NAMED = re.compile(r'^"[^"]*"\((#loc\d*)\)$')


def operations(text: str) -> Iterator[tuple[int, str]]:
    """Line, from 1, and name of each operation of a text in generic form, in order."""
    for number, line in enumerate(text.splitlines(), 1):
        if found := OPERATION.match(line):
            yield number, found[2]


def places(text: str, located: str) -> dict[int, str]:
    """``file:line`` by line of ``text``; ``located`` is the same module, printed with locations. Empty if they differ."""
    lines = located.splitlines()
    aliases = {found[1]: found[2] for line in lines if (found := _ALIAS.match(line))}
    wanted = list(operations(text))
    given = [(number, name) for number, name in operations(located)]
    if [name for _, name in wanted] != [name for _, name in given]:
        return {}
    by_line: dict[int, str] = {}
    for (line, _), (there, _) in zip(wanted, given, strict=True):
        place = _source(_location(lines, there - 1), aliases)
        if place:
            by_line[line] = place
    return by_line


def _location(lines: list[str], start: int) -> str:
    """Name of an operation's location: at the end of its line, or of the line that closes its regions."""
    head = OPERATION.match(lines[start])
    assert head is not None
    for line in lines[start:]:
        indent = len(line) - len(line.lstrip())
        if (line is lines[start] or (indent == len(head[1]) and line.lstrip().startswith("}"))) and (
            named := _REFERENCE.search(line)
        ):
            return named[1]
    return ""


def _source(name: str, aliases: dict[str, str]) -> str:
    """The innermost place outside of Triton's own library."""
    text = aliases.get(name, "")
    if found := _FILE.match(text):
        path = Path(found[1])
        return "" if "triton" in path.parts else f"{path.name}:{found[2]}"
    if call := _CALL.match(text):
        return _source(call[1], aliases) or _source(call[2], aliases)
    if named := _NAMED.match(text):
        return _source(named[1], aliases)
    return ""
