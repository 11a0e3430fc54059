"""Kernels of this repository as subjects of proofs, for processes that cannot compile because they interpret.

``python -m kvsan.ci.proofs.subjects KERNEL/CONFIGURATION ...`` prints their IR; `subjects` starts that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

from kvsan.gpu_kernels.compile.build import Build
from kvsan.gpu_kernels.compile.builds import builds
from kvsan.gpu_kernels.interpreter import VARIABLE
from kvsan.invariants.proofs.kernels.catalogue import specification_of
from kvsan.invariants.proofs.kernels.lowering import Lowered, lower, ordered_signature
from kvsan.invariants.proofs.kernels.prover import Subject


def build_of(kernel: str) -> Build:
    """The first build called ``kernel/configuration``; KeyError if there is none."""
    for build in builds():
        if f"{build.name}/{build.configuration}" == kernel:
            return build
    raise KeyError(kernel)


def subjects(kernels: Sequence[str]) -> dict[str, Subject]:
    """What is proved of configurations, by name, without theorems: those follow from specifications alone."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    command = [sys.executable, "-m", "kvsan.ci.proofs.subjects", *kernels]
    answer = json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout)
    found = {}
    for kernel in kernels:
        build, (text, places, signature) = build_of(kernel), answer[kernel]
        lowered = Lowered(text, {int(line): place for line, place in places.items()})
        found[kernel] = Subject(lowered, signature, build.constexprs, specification_of(build.name), theorems=False)
    return found


def main(kernels: Sequence[str]) -> int:
    """Print IR, places in the source and signature of each."""
    found = {}
    for kernel in kernels:
        build = build_of(kernel)
        lowered = lower(build)
        found[kernel] = lowered.text, dict(lowered.places), ordered_signature(build)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
