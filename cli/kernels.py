"""``kvsan kernels``: whether the kernels compile for every GPU, and what they take of it."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kvsan.cli.arguments import Subparsers, positive
from kvsan.harness.verdict import EXIT_CLEAN, EXIT_VIOLATION, HarnessError, UsageError

if TYPE_CHECKING:
    from kvsan.gpu_kernels.compile.budgets import Budgets, Complaint
    from kvsan.gpu_kernels.compile.build import Build, Outcome, Report

_PLAIN_EVERY_S = 10.0
_HEADINGS = ("kernel", "configuration", "target", "registers", "spills", "shared", "code", "seconds")


def add_parser(subparsers: Subparsers) -> None:
    """Add the subcommand and its own two."""
    parser = subparsers.add_parser(
        "kernels",
        help="compile the kernels for GPUs that are not there",
        description="Compile the Triton kernels for NVIDIA and AMD GPUs, without a GPU, and check what they take.",
        epilog="example: kvsan kernels compile --target sm_90",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    compiling = actions.add_parser(
        "compile",
        help="compile and compare with the budgets",
        description="Compile every kernel in every configuration down to machine code. A kernel that does not compile, that "
        "spills registers, that takes more than its budget or has none ends in exit code 1.",
        epilog="example: kvsan kernels compile --target sm_90 --kernel paged_decode",
    )
    compiling.add_argument(
        "--target", action="append", metavar="NAME", help="a GPU, such as sm_90 (default: every one)"
    )
    compiling.add_argument("--kernel", action="append", metavar="NAME", help="one kernel (default: every one)")
    compiling.add_argument("--update", action="store_true", help="accept the figures: rewrite the file of budgets")
    compiling.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE too")
    compiling.add_argument("--workers", type=positive, metavar="N", help="processes that compile (default: one a core)")
    compiling.add_argument("--no-cache", action="store_true", help="compile all again, and keep nothing")
    compiling.set_defaults(run=run_compile)
    listing = actions.add_parser(
        "list",
        help="list kernels and configurations",
        description="List kernels, the configurations in which they are compiled, and the targets of each.",
        epilog="example: kvsan kernels list",
    )
    listing.set_defaults(run=run_list)


def run_list(args: argparse.Namespace) -> int:
    """List and return the exit code."""
    for build in _builds():
        print(f"{build.name:32}{build.configuration:32}{' '.join(build.targets)}")
    return EXIT_CLEAN


def run_compile(args: argparse.Namespace) -> int:
    """Compile, judge, and return the exit code."""
    from kvsan.gpu_kernels.compile import budgets
    from kvsan.gpu_kernels.compile.build import TARGETS
    from kvsan.gpu_kernels.compile.crew import WorkerFailure, compile_builds, results_folder

    chosen = _chosen(_builds(), args.kernel)
    for target in args.target or ():
        if target not in TARGETS:
            raise UsageError(f"--target {target}: expected one of {', '.join(TARGETS)}")
    _check_place(args.json)
    try:
        accepted = budgets.read(budgets.FILE)
    except budgets.BadBudgets as error:
        raise UsageError(str(error)) from error
    try:
        with _Progress() as progress:
            report = compile_builds(
                chosen,
                args.target or TARGETS,
                workers=args.workers or len(os.sched_getaffinity(0)),
                results=None if args.no_cache else results_folder(),
                done=progress.done,
            )
    except WorkerFailure as error:
        raise HarnessError(str(error)) from error
    if not report.outcomes:
        raise UsageError("nothing to compile: no kernel exists on these targets")
    whole = not args.kernel and not args.target
    if args.update:
        accepted = _accept(report, accepted, whole)
    complaints = budgets.judge(report, accepted)
    print("\n".join(_table(report.outcomes)))
    _tell(report, accepted, complaints, whole)
    if args.json:
        _write_json(args.json, report, complaints)
    if broken := [outcome for outcome in report.outcomes if outcome.harness_error]:
        first = broken[0]
        place = f"{first.build.name} {first.build.configuration} {first.target}"
        raise HarnessError(f"{len(broken)} not compiled; the process that compiled {place} died: {first.harness_error}")
    return EXIT_VIOLATION if any(complaint.fails for complaint in complaints) else EXIT_CLEAN


def _builds() -> list[Build]:
    if importlib.util.find_spec("triton") is None:
        raise UsageError("triton is not installed, and without it no kernel compiles; it is made for Linux on x86-64")
    from kvsan.gpu_kernels.compile.builds import builds

    return builds()


def _chosen(builds: Sequence[Build], names: Sequence[str] | None) -> list[Build]:
    known = sorted({build.name for build in builds})
    for name in names or ():
        if name not in known:
            raise UsageError(f"--kernel {name}: expected one of {', '.join(known)}")
    return [build for build in builds if not names or build.name in names]


def _check_place(file: Path | None) -> None:
    """Compiling takes a while; that its result has no place to go is said before."""
    if file is not None and (file.is_dir() or not os.access(file.parent, os.W_OK)):
        raise UsageError(f"--json {file}: cannot be written")


def _accept(report: Report, accepted: Budgets, whole: bool) -> Budgets:
    from kvsan.gpu_kernels.compile import budgets

    try:
        updated = budgets.accept(report, accepted, keep_others=not whole)
    except ValueError as error:
        raise UsageError(f"--update: {error}") from error
    budgets.write(budgets.FILE, updated)
    return updated


def _table(outcomes: Sequence[Outcome]) -> list[str]:
    rows = [_HEADINGS, *(_row(outcome) for outcome in outcomes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    words = 3  # columns that are no numbers
    return [
        "  ".join(
            cell.ljust(width) if column < words else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _row(outcome: Outcome) -> tuple[str, ...]:
    place = (outcome.build.name, outcome.build.configuration, outcome.target)
    took = "cached" if outcome.cached else f"{outcome.seconds:.2f}"
    if outcome.resources is None:
        return (*place, "-", "-", "-", "-", took)
    spilled = dict(outcome.resources.spilled)
    if outcome.resources.scalar_spills:
        spilled["scalar"] = outcome.resources.scalar_spills
    spills = ", ".join(f"{name} {count}" for name, count in spilled.items()) or "0"
    figures = (outcome.resources.registers, spills, outcome.resources.shared_bytes, outcome.resources.code_bytes)
    return (*place, *map(str, figures), took)


def _tell(report: Report, accepted: Budgets, complaints: Sequence[Complaint], whole: bool) -> None:
    print()
    for complaint in complaints:
        print(f"{'FAIL' if complaint.fails else 'WARNING'} {complaint}")
        print("".join(f"    {line}\n" for line in complaint.detail.splitlines()), end="")
    reported = {(outcome.build.name, outcome.build.configuration, outcome.target) for outcome in report.outcomes}
    for entry in sorted(accepted.figures.keys() - reported) if whole else ():
        print(f"WARNING {' '.join(entry)}: a budget for what does not exist (--update removes it)")
    if accepted.triton not in ("", report.triton):
        print(f"budgets hold for triton {accepted.triton}, this is {report.triton}: a figure over budget only warns")
    counts = {
        "compiled": sum(outcome.resources is not None for outcome in report.outcomes),
        "from the cache": sum(outcome.cached for outcome in report.outcomes),
        "failures": sum(complaint.fails for complaint in complaints),
        "warnings": sum(not complaint.fails for complaint in complaints),
    }
    print(f"triton {report.triton}: {', '.join(f'{count} {name}' for name, count in counts.items())}")


def _write_json(file: Path, report: Report, complaints: Sequence[Complaint]) -> None:
    from dataclasses import asdict

    rows = []
    for outcome in report.outcomes:
        row = {"kernel": outcome.build.name, **asdict(outcome)}
        row["configuration"] = row.pop("build")["configuration"]
        row["failures"] = [one.message for one in complaints if one.outcome is outcome and one.fails]
        row["warnings"] = [one.message for one in complaints if one.outcome is outcome and not one.fails]
        rows.append(row)
    text = json.dumps({"triton": report.triton, "outcomes": rows}, indent=1)
    file.write_text(text + "\n", "utf-8")


class _Progress:
    """How far compiling is, on stderr: a live line on a terminal, a plain line now and then elsewhere."""

    def __init__(self) -> None:
        from kvsan.cli.live_line import LiveLine
        from kvsan.harness.clock import now_s

        self._line = LiveLine() if sys.stderr.isatty() else None
        self._now_s = now_s
        self._started = self._last_plain = now_s()

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._line is not None:
            self._line.clear()

    def done(self, outcome: Outcome, count: int, total: int) -> None:
        now = self._now_s()
        text = f"{now - self._started:.0f} s  {count} of {total}  {outcome.build.name} {outcome.target}"
        if self._line is not None:
            self._line.show(text)
        elif now - self._last_plain >= _PLAIN_EVERY_S:
            self._last_plain = now
            with suppress(OSError):
                print(f"kvsan: {text}", file=sys.stderr, flush=True)
