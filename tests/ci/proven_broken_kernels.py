"""Proves broken kernels, their originals and the int32 kernels, and prints what came of it as JSON.

A process of its own, because one that interprets kernels, as that of the tests does, cannot compile them. Arguments: names
of broken kernels, none for all.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from kvsan.ci.proofs.broken_kernels import BROKEN, originals, refutations
from kvsan.ci.proofs.int32_pools import INT32, smallest_pool, verdict_of
from kvsan.invariants.proofs.kernels.interpreted import Interpreter
from kvsan.invariants.proofs.kernels.replaying import replay


def broken(names: list[str]) -> dict[str, Any]:
    chosen = [one for one in BROKEN if not names or one.name in names]
    return {
        "broken": {
            one.broken.name: {
                "status": one.verdict.status, "what": one.what, "place": one.verdict.place, "replay": one.replay,
                "story": one.verdict.story(), "as_expected": one.as_expected,
            }
            for one in refutations(chosen)
        },
        "originals": {one.name: verdict.status for one, verdict in originals(chosen)},
    }  # fmt: skip


def int32() -> dict[str, Any]:
    found = {}
    with Interpreter() as interpreter:
        for kernel in INT32:
            size, subject, refutation, smaller = smallest_pool(kernel)
            found[kernel.name] = {
                "wide": verdict_of(kernel, wide=True)[1].status, "smaller": smaller.status, "smallest": size,
                "what": refutation.failed.what if refutation.failed else "",
                "replay": replay(kernel.build(wide=False), subject, refutation, interpreter),
            }  # fmt: skip
    return found


if __name__ == "__main__":
    print(json.dumps({**broken(sys.argv[1:]), "int32": int32()}))
