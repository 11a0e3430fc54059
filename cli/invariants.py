"""``kvsan invariants``: what is judged."""

from __future__ import annotations

import argparse
import difflib
import textwrap

from kvsan.cli.arguments import Subparsers
from kvsan.harness.verdict import EXIT_CLEAN, UsageError


def add_parser(subparsers: Subparsers) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "invariants",
        help="list what is judged",
        description="List every invariant and oracle; with an ID, say what it states, why, and what it does not see.",
        epilog="example: kvsan invariants hit_content",
    )
    parser.add_argument("id", nargs="?", metavar="ID")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """List or explain, and return the exit code."""
    from kvsan.invariants.catalogue import ORACLES, catalogue

    titles = {entry.id: entry.title for entry in catalogue()} | {oracle.id: oracle.statement for oracle in ORACLES}
    if args.id is None:
        for name, title in titles.items():
            print(f"{name:24}{title}")
        return EXIT_CLEAN
    if args.id not in titles:
        close = difflib.get_close_matches(args.id, titles, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "kvsan invariants lists them"
        raise UsageError(f"invariant {args.id!r}: unknown; {hint}")
    print(f"{args.id}: {titles[args.id]}\n")
    for entry in catalogue():
        if entry.id == args.id:
            print(entry.text)
    for oracle in ORACLES:
        if oracle.id == args.id:
            print(textwrap.fill(f"Causes: {', '.join(oracle.causes)}."))
            print("\n" + textwrap.fill(f"Does not see: {oracle.unseen}".replace("``", "")))
            print("\n" + textwrap.fill(f"Implemented in {oracle.where}."))
    return EXIT_CLEAN
