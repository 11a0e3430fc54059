"""Traces as files: everything that is written can be read, and nothing else can."""

import dataclasses
import json
import typing
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvsan.harness import trace as trace_module
from kvsan.harness.configuration import DTYPES, Configuration
from kvsan.harness.operations import OPERATIONS, Adapter, Fork, Launch, Media, Outcome, Retire, Schedule, Submit
from kvsan.harness.trace import (
    MAX_OPERATIONS,
    MAX_SIZE_BYTES,
    Expectation,
    Trace,
    TraceFile,
    canonical_hash,
    dumps,
    loads,
    read,
    write,
)
from kvsan.harness.trace_format import decoder_for
from kvsan.harness.verdict import HarnessError, UsageError

EXAMPLE = TraceFile(
    Trace(
        Configuration(num_units=8, groups=("full", "sliding:8"), options=(("chunk", 4), ("strict", True))),
        (
            Submit("r1", ((0, 9), ("out", "r0", 2)), "s", Adapter("a", 1), (Media("m", 1, 2),)),
            Schedule("r1", 9),
            Launch("b1"),
            Retire("b1", (Outcome("r1", 0, 7),)),
        ),
    ),
    Expectation("refs.count", "freed", 3, ">=0.9,<0.11", "a block is freed twice"),
)

symbols = st.from_regex(r"[A-Za-z0-9_.:-]{1,64}", fullmatch=True)
printable = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=64)
lengths = st.integers(1, 65535)
tokens = st.integers(0, 65535)
families = st.integers(0, 2**31)
segments = st.tuples(families, lengths) | st.tuples(st.just("out"), symbols, lengths)
adapters = st.builds(Adapter, printable, families)
media = st.builds(Media, printable, st.integers(0, 2**20 - 1), lengths)
outcomes = st.builds(Outcome, symbols, tokens, families)

FIELDS: dict[str, st.SearchStrategy[object]] = {
    "prompt": st.lists(segments, min_size=1, max_size=4).map(tuple),
    "salt": printable,
    "adapter": st.none() | adapters,
    "media": st.lists(media, max_size=2).map(tuple),
    "engine_id": st.just("") | symbols,
    "n": lengths,
    "lookahead": tokens,
    "external": tokens,
    "delayed": st.booleans(),
    "outcome": st.lists(outcomes, max_size=3).map(tuple),
    "stream": st.sampled_from(["compute", "copy", "disk"]),
    "index": tokens,
    "rows": st.integers(1, 1024),
    "how": st.sampled_from(["flip", "truncate"]),
}


def instances(operation: type) -> st.SearchStrategy[object]:
    names = [field.name for field in dataclasses.fields(operation)]
    return st.builds(operation, **{name: FIELDS.get(name, symbols) for name in names})


options = st.dictionaries(symbols, printable | st.booleans() | st.integers(-(2**63), 2**63 - 1), max_size=3)
configurations = st.builds(
    Configuration,
    target=st.sampled_from(["paged", "vllm@0.22.1", "my.module:Manager", "mutant:no-copy"]),
    num_units=st.integers(2, 2**24),
    block_size=st.integers(1, 1024),
    groups=st.lists(st.sampled_from(["full", "sliding", "sliding:7"]), min_size=1, max_size=3).map(tuple),
    dtype=st.sampled_from(DTYPES),
    options=options.map(lambda chosen: tuple(sorted(chosen.items()))),
    hash_seed=st.integers(0, 2**32 - 1),
    kernels=st.sampled_from(["host", "triton", "my.module:decode"]),
)
prose = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=50)
expectations = st.builds(Expectation, symbols, prose, st.integers(0, 1_000_000), prose, prose)
traces = st.builds(Trace, configurations, st.lists(st.one_of([instances(o) for o in OPERATIONS])).map(tuple))
trace_files = st.builds(TraceFile, traces, st.none() | expectations)


@given(trace_files)
@example(EXAMPLE)
@example(TraceFile(Trace(Configuration(), ())))
def test_what_is_written_is_read(content: TraceFile) -> None:
    assert loads(dumps(content)) == content


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_makes_the_round_trip(operation: type) -> None:
    @given(instances(operation))
    def round_trip(instance: typing.Any) -> None:
        assert loads(dumps(Trace(Configuration(), (instance,)))).trace.operations == (instance,)

    round_trip()


@given(traces)
def test_hash_does_not_depend_on_how_the_file_is_laid_out(trace: Trace) -> None:
    def reversed_keys(value: typing.Any) -> typing.Any:
        if isinstance(value, dict):
            return {key: reversed_keys(value[key]) for key in reversed(value)}
        return [reversed_keys(item) for item in value] if isinstance(value, list) else value

    other = json.dumps(reversed_keys(json.loads(dumps(trace))), indent=7)
    assert canonical_hash(loads(other).trace) == canonical_hash(trace)


def test_hash_is_the_same_in_every_release() -> None:
    expected = "332e93609f87bf5390e93d32689f74f78a7d056f98e34c97fed1b31d1c0143c3"
    assert canonical_hash(EXAMPLE.trace) == expected


def test_hash_ignores_what_is_expected_and_written_out_defaults() -> None:
    text = dumps(EXAMPLE)
    verbose = text.replace('"n": 9', '"n": 9, "lookahead": 0, "delayed": false').replace("freed twice", "gone")
    assert canonical_hash(loads(verbose).trace) == canonical_hash(EXAMPLE.trace)


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(EXAMPLE.trace, configuration=Configuration(num_units=9)),
        dataclasses.replace(EXAMPLE.trace, configuration=Configuration(kernels="triton")),
        dataclasses.replace(EXAMPLE.trace, operations=EXAMPLE.trace.operations[1:]),
        dataclasses.replace(EXAMPLE.trace, operations=EXAMPLE.trace.operations[::-1]),
    ],
)
def test_hash_tells_traces_apart(other: Trace) -> None:
    assert canonical_hash(other) != canonical_hash(EXAMPLE.trace)


def test_kernels_are_written_only_if_they_are_not_the_hosts() -> None:
    assert "kernels" not in dumps(Trace(Configuration(), ()))
    assert '"kernels": "my:decode"' in dumps(Trace(Configuration(kernels="my:decode"), ()))


def test_a_name_of_kernels_is_held_to_what_a_targets_name_is() -> None:
    text = dumps(Trace(Configuration(kernels="my:decode"), ())).replace("my:decode", "my decode")
    with pytest.raises(UsageError, match=r"configuration.kernels: expected 1 to 200 characters"):
        loads(text)


def test_file_has_one_operation_a_line_without_defaults() -> None:
    lines = dumps(Trace(Configuration(), (Submit("r1", ((0, 9),)), Fork("r1", "r2")))).splitlines()
    assert lines[-4:-2] == ['  ["Submit", {"r": "r1", "prompt": [[0, 9]]}],', '  ["Fork", {"r": "r1", "child": "r2"}]']


GOOD = dumps(EXAMPLE)
CONFIGURATION = '"configuration": {"target": "paged"'

# What is put into a good file in the place of what, and what the message must name.
BAD = {
    "format": ('"kvsan-trace"', '"pickle"', "format: expected an object with"),
    "version of the future": ('"version": 1', '"version": 2', "version: this KVSan reads version 1; got 2"),
    "version as a string": ('"version": 1', '"version": "1"', "version: this KVSan reads version 1; got '1'"),
    "version true": ('"version": 1', '"version": true', "version: this KVSan reads version 1; got True"),
    "top-level field": ('"version": 1', '"version": 1, "code": 1', "top-level field: expected"),
    "no operations": ('"operations"', '"expect"', "given twice"),
    "no configuration": (' "configuration": {', ' "expect": {', "given twice"),
    "duplicate key": ('"n": 9', '"n": 9, "n": 8', "field 'n' is given twice"),
    "target empty": ('"paged"', '""', "configuration.target: expected 1 to 200 characters"),
    "target with a space": ('"paged"', '"rm -rf"', "got 'rm -rf'"),
    "too few units": ('"num_units": 8', '"num_units": 1', "configuration.num_units: expected an integer from 2"),
    "too many units": ('"num_units": 8', '"num_units": 16777217', "to 16777216, got 16777217"),
    "block size 0": ('"block_size": 4', '"block_size": 0', "configuration.block_size: expected an integer from 1"),
    "block size 4.0": ('"block_size": 4', '"block_size": 4.0', "to 1024, got 4.0"),
    "group": ('"sliding:8"', '"sliding:0"', "configuration.groups[1]: cache group 'sliding:0'"),
    "groups empty": ('["full", "sliding:8"]', "[]", "configuration.groups: expected a list of 1 to"),
    "dtype": ('"float32"', '"float31"', "configuration.dtype: expected one of float32"),
    "option value": ('"strict": true', '"strict": null', "configuration.options.strict: expected a string"),
    "option name": ('"strict"', '"str\\u0000ct"', "configuration.options: expected 1 to 64 characters"),
    "options as pairs": ('{"chunk": 4, "strict": true}', "[]", "configuration.options: expected an object"),
    "hash seed": ('"hash_seed": 0', '"hash_seed": -1', "configuration.hash_seed: expected an integer from 0"),
    "expect step": ('"step": 3', '"step": -3', "expect.step: expected an integer from 0"),
    "expect without invariant": ('"invariant": "refs.count", ', "", "expect.invariant: missing from Expectation"),
    "expect null": (GOOD[GOOD.index('{"invariant"') : GOOD.index(',\n "oper')], "null", "expect: expected an object"),
    "unknown operation": ('"Launch"', '"System"', "operations[2]: expected one of Submit, Lookup"),
    "operation as an object": ('["Launch", {"b": "b1"}]', '{"Launch": "b1"}', "operations[2]: expected ["),
    "operation without fields": ('["Launch", {"b": "b1"}]', '["Launch"]', "operations[2]: expected ["),
    "operation with three parts": ('["Launch", {"b": "b1"}]', '["Launch", {"b": "b1"}, 0]', "operations[2]: expected"),
    "unknown field": ('{"b": "b1"}', '{"b": "b1", "c": 1}', "operations[2].Launch: expected a field of Launch (b, at)"),
    "missing field": ('{"b": "b1"}', "{}", "operations[2].Launch.b: missing from Launch"),
    "fields as a list": ('{"b": "b1"}', '["b1"]', "operations[2].Launch: expected an object with fields b"),
    "id empty": ('{"b": "b1"}', '{"b": ""}', "operations[2].Launch.b: expected 1 to 64 characters"),
    "id too long": ('{"b": "b1"}', f'{{"b": "{"b" * 65}"}}', "operations[2].Launch.b: expected 1 to 64 characters"),
    "id with a newline": ('{"b": "b1"}', '{"b": "b\\n"}', "got 'b\\n'"),
    "id in Cyrillic": ('{"b": "b1"}', '{"b": "\\u0431"}', "operations[2].Launch.b: expected"),
    "id a number": ('{"b": "b1"}', '{"b": 1}', "operations[2].Launch.b: expected"),
    "n too large": ('"n": 9', '"n": 65536', "operations[1].Schedule.n: expected an integer from 1 to 65535, got 65536"),
    "n true": ('"n": 9', '"n": true', "got True"),
    "n null": ('"n": 9', '"n": null', "got None"),
    "n NaN": ('"n": 9', '"n": NaN', "NaN is no number of a trace"),
    "n infinite": ('"n": 9', '"n": -Infinity', "-Infinity is no number of a trace"),
    "n huge": ('"n": 9', '"n": 1e999', "got inf"),
    "n with many digits": ('"n": 9', f'"n": {"9" * 5000}', "an integer has too many digits"),
    "delayed 1": ('"n": 9', '"n": 9, "delayed": 1', "operations[1].Schedule.delayed: expected true or false, got 1"),
    "prompt empty": ('[[0, 9], ["out", "r0", 2]]', "[]", "operations[0].Submit.prompt: expected a list of 1 to"),
    "segment of length 0": ("[0, 9]", "[0, 0]", "operations[0].Submit.prompt[0]: expected an integer from 1"),
    "segment of three": ("[0, 9]", "[0, 9, 9]", "operations[0].Submit.prompt[0]: expected [family, length]"),
    "segment of another kind": ('["out", "r0", 2]', '["in", "r0", 2]', "operations[0].Submit.prompt[1]: expected"),
    "family negative": ("[0, 9]", "[-1, 9]", "operations[0].Submit.prompt[0]: expected an integer from 0"),
    "salt not printable": ('"salt": "s"', '"salt": "\\u001b[2J"', "got '\\x1b[2J'"),
    "salt half a character": ('"salt": "s"', '"salt": "\\ud800"', "got '\\ud800'"),
    "adapter as a list": ('{"name": "a", "id": 1}', '["a", 1]', "operations[0].Submit.adapter: expected an object"),
    "media without offset": ('"offset": 1, ', "", "operations[0].Submit.media[0].offset: missing from Media"),
    "outcome": ('"accepted": 0', '"accepted": -1', "operations[3].Retire.outcome[0].accepted: expected an integer"),
    "deeply nested": ('["Submit"', "[" * 100_000, "nested too deeply"),
    "nested somewhat": ('"n": 9', f'"n": {"[" * 90}{"]" * 90}', "operations[1].Schedule.n: expected an integer"),
    "cut off": ('"Schedule", {"r": "r1", "n": 9}],', "", "expected JSON"),
    "not JSON": ('"version"', "version", "line 3, column 2: Expecting property name"),
}


@pytest.mark.parametrize(("found", "bad", "message"), BAD.values(), ids=BAD)
def test_bad_file_is_refused_in_one_line(found: str, bad: str, message: str, tmp_path: Path) -> None:
    assert found in GOOD
    path = tmp_path / "bad.json"
    path.write_text(GOOD.replace(found, bad, 1))
    with pytest.raises(UsageError) as refusal:
        read(path)
    complaint = str(refusal.value)
    assert message in complaint
    assert complaint.startswith(f"{path}: ")
    assert complaint.isprintable()
    assert len(complaint) < len(str(path)) + 400


@pytest.mark.parametrize(
    "data", [b"", b"null", b"[]", b'"kvsan-trace"', b"{}", b"\xff\xfe{}", b"\xef\xbb\xbf{}", b"\0"]
)
def test_something_else_is_refused(data: bytes) -> None:
    with pytest.raises(UsageError, match=r"^trace: "):
        loads(data)


def test_missing_part_is_named() -> None:
    text = '{"format": "kvsan-trace", "version": 1, "configuration": {}}'
    with pytest.raises(UsageError, match="operations: missing"):
        loads(text)


@given(st.data())
def test_damaged_file_is_a_usage_error_or_a_trace(data: st.DataObject) -> None:
    content = bytearray(GOOD, "ascii")
    for index in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=5)):
        content[index] = data.draw(st.integers(0, 255))
    start = data.draw(st.integers(0, len(content)))
    stop = data.draw(st.integers(start, len(content)))
    if data.draw(st.booleans()):
        del content[start:stop]
    try:
        survivor = loads(bytes(content))
    except UsageError:
        return
    assert loads(dumps(survivor)) == survivor


@given(st.binary())
def test_any_bytes_are_a_usage_error(content: bytes) -> None:
    with pytest.raises(UsageError):
        loads(content)


def test_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UsageError, match="larger than 64 MiB"):
        read(path)


def test_too_many_operations_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (MAX_OPERATIONS, MAX_SIZE_BYTES) == (1_000_000, 64 * 1024 * 1024)
    monkeypatch.setattr(trace_module, "MAX_OPERATIONS", 3)
    with pytest.raises(UsageError, match="expected at most 3 operations, got 4"):
        loads(GOOD)


@pytest.mark.parametrize("name", ["missing.json", ".", "nul\0.json"])
def test_unreadable_file_is_a_usage_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read(f"{tmp_path}/{name}")


def test_write_replaces_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("older")
    write(path, EXAMPLE)
    assert read(path) == EXAMPLE
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_write_into_a_missing_folder_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written: No such file"):
        write(tmp_path / "missing" / "a.json", EXAMPLE)


def test_write_to_a_full_disk_keeps_the_older_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "a.json"
    path.write_text("older")
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(HarnessError, match="No space left"):
        write(path, EXAMPLE)
    assert path.read_text() == "older"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_integer_field_without_bounds_is_noticed() -> None:
    @dataclasses.dataclass(frozen=True)
    class Novel:
        unheard_of: int

    with pytest.raises(AssertionError, match="unheard_of has no bounds"):
        decoder_for(Novel)
