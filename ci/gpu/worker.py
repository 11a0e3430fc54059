"""One process that compares kernels: problems go to standard output as JSON lines, before and after each launch.

{"kind": "decode", "problem": "DecodeProblem(...)"}                                   about to be launched
{"kind": "decode", "problem": "DecodeProblem(...)", "failures": [], "share": 0.12}    what became of it
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True, help="of the problems")
    parser.add_argument("--seconds", type=float, required=True, help="how long")
    parser.add_argument("--far", action="store_true", help="far problems, all of them, instead of others")
    parser.add_argument("--interpret", action="store_true", help="tiny problems, on the CPU")
    options = parser.parse_args(arguments)
    if options.interpret:  # before Triton is imported
        from kvsan.gpu_kernels import interpreter

        interpreter.enable()

    import torch

    from kvsan.ci.gpu.comparisons import far_outcomes, outcomes
    from kvsan.ci.kernels.draws import LARGE, TINY

    torch.set_num_threads(1)  # the processes together keep all cores busy

    def announce(kind: str, problem: str) -> None:
        print(json.dumps({"kind": kind, "problem": problem}), flush=True)

    limits, device = (TINY, "cpu") if options.interpret else (LARGE, "cuda")
    if options.far:
        found = far_outcomes(options.seed, device, announce=announce)
    else:
        found = outcomes(options.seed, options.seconds, limits, device, announce=announce)
    for outcome in found:
        print(json.dumps(dataclasses.asdict(outcome)), flush=True)


if __name__ == "__main__":
    main()
