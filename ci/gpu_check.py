"""The check for a machine with a GPU: every comparison natively, then times and bandwidths; meant for three minutes.

Runs as ``python -m kvsan.ci.gpu_check``, or as a file of a checkout where KVSan is not installed; then it needs Python 3.11
or newer, torch, triton and numpy alone.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsan.ci.gpu.comparisons import Outcome
    from kvsan.ci.gpu.measuring import Timed
    from kvsan.ci.kernels.kernel_set import KernelSet

PASSED, FAILED, NOT_RUN, TOO_LITTLE = 0, 1, 2, 5
"""Exit codes."""

PARTS = ("comparisons", "performance")

_EXAMPLE = """example:
  python ci/gpu_check.py --out gpu_check.json

exit codes: 0 all is well; 1 a comparison failed, or a timed kernel gave wrong results; 2 there is no GPU, or no way to
run here; 5 a kind of comparison never ran (too little time, or too little memory for the far ones). A failing comparison
prints a line of Python; docs/performance.md says how to run it again."""


@contextmanager
def importable(root: Path) -> Iterator[None]:
    """Make the packages of a checkout importable as ``kvsan``, here and in processes started from here.

    They lie at the root of the repository under names of their own; a folder of links gives them the installed layout.
    """
    with TemporaryDirectory() as folder:
        package = Path(folder) / "kvsan"
        package.mkdir()
        for path in root.iterdir():
            if (path / "__init__.py").exists():
                (package / path.name).symlink_to(path)
        sys.path[0] = (
            folder  # instead of the folder of this file, whose modules are not to be found by their bare names
        )
        inherited = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *([inherited] if inherited else [])])
        yield


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(
        description=__doc__, epilog=_EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    result.add_argument("--seconds", type=float, default=60.0, help="time for comparisons (default 60)")
    result.add_argument("--seed", type=int, default=0, help="of the comparisons' problems (default 0)")
    result.add_argument("--processes", type=int, help="that compare; 0: this one (default: one a core, 8 at most)")
    result.add_argument("--part", choices=PARTS, help="run this part alone")
    result.add_argument("--out", type=Path, help="write everything to this JSON file as well")
    result.add_argument(
        "--interpret", action="store_true", help="tiny problems on the CPU: shows that the script works"
    )
    return result


def unusable(interpret: bool) -> str:
    """Say why kernels cannot be run here, and make this process one that interprets them if it is to."""
    import torch

    from kvsan.gpu_kernels import interpreter

    if interpret:
        try:
            interpreter.enable()
        except (RuntimeError, ImportError) as error:
            return f"kernels cannot be interpreted: {error}"
        return ""
    if not torch.cuda.is_available():
        return f"no GPU: torch {torch.__version__} finds none; --interpret shows on the CPU that the script works"
    if os.environ.get(interpreter.VARIABLE, "0") not in ("", "0"):
        return f"{interpreter.VARIABLE} is set, so kernels would be interpreted: unset it, or give --interpret"
    return ""


def compare(options: argparse.Namespace, processes: int, kernels: KernelSet | None) -> list[Outcome]:
    """Compare ours in some processes, or other kernels in this one."""
    import torch

    from kvsan.ci.gpu import comparisons, workers
    from kvsan.ci.kernels.draws import LARGE, TINY
    from kvsan.ci.kernels.kernel_set import KERNELS

    far = not options.interpret and torch.cuda.mem_get_info()[0] >= comparisons.FAR_BYTES
    if processes and kernels is None:
        return workers.compare_in_processes(processes, options.seed, options.seconds, options.interpret, far)
    limits, device = (TINY, "cpu") if options.interpret else (LARGE, "cuda")
    found = list(comparisons.outcomes(options.seed, options.seconds, limits, device, kernels or KERNELS))
    if far and not comparisons.device_lost(device):
        found += comparisons.far_outcomes(options.seed, device, kernels or KERNELS)
    return found


def main(arguments: Sequence[str] | None = None, kernels: KernelSet | None = None) -> int:
    """Run what the command line asks for, with other kernels than ours if given; the exit code."""
    options = parser().parse_args(arguments)
    reason = unusable(options.interpret)
    if reason:
        print(reason, file=sys.stderr)
        return NOT_RUN

    from kvsan.ci.gpu import comparisons, performance, report
    from kvsan.ci.kernels.kernel_set import KERNELS
    from kvsan.harness.clock import now_s

    around = report.surroundings(not options.interpret, datetime.datetime.now(datetime.UTC).date().isoformat())
    found: list[Outcome] = []
    timed: list[Timed] = []
    failures: list[str] = []
    started = now_s()
    compared_s = 0.0
    if options.part in (None, "comparisons"):
        processes = options.processes
        if processes is None:
            processes = 0 if options.interpret else min(8, os.cpu_count() or 1)
        print(
            f"comparisons: {options.seconds:.0f} s, seed {options.seed}, processes: {processes or 'this'}", flush=True
        )
        found = compare(options, processes, kernels)
        failures += [f"{one.problem}: {'; '.join(one.failures)}" for one in found if one.failures]
        compared_s = now_s() - started
    if options.part in (None, "performance"):
        print("performance:", flush=True)
        machine = performance.host_machine() if options.interpret else performance.gpu_machine()
        work = performance.TINY_WORK if options.interpret else performance.GPU_WORK
        timed, wrong = performance.measure_all(work, kernels or KERNELS, machine, lambda line: print(line, flush=True))
        failures += wrong
    tallies = comparisons.tallied(found) if found else []
    if options.out:
        options.out.write_text(report.as_json(around, tallies, timed, failures, options.seed), "utf-8")
    print(f"\n{report.markdown(around, tallies, timed, compared_s)}\n")
    for failure in failures:
        print(f"FAILED: {failure}")
    missing = [] if options.interpret else [tally.kind for tally in tallies if not tally.problems]
    if missing:
        print(f"NOT RUN: {', '.join(missing)}")
    print(f"{len(failures)} failures in {now_s() - started:.0f} s")
    return exit_code(failures, missing)


def exit_code(failures: Sequence[str], missing: Sequence[str]) -> int:
    """Exit code of what failed, and of the kinds of comparison that never ran."""
    return FAILED if failures else TOO_LITTLE if missing else PASSED


if __name__ == "__main__":
    if __package__:
        sys.exit(main())
    with importable(Path(__file__).resolve().parents[1]):
        sys.exit(main())
