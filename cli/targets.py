"""``kvsan targets``: what can be tested."""

from __future__ import annotations

import argparse

from kvsan.cli.arguments import Subparsers
from kvsan.harness.verdict import EXIT_CLEAN


def add_parser(subparsers: Subparsers) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "targets",
        help="list what can be tested",
        description="List targets by name, engine releases in the cache, and seeded bugs. A target of your own is named "
        "package.module:Class, or has an entry point in the group kvsan.targets.",
        epilog="example: kvsan targets",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """List and return the exit code."""
    from kvsan.harness.registry import available
    from kvsan.models_under_test.disagg.mutants import MUTANTS as PAIR_MUTANTS
    from kvsan.models_under_test.engines.cache import installed
    from kvsan.models_under_test.graphs.mutants import MUTANTS as GRAPH_MUTANTS
    from kvsan.models_under_test.mutants import MUTANTS

    for name, description in available():
        print(f"{name:20}{description}")
    print("\nengine releases in the cache (kvsan engines add ...):")
    for release in installed():
        print(f"  {release.engine}@{release.version}")
    print("\nseeded bugs, each of which a search must find:")
    bugs: dict[str, type] = {f"mutant:{name}": mutant for name, mutant in sorted(MUTANTS.items())}
    bugs |= {f"graphs-mutant:{name}": mutant for name, mutant in sorted(GRAPH_MUTANTS.items())}
    bugs |= {f"disagg-mutant:{name}": mutant for name, mutant in sorted(PAIR_MUTANTS.items())}
    for name, mutant in bugs.items():
        first_line = (mutant.__doc__ or "").strip().partition("\n")[0]
        print(f"  {name:44}{first_line}")
    return EXIT_CLEAN
