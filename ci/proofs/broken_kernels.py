"""Kernels with one mistake, each refuted by proofs: the real source with one text replaced, as in `ci.kernels`.

Out of scope are variants whose mistake is in floats alone, which proofs do not look at (soft caps, scales of whole tensors,
rescaling of sums, log-sum-exp, codes of small floats: the checks of numbers see those), those of host code, and two that
add an access (``k-scale-for-v``, ``v-from-rope``): a kernel with more accesses than its specification is rejected.
``append-stride`` multiplies two strides in int32, which fails first, and is here with int64 as ``append-as-contiguous``.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvsan.ci.kernels.variant import IMPORTERS, SOURCES, Variant
from kvsan.ci.kernels.variants_attention import ATTENTION
from kvsan.ci.kernels.variants_pages import PAGES
from kvsan.gpu_kernels.compile.build import Build
from kvsan.gpu_kernels.compile.builds import builds
from kvsan.invariants.proofs.kernels.catalogue import specification_of, subject_of
from kvsan.invariants.proofs.kernels.interpreted import Interpreter
from kvsan.invariants.proofs.kernels.prover import Verdict, prove
from kvsan.invariants.proofs.kernels.replaying import replay
from kvsan.invariants.proofs.kernels.specification import Specification, Specify
from kvsan.invariants.proofs.obligation import REFUTED
from kvsan.invariants.proofs.term import both

_NOWHERE = "none"

OWN = (
    Variant(
        "length-mask-dropped", "tiles", _NOWHERE,
        "mask = needed[:, None] & (d < HEAD_DIM)[None, :]", "mask = (at >= 0)[:, None] & (d < HEAD_DIM)[None, :]",
        "K and V are loaded beyond the length", _NOWHERE, "vLLM 53856",
    ),
    Variant(
        "trip-too-many", "tiles", _NOWHERE, "range(start, stop, TILE)", "range(start, stop + 1, TILE)",
        "one tile too many where the context fills the last one", _NOWHERE,
    ),
    Variant(
        "mask-inverted", "tiles", _NOWHERE,
        'tl.where(visible, scores, float("-inf"))', 'tl.where(visible, float("-inf"), scores)',
        "the mask of scores the wrong way round", _NOWHERE,
    ),
    Variant(
        "shard-stride", "copy", _NOWHERE, "+ rank.to(tl.int64) * stride_tr", "+ rank.to(tl.int64) * stride_sr",
        "re-sharding: a target rank is found by the stride of the source's ranks", _NOWHERE, "vLLM 37703, 46204",
    ),
    Variant(
        "padding-block", "write", _NOWHERE, "(slot // BLOCK_SIZE * stride_block", "((slot // BLOCK_SIZE + 1) * stride_block",
        "off by one block: as if block 0 were kept for padding", _NOWHERE,
    ),
    Variant(
        "append-as-contiguous", "write", _NOWHERE,
        "slot // BLOCK_SIZE * stride_block", "slot // BLOCK_SIZE * (tl.num_programs(1) * (BLOCK_SIZE * HEAD_DIM)).to(tl.int64)",
        "append: the stride of blocks is computed as if the cache were contiguous", _NOWHERE, "FlashInfer 527, aiter 3498",
    ),
    Variant(
        "reduce-in-one-place", "decode", _NOWHERE,
        "to = row * stride_ot + head * stride_oh + d", "to = row * stride_ot + d",
        "race in the reduce: all heads write one output", _NOWHERE,
    ),
)  # fmt: skip
"""What `ci.kernels` has no variant of."""


def only_races(k: Any) -> Specification:
    """``merge_splits`` with contiguous tensors: bounds and races of the addresses as the kernel computes them."""
    whole = specification_of("merge_splits")(k)
    contiguous = (
        k.stride_oh == k.HEAD_DIM, k.stride_ot == k.size("num_q_heads") * k.HEAD_DIM, k.stride_lt == k.size("num_q_heads")
    )  # fmt: skip
    return replace(
        whole, accesses=None, loops=None, guards=None, theorems=(), assume=(both(*whole.assume), *contiguous)
    )


@dataclass(frozen=True, slots=True)
class BrokenKernel:
    """A variant that proofs refute, in the configuration of ``kernel`` (its function's name) in which they do.

    ``obligation``: what fails, a regular expression that all of `Obligation.what` matches. ``types`` and ``constexprs``
    replace those of the build. ``specify``: its specification, None for that of `invariants.proofs`.
    """

    variant: Variant
    kernel: str
    configuration: str
    obligation: str
    types: dict[str, str] = field(default_factory=dict)
    constexprs: dict[str, int] = field(default_factory=dict)
    specify: Specify | None = None

    @property
    def name(self) -> str:
        """The variant's."""
        return self.variant.name

    def build(self) -> Build:
        """The build of the kernel as it should be."""
        found = next(one for one in builds() if (one.name, one.configuration) == (self.kernel, self.configuration))
        constexprs = {**found.constexprs, **self.constexprs}
        return replace(found, signature={**found.signature, **self.types}, constexprs=constexprs)

    def specification(self) -> Specify:
        """What the kernel has to do."""
        return self.specify or specification_of(self.kernel)


_VARIANTS = {one.name: one for one in (*ATTENTION, *PAGES, *OWN)}


def _broken(name: str, kernel: str, configuration: str, obligation: str, **more: Any) -> BrokenKernel:
    return BrokenKernel(_VARIANTS[name], kernel, configuration, obligation, **more)


_PLAIN = "bf16-d128-b16-g4"
_MISMATCH = r"(load|store) \w+: the address"
_MASK = r"(load|store) \w+: where it happens"
_INT32 = r"overflow of int32: the result of (muli|addi)"
_GUARD = "a guard of data"

BROKEN = (
    _broken("block-of-tile", "paged_decode", _PLAIN, _MISMATCH),
    _broken("table-unguarded", "paged_decode", _PLAIN, _MASK),
    _broken("block-int32", "paged_decode", _PLAIN, _INT32),
    _broken("v-unmasked", "paged_decode", _PLAIN, _MASK),
    _broken("length-mask-dropped", "paged_decode", _PLAIN, _MASK),
    _broken("trip-too-many", "paged_decode", _PLAIN, "a loop's stop"),
    _broken("last-tile-of-one", "paged_decode", _PLAIN, "a loop's stop"),
    _broken("window-wide", "paged_decode", f"{_PLAIN}-window", "a loop's start"),
    _broken("window-narrow", "paged_decode", f"{_PLAIN}-window", "a loop's start"),
    _broken("chunk-late", "paged_decode", f"{_PLAIN}-chunk", "a loop's start"),
    _broken("window-of-tile", "paged_prefill", f"{_PLAIN}-window", _GUARD),
    _broken("mask-inverted", "paged_decode", _PLAIN, _GUARD),
    _broken("nvfp4-neighbour", "paged_decode", "nvfp4-d128-b16-g4", _MISMATCH),
    _broken("token-too-many", "paged_decode", _PLAIN, "a loop's stop"),
    _broken("whole-last-block", "paged_decode", _PLAIN, "a loop's stop"),
    _broken("block-too-many", "paged_decode", _PLAIN, "a loop's stop"),
    _broken("last-block-left-out", "paged_decode", _PLAIN, "a loop's stop"),
    _broken("table-row-int32", "paged_decode", _PLAIN, _INT32),
    _broken("query-row-int32", "paged_decode", _PLAIN, _INT32),
    _broken("heads-interleaved", "paged_decode", _PLAIN, _MISMATCH),
    _broken("scale-of-head-0", "paged_decode", "int8_per_token_head-d128-b16-g4", _MISMATCH),
    _broken("head-padding-stored", "paged_decode", _PLAIN, _MASK),
    _broken("split-rounds-down", "paged_decode_split", _PLAIN, "a loop's start"),
    _broken("splits-in-one-place", "paged_decode_split", _PLAIN, _MISMATCH),
    _broken("merge-in-one-place", "merge_splits", "bf16-d128-s8", _MISMATCH),
    _broken(
        "reduce-in-one-place", "merge_splits", "bf16-d128-s8", r"store \w+: race with store \w+", specify=only_races
    ),
    _broken("merge-reads-neighbour", "merge_splits", "fp16-d80-s3", _MASK),
    _broken("merge-stale", "paged_decode_split", _PLAIN, _MASK),
    _broken("causal-late", "paged_prefill", _PLAIN, _GUARD),
    _broken("prefix-forgotten", "paged_prefill", _PLAIN, _GUARD),
    _broken("tile-starts-late", "paged_prefill", f"{_PLAIN}-window", "a loop's start"),
    _broken("tile-stops-early", "paged_prefill", _PLAIN, "a loop's stop"),
    _broken("table-of-query", "paged_prefill", _PLAIN, _MISMATCH),
    _broken("query-token-int32", "paged_prefill", _PLAIN, _INT32),
    _broken("heads-interleaved-prefill", "paged_prefill", _PLAIN, _MISMATCH),
    _broken("query-padding-stored", "paged_prefill", "fp16-d32-b4-g6-checked-session", _MASK),
    _broken("latent-block-int32", "mla_decode", "bf16-l512-r64-h128", _INT32),
    _broken("latent-slot-int32", "concat_and_cache", "bf16-l512-r64", _INT32, types={"slot_mapping": "*i32"}),
    _broken("rope-behind-padding", "concat_and_cache", "bf16-l512-r64", _MISMATCH, constexprs={"LATENT": 320}),
    _broken("write-block-of-tile", "reshape_and_cache", "bf16-d32-b1-g4", _MISMATCH),
    _broken("padding-block", "reshape_and_cache", _PLAIN, _MISMATCH),
    _broken("padding-written", "reshape_and_cache", _PLAIN, _MASK),
    _broken("mapping-unguarded", "reshape_and_cache", _PLAIN, _MASK),
    _broken("slot-int32", "reshape_and_cache", _PLAIN, _INT32, types={"slot_mapping": "*i32"}),
    _broken("token-int32", "reshape_and_cache", _PLAIN, _INT32),
    _broken("append-as-contiguous", "reshape_and_cache", _PLAIN, _MISMATCH),
    _broken("strides-swapped", "reshape_and_cache", _PLAIN, _MISMATCH),
    _broken("v-by-stride-of-k", "reshape_and_cache", _PLAIN, _MISMATCH),
    _broken("dim-padding-written", "reshape_and_cache", "fp16-d80-b32-g4", _MASK),
    _broken("scale-written-to-head-0", "quantise_and_cache", "int8_per_token_head-d128-b16-g4", _MISMATCH),
    _broken("scale-of-padding", "quantise_and_cache", "int8_per_token_head-d128-b16-g4", _MASK),
    _broken(
        "quantised-slot-int32", "quantise_and_cache", "fp8_e4m3-d128-b16-g4", _INT32, types={"slot_mapping": "*i32"}
    ),
    _broken("gather-int32", "gather_tokens", _PLAIN, _INT32, types={"table": "*i32"}),
    _broken("gather-other-head", "gather_tokens", _PLAIN, _MISMATCH),
    _broken("gather-from-start", "gather_tokens", _PLAIN, _MISMATCH),
    _broken("copy-ignores-start", "move_blocks", "i16-w128", _MASK),
    _broken("copy-ignores-stop", "move_blocks", "i16-w128", _MASK),
    _broken("copy-int32", "move_blocks", "i16-w128", r"overflow of int32: .*"),
    _broken("scatter-strides-swapped", "move_blocks", "i16-w128", _MISMATCH),
    _broken("shard-stride", "move_heads", "i16-w128-tp2to8", _MISMATCH),
    _broken("reshard-rank", "move_heads", "i16-w128-tp16to4", _MISMATCH),
    _broken("reshard-place", "move_heads", "i16-w128-tp16to4", _MISMATCH),
    _broken("reshard-shared", "move_heads", "i16-w128-tp2to8", _MISMATCH, constexprs={"TARGET_RANKS": 16}),
)


@contextmanager
def written() -> Iterator[str]:
    """A folder that has the modules of all broken kernels; kernels are good inside only."""
    with tempfile.TemporaryDirectory(prefix="kvsan-broken-kernels-") as folder:
        for one in BROKEN:
            name = _module(one.variant, one.variant.module)
            Path(folder, f"{name}.py").write_text(one.variant.text(), "utf-8")
            for importer in IMPORTERS.get(one.variant.module, ()):
                text = (SOURCES / f"{importer}.py").read_text("utf-8")
                text = text.replace(f"kvsan.gpu_kernels.{one.variant.module} import", f"{name} import")
                Path(folder, f"{_module(one.variant, importer)}.py").write_text(text, "utf-8")
        sys.path.insert(0, folder)
        try:
            yield folder
        finally:
            sys.path.remove(folder)


def _module(variant: Variant, module: str) -> str:
    return f"kvsan_broken_{variant.name.replace('-', '_')}_{module}"


def broken_build(broken: BrokenKernel) -> Build:
    """The build of a broken kernel, inside of `written`."""
    right = broken.build()
    module, _, function = right.kernel.partition(":")
    return replace(right, kernel=f"{_module(broken.variant, module.rpartition('.')[2])}:{function}")


@dataclass(frozen=True, slots=True)
class Refutation:
    """What proofs say of a broken kernel; ``replay``: what the replay of its case showed, "" without one."""

    broken: BrokenKernel
    verdict: Verdict
    replay: str

    @property
    def what(self) -> str:
        """The obligation that fails."""
        return self.verdict.failed.what if self.verdict.failed else ""

    @property
    def as_expected(self) -> bool:
        """Whether the kernel is refuted, by the obligation named, and the replay confirms it."""
        by_it = re.fullmatch(self.broken.obligation, self.what) is not None
        return self.verdict.status == REFUTED and by_it and self.replay.startswith("replayed: ")


def refutations(chosen: Iterable[BrokenKernel] = BROKEN) -> Iterator[Refutation]:
    """Prove broken kernels, one after the other."""
    with written() as folder, Interpreter() as interpreter:
        for one in chosen:
            build = broken_build(one)
            subject = subject_of(build, one.specification())
            verdict = prove(subject)
            yield Refutation(one, verdict, replay(build, subject, verdict, interpreter, folder) if verdict.case else "")


def originals(chosen: Iterable[BrokenKernel] = BROKEN) -> Iterator[tuple[BrokenKernel, Verdict]]:
    """Prove the kernels as they should be, each build and specification once, with the first that is broken there.

    Types and constants that make a mistake visible are kept.
    """
    seen = set()
    for one in chosen:
        build, specify = one.build(), one.specification()
        key = build.kernel, str(build.signature), str(build.constexprs), specify
        if key not in seen:
            seen.add(key)
            yield one, prove(subject_of(build, specify))


def main() -> int:
    """Print a table; 1 if a kernel is not refuted as it should be."""
    print("| broken kernel | what is wrong | public report | refuted by | at | case | replay |\n|" + " --- |" * 7)
    good = True
    for one in refutations():
        good &= one.as_expected
        variant, verdict = one.broken.variant, one.verdict
        case = "; ".join(verdict.story()[1:])
        cells = (
            one.broken.name,
            variant.mechanism,
            variant.source,
            one.what or verdict.reason,
            verdict.place,
            case,
            one.replay,
        )
        print(f"| {' | '.join(cells)} |", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
