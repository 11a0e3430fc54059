"""``kvsan fuzz``: search a target for violations."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kvsan.cli.arguments import (
    Subparsers,
    add_configuration,
    add_isolation,
    add_kernels,
    configuration_of,
    duration,
    positive,
    share,
)
from kvsan.harness.verdict import UsageError

if TYPE_CHECKING:
    from kvsan.fuzz.guarded import GuardedSearch
    from kvsan.fuzz.known import KnownFindings
    from kvsan.fuzz.search import Reporter, Search, SearchSettings
    from kvsan.harness.configuration import Configuration

DEFAULT_BUDGET_S = 60.0
_PROFILES = {
    "disagg": "disagg",
    "disagg-mutant": "disagg",
    "graphs": "graphs",
    "graphs-mutant": "graphs",
    "vllm-offload": "async",
}


def add_parser(subparsers: Subparsers) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "fuzz",
        help="search a target for violations",
        description="Search a KV-cache manager for violations. What is found is shrunk and written to --out at once.",
        epilog="example: kvsan fuzz --target vllm@0.22.1 --budget 5m --known corpus/",
    )
    parser.add_argument(
        "--target",
        metavar="NAME",
        help="NAME[@RELEASE] as kvsan targets lists it, or package.module:Class (default with --kernel: paged)",
    )
    parser.add_argument("--seed", type=int, default=0, help="the same seed draws the same runs (default: 0)")
    parser.add_argument("--steps", type=positive, metavar="N", help="operations to execute: the deterministic budget")
    parser.add_argument(
        "--budget", type=duration, metavar="TIME", help="time at most: 90s, 5m, 2h (default without --steps: 60s)"
    )
    parser.add_argument(
        "--profile",
        metavar="NAME",
        help="how operations are drawn: default; async (transfers, tiers, faults); disagg (two pools); graphs; "
        "heavy and heavy-async (large pools, as in the benchmark). Without it: what the target is for",
    )
    parser.add_argument(
        "--numbers",
        type=share,
        default=1.0,
        metavar="SHARE",
        help="share of runs whose attention outputs are compared: always, never or 0 to 1 (default: always)",
    )
    parser.add_argument(
        "--max-findings", type=positive, default=10, metavar="N", help="stop after N kinds of violation (default: 10)"
    )
    parser.add_argument("--workers", type=positive, default=1, metavar="N", help="processes that share the work")
    parser.add_argument("--known", type=Path, metavar="DIR", help="folder of traces that are counted, not reported")
    parser.add_argument(
        "--out", type=Path, default=Path("findings"), metavar="DIR", help="where findings go (default: findings)"
    )
    parser.add_argument("--json", metavar="FILE", help="write a summary for programs; - is stdout")
    add_isolation(parser)
    add_kernels(parser)
    add_configuration(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Search, tell, and return the exit code."""
    from kvsan.cli import summary
    from kvsan.cli.progress import FuzzReporter
    from kvsan.fuzz import findings
    from kvsan.harness.configuration import is_users_own

    if args.target is None:
        if not is_users_own(args.kernels or ""):
            raise UsageError("--target: missing; expected a name that kvsan targets lists, or --kernel for your kernel")
        args.target = "paged"
    settings = _settings(args)
    known = _known(args)
    findings.open_folder(args.out)
    if args.json and not Path(args.json).absolute().parent.is_dir():
        raise UsageError(f"--json {args.json}: expected a file in a folder that exists")
    output = sys.stderr if args.json == "-" else sys.stdout
    error: Exception | None = None
    with FuzzReporter(settings, args.out, output) as reporter:
        search = _search(args, settings, known, reporter)
        try:
            search.run()
        except Exception as raised:
            error = raised
        if error is None:
            reporter.complete(search.summary)
    outcome = summary.Outcome(settings, search.summary, reporter.paths, error=error)
    try:
        if error is None and not search.summary.interrupted:
            outcome.stale = _stale(args, known)
        if error is None or search.summary.runs:
            print(summary.text(outcome), file=output, flush=True)
        if args.json:
            summary.write_json(outcome, args.json, sys.stdout)
    finally:
        if error is not None:
            raise error
    return outcome.exit_code


def _settings(args: argparse.Namespace) -> SearchSettings:
    from kvsan.fuzz.profiles import profile_named
    from kvsan.fuzz.search import SearchSettings

    configuration = configuration_of(args)
    budget_s = args.budget
    if budget_s is None and args.steps is None:
        budget_s = DEFAULT_BUDGET_S
    return SearchSettings(
        configuration,
        profile_named(args.profile or _usual_profile(args.target)),
        seed=args.seed,
        steps=args.steps,
        budget_s=budget_s,
        max_findings=args.max_findings,
        numbers=args.numbers,
        drawn=frozenset(size for size in ("num_units", "block_size") if getattr(args, size) is None),
        beyond_contract=args.beyond_contract,
        slow=_is_slow(configuration),
    )


def _usual_profile(target: str) -> str:
    """Name of the profile that draws what a target is for."""
    from kvsan.models_under_test.mutants import MUTANTS

    entry, _, name = target.partition("@")[0].partition(":")
    if entry == "mutant":
        return MUTANTS[name].profile if name in MUTANTS else "default"
    return _PROFILES.get(entry, "default")


def _is_slow(configuration: Configuration) -> bool:
    """Whether kernels may be interpreted, which nobody can tell of a user's before they have run."""
    from kvsan.fuzz.kernels import has_device
    from kvsan.harness.configuration import HOST

    return configuration.kernels != HOST and not has_device()


def _known(args: argparse.Namespace) -> KnownFindings:
    from kvsan.fuzz.known import KnownFindings, load_known

    return KnownFindings() if args.known is None else load_known(args.known, args.target, args.kernels or "host")


def _search(
    args: argparse.Namespace, settings: SearchSettings, known: KnownFindings, reporter: Reporter
) -> Search | GuardedSearch:
    """KVSan's own targets are searched in this process; all others, and several workers, in processes of their own."""
    from kvsan.fuzz.guarded import GuardedSearch
    from kvsan.fuzz.search import Search
    from kvsan.harness.registry import resolve, runs_in_process

    if args.workers == 1 and runs_in_process(settings.configuration):
        return Search(resolve(args.target), settings, known, reporter)
    folder = None if args.known is None else str(args.known.resolve())
    return GuardedSearch(settings, known, folder, reporter, args.workers, args.hang_timeout)


def _stale(args: argparse.Namespace, known: KnownFindings) -> list[str]:
    """Known traces that do not fail any more on this target and release."""
    from kvsan.cli.replaying import Replays, on_other

    stale = []
    with Replays(args.hang_timeout, args.beyond_contract) as replays:
        for one in known.known:
            try:
                seen = replays.replay(on_other(one.file.trace, args.target)).replayed
            except UsageError as error:
                raise UsageError(f"--known {one.name}: {error}") from error
            if seen.violation is None or seen.violation.kind != one.kind:
                stale.append(one.name)
    return stale
