"""What is told in the end: two markdown tables under the machine's name, and the same as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton

from kvsan.ci.gpu.comparisons import Tally
from kvsan.ci.gpu.measuring import COPY, Timed


class Surroundings(NamedTuple):
    """Where and when something was measured."""

    machine: str
    driver: str
    torch: str
    triton: str
    date: str


def surroundings(gpu: bool, date: str) -> Surroundings:
    """Ask for the machine's name and versions."""
    name = torch.cuda.get_device_name() if gpu else "no GPU: tiny problems, interpreted on the CPU"
    return Surroundings(name, driver_version() if gpu else "none", torch.__version__, triton.__version__, date)


def driver_version() -> str:
    """Version of the NVIDIA driver, or that it is not known: ``nvidia-ml-py`` may be missing, the GPU be AMD's."""
    try:
        import pynvml  # type: ignore[import-untyped]

        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
    except Exception:  # its own kinds of errors, of which it has many
        return "unknown"
    return version.decode() if isinstance(version, bytes) else str(version)


def markdown(around: Surroundings, tallies: Sequence[Tally], timed: Sequence[Timed], compared_s: float) -> str:
    """Return what belongs into docs/performance.md; parts that did not run are left out."""
    lines = [
        f"Machine: {around.machine}, driver {around.driver}; torch {around.torch}, triton {around.triton}; {around.date}."
    ]
    if tallies:
        lines += [
            "",
            f"Comparisons, {compared_s:.0f} s:",
            "",
            "| problems of | number | failures | worst error / bound |",
        ]
        lines += ["| --- | --- | --- | --- |"]
        lines += [_tally_row(tally) for tally in tallies]
    if timed:
        lines += [
            "",
            "Times of one call, median and quartiles; bandwidth counts each byte that must be moved once:",
            "",
        ]
        lines += ["| case | by | us | quartiles | GB/s | of copy | TFLOP/s | time / ours |"]
        lines += ["| --- | --- | --- | --- | --- | --- | --- | --- |"]
        cases = ["", *(one.case for one in timed)]
        lines += [_timed_row(one, timed, one.case != before) for before, one in zip(cases, timed, strict=False)]
    return "\n".join(lines)


def _tally_row(tally: Tally) -> str:
    worst = "bit for bit" if tally.worst is None else f"{tally.worst:.2f}"
    if not tally.problems:
        worst = "not run"
    return f"| {tally.kind} | {tally.problems} | {len(tally.failed)} | {worst} |"


def _timed_row(one: Timed, all_timed: Sequence[Timed], first: bool) -> str:
    case = one.case if first else ""
    if one.seconds is None:
        return f"| {case} | {one.contestant} | {one.note} | | | | | |"
    seconds = one.seconds
    times = f"{seconds.median * 1e6:.1f} | {seconds.low * 1e6:.1f} to {seconds.high * 1e6:.1f}"
    rate = one.operations / seconds.median / 1e12
    cells = (
        f"{bandwidth(one) / 1e9:,.0f}",
        percent(copy_share(one, all_timed)),
        f"{rate:.0f}" if one.operations else "",
        ratio(time_ratio(one, all_timed)),
    )
    return f"| {case} | {one.contestant} | {times} | {' | '.join(cells)} |"


def bandwidth(one: Timed) -> float:
    """Bytes per second that had to be moved; 0 where nothing was timed."""
    return one.moved_bytes / one.seconds.median if one.seconds else 0.0


def copy_share(one: Timed, all_timed: Sequence[Timed]) -> float | None:
    """Bandwidth as a share of that of torch's copy in the same run; None if that was not timed."""
    copies = [other for other in all_timed if (other.case, other.contestant) == (one.case, COPY) and other.seconds]
    return bandwidth(one) / bandwidth(copies[0]) if copies and one.seconds else None


def time_ratio(one: Timed, all_timed: Sequence[Timed]) -> float | None:
    """Time of a contestant as a multiple of ours in the same run; None for the copy, whose bytes may be others."""
    ours = [other.seconds for other in all_timed if other.case == one.case and other.ours and other.seconds]
    if not ours or one.seconds is None or one.contestant == COPY:
        return None
    return one.seconds.median / ours[0].median


def percent(share: float | None) -> str:
    """Return a share as a table has it."""
    return "" if share is None else f"{share:.0%}"


def ratio(number: float | None) -> str:
    """Return a ratio as a table has it."""
    return "" if number is None else f"{number:.2f}"


def as_json(
    around: Surroundings, tallies: Sequence[Tally], timed: Sequence[Timed], failures: Sequence[str], seed: int
) -> str:
    """Return all of it for machines; times in seconds."""
    record: dict[str, Any] = {
        **around._asdict(),
        "seed": seed,
        "failures": list(failures),
        "comparisons": [
            {"kind": one.kind, "problems": one.problems, "failures": len(one.failed), "worst_share": _number(one.worst)}
            for one in tallies
        ],
        "performance": [
            dataclasses.asdict(one) | {"copy_share": copy_share(one, timed), "time_to_ours": time_ratio(one, timed)}
            for one in timed
        ],
    }
    return json.dumps(record, indent=1) + "\n"


def _number(worst: float | None) -> float | str | None:
    """NaN and infinity, which JSON does not have, as text."""
    return worst if worst is None or abs(worst) < float("inf") else str(worst)
