"""``kvsan prove``: what holds for all sizes, not for one run."""

from __future__ import annotations

import argparse
import difflib
import fnmatch
import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kvsan.cli.arguments import Subparsers, duration, positive
from kvsan.harness.verdict import EXIT_CLEAN, EXIT_INTERRUPTED, EXIT_VIOLATION, UsageError

if TYPE_CHECKING:
    from kvsan.ci.proofs.proving import Prove
    from kvsan.invariants.proofs.obligation import Claim, Outcome

_PLAIN_EVERY_S = 10.0

_TOLD = re.compile(r".*\[|(other_)?(program|lane|loop)\d+$|expected_|(happens|taken|offset|last_offset)$")
"""Names of values that a story has told already."""


def add_parser(subparsers: Subparsers) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "prove",
        help="prove addresses, kernels and the block pool for all sizes",
        description="Prove slot addressing on the functions that run, kernels on the IR that their compiler gets, and the block "
        "pool's steps for any number of blocks. Without arguments: everything. What is not proved, because it does not hold or "
        "because the solver cannot say within its limit, ends in exit code 1, with the values that break it.",
        epilog="example: kvsan prove --json certificate.json; "
        "of your own: kvsan prove --kernel mykernel:decode_kernel --spec decode_spec.py",
    )
    parser.add_argument("--part", action="append", metavar="NAME", help="addressing, kernel or protocol (default: all)")
    parser.add_argument(
        "--claim", action="append", metavar="PATTERN", help="claims by name, such as 'paged_decode/*' (default: all)"
    )
    parser.add_argument("--kernel", metavar="MODULE:FUNCTION", help="a Triton kernel of your own, with --spec")
    parser.add_argument("--spec", type=Path, metavar="FILE", help="its specification, a Python file (docs/proofs.md)")
    parser.add_argument(
        "--broken",
        action="append",
        metavar="NAME",
        help="a seeded mistake instead, to see what a refutation looks like; all: every one",
    )
    parser.add_argument("--list", action="store_true", help="list claims and seeded mistakes, and prove nothing")
    parser.add_argument(
        "--seeds", type=positive, default=1, metavar="N", help="prove with N seeds of the solver (default: 1)"
    )
    parser.add_argument(
        "--timeout",
        type=duration,
        default=20.0,
        metavar="TIME",
        help="for each obligation (default: 20s); then it is unknown",
    )
    parser.add_argument("--workers", type=positive, metavar="N", help="processes that prove (default: one a core)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a certificate to FILE")
    parser.add_argument("--verbose", action="store_true", help="tell every claim, in words, with its assumptions")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prove and return the exit code."""
    _check_arguments(args)
    os.environ.pop("TRITON_INTERPRET", None)  # kernels are compiled here, whatever a user has set for sessions
    if args.list:
        return _list()
    keys, prove, whole = _chosen(args)
    outcomes: list[Outcome] = []
    started = _now_s()
    interrupted = False
    with _Progress(len(keys)) as progress:
        try:
            from kvsan.ci.proofs.proving import prove_all

            workers = args.workers or len(os.sched_getaffinity(0))
            for _, outcome in prove_all(keys, prove, min(workers, len(keys)), int(1000 * args.timeout), args.seeds):
                outcomes.append(outcome)
                progress.done(outcome)
        except KeyboardInterrupt:
            interrupted = True
    seconds = _now_s() - started
    _tell(outcomes, args.verbose)
    if args.json:
        _write(args, outcomes, whole and not interrupted, seconds)
    _conclude(outcomes, len(keys), args.seeds, seconds)
    if interrupted:
        return EXIT_INTERRUPTED
    return EXIT_CLEAN if all(outcome.status == "proved" for outcome in outcomes) else EXIT_VIOLATION


def _check_arguments(args: argparse.Namespace) -> None:
    if bool(args.kernel) != bool(args.spec):
        raise UsageError(
            "--kernel and --spec belong together: a kernel as module:function, and the file that specifies it"
        )
    ways = [name for name in ("kernel", "broken", "list") if getattr(args, name)]
    if len(ways) > 1 or (ways and (args.part or args.claim)):
        names = [*ways, *(name for name in ("part", "claim") if getattr(args, name))]
        raise UsageError(f"{' and '.join(f'--{name}' for name in names)}: expected one of them")
    if args.json is not None:
        written = args.json if args.json.exists() else args.json.parent
        if args.json.is_dir() or not os.access(written, os.W_OK):
            raise UsageError(f"--json {args.json}: cannot be written")


def _chosen(args: argparse.Namespace) -> tuple[list[str], Prove, bool]:
    """Keys to prove, by what, and whether that is everything."""
    if args.kernel:
        from kvsan.ci.proofs import user_kernel

        return user_kernel.keys(args.kernel, args.spec), user_kernel.prove, True
    if args.broken:
        from kvsan.ci.proofs import broken

        names = broken.names()
        for name in args.broken:
            if name not in (*names, "all"):
                raise UsageError(f"no seeded mistake is called {name}{_alike(name, names)}")
        return names if "all" in args.broken else args.broken, broken.prove, False
    from kvsan.ci.proofs.parts import PARTS, all_claims, prove

    for part in args.part or ():
        if part not in PARTS:
            raise UsageError(f"--part {part}: expected one of {', '.join(PARTS)}")
    claims = [claim for claim in all_claims() if not args.part or claim.part in args.part]
    for pattern in args.claim or ():
        if not any(_is_called(claim, pattern) for claim in claims):
            where = f" of the part {' or '.join(args.part)}" if args.part else ""
            names = [name for claim in claims for name in (claim.name, claim.key)]
            raise UsageError(f"no claim{where} is called {pattern or repr(pattern)}{_alike(pattern, names)}")
    found = [claim.key for claim in claims if not args.claim or any(_is_called(claim, one) for one in args.claim)]
    return found, prove, not args.part and not args.claim


def _is_called(claim: Claim, pattern: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in (claim.name, claim.key))


def _alike(name: str, names: Sequence[str]) -> str:
    found = difflib.get_close_matches(name, names, n=1)
    return f"{f' (did you mean {found[0]}?)' if found else ''}; kvsan prove --list shows them"


def _list() -> int:
    from kvsan.ci.proofs import broken
    from kvsan.ci.proofs.parts import all_claims

    for claim in all_claims():
        print(f"{claim.key:64}{claim.statement}")
    print("\nseeded mistakes, each of which is refuted (kvsan prove --broken NAME):")
    for name, mechanism in broken.mechanisms().items():
        print(f"  {name:40}{mechanism}")
    return EXIT_CLEAN


def _tell(outcomes: Sequence[Outcome], verbose: bool) -> None:
    """A line for each group of claims; every claim that is not proved with what breaks it."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in sorted(outcomes, key=lambda outcome: outcome.claim.key):
        groups.setdefault(_group(outcome), []).append(outcome)
    for name, found in groups.items():
        counts = f"{len(found):4} claim{'s' if len(found) > 1 else ' '} {sum(one.obligations for one in found):6} obligations"
        proved = sum(one.status == "proved" for one in found)
        verdict = "proved" if proved == len(found) else f"{proved} proved, {len(found) - proved} NOT"
        print(f"{name:32}{counts} {sum(one.seconds for one in found):8.1f} s  {verdict}")
    for outcome in sorted(outcomes, key=lambda outcome: outcome.claim.key) if verbose else ():
        print(f"\n{outcome.claim.key}: {outcome.status}\n  {outcome.claim.statement}")
        print("".join(f"  assumes: {one}\n" for one in outcome.claim.assumptions), end="")
    for line in _limits(outcomes):
        print(line)
    for outcome in outcomes:
        if outcome.status != "proved":
            print("\n".join(["", *_refutation(outcome)]))


def _group(outcome: Outcome) -> str:
    head = outcome.claim.name.partition("/")[0] if "/" in outcome.claim.name else ""
    return " ".join(filter(None, (outcome.claim.part, head)))


def _limits(outcomes: Iterable[Outcome]) -> list[str]:
    """The largest sizes for which proofs hold, each once."""
    found: dict[str, int] = {}
    for outcome in outcomes:
        if outcome.status == "proved":
            found |= outcome.limits
    width = max(map(len, found), default=0)
    return ["", "holds up to", *(f"  {name:{width}}  {value:,}" for name, value in found.items())] if found else []


def _refutation(outcome: Outcome) -> list[str]:
    lines = [f"NOT PROVED {outcome.claim.key} ({outcome.status})"]
    if outcome.reason:
        lines.append(f"  {outcome.reason}")
    found = outcome.counterexample
    if found is not None:
        lines += [f"  {outcome.claim.statement}", *(f"  {line}" for line in found.story or (found.what,))]
        values = [f"{name} = {value}" for name, value in found.values.items() if value and not _TOLD.match(name)]
        lines += [f"  values that are not 0: {', '.join(values)}"] if values else []
        lines += [f"  {found.replay}"] if found.replay else []
        if found.trace:
            lines.append("  --json FILE writes a trace of it beside FILE; kvsan replay runs it")
    return lines


def _write(args: argparse.Namespace, outcomes: Sequence[Outcome], complete: bool, seconds: float) -> None:
    from kvsan.ci.proofs.certificate import certificate

    written = certificate(
        outcomes, complete=complete, seeds=args.seeds, timeout_ms=int(1000 * args.timeout), seconds=seconds
    )
    args.json.write_text(json.dumps(written, indent=1) + "\n", "utf-8")
    for outcome in outcomes:
        if outcome.counterexample is not None and outcome.counterexample.trace:
            path = args.json.with_name(f"{args.json.stem}-{outcome.claim.name.replace('/', '-')}.trace.json")
            path.write_text(outcome.counterexample.trace, "utf-8")
            print(f"trace: {path}")


def _conclude(outcomes: Sequence[Outcome], asked: int, seeds: int, seconds: float) -> None:
    proved = sum(outcome.status == "proved" for outcome in outcomes)
    obligations = sum(outcome.obligations for outcome in outcomes)
    unfinished = f", {asked - len(outcomes)} not tried" if len(outcomes) < asked else ""
    print(
        f"\n{proved} of {asked} claims proved{unfinished}: {obligations:,} obligations, {seeds} seed{'s' * (seeds > 1)}, "
        f"{seconds:.1f} s"
    )


def _now_s() -> float:
    from kvsan.harness.clock import now_s

    return now_s()


class _Progress:
    """How far proving is, on stderr: a live line on a terminal, a plain line now and then elsewhere."""

    def __init__(self, total: int) -> None:
        from kvsan.cli.live_line import LiveLine

        self._line = LiveLine() if sys.stderr.isatty() else None
        self._total = total
        self._count = 0
        self._started = self._last_plain = _now_s()

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._line is not None:
            self._line.clear()

    def done(self, outcome: Outcome) -> None:
        """Say that a claim is through."""
        self._count += 1
        now = _now_s()
        text = f"{now - self._started:.0f} s  {self._count} of {self._total}  {outcome.claim.key} {outcome.status}"
        if self._line is not None:
            self._line.show(text)
        elif now - self._last_plain >= _PLAIN_EVERY_S:
            self._last_plain = now
            with suppress(OSError):
                print(f"kvsan: {text}", file=sys.stderr, flush=True)
