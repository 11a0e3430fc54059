"""The functions that proofs of addressing are about: the real ones, which managers and kernels' host side call.

A theorem takes them as an argument, so that it can be asked of others: of broken ones, to see that it notices.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from types import FunctionType
from typing import Any, TypeAlias

from kvsan.gpu_kernels import addressing, formats, sharding
from kvsan.invariants.proofs.term import Number

Function: TypeAlias = Callable[..., Number]
PairFunction: TypeAlias = Callable[..., tuple[Number, Number]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Functions:
    """Address arithmetic as ``addressing`` and ``sharding`` have it, by the names there, and two classes."""

    block_of: Function = addressing.block_of
    offset_of: Function = addressing.offset_of
    slot_of: Function = addressing.slot_of
    unit_of: Function = addressing.unit_of
    blocks_for: Function = addressing.blocks_for
    full_blocks: Function = addressing.full_blocks
    first_visible: Function = addressing.first_visible
    first_visible_in_chunk: Function = addressing.first_visible_in_chunk
    first_visible_block: Function = addressing.first_visible_block
    heads_per_rank: Function = addressing.heads_per_rank
    aligned: Function = addressing.aligned
    part_bytes_of: Function = addressing.part_bytes_of
    part_start_of: Function = addressing.part_start_of
    page_bytes_of: Function = addressing.page_bytes_of
    most_units: Function = addressing.most_units
    replicas_of_head: Function = sharding.replicas_of_head
    first_head_of: Function = sharding.first_head_of
    first_rank_of: Function = sharding.first_rank_of
    local_head_of: Function = sharding.local_head_of
    first_query_head_of: Function = sharding.first_query_head_of
    holder_of: Function = sharding.holder_of
    local_of: Function = sharding.local_of
    position_of: Function = sharding.position_of
    local_length_of: Function = sharding.local_length_of
    local_slot_of: Function = sharding.local_slot_of
    rank_of: Function = sharding.rank_of
    tp_rank_of: Function = sharding.tp_rank_of
    cp_rank_of: Function = sharding.cp_rank_of
    nhd_vector_of: Function = sharding.nhd_vector_of
    nhd_element_of: PairFunction = sharding.nhd_element_of
    hnd_vector_of: Function = sharding.hnd_vector_of
    hnd_element_of: PairFunction = sharding.hnd_element_of
    vector_strides: PairFunction = sharding.vector_strides
    Layout: Callable[..., Any] = sharding.Layout
    Format: Callable[..., Any] = formats.Format


REAL = Functions()
"""What runs in managers and kernels' host side."""

NAMES = tuple(field.name for field in fields(Functions))


def recorded(functions: Functions, calls: list[str]) -> Functions:
    """The same functions, each call of which is noted as text, such as ``slot_of(2, 1, 4) = 9``."""

    def noting(name: str) -> Callable[..., Any]:
        function = getattr(functions, name)
        if name in ("Layout", "Format"):
            return lambda **fields: _Noted(name.lower(), function(**fields), calls)
        return _noting(name, function, calls)

    return replace(functions, **{name: noting(name) for name in NAMES})


class _Noted:
    """A layout or a format whose methods' calls, and properties, are noted."""

    def __init__(self, name: str, object_: Any, calls: list[str]) -> None:
        self._name, self._object, self._calls = name, object_, calls

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._object, name)
        if callable(value):
            return _noting(f"{self._name}.{name}", value, self._calls)
        self._calls.append(f"{self._name}.{name} = {value}")
        return value


def _noting(name: str, function: Callable[..., Any], calls: list[str]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        result = function(*arguments)
        text = f"{name}({', '.join(map(str, arguments))}) = {result}"
        if text not in calls:
            calls.append(text)
        return result

    return call


def source_of(names: Iterable[str]) -> str:
    """Hash of the source of real functions, and of what they call and read of their modules: sha256 in hex."""
    texts: dict[str, str] = {}
    todo: list[Any] = [getattr(REAL, name) for name in names]
    while todo:
        one = todo.pop()
        if one.__qualname__ in texts:
            continue
        texts[one.__qualname__] = inspect.getsource(one)
        parts = [one] if isinstance(one, FunctionType) else _methods(one)
        for part in parts:
            for name in part.__code__.co_names:
                found = part.__globals__.get(name)
                if isinstance(found, FunctionType) and found.__module__.startswith("kvsan."):
                    todo.append(found)
                elif isinstance(found, int):
                    texts[name] = f"{name} = {found}"
    return hashlib.sha256("\n".join(texts[name] for name in sorted(texts)).encode()).hexdigest()


def _methods(of: type) -> list[FunctionType]:
    members = (value.fget if isinstance(value, property) else value for value in vars(of).values())
    return [one for one in members if isinstance(one, FunctionType) and one.__module__ == of.__module__]
