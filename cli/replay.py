"""``kvsan replay``: run traces again, and hold them to the verdict that they must keep."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvsan.cli.arguments import Subparsers, add_isolation, add_kernels
from kvsan.harness.verdict import EXIT_CLEAN, EXIT_TOO_LITTLE, EXIT_VIOLATION, UsageError

if TYPE_CHECKING:
    from kvsan.cli.replaying import Replays
    from kvsan.fuzz.replay import Replayed
    from kvsan.harness.trace import Expectation, TraceFile


def add_parser(subparsers: Subparsers) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "replay",
        help="run traces again",
        description="Run traces with every oracle. A file that says what is expected of it is held to that: to violate "
        "the same invariant for the same cause at the same step, or to be clean on a release outside its range.",
        epilog="example: kvsan replay corpus --require-all",
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a trace file, or a folder of them")
    parser.add_argument("--target", metavar="NAME", help="run on another target, and say what is seen")
    parser.add_argument("--releases", metavar="LIST", help="run on these releases of the trace's target as well")
    parser.add_argument("--require-all", action="store_true", help="a target that is absent is an error")
    parser.add_argument("--hashes", action="store_true", help="print the hash of every intermediate state")
    add_isolation(parser)
    add_kernels(parser)
    parser.set_defaults(run=run)


@dataclass(slots=True)
class _Tally:
    ran: int = 0
    wrong: int = 0
    absent: int = 0


def run(args: argparse.Namespace) -> int:
    """Replay and return the exit code."""
    from kvsan.cli.replaying import Replays, trace_paths
    from kvsan.harness import trace as traces

    paths = trace_paths(args.paths)
    files = [(path, traces.read(path)) for path in paths]
    tally = _Tally()
    with Replays(args.hang_timeout, args.beyond_contract) as replays:
        for path, file in files:
            for target in _targets(args, file):
                try:
                    tally.wrong += not _replay(args, replays, path, file, target)
                    tally.ran += 1
                except UsageError as error:
                    if args.require_all or path in args.paths:
                        raise UsageError(f"{path}: {error}") from error
                    print(f"{path}: not run: {error}")
                    tally.absent += 1
    if tally.ran + tally.absent > 1:
        print(f"{tally.ran} replayed, {tally.wrong} not as they should be, {tally.absent} not run")
    if tally.wrong:
        return EXIT_VIOLATION
    return EXIT_CLEAN if tally.ran else EXIT_TOO_LITTLE


def _targets(args: argparse.Namespace, file: TraceFile) -> list[str]:
    if args.target:
        return [args.target]
    own = file.trace.configuration.target
    releases = args.releases.split(",") if args.releases else []
    return list(dict.fromkeys([own, *(f"{own.partition('@')[0]}@{release}" for release in releases)]))


def _replay(args: argparse.Namespace, replays: Replays, path: Path, file: TraceFile, target: str) -> bool:
    """Replay on one target; whether it went as it should."""
    from kvsan.cli.replaying import on_other
    from kvsan.harness.story import account
    from kvsan.harness.verdict import Finding

    trace = on_other(file.trace, target, args.kernels)
    replayed = replays.replay(trace, args.hashes).replayed
    if args.hashes:
        for index, digest in enumerate(replayed.hashes):
            print(f"{path}: operation {index} {digest}")
    name = str(path) if target == file.trace.configuration.target else f"{path} on {target}"
    judged = file.expect is not None and not args.target and not args.kernels
    as_expected = not judged and (replayed.violation is None or args.beyond_contract)
    if judged:
        assert file.expect is not None
        wanted = _wanted(file.expect, target)
        as_expected = wanted == _shown(replayed)
        if as_expected:
            print(f"{name}: {_words(wanted)}, as expected")
        else:
            print(f"{name}: NOT AS EXPECTED: {_words(_shown(replayed))}; expected: {_words(wanted)}")
    else:
        print(f"{name}: {_words(_shown(replayed))}, {len(file.trace.operations)} operations")
    violation = replayed.violation
    if violation is not None and (not as_expected or (len(args.paths) == 1 and args.paths[0].is_file())):
        finding = Finding(*violation.kind, violation.message, replayed.step, trace, violation.lineage)
        print("\n".join(account(finding, beyond_contract=args.beyond_contract)))
    return as_expected


Verdict = tuple[str, str, int] | None


def _wanted(expect: Expectation, target: str) -> Verdict:
    """What a target at its release must show."""
    from kvsan.fuzz.known import in_range

    _, _, release = target.partition("@")
    if expect.releases and release and not in_range(release, expect.releases):
        return None
    return expect.invariant, expect.cause, expect.step


def _shown(replayed: Replayed) -> Verdict:
    violation = replayed.violation
    return None if violation is None else (violation.invariant, violation.cause, replayed.step)


def _words(verdict: Verdict) -> str:
    return "clean" if verdict is None else f"{verdict[0]} [{verdict[1]}] at operation {verdict[2]}"
