"""Problems over caches so large that an offset, in elements, needs 64 bits; the last block is where it does.

Without a GPU they take next to no memory, but addresses of 20 GB (2**31 elements, and what the interpreter notes about
them), which an operating system may refuse to a machine with less.
"""

from __future__ import annotations

from kvsan.ci.kernels.problems import (
    FAR,
    Attending,
    CacheSpec,
    CopyProblem,
    DecodeProblem,
    GatherProblem,
    LatentDecodeProblem,
    LatentSpec,
    LatentWriteProblem,
    PrefillProblem,
    Problem,
    TransferProblem,
    WriteProblem,
)

_PLAIN = tuple(CacheSpec("float16", 4, 2, 32, storage) for storage in FAR)
_QUANTISED = CacheSpec("int8_per_token_head", 4, 2, 32, FAR[0])
_ATTENDING = tuple(Attending(cache, 2, 0.2, codes=True, spare_blocks=0) for cache in (*_PLAIN, _QUANTISED))
_LATENT = LatentSpec("float16", 4, 32, 16, far=True)

FAR_PROBLEMS: tuple[Problem, ...] = (
    *(WriteProblem(cache, 3, 12, index_dtype="int32", input_dtype="float16") for cache in (*_PLAIN, _QUANTISED)),
    *(GatherProblem(cache, 12, 0, 12, spare_blocks=0, index_dtype="int32") for cache in (*_PLAIN, _QUANTISED)),
    *(DecodeProblem(attending, (12,), splits) for attending in _ATTENDING for splits in (1, 2)),
    *(PrefillProblem(attending, ((3, 12),)) for attending in _ATTENDING),
    *(CopyProblem(cache, 3, 1, 0, 4, seed=seed) for cache in _PLAIN for seed in (0, 1, 2)),
    *(TransferProblem(cache, 3, 3, FAR[0]) for cache in _PLAIN),
    LatentWriteProblem(_LATENT, 3, 12, index_dtype="int32", input_dtype="float16"),
    LatentDecodeProblem(_LATENT, 2, (12,), 0.2, codes=True, spare_blocks=0),
)
"""All blocks of each but those of copies are used."""
