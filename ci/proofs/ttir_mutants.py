"""Who checks the prover: ``python -m kvsan.ci.proofs.ttir_mutants [--kernel NAME ...] [--all]``.

Each mutant of a kernel's IR (`mutations`) is given to the prover in the place of the kernel. It has one of these fates:

- **refuted**: the prover shows a case in which an obligation does not hold;
- **rejected**: the prover does not claim anything about such a kernel, and says why;
- **equivalent**: the prover accepts it, rightly: it is proved to make the same accesses (`equivalence`);
- **survived**: accepted, although it is not proved to be the same kernel. A hole in the prover;
- **unknown**: not decided in time. As bad.

The first two are killed mutants. Exit code 1 if any has one of the last two fates.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache

from kvsan.ci.proofs.equivalence import difference
from kvsan.ci.proofs.mutations import Module, Mutant, mutants
from kvsan.ci.proofs.slices import observed
from kvsan.ci.proofs.subjects import subjects
from kvsan.ci.proofs.verifier import Verifier
from kvsan.invariants.proofs.kernels.lowering import Lowered
from kvsan.invariants.proofs.kernels.parsing import parse
from kvsan.invariants.proofs.kernels.prover import Subject, prove
from kvsan.invariants.proofs.kernels.unknown_launch import UnknownLaunch
from kvsan.invariants.proofs.obligation import PROVED, REFUTED, REJECTED, UNKNOWN
from kvsan.invariants.proofs.solver import Limits

EQUIVALENT, SURVIVED = "equivalent", "survived"
FATES = (REFUTED, REJECTED, EQUIVALENT, SURVIVED, UNKNOWN)

CONFIGURATIONS = (
    "reshape_and_cache/fp16-d80-b32-g4",
    "quantise_and_cache/fp8_e4m3-d128-b16-g4",
    "quantise_and_cache/int8_per_token_head-d96-b16-g4",
    "quantise_and_cache/nvfp4-d80-b16-g4",
    "gather_tokens/bf16-d128-b16-g4",
    "paged_decode/bf16-d80-b32-g1",
    "paged_decode/bf16-d128-b16-g4-window",
    "paged_decode/bf16-d128-b16-g4-chunk",
    "paged_decode_split/bf16-d128-b16-g4",
    "merge_splits/fp16-d80-s3",
    "paged_prefill/bf16-d128-b16-g4-window",
    "move_blocks/u8-w40",
    "move_heads/i16-w128-tp16to4",
    "concat_and_cache/bf16-l512-r64",
    "mla_decode/bf16-l512-r64-h128",
)
"""One configuration of every kernel, and one of each kind in which kernels differ in what they access.

With head sizes that are no powers of two where there are such, since no mask is needed for the others.
"""

LIMITS = Limits(timeout_ms=20_000, smallest=False)


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of a mutant: ``told`` is the obligation that fails, or why it was rejected or not decided."""

    kernel: str
    mutant: Mutant
    fate: str
    told: str
    seconds: float

    @property
    def killed(self) -> bool:
        """Whether the prover noticed."""
        return self.fate in (REFUTED, REJECTED)


@lru_cache(maxsize=1)
def _verifier() -> Verifier:
    return Verifier()


def mutants_of(subject: Subject) -> list[Mutant]:
    """Every mutant of a kernel that is well-typed and can change what is accessed."""
    return [one for one in _unverified(subject) if _verifier().takes(one.text)]


def _unverified(subject: Subject) -> list[Mutant]:
    text = subject.lowered.text
    tensors = UnknownLaunch(subject.signature, subject.constexprs, subject.specify).specification.tensors
    index_tensors = [
        number
        for number, name in enumerate(subject.signature)
        if name in tensors and tensors[name].contents is not None
    ]
    function = parse(text)
    assert _verifier().takes(text), "Triton does not take its own IR"
    return list(mutants(Module(tuple(text.rstrip("\n").split("\n")), function, observed(function, index_tensors))))


def judge(kernel: str, subject: Subject, mutant: Mutant) -> Judged:
    """Prove a mutant as if it were the kernel, whose own proof has the same subject but for the text."""
    started = time.process_time()
    verdict = prove(replace(subject, lowered=Lowered(mutant.text, {}), theorems=False), LIMITS)
    fate: str = verdict.status
    told = verdict.failed.what if verdict.status == REFUTED and verdict.failed else verdict.reason
    if verdict.status == PROVED:
        told = difference(subject, mutant.text, LIMITS)
        fate = SURVIVED if told else EQUIVALENT
    return Judged(kernel, mutant, fate, told, time.process_time() - started)


def judge_all(wanted: Sequence[tuple[str, Subject, Mutant]], processes: int) -> Iterator[Judged]:
    """Judge mutants of kernels, in their order, in several processes."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        yield from pool.map(judge, *zip(*wanted, strict=True), chunksize=4)


def selection(proved: Mapping[str, Subject], each: int) -> list[tuple[str, Subject, Mutant]]:
    """Of each kernel and operator ``each`` mutants, spread over the kernel; the same ones every time."""
    chosen = []
    for kernel, subject in proved.items():
        by_operator: dict[str, list[Mutant]] = {}
        for mutant in _unverified(subject):
            by_operator.setdefault(mutant.operator, []).append(mutant)
        for alike in by_operator.values():
            count = min(each, len(alike))
            spread = [alike[len(alike) * (2 * number + 1) // (2 * count)] for number in range(count)]
            chosen += [(kernel, subject, one) for one in spread if _verifier().takes(one.text)]
    return chosen


def table(judged: Sequence[Judged]) -> str:
    """Fates by kernel, then by operator, and what is to be read one by one: mutants that were not killed."""
    lines = [f"{'':50} {'mutants':>8} {''.join(f'{fate:>11}' for fate in FATES)} {'seconds':>8}"]
    for by in ("kernel", "operator"):
        groups: dict[str, list[Judged]] = {}
        for one in judged:
            groups.setdefault(one.kernel if by == "kernel" else one.mutant.operator, []).append(one)
        lines += [_row(name, group) for name, group in groups.items()]
        lines.append("")
    lines += [_row("all", judged), ""]
    kinds = Counter(one.told for one in judged if one.fate == REFUTED)
    lines += ["Refuted by:", *(f"{count:6}  {what}" for what, count in kinds.most_common()), ""]
    for one in judged:
        if not one.killed:
            lines.append(
                f"{one.fate} {one.kernel} line {one.mutant.line}, {one.mutant.operator}: {one.mutant.change} {one.told}"
            )
    return "\n".join(lines)


def _row(name: str, judged: Sequence[Judged]) -> str:
    fates = Counter(one.fate for one in judged)
    seconds = sum(one.seconds for one in judged)
    return f"{name:50} {len(judged):8} {''.join(f'{fates[fate]:11}' for fate in FATES)} {seconds:8.1f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m kvsan.ci.proofs.ttir_mutants", description=__doc__)
    parser.add_argument("--kernel", action="append", choices=CONFIGURATIONS, help="only this one; may be given again")
    parser.add_argument("--all", action="store_true", help="every mutant, not two of each operator")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(arguments)
    wanted = selection(subjects(options.kernel or CONFIGURATIONS), 10**6 if options.all else 2)
    judged = list(judge_all(wanted, options.processes))
    print(table(judged))
    return int(any(one.fate in (SURVIVED, UNKNOWN) for one in judged))


if __name__ == "__main__":
    sys.exit(main())
