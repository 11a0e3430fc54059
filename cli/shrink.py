"""``kvsan shrink``: make a trace that violates as short as it can be."""

from __future__ import annotations

import argparse
from pathlib import Path

from kvsan.cli.arguments import Subparsers, add_isolation, add_kernels
from kvsan.harness.verdict import EXIT_CLEAN, UsageError


def add_parser(subparsers: Subparsers) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "shrink",
        help="shorten a trace that violates",
        description="Shrink a trace to one from which nothing can be taken away and that still violates the same "
        "invariant for the same cause. Without --out it is written next to the first, with .min.json at its end.",
        epilog="example: kvsan shrink findings/provenance-1f0c.json --out short.json",
    )
    parser.add_argument("path", type=Path, metavar="PATH", help="a trace file")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the short trace goes")
    add_isolation(parser)
    add_kernels(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Shrink and return the exit code."""
    from kvsan.cli.replaying import Replays, on_other
    from kvsan.fuzz import findings
    from kvsan.harness import trace as traces
    from kvsan.harness.story import story

    trace = on_other(traces.read(args.path).trace, kernels=args.kernels)
    out = args.out or args.path.with_suffix(".min.json")
    with Replays(args.hang_timeout, args.beyond_contract) as replays:
        seen = replays.replay(trace)
        if seen.replayed.violation is None:
            raise UsageError(f"{args.path}: does not violate anything; expected a trace that does")
        finding = replays.shrink(trace, seen)
    traces.write(out, findings.file_of(finding))
    before, after = len(trace.operations), len(finding.trace.operations)
    print(f"{before} operations before, {after} after")
    print("\n".join(story(finding, str(out), beyond_contract=args.beyond_contract)))
    return EXIT_CLEAN
