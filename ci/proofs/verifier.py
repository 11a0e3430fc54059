"""Whether Triton takes a text as IR: its parser and its verifiers, which know every operation's types."""

from __future__ import annotations

import importlib
import re
import tempfile
from pathlib import Path
from typing import Any

from kvsan.invariants.proofs.kernels.lowering import quiet

_ATTRIBUTE = re.compile(r"\{llvm\.data_layout = [^}]*\}")
"""What `lowering` put on the module so that it is printed in generic form."""


class Verifier:
    """Holds one context of MLIR; needs a process that can compile kernels."""

    def __init__(self) -> None:
        self._ir = importlib.import_module("triton._C.libtriton").ir
        target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", 80, 32)
        self._context: Any = self._ir.context()
        self._ir.load_dialects(self._context)
        importlib.import_module("triton.compiler").make_backend(target).load_dialects(self._context)

    def takes(self, text: str) -> bool:
        """Whether the text is well-typed IR."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "module.mlir")
            file.write_text(_ATTRIBUTE.sub("{}", text), encoding="utf-8")
            with quiet():
                try:
                    module = self._ir.parse_mlir_module(str(file), self._context)
                except RuntimeError:
                    return False
                return bool(module.verify())
