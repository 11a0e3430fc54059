"""Import stand-ins for heavy packages that an engine's manager code imports and never uses.

``transformers``, ``xgrammar``, ``fastapi`` and their like take gigabytes and seconds, and none of them decides which
block a request gets. ``install`` puts a finder in front of ``sys.meta_path`` that answers for them with permissive
fakes: any attribute exists, any call returns something, any name can be a base class or an annotation.

Meant for a worker process that drives one engine: the fakes stay. What KVSan itself needs (torch, triton, numpy, numba)
is never stood in for.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.metadata
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

PACKAGES = frozenset(
    {
        "aiohttp",
        "anthropic",
        "astor",
        "blake3",
        "compressed_tensors",
        "cpuinfo",
        "cv2",
        "depyf",
        "diskcache",
        "einops",
        "fastapi",
        "gguf",
        "huggingface_hub",
        "lark",
        "llguidance",
        "lm_format_enforcer",
        "mcp",
        "mistral_common",
        "openai",
        "openai_harmony",
        "opentelemetry",
        "outlines",
        "outlines_core",
        "partial_json_parser",
        "PIL",
        "prometheus_client",
        "prometheus_fastapi_instrumentator",
        "pybase64",
        "ray",
        "safetensors",
        "sentencepiece",
        "setproctitle",
        "starlette",
        "tiktoken",
        "tokenizers",
        "torchaudio",
        "torchvision",
        "transformers",
        "uvloop",
        "watchfiles",
        "xformers",
        "xgrammar",
    }
)

VERSION = "99.0.0"
"""What the stand-ins say when an engine asks for their version."""


class _StandInType(type):
    """Class of stand-in classes: every attribute is another stand-in class."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(name)

    def __or__(cls, _other: object) -> Any:
        return cls

    def __ror__(cls, _other: object) -> Any:
        return cls

    def __iter__(cls) -> Iterator[Any]:
        return iter(())

    def __contains__(cls, _item: object) -> bool:
        return False


class _StandIn(metaclass=_StandInType):
    """A fake class; called with one function or class it returns that, so that it can stand in for a decorator."""

    def __new__(cls, *arguments: Any, **options: Any) -> Any:
        if len(arguments) == 1 and not options and isinstance(arguments[0], types.FunctionType | type):
            return arguments[0]
        return object.__new__(cls)

    def __init__(self, *_arguments: Any, **_options: Any) -> None:
        pass

    def __call__(self, *arguments: Any, **_options: Any) -> Any:
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(name)

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __class_getitem__(cls, _item: object) -> Any:
        return cls

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: object, _handler: object) -> Any:
        from pydantic_core import core_schema

        return core_schema.any_schema()


def _stand_in(name: str) -> Any:
    return _StandInType(name, (_StandIn,), {"__module__": __name__})


class _StandInModule(types.ModuleType):
    """A module in which every public name is a stand-in class."""

    __version__ = VERSION

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _stand_in(name)
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers for ``PACKAGES`` and everything below them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] in PACKAGES:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _StandInModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def install() -> None:
    """Put the stand-ins in front of the import system of this process; a second call does nothing."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder())
    real_version = importlib.metadata.version
    names = {name.lower() for name in PACKAGES}

    def version(distribution_name: str) -> str:
        if distribution_name.replace("-", "_").lower() in names:
            return VERSION
        return real_version(distribution_name)

    importlib.metadata.version = version
