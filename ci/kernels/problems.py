"""Problems for kernels, as plain data: what a problem prints is a line of Python that makes it again.

Numbers that a problem does not name (K, V, queries, which blocks, which garbage) follow from its ``seed``.
"""

from __future__ import annotations

from dataclasses import dataclass

STORAGES = ("pages NHD", "pages HND", "apart NHD", "apart HND")
"""Where a cache lies: K and V as parts of pages, or two contiguous tensors; slots or heads first."""

FAR = ("far NHD", "far HND")
"""Likewise, with blocks 2**31 elements away from each other: offsets need 64 bits."""

POISONS = ("nan", "finite")
"""What lies where no kernel may look: NaN, or a large number for kernels that multiply it by 0."""

FLOATS = ("float32", "float16", "bfloat16")
"""Types of queries, of outputs, and of what is written."""


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """A cache without its number of blocks; ``dtype`` is one of ``formats.FORMATS``, ``storage`` of STORAGES or FAR."""

    dtype: str
    block_size: int
    kv_heads: int
    head_dim: int
    storage: str = "pages NHD"
    key_scale: float = 1.0
    value_scale: float = 1.0
    poison: str = "nan"


@dataclass(frozen=True, slots=True)
class WriteProblem:
    """Write ``tokens`` tokens, ``skipped`` of them with slot -1, in a batch padded by ``padded`` more.

    ``fused``: key and value are slices of one qkv tensor. ``boundary``: numbers at which rounding decides, saturation,
    zeros; for plain caches any bits.
    """

    cache: CacheSpec
    blocks: int
    tokens: int
    skipped: int = 0
    padded: int = 0
    input_dtype: str = "float32"
    index_dtype: str = "int64"
    fused: bool = False
    boundary: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True)
class GatherProblem:
    """Read positions ``[start, stop)`` of a sequence of ``length`` tokens."""

    cache: CacheSpec
    length: int
    start: int
    stop: int
    spare_blocks: int = 1
    index_dtype: str = "int64"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Attending:
    """What decode and prefill have in common.

    ``group`` q heads a kv head. ``codes``: K and V of small numbers that are exact in every type, and besides random
    queries some of zeros and some that point at one position; else real numbers. ``shared_blocks``: how many blocks at
    most the other sequences share with the first; ``spare_blocks`` belong to nobody, ``spare_entries`` of a table are
    behind its longest sequence. ``fused``: the query is a slice of a qkv tensor.
    """

    cache: CacheSpec
    group: int
    scale: float
    window: int | None = None
    chunk: int | None = None
    softcap: float | None = None
    query_dtype: str = "float16"
    output_dtype: str | None = None
    codes: bool = False
    shared_blocks: int = 0
    spare_blocks: int = 1
    spare_entries: int = 1
    index_dtype: str = "int32"
    fused: bool = False
    checked: bool = True


@dataclass(frozen=True, slots=True)
class DecodeProblem:
    """One query for each of ``lengths``; 0 is a sequence without tokens."""

    attending: Attending
    lengths: tuple[int, ...]
    splits: int = 1
    seed: int = 0


@dataclass(frozen=True, slots=True)
class PrefillProblem:
    """``rows`` of (queries, length), the queries at the end of each sequence; ``padded`` queries belong to no row."""

    attending: Attending
    rows: tuple[tuple[int, int], ...]
    padded: int = 0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class CopyProblem:
    """Copy slots ``[start, stop)`` of ``pairs`` pairs of blocks; a block may be the source of several."""

    cache: CacheSpec
    blocks: int
    pairs: int
    start: int
    stop: int
    seed: int = 0


@dataclass(frozen=True, slots=True)
class TransferProblem:
    """Gather ``moved`` of ``blocks`` blocks into buffers, and scatter those to a cache of another storage."""

    cache: CacheSpec
    blocks: int
    moved: int
    target_storage: str = "apart NHD"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class ReshardProblem:
    """Turn ``source_ranks`` shards of ``heads`` heads into ``ranks``; ``strided``: shards are slices of wider ones."""

    dtype: str
    heads: int
    source_ranks: int
    ranks: int
    blocks: int
    block_size: int
    width: int
    strided: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True)
class LatentSpec:
    """A latent cache: ``gap`` elements lie between the vectors of two slots; ``far`` as in ``FAR``."""

    dtype: str
    block_size: int
    latent: int
    rope: int
    gap: int = 0
    poison: str = "nan"
    far: bool = False


@dataclass(frozen=True, slots=True)
class LatentWriteProblem:
    """Write latent and RoPE parts of tokens; the rest as in ``WriteProblem``."""

    cache: LatentSpec
    blocks: int
    tokens: int
    skipped: int = 0
    padded: int = 0
    input_dtype: str = "float32"
    index_dtype: str = "int64"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class LatentDecodeProblem:
    """Decode over a latent cache; the rest as in ``Attending`` and ``DecodeProblem``."""

    cache: LatentSpec
    heads: int
    lengths: tuple[int, ...]
    scale: float
    query_dtype: str = "float16"
    output_dtype: str | None = None
    codes: bool = False
    shared_blocks: int = 0
    spare_blocks: int = 1
    spare_entries: int = 1
    index_dtype: str = "int32"
    checked: bool = True
    seed: int = 0


Problem = (
    WriteProblem
    | GatherProblem
    | DecodeProblem
    | PrefillProblem
    | CopyProblem
    | TransferProblem
    | ReshardProblem
    | LatentWriteProblem
    | LatentDecodeProblem
)
