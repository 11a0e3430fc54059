"""``kvsan engines``: the cache of real engines' releases."""

from __future__ import annotations

import argparse
import sys

from kvsan.cli.arguments import Subparsers
from kvsan.harness.verdict import EXIT_CLEAN


def add_parser(subparsers: Subparsers) -> None:
    """Add the subcommand and its own two."""
    parser = subparsers.add_parser(
        "engines",
        help="add or list real engines' releases",
        description="Keep the Python files of engine releases in a cache folder (KVSAN_ENGINES), to be tested.",
        epilog="example: kvsan engines add vllm==0.22.1 vllm==0.24.0",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    add = actions.add_parser(
        "add",
        help="download and unpack releases",
        description="Download a release's wheel with pip and keep its Python files.",
        epilog="example: kvsan engines add vllm==0.22.1",
    )
    add.add_argument("releases", nargs="+", metavar="NAME==VERSION")
    add.set_defaults(run=run_add)
    listing = actions.add_parser(
        "list",
        help="list the releases in the cache",
        description="List the releases in the cache with the wheel that each was unpacked from.",
        epilog="example: kvsan engines list",
    )
    listing.set_defaults(run=run_list)


def run_add(args: argparse.Namespace) -> int:
    """Add releases and return the exit code."""
    from kvsan.models_under_test.engines.cache import add, parse_requirement

    for release in args.releases:
        parse_requirement(release)
    for release in args.releases:
        add(release, lambda line: print(line, file=sys.stderr, flush=True))
    return EXIT_CLEAN


def run_list(args: argparse.Namespace) -> int:
    """List releases and return the exit code."""
    from kvsan.models_under_test.engines.cache import engines_folder, installed

    releases = installed()
    for one in releases:
        print(f"{one.engine}@{one.version:12}{one.wheel}  {one.files} files, {one.size_bytes / 1e6:.1f} MB")
    if not releases:
        print(f"none in {engines_folder()}; kvsan engines add vllm==0.22.1 adds one")
    return EXIT_CLEAN
