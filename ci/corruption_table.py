"""Which kind of corruption which check of the numbers oracle catches, measured.

    python -m kvsan.ci.corruption_table --cases 10000

Each case takes a request of random length in an intact pool, damages the physical cache behind the block table
(``damage``), reads the request's last token in all five ways, each judged by itself, and repairs the damage. Lengths are
log-uniform up to ``--context``. Every case must be caught by at least one check: exit code 1 otherwise.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

from kvsan.ci.damage import KINDS, MAX_CONTEXT, SCALE_KINDS, Kind, Specimen, kinds_of, verdicts
from kvsan.fuzz.kernels import BUILT_IN, kernels_named
from kvsan.gpu_kernels.formats import FORMATS, format_named

_REPORTED = ("random", "zero", "needle", "key-bytes", "value-bytes")


def count_caught(specimen: Specimen, kind: Kind, cases: int, seed: Sequence[int]) -> Counter[str]:
    """Run many cases: how often each cause was given, and under ``"any"`` how often at least one was."""
    caught: Counter[str] = Counter()
    for case in range(cases):
        _, causes = verdicts(specimen, kind, (*seed, case))
        caught.update(causes)
        caught["any"] += bool(causes)
    return caught


def percent(part: int, whole: int) -> str:
    """Write a share so that 100 means all of them and 0 none."""
    if part in (0, whole):
        return "100" if part else "0"
    return f"{min(max(100 * part / whole, 0.01), 99.99):.2f}"


def table(
    cases: int, seed: int, dtypes: Sequence[str], kernels: str = "host", context: int = MAX_CONTEXT
) -> Iterator[tuple[str, bool]]:
    """Yield the lines of the markdown table, each with whether all of its cases were caught."""
    yield "| corruption | dtype | " + " | ".join((*_REPORTED, "any")) + " |", True
    yield "| --- " * (len(_REPORTED) + 3) + "|", True
    specimens = {dtype: Specimen(dtype, context, kernels_named(kernels)) for dtype in dtypes}
    for number, (name, kind) in enumerate((KINDS | SCALE_KINDS).items()):
        for dtype, specimen in specimens.items():
            if name not in kinds_of(dtype):
                continue
            caught = count_caught(specimen, kind, cases, (seed, number, list(FORMATS).index(dtype)))
            shares = [percent(caught[cause], cases) for cause in (*_REPORTED, "any")]
            yield f"| {name} | {dtype} | " + " | ".join(shares) + " |", caught["any"] == cases


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 1 if a case was caught by nothing, else 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000, help="cases for each kind and dtype (default 10000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=FORMATS, action="append", help="only this cache dtype; may be repeated")
    parser.add_argument("--kernels", choices=BUILT_IN, default="host", help="kernels that read (default: host)")
    parser.add_argument("--context", type=int, default=MAX_CONTEXT, help=f"longest request (default: {MAX_CONTEXT})")
    options = parser.parse_args(arguments)
    if options.cases < 1 or options.context < 2:
        parser.error("--cases: expected 1 or more; --context: 2 or more")
    plain = [name for name in FORMATS if not format_named(name).quantised]
    dtypes = options.dtype or (plain if options.kernels == "host" else list(FORMATS))
    if options.kernels == "host" and set(dtypes) - set(plain):
        parser.error(f"--dtype: host kernels read {', '.join(plain)}; expected --kernels triton for the others")
    complete = True
    for line, all_caught in table(options.cases, options.seed, dtypes, options.kernels, options.context):
        print(line, flush=True)
        if not sys.stdout.isatty():
            print(line, file=sys.stderr, flush=True)  # the table goes to a file: show how far it is
        complete &= all_caught
    return 0 if complete else 1


if __name__ == "__main__":
    raise SystemExit(main())
