"""How the dataclasses of a trace look in JSON, derived from their annotations, with every bound in one table.

A dataclass or named tuple is an object; a tuple is a list; ``None`` is null. Decoding is strict: the exact JSON type
(true is no integer), every field known, every integer and string inside its domain. An integer field without bounds
below fails as soon as ``harness.trace`` is imported, so that no new operation can forget them.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import reprlib
import types
import typing
from collections.abc import Callable
from typing import Any, Literal, Union

from kvsan.harness.configuration import DTYPES, OptionValue, parse_group
from kvsan.harness.operations import FAMILY_STRIDE
from kvsan.harness.verdict import UsageError

Decoder = Callable[[object], Any]

MAX_ITEMS = 1024
"""Longest list inside one operation or configuration."""

TOKENS = (0, FAMILY_STRIDE - 1)
LENGTH = (1, FAMILY_STRIDE - 1)
IDENTIFIER = (0, 1 << 31)

INTEGERS: dict[str, tuple[int, int]] = {
    "n": LENGTH,
    "length": LENGTH,
    "lookahead": TOKENS,
    "external": TOKENS,
    "accepted": TOKENS,
    "offset": (0, (1 << 20) - 1),
    "family": IDENTIFIER,
    "id": IDENTIFIER,
    "num_units": (2, 1 << 24),
    "block_size": (1, 1024),
    "hash_seed": (0, (1 << 32) - 1),
    "options": (-(1 << 63), (1 << 63) - 1),
    "step": (0, 1_000_000),
    "index": TOKENS,
    "rows": (1, 1024),
}
"""Least and greatest value of an integer, by the name of its field."""

SYMBOL = (re.compile(r"[A-Za-z0-9_.:-]{1,64}"), "1 to 64 characters of A-Z a-z 0-9 _ . : -")
OPTIONAL_SYMBOL = (re.compile(r"[A-Za-z0-9_.:-]{0,64}"), "up to 64 characters of A-Z a-z 0-9 _ . : -")
PRINTABLE = (re.compile(r"[ -~]{0,64}"), "up to 64 printable ASCII characters")
TARGET = (re.compile(r"[A-Za-z0-9_.:@+/-]{1,200}"), "1 to 200 characters of A-Z a-z 0-9 _ . : @ + / -")
PROSE = (re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{0,4096}"), "up to 4096 characters, no control characters")

STRINGS: dict[str, tuple[re.Pattern[str], str]] = {
    "salt": PRINTABLE,
    "name": PRINTABLE,
    "id": PRINTABLE,
    "options": PRINTABLE,
    "engine_id": OPTIONAL_SYMBOL,
    "target": TARGET,
    "kernels": TARGET,
    "cause": PROSE,
    "releases": PROSE,
    "about": PROSE,
}
"""Domain of a string, by the name of its field; every other string is a symbol."""


class BadValue(Exception):
    """A value that a trace may not have, and the place of it, which grows outwards while this is passed up."""

    def __init__(self, message: str, place: str = "") -> None:
        super().__init__(f"{place}: {message}" if place else message)
        self.message = message
        self.place = place

    def inside(self, outer: str) -> BadValue:
        """Give the same complaint as seen from one level further out."""
        joint = "." if self.place and not self.place.startswith("[") else ""
        return BadValue(self.message, f"{outer}{joint}{self.place}")


def unexpected(expected: str, value: object, place: str = "") -> BadValue:
    """Make the complaint that names what was expected and, shortened, what was found."""
    return BadValue(f"expected {expected}, got {_brief.repr(value)}", place)


_brief = reprlib.Repr()
_brief.maxlevel = 2
_brief.maxstring = _brief.maxother = _brief.maxlong = 40


def shown(text: str) -> str:
    """Make text fit for one line of a message: control and other unprintable characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def encode(value: object, keep_defaults: bool = False) -> Any:
    """Turn a record of a trace into what ``json.dumps`` takes, without the fields that have their default."""
    if isinstance(value, tuple):
        names = getattr(value, "_fields", None)
        return [encode(item) for item in value] if names is None else dict(zip(names, map(encode, value), strict=True))
    if isinstance(value, str | int | None):
        return value
    encoded = {}
    kind: Any = type(value)
    for name, default in _defaults(kind):
        item = getattr(value, name)
        if keep_defaults or item != default:
            encoded[name] = dict(item) if name == "options" else encode(item)
    return encoded


@functools.cache
def _defaults(record: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, field.default) for field in dataclasses.fields(record))


def decoder_for(record: type) -> Decoder:
    """Build the function that reads one dataclass or named tuple; it raises BadValue on anything else."""
    hints = typing.get_type_hints(record)
    decoders = {name: _decoder(hint, name) for name, hint in hints.items()}
    if dataclasses.is_dataclass(record):
        required = {f.name for f in dataclasses.fields(record) if f.default is dataclasses.MISSING}
    else:
        required = set(hints) - set(getattr(record, "_field_defaults", ()))

    def decode(value: object) -> Any:
        if type(value) is not dict:
            raise unexpected(f"an object with fields {', '.join(decoders)}", value)
        arguments = {}
        for name, item in value.items():
            if name not in decoders:
                raise unexpected(f"a field of {record.__name__} ({', '.join(decoders) or 'it has none'})", name)
            try:
                arguments[name] = decoders[name](item)
            except BadValue as bad:
                raise bad.inside(name) from None
        if not required <= arguments.keys():
            missing = next(name for name in decoders if name in required - arguments.keys())
            raise BadValue(f"missing from {record.__name__}; expected to be given", missing)
        return record(**arguments)

    return decode


def _decoder(hint: Any, field: str) -> Decoder:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if field in WHOLE_FIELDS:
        return WHOLE_FIELDS[field]
    if hint is int:
        return _integer(field)
    if hint is str:
        return _string(field)
    if hint is bool:
        return _boolean
    if origin is Literal:
        return _choice(arguments)
    if origin is tuple and arguments[1:] == (...,):
        return _many(_decoder(arguments[0], field))
    if origin in (Union, types.UnionType) and type(None) in arguments and len(arguments) == 2:
        inner = _decoder(next(a for a in arguments if a is not type(None)), field)
        return lambda value: None if value is None else inner(value)
    assert isinstance(hint, type), f"no rule for the annotation {hint} of field {field}"
    return decoder_for(hint)


def _integer(field: str) -> Decoder:
    assert field in INTEGERS, f"integer field {field} has no bounds: add them to INTEGERS"
    low, high = INTEGERS[field]

    def decode(value: object) -> int:
        if type(value) is not int or not low <= value <= high:
            raise unexpected(f"an integer from {low} to {high}", value)
        return value

    return decode


def _string(field: str) -> Decoder:
    pattern, description = STRINGS.get(field, SYMBOL)

    def decode(value: object) -> str:
        if type(value) is not str or not pattern.fullmatch(value):
            raise unexpected(description, value)
        return value

    return decode


def _boolean(value: object) -> bool:
    if type(value) is not bool:
        raise unexpected("true or false", value)
    return value


def _choice(words: tuple[str, ...]) -> Decoder:
    def decode(value: object) -> str:
        if type(value) is not str or value not in words:
            raise unexpected(f"one of {', '.join(words)}", value)
        return value

    return decode


def _many(inner: Decoder, least: int = 0) -> Decoder:
    def decode(value: object) -> tuple[Any, ...]:
        if type(value) is not list or not least <= len(value) <= MAX_ITEMS:
            raise unexpected(f"a list of {least} to {MAX_ITEMS} items", value)
        decoded = []
        for index, item in enumerate(value):
            try:
                decoded.append(inner(item))
            except BadValue as bad:
                raise bad.inside(f"[{index}]") from None
        return tuple(decoded)

    return decode


def _segment(value: object) -> tuple[int, int] | tuple[str, str, int]:
    match value:
        case [family, length] if type(value) is list:
            return _integer("family")(family), _integer("length")(length)
        case ["out", r, length] if type(value) is list:
            return "out", _string("r")(r), _integer("length")(length)
    raise unexpected('[family, length] or ["out", request, length]', value)


def _group(value: object) -> str:
    word: str = _string("group")(value)
    try:
        parse_group(word, block_size=1)
    except UsageError as error:
        raise BadValue(str(error)) from None
    return word


def _options(value: object) -> tuple[tuple[str, OptionValue], ...]:
    if type(value) is not dict or len(value) > MAX_ITEMS:
        raise unexpected(f"an object of up to {MAX_ITEMS} options", value)
    decoders: dict[type, Decoder] = {str: _string("options"), int: _integer("options"), bool: _boolean}
    decoded = []
    for name, item in value.items():
        _string("option")(name)
        if type(item) not in decoders:
            raise unexpected("a string, an integer, true or false", item, name)
        try:
            decoded.append((name, decoders[type(item)](item)))
        except BadValue as bad:
            raise bad.inside(name) from None
    return tuple(sorted(decoded))


WHOLE_FIELDS: dict[str, Decoder] = {
    "prompt": _many(_segment, least=1),
    "groups": _many(_group, least=1),
    "dtype": _choice(DTYPES),
    "options": _options,
}
"""Fields whose form the annotation alone does not tell."""
