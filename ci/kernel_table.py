"""Which broken variant of the kernels which check catches, measured; the table of docs/kernels-broken.md.

    python -m kvsan.ci.kernel_table --problems 40

Variants are interpreted on the CPU, whether there is a GPU or not: some leave their tensors. Each is given seeded random
problems of its kernel. Exit code 1 if one is caught by none of them, or if the kernels as they are fail one.
"""

from __future__ import annotations

import argparse
import sys

from kvsan.gpu_kernels import interpreter


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 1 if a variant survived or a check failed the unbroken kernels, else 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--problems", type=int, default=40, help="problems for each variant (default 40)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.problems < 1:
        parser.error("--problems: expected 1 or more")
    interpreter.enable()
    from kvsan.ci.kernels.variant_table import rows  # imports Triton, which has to be told to interpret before

    sound = True
    for cells, right in rows(options.problems, options.seed):
        line = f"| {' | '.join(cells)} |"
        print(line, flush=True)
        if not sys.stdout.isatty():
            print(line, file=sys.stderr, flush=True)  # the table goes to a file: show how far it is
        sound &= right
    return 0 if sound else 1


if __name__ == "__main__":
    raise SystemExit(main())
