"""Which kernels are compiled, in which configurations: one for each way in which they differ for the compiler.

Constants come from the functions that the launchers call. Head sizes, block sizes, group sizes, masks, formats and
element types are each covered, not their product: a cell of that product differs from its neighbours in a constant.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from kvsan.gpu_kernels.compile.build import TARGETS, Build, signature
from kvsan.gpu_kernels.copy import slot_constants
from kvsan.gpu_kernels.decode import head_constants, merge_constants
from kvsan.gpu_kernels.launching import FULL, Masking, format_constants, shape_constants
from kvsan.gpu_kernels.layout import PagedCache, allocate_cache
from kvsan.gpu_kernels.mla import decode_constants, write_constants
from kvsan.gpu_kernels.prefill import row_constants
from kvsan.gpu_kernels.write import token_constants

_FOLDER = "kvsan.gpu_kernels"
_NVIDIA = tuple(name for name, target in TARGETS.items() if target.backend == "cuda")
_AMD = tuple(name for name, target in TARGETS.items() if target.backend == "hip")
_POINTERS = {"float32": "*fp32", "float16": "*fp16", "bfloat16": "*bf16"}
_SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
_SCALE_POINTERS = {4: "*fp32", 1: "*u8"}
_OUT_STRIDES = "stride_ot stride_oh stride_lt"
_QUERY_STRIDES = "stride_qt stride_qh stride_table"
_STRIDES = "stride_block stride_slot stride_head"
_SCALE_STRIDES = "scale_stride_block scale_stride_slot scale_stride_head"
_SCALES = "scale key_scale value_scale softcap"


@dataclass(frozen=True, slots=True)
class Case:
    """One configuration of the attention kernels; ``group`` is q heads a kv head.

    ``session``: with the types and sizes with which ``TritonKernels`` launches them.
    """

    dtype: str = "bfloat16"
    head_dim: int = 128
    block_size: int = 16
    group: int = 4
    masking: Masking = FULL
    checked: bool = False
    session: bool = False
    targets: tuple[str, ...] = tuple(TARGETS)

    @property
    def name(self) -> str:
        """What tells it from others."""
        mask, parts = self.masking, [_SHORT.get(self.dtype, self.dtype)]
        parts += [f"d{self.head_dim}", f"b{self.block_size}", f"g{self.group}"]
        parts += ["window"] * (mask.window is not None) + ["chunk"] * (mask.chunk is not None)
        parts += ["softcap"] * (mask.softcap is not None) + ["checked"] * self.checked + ["session"] * self.session
        parts += ["amd"] * (self.targets == _AMD)
        return "-".join(parts)

    @property
    def cache(self) -> PagedCache:
        """A cache of this kind, without memory."""
        return allocate_cache(1, self.block_size, 1, self.head_dim, self.dtype, device="meta")

    def constants(self, rows: int) -> dict[str, Any]:
        """Those that every attention kernel takes, and its warps; ``rows`` of queries a program."""
        return shape_constants(self.cache, self.masking, torch.bfloat16, rows, amd=self.targets == _AMD)

    def pointers(self) -> dict[str, str]:
        """Types of the cache's pointers, by name."""
        element = _POINTERS.get(self.dtype, "*u8")
        scale = _SCALE_POINTERS.get(self.cache.format.scale_bytes, element)
        return {"keys": element, "values": element, "key_scales": scale, "value_scales": scale}

    @property
    def query(self) -> str:
        """Type of the queries' pointer: in a session float32 over floats, bfloat16 over codes."""
        if self.session and not self.cache.format.quantised:
            return _POINTERS["float32"]
        return _POINTERS.get(self.dtype, "*bf16")

    @property
    def output(self) -> str:
        """Type of the outputs' pointer."""
        return _POINTERS["float32"] if self.session else self.query


_VARIANTS = (Case(masking=Masking(window=1024)), Case(masking=Masking(chunk=1024)), Case(masking=Masking(softcap=30.0)))
_QUANTISED = tuple(
    Case(dtype) for dtype in ("fp8_e4m3", "fp8_e5m2", "int8_per_token_head", "fp8_per_token_head", "nvfp4")
)
_SESSION = tuple(
    Case(dtype, 32, 4, 6, checked=True, session=True)
    for dtype in ("float16", "bfloat16", "int8_per_token_head", "nvfp4")
)
_DECODE = (
    Case(), Case("float16"), Case("float32"), Case(checked=True),
    Case(head_dim=32, block_size=1, group=1), Case(head_dim=64, group=8), Case(head_dim=80, block_size=32, group=1),
    Case(head_dim=96, block_size=48), Case(head_dim=256, block_size=256, group=8), Case("float32", 256),
    Case(group=128), *_VARIANTS, *_QUANTISED, *_SESSION,
)  # fmt: skip
_SPLIT = (Case(), Case("float32"), Case(head_dim=256, group=8), Case("fp8_e4m3"), Case("nvfp4"))
_PREFILL = (
    Case(), Case("float16"), Case("float32"), Case(checked=True), Case(head_dim=32, block_size=1, group=1),
    Case(head_dim=80, block_size=32, group=1), Case(head_dim=256, group=8), Case("float32", 256), Case(group=128),
    *_VARIANTS, *_QUANTISED, *_SESSION,
)  # fmt: skip


def builds() -> list[Build]:
    """Every kernel in each configuration in which it is compiled."""
    return [*_attention(), *_merging(), *_writing(), *_copying(), *_latent()]


def _attention() -> Iterator[Build]:
    for case in _DECODE:
        yield _decode(case)
    for case in _SPLIT:
        yield _decode_split(case)
    for case in _PREFILL:
        for targets in (_NVIDIA, _AMD):
            yield _prefill(replace(case, targets=targets))


def _decode(case: Case) -> Build:
    types = {
        "output": case.output,
        "query": case.query,
        **dict.fromkeys(("lse", "sums", "row_sums"), "*fp32"),
        **case.pointers(),
        **signature({"*i32": "block_tables seq_lens", "fp32": _SCALES}),
        **signature({"i32": f"span {_OUT_STRIDES} {_QUERY_STRIDES} {_STRIDES} {_SCALE_STRIDES}"}),
    }
    constants = head_constants(case.group)
    constants |= case.constants(constants["HEADS"]) | {"CHECKED": case.checked}
    return _build("decode:paged_decode", case.name, types, constants)


def _decode_split(case: Case) -> Build:
    types = {
        "query": case.query,
        **case.pointers(),
        **signature({"*fp32": "split_sums split_row_sums split_maxima", "*i32": "block_tables seq_lens"}),
        **signature({"fp32": _SCALES}),
        **signature({"i32": f"span stride_pt stride_ph {_QUERY_STRIDES} {_STRIDES} {_SCALE_STRIDES}"}),
    }
    constants = head_constants(case.group)
    constants |= case.constants(constants["HEADS"]) | {"SPLITS": 8}
    return _build("decode:paged_decode_split", case.name, types, constants)


def _prefill(case: Case) -> Build:
    types = {
        "output": case.output,
        "query": case.query,
        **dict.fromkeys(("lse", "sums", "row_sums"), "*fp32"),
        **case.pointers(),
        **signature({"*i32": "query_start_loc block_tables seq_lens", "fp32": _SCALES}),
        **signature({"i32": f"span {_OUT_STRIDES} {_QUERY_STRIDES} {_STRIDES} {_SCALE_STRIDES}"}),
    }
    constants = row_constants(case.group, case.cache.keys.element_size())
    constants |= case.constants(constants["ROWS"]) | {"CHECKED": case.checked}
    return _build("prefill:paged_prefill", case.name, types, constants, targets=case.targets)


def _merging() -> Iterator[Build]:
    for dtype, head_dim, splits, checked in (
        ("bfloat16", 128, 8, False), ("float32", 256, 8, True), ("float16", 80, 3, False),
    ):  # fmt: skip
        types = {
            "output": _POINTERS[dtype],
            **signature({"*fp32": "lse sums row_sums split_sums split_row_sums split_maxima"}),
            **signature({"i32": f"{_OUT_STRIDES} stride_pt stride_ph"}),
        }
        constants = merge_constants(splits, head_dim) | {"CHECKED": checked}
        name = f"{_SHORT[dtype]}-d{head_dim}-s{splits}" + "-checked" * checked
        yield _build("decode:merge_splits", name, types, constants, ("stride_ot", "stride_oh"))


def _writing() -> Iterator[Build]:
    new_strides = "stride_kt stride_kh stride_vt stride_vh"
    for case in (Case(), Case("float16", 80, 32), Case("float32", 256, 256), Case(head_dim=32, block_size=1)):
        element = _POINTERS[case.dtype]
        types = {
            **dict.fromkeys(("key", "value", "keys", "values"), element),
            **signature({"*i64": "slot_mapping", "i32": f"num_tokens {new_strides} {_STRIDES}"}),
        }
        yield _build("write:reshape_and_cache", case.name, types, token_constants(case.cache))
    for case in (*_QUANTISED, Case("nvfp4", 80), Case("int8_per_token_head", 96)):
        types = {
            **dict.fromkeys(("key", "value"), "*bf16"),
            **case.pointers(),
            **signature({"*i64": "slot_mapping", "fp32": "key_scale value_scale"}),
            **signature({"i32": f"num_tokens {new_strides} {_STRIDES} {_SCALE_STRIDES}"}),
        }
        yield _build(
            "quant:quantise_and_cache", case.name, types, token_constants(case.cache) | format_constants(case.cache)
        )
    for case in (Case(), Case("float32", 256), *_QUANTISED):
        pointers = case.pointers()
        types = {
            "cache": pointers["keys"],
            "scales": pointers["key_scales"],
            "result": _POINTERS.get(case.dtype, "*fp32"),
            **signature({"*i64": "table", "fp32": "scale"}),
            **signature({"i32": f"start stop {_STRIDES} {_SCALE_STRIDES} stride_rt stride_rh"}),
        }
        yield _build(
            "quant:gather_tokens", case.name, types, token_constants(case.cache) | format_constants(case.cache)
        )


def _copying() -> Iterator[Build]:
    for pointer, width in (("*i32", 256), ("*i16", 128), ("*u8", 40), ("*i32", 1)):
        types = {
            **dict.fromkeys(("source", "target"), pointer),
            **signature({"*i64": "source_blocks target_blocks"}),
            **signature({"i32": "start stop stride_sb stride_ss stride_sh stride_tb stride_ts stride_th"}),
        }
        yield _build("copy:move_blocks", f"{pointer[1:]}-w{width}", types, slot_constants(width))
    for sources, targets in ((2, 8), (16, 4)):
        strides = " ".join(f"stride_{side}{of}" for side in "st" for of in "rbsh")
        types = {**dict.fromkeys(("source", "target"), "*i16"), **signature({"i32": f"{strides} num_blocks"})}
        ranks = {"NUM_HEADS": 8, "SOURCE_RANKS": sources, "TARGET_RANKS": targets}
        sizes = {"BLOCK_SIZE": 16, **slot_constants(128)}
        yield _build("copy:move_heads", f"i16-w128-tp{sources}to{targets}", types, ranks | sizes)


def _latent() -> Iterator[Build]:
    for dtype, latent, rope, heads, checked in (
        ("bfloat16", 512, 64, 128, False), ("float16", 512, 64, 16, True), ("float32", 256, 32, 16, False),
    ):  # fmt: skip
        types = {
            **dict.fromkeys(("output", "query", "cache"), _POINTERS[dtype]),
            **signature({"*fp32": "lse sums row_sums", "*i32": "block_tables seq_lens", "fp32": "scale"}),
            **signature({"i32": f"{_OUT_STRIDES} {_QUERY_STRIDES} stride_block stride_slot"}),
        }
        name = f"{_SHORT[dtype]}-l{latent}-r{rope}-h{heads}" + "-checked" * checked
        constants = decode_constants(heads, 16, latent, rope, getattr(torch, dtype)) | {"CHECKED": checked}
        yield _build("mla:mla_decode", name, types, constants)
    for dtype in ("bfloat16", "float32"):
        types = {
            **dict.fromkeys(("latent", "rope", "cache"), _POINTERS[dtype]),
            **signature({"*i64": "slot_mapping", "i32": "num_tokens stride_lt stride_rt stride_block stride_slot"}),
        }
        yield _build("mla:concat_and_cache", f"{_SHORT[dtype]}-l512-r64", types, write_constants(16, 512, 64))


def _build(
    place: str,
    name: str,
    types: dict[str, str],
    constants: dict[str, Any],
    aligned: tuple[str, ...] = (),
    targets: tuple[str, ...] = tuple(TARGETS),
) -> Build:
    """Build in which every pointer is aligned, as those of a new tensor are, and strides are as ``aligned`` says."""
    if not aligned:
        aligned = tuple(argument for argument in types if argument.startswith("stride_") and argument != "stride_lt")
    pointers = tuple(argument for argument, kind in types.items() if kind.startswith("*"))
    warps = constants.get("num_warps", 4)
    constants = {argument: value for argument, value in constants.items() if argument != "num_warps"}
    return Build(f"{_FOLDER}.{place}", name, types, constants, (*pointers, *aligned), warps, None, targets)
