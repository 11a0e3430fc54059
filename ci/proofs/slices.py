"""Which values of a kernel its proof is about: those that reach an address, a mask, a loop's bound, a branch or a guard.

A value is **data** if it is a float, comes from a tensor that is no index tensor, is made of bits, or is made of data: no
address depends on it (the proof refuses such kernels), so a mutant of it changes numbers and no access. From the operands
that decide about accesses, `observed` walks back along definitions and stops at data. What it does not reach is left to the
checks of numbers: a mutant there is not counted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from kvsan.invariants.proofs.kernels.ir import OTHER, POINTER, Block, Function, Operation, Value
from kvsan.invariants.proofs.kernels.semantics import BITWISE


@dataclass(frozen=True, slots=True)
class Slice:
    """``values``: names of values that matter; ``operations`` by line of the text; ``data``: names of data."""

    values: frozenset[int]
    data: frozenset[int]
    operations: dict[int, Operation]

    def makes(self, line: int) -> bool:
        """Whether the operation of a line has a result that matters."""
        operation = self.operations.get(line)
        return operation is not None and any(one.name in self.values for one in operation.results)

    def is_guard(self, line: int) -> bool:
        """Whether it is a select between data by a condition that is none."""
        operation = self.operations.get(line)
        return operation is not None and _is_guard(operation, self.data)


def observed(function: Function, index_tensors: Collection[int]) -> Slice:
    """Slice of a kernel; ``index_tensors``: positions of the arguments whose contents are no data."""
    flow = _Flow(function, index_tensors)
    found = set[int]()
    todo = [one for operation in flow.operations for one in _deciding(operation, flow.data)]
    while todo:
        value = todo.pop()
        if value.name not in found and value.name not in flow.data:
            found.add(value.name)
            todo += flow.sources.get(value.name, [])
    by_line = {operation.line: operation for operation in flow.operations if operation.line}
    return Slice(frozenset(found), frozenset(flow.data), by_line)


def _deciding(operation: Operation, data: Collection[int]) -> list[Value]:
    """Operands that decide whether and where memory is accessed, or which data is taken."""
    operands = list(operation.operands)
    if operation.name == "tt.load":
        return operands[:2] if operation.attributes.get("operandSegmentSizes", [1, 1])[1:2] == [1] else operands[:1]
    if operation.name == "tt.store":
        return [operands[0], *operands[2:]]
    if operation.name == "scf.for":
        return operands[:3]
    if operation.name in ("scf.if", "scf.condition", "tt.assert"):
        return operands[:1]
    return operands[:1] if _is_guard(operation, data) else []


def _is_guard(operation: Operation, data: Collection[int]) -> bool:
    return (
        operation.name == "arith.select"
        and operation.results[0].type.kind == OTHER
        and operation.operands[0].name not in data
    )


class _Flow:
    """Definitions by value, and what is data."""

    def __init__(self, function: Function, index_tensors: Collection[int]) -> None:
        self.operations = list(_walk(function.body))
        self.sources: dict[int, list[Value]] = {}
        self.data = {one.name for one in function.body.arguments if one.type.kind == OTHER}
        self._base = {
            one.name: number for number, one in enumerate(function.body.arguments) if one.type.kind == POINTER
        }
        self._index_tensors = index_tensors
        for operation in self.operations:
            for value, sources in _definitions(operation):
                self.sources.setdefault(value.name, []).extend(sources)
        before = -1
        while before != len(self.data) + len(self._base):  # loops carry data back
            before = len(self.data) + len(self._base)
            for operation in self.operations:
                self._spread(operation)

    def _spread(self, operation: Operation) -> None:
        for value, sources in _definitions(operation):
            if value.type.kind == POINTER:
                for one in sources:
                    if one.name in self._base:
                        self._base[value.name] = self._base[one.name]
            elif self._is_data(operation, value, sources):
                self.data.add(value.name)

    def _is_data(self, operation: Operation, value: Value, sources: list[Value]) -> bool:
        if value.type.kind == OTHER:
            return True
        if operation.name == "tt.load":
            return self._base.get(operation.operands[0].name) not in self._index_tensors
        bits = operation.name in BITWISE and value.type.width > 1
        return bits or operation.name == "tt.reduce" or any(one.name in self.data for one in sources)


def _definitions(operation: Operation) -> Iterator[tuple[Value, list[Value]]]:
    """What each value that an operation defines comes from."""
    operands, regions = list(operation.operands), operation.regions
    if operation.name == "scf.for":
        yielded = _yielded(regions[0])
        variable, *carried = regions[0].arguments
        yield variable, operands[:3]
        for value, result, first, next in zip(carried, operation.results, operands[3:], yielded, strict=True):
            yield value, [first, next]
            yield result, [first, next]
    elif operation.name == "scf.if":
        for result, one, other in zip(operation.results, _yielded(regions[0]), _yielded(regions[1]), strict=True):
            yield result, [operands[0], one, other]
    elif operation.name == "scf.while":
        passed = _yielded(regions[0])[1:]
        for value, first, next in zip(regions[0].arguments, operands, _yielded(regions[1]), strict=True):
            yield value, [first, next]
        for value, result, one in zip(regions[1].arguments, operation.results, passed, strict=True):
            yield value, [one]
            yield result, [one]
    else:
        for result in operation.results:
            yield result, operands


def _yielded(block: Block) -> list[Value]:
    return list(block.operations[-1].operands) if block.operations else []


def _walk(block: Block) -> Iterator[Operation]:
    for operation in block.operations:
        yield operation
        if operation.name.startswith("scf."):
            for region in operation.regions:
                yield from _walk(region)
