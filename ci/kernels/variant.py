"""Broken variants of the kernels: the real source with one text replaced, to show that checks can fail.

A variant is not for use. Its modules are written to a temporary folder, since Triton reads kernels from files, and are
imported under names of their own; kernels that import a broken module are imported again, against the broken one.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from kvsan.ci.kernels.kernel_set import KERNELS, KernelSet
from kvsan.gpu_kernels import tiles

_FUNCTIONS = {
    "write": {"write": "write"},
    "decode": {"decode": "decode"},
    "prefill": {"prefill": "prefill"},
    "copy": {
        "copy_blocks": "copy_blocks",
        "gather_blocks": "gather_blocks",
        "scatter_blocks": "scatter_blocks",
        "reshard": "reshard",
    },
    "quant": {"quant_write": "write", "quant_gather": "gather"},
    "mla": {"mla_write": "mla_write", "mla": "mla"},
}
"""Of each module of kernels: fields of ``KernelSet``, and the functions that they are."""

IMPORTERS = {"tiles": ("decode", "prefill", "quant", "mla")}
"""Modules whose kernels call those of another module."""

SOURCES = Path(tiles.__file__).parent


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel with one mistake.

    ``module`` of ``gpu_kernels`` in which ``old``, which is there once, becomes ``new``; ``mechanism``: what is wrong;
    ``problems``: which of ``trials.STREAMS`` it is given; ``seen_by``: a check that sees it there (``Failure.check``);
    ``source``: public reports of this mechanism, empty if it is an obvious mistake that none was found of.
    """

    name: str
    module: str
    problems: str
    old: str
    new: str
    mechanism: str
    seen_by: str
    source: str = ""

    def text(self) -> str:
        """Return the source of the broken module; ValueError unless ``old`` is in the real one exactly once."""
        text = (SOURCES / f"{self.module}.py").read_text("utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.module}.py has {text.count(self.old)} of {self.old!r}, expected 1")
        return text.replace(self.old, self.new)


@contextmanager
def loaded(variant: Variant) -> Iterator[KernelSet]:
    """Import a variant; the kernels are good inside only, where their source lies on disk."""
    broken_name = f"kvsan_broken_{variant.module}"
    names = [broken_name]
    with tempfile.TemporaryDirectory(prefix="kvsan-broken-") as folder:
        try:
            broken = _import(broken_name, Path(folder, f"{variant.module}.py"), variant.text())
            found = _functions(variant.module, broken)
            for importer in IMPORTERS.get(variant.module, ()):
                text = (SOURCES / f"{importer}.py").read_text("utf-8")
                text = text.replace(f"kvsan.gpu_kernels.{variant.module} import", f"{broken_name} import")
                names.append(f"kvsan_broken_{importer}")
                found |= _functions(importer, _import(names[-1], Path(folder, f"{importer}.py"), text))
            yield replace(KERNELS, **found)
        finally:
            for name in names:
                sys.modules.pop(name, None)


def _import(name: str, path: Path, text: str) -> ModuleType:
    path.write_text(text, "utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _functions(name: str, module: ModuleType) -> dict[str, Any]:
    return {field: getattr(module, function) for field, function in _FUNCTIONS.get(name, {}).items()}
