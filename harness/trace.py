"""Traces: a configuration and a list of operations, as JSON.

A trace is data. Reading one imports nothing, evaluates nothing and believes nothing: whatever the bytes are, the
outcome is a valid trace or a ``UsageError`` of one line. On disk there is one operation a line::

    {
     "format": "kvsan-trace",
     "version": 1,
     "configuration": {"block_size": 4, "target": "paged", ...},
     "expect": {"cause": "freed", "invariant": "refs.count", "releases": ">=0.9,<0.11", "step": 2},
     "operations": [
      ["Submit", {"r": "r1", "prompt": [[0, 9]]}],
      ["Schedule", {"r": "r1", "n": 9}],
      ["Launch", {"b": "b1"}]
     ]
    }

Fields of operations that have their default value are left out, so a default is part of the format: changing one
needs a new version. ``expect`` is optional and says what a corpus must find; it is no part of a trace's hash.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from kvsan.harness.configuration import HOST, Configuration
from kvsan.harness.operations import OPERATIONS, Operation
from kvsan.harness.trace_format import BadValue, decoder_for, encode, shown, unexpected
from kvsan.harness.verdict import HarnessError, UsageError

FORMAT = "kvsan-trace"
VERSION = 1
MAX_OPERATIONS = 1_000_000
MAX_SIZE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Trace:
    """A configuration and the operations that are run under it."""

    configuration: Configuration
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class Expectation:
    """The verdict that a trace must keep: a violation and its first bad ``step``.

    ``releases`` are those of the target that have it, as a version range of packaging metadata; empty means every one.
    ``about`` is for people.
    """

    invariant: str
    cause: str
    step: int
    releases: str = ""
    about: str = ""


@dataclass(frozen=True, slots=True)
class TraceFile:
    """What a file holds: a trace, and the verdict that is expected of it if there is one."""

    trace: Trace
    expect: Expectation | None = None


_decode_configuration = decoder_for(Configuration)
_decode_expectation = decoder_for(Expectation)
_decode_operation = {operation.__name__: decoder_for(operation) for operation in OPERATIONS}


def dumps(content: Trace | TraceFile) -> str:
    """Write a trace as JSON text for people: one operation a line, defaults left out."""
    file = content if isinstance(content, TraceFile) else TraceFile(content)
    configuration = encode(file.trace.configuration, keep_defaults=True)
    if configuration["kernels"] == HOST:
        del configuration["kernels"]  # version 1 began without it, and most traces do
    head: dict[str, Any] = {"format": FORMAT, "version": VERSION, "configuration": configuration}
    if file.expect is not None:
        head["expect"] = encode(file.expect)
    lines = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    operations = [f"  {json.dumps(_encode_operation(operation))}" for operation in file.trace.operations]
    body = [",\n".join(operations)] if operations else []
    return "\n".join(["{", *lines, ' "operations": [', *body, " ]", "}", ""])


def loads(data: str | bytes, source: str = "trace") -> TraceFile:
    """Read what ``dumps`` wrote, or anybody; ``source`` names it in messages. UsageError if it is no valid trace."""
    try:
        return _decode_file(_parse(data))
    except BadValue as bad:
        raise UsageError(f"{shown(source)}: {bad}") from None


def read(path: str | Path) -> TraceFile:
    """Read a trace file; UsageError if it cannot be read or is no valid trace."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_SIZE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{shown(str(path))}: cannot be read: {reason}") from None
    return loads(data, str(path))


def write(path: str | Path, content: Trace | TraceFile) -> None:
    """Write a trace file whole or not at all.

    UsageError if the folder is missing or closed to us, HarnessError if the machine fails (disk full).
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        try:
            with open(partial, "w", encoding="ascii") as file:
                file.write(dumps(content))
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
        raise UsageError(f"{shown(str(path))}: cannot be written: {error.strerror}") from None
    except OSError as error:
        raise HarnessError(f"{shown(str(path))}: cannot be written: {error.strerror}") from error


def canonical_hash(trace: Trace) -> str:
    """Hash (SHA-256, hex) of a trace's meaning: key order, white space and written-out defaults do not count."""
    content = {
        "format": FORMAT,
        "version": VERSION,
        "configuration": encode(trace.configuration),
        "operations": [_encode_operation(operation) for operation in trace.operations],
    }
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def _encode_operation(operation: Operation) -> list[Any]:
    return [type(operation).__name__, encode(operation)]


def _parse(data: str | bytes) -> object:
    if len(data) > MAX_SIZE_BYTES:
        raise BadValue(f"larger than {MAX_SIZE_BYTES >> 20} MiB, the most that a trace may have")
    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise BadValue(f"byte {error.start} is not UTF-8; expected JSON in UTF-8") from None
    except json.JSONDecodeError as error:
        raise BadValue(f"line {error.lineno}, column {error.colno}: {error.msg}; expected JSON") from None
    except RecursionError:
        raise BadValue("nested too deeply; expected a trace, which nests 5 levels") from None
    except ValueError:
        raise BadValue("an integer has too many digits; expected at most 20") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise BadValue(f"field {shown(repr(twice))} is given twice in one object; expected once")
    return content


def _refuse_constant(word: str) -> NoReturn:
    raise BadValue(f"{word} is no number of a trace; expected integers")


def _decode_file(content: object) -> TraceFile:
    if type(content) is not dict or content.get("format") != FORMAT:
        found = content.get("format") if type(content) is dict else content
        raise unexpected(f'an object with "format": "{FORMAT}"', found, "format")
    version = content.get("version")
    if type(version) is not int or version != VERSION:
        raise BadValue(f"this KVSan reads version {VERSION}; got {shown(repr(version))[:40]}", "version")
    for key in content:
        if key not in ("format", "version", "configuration", "operations", "expect"):
            raise unexpected("configuration, operations or expect", key, "top-level field")
    for key in ("configuration", "operations"):
        if key not in content:
            raise BadValue("missing; expected to be given", key)
    try:
        place = "configuration"
        configuration = _decode_configuration(content["configuration"])
        place = "expect"
        expect = _decode_expectation(content["expect"]) if "expect" in content else None
    except BadValue as bad:
        raise bad.inside(place) from None
    return TraceFile(Trace(configuration, _decode_operations(content["operations"])), expect)


def _decode_operations(items: object) -> tuple[Operation, ...]:
    if type(items) is not list:
        raise unexpected("a list of operations", items, "operations")
    if len(items) > MAX_OPERATIONS:
        raise BadValue(f"expected at most {MAX_OPERATIONS} operations, got {len(items)}", "operations")
    operations: list[Operation] = []
    for index, item in enumerate(items):
        if type(item) is not list or len(item) != 2 or type(item[0]) is not str:
            raise unexpected('["Operation", {fields}]', item, f"operations[{index}]")
        decode = _decode_operation.get(item[0])
        if decode is None:
            raise unexpected(f"one of {', '.join(_decode_operation)}", item[0], f"operations[{index}]")
        try:
            operations.append(decode(item[1]))
        except BadValue as bad:
            raise bad.inside(f"operations[{index}].{item[0]}") from None
    return tuple(operations)
