"""``kvsan invariants``: what is judged."""

from __future__ import annotations

import argparse
import difflib
import textwrap
from typing import NamedTuple

from kvsan.cli.arguments import Subparsers
from kvsan.harness.verdict import EXIT_CLEAN, UsageError


class Oracle(NamedTuple):
    """A judgement that is not one of the invariants' classes."""

    id: str
    statement: str
    where: str


ORACLES = (
    Oracle(
        "provenance", "Every token that attention reads is the one the request expects there.", "kvsan.harness.shadow"
    ),
    Oracle(
        "foreign_write", "What is written is what every holder of the unit relies on there.", "kvsan.harness.shadow"
    ),
    Oracle("order", "Two conflicting accesses are ordered by a stream or an event.", "kvsan.harness.shadow"),
    Oracle(
        "numbers", "Every attention output equals a float64 reference within a derived bound.", "kvsan.harness.numbers"
    ),
    Oracle("target.crash", "The target does not raise, exit or die.", "kvsan.harness.blame, kvsan.fuzz.deaths"),
    Oracle("target.hang", "The target returns from every call.", "kvsan.fuzz.deaths"),
)
"""The oracles of section 3 of the design that need no class of their own."""


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
    from kvsan.invariants.catalogue import catalogue

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
            print(textwrap.fill(f"Implemented in {oracle.where}; docs/ says what it does not see."))
    return EXIT_CLEAN
