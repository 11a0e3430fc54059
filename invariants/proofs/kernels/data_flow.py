"""What becomes of data: which load a store writes, and what a guard puts in place of what it masks.

Nothing is known of a number that is data; where it comes from can be read off the IR all the same. From what is stored the
way leads back through operations that keep a number, or round it, to the load; anything else on the way is refused.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvsan.invariants.proofs.kernels.execution import LOAD, STORE, Access, Guard, Run
from kvsan.invariants.proofs.kernels.ir import Block, Function, Operation, Rejected, Value
from kvsan.invariants.proofs.kernels.unknown_launch import UnknownLaunch

_KEEPS = frozenset(("arith.truncf", "arith.extf", "tt.fp_to_fp", "arith.bitcast", "tt.bitcast", "ttg.convert_layout"))
"""They keep each lane where it is, and its number up to rounding or reading its bits as another type."""

_REPEATS = frozenset(("tt.splat", "tt.broadcast", "ttg.convert_layout", "tt.expand_dims"))
"""They keep a constant what it is."""


def check_data(function: Function, run: Run, launch: UnknownLaunch) -> None:
    """Rejected if a store writes another load's data than the specification says, or a guard another constant."""
    flow = _Flow(function)
    for access in run.accesses if launch.specification.accesses is not None else ():
        source = launch.expected(access).source
        if access.kind == STORE and source is not None:
            found = _load_at(run, flow.origin(access))
            if found is None or found.tensor != source:
                came = "something else" if found is None else found.tensor
                raise Rejected(
                    f"line {access.line}: what is stored to {access.tensor} comes from {came}, expected {source}"
                )
    for guard, expected in zip(run.guards, launch.specification.guards or (), strict=False):
        if expected.otherwise is not None and flow.constant(guard) != expected.otherwise:
            raise Rejected(f"line {guard.line}: a guard puts in {flow.constant(guard)}, expected {expected.otherwise}")


def _load_at(run: Run, line: int) -> Access | None:
    return next((one for one in run.accesses if one.kind == LOAD and one.line == line), None)


class _Flow:
    def __init__(self, function: Function) -> None:
        operations = list(_operations(function.body))
        self._made_by = {result.name: one for one in operations for result in one.results}
        self._at = {one.line: one for one in operations}

    def origin(self, store: Access) -> int:
        """Line of the operation that what is stored comes from; 0 if that is none, such as an argument."""
        made = self._back(self._at[store.line].operands[1], _KEEPS)
        return made.line if made is not None else 0

    def constant(self, guard: Guard) -> float | None:
        """What a guard puts in: the only constant of its two."""
        found = []
        for operand in self._at[guard.line].operands[1:]:
            made = self._back(operand, _REPEATS)
            value = made.attributes["value"] if made is not None and made.name == "arith.constant" else None
            if isinstance(value, tuple) and value[0] == "float":
                found.append(float(value[1]))
        return found[0] if len(found) == 1 else None

    def _back(self, value: Value, through: frozenset[str]) -> Operation | None:
        made = self._made_by.get(value.name)
        while made is not None and made.name in through:
            made = self._made_by.get(made.operands[0].name)
        return made


def _operations(block: Block) -> Iterator[Operation]:
    for operation in block.operations:
        yield operation
        for region in operation.regions:
            yield from _operations(region)
