"""IR text in MLIR's generic form to `ir`, by xdsl's parser. Nothing is verified here: what is unknown is refused later."""

from __future__ import annotations

import re
import struct
from typing import Any

from xdsl.context import Context
from xdsl.dialects import builtin
from xdsl.ir import Attribute, SSAValue
from xdsl.ir import Block as ParsedBlock
from xdsl.ir import Operation as ParsedOperation
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError

from kvsan.invariants.proofs.kernels.ir import (
    INTEGER,
    OTHER,
    POINTER,
    Block,
    Function,
    Operation,
    Rejected,
    Type,
    Value,
)
from kvsan.invariants.proofs.kernels.places import operations

_HEX = re.compile(r"value = (?:dense<)?0x([0-9A-Fa-f]+)")
_FORMS = {"bf16": ">f", "f16": ">e", "f32": ">f", "f64": ">d"}
_POINTER = re.compile(r"^!tt\.ptr<\s*([\w.]+|!?[\w.]+<[^<>]*>)\s*(?:,\s*\d+\s*)?>$")


def parse(text: str) -> Function:
    """Read the one kernel of a module; Rejected if the text is not that."""
    context = Context(allow_unregistered=True)
    context.load_dialect(builtin.Builtin)
    try:
        module = Parser(context, text).parse_module()
    except ParseError as error:
        raise Rejected(f"the IR cannot be parsed: {str(error).strip().splitlines()[-1]}") from error
    functions = [one for block in module.body.blocks for one in block.ops if _name(one) == "tt.func"]
    if len(functions) != 1:
        raise Rejected(f"{len(functions)} functions in the IR: expected one (a noinline helper is not supported)")
    reader = _Reader(text)
    name = _attributes(functions[0]).get("sym_name")
    if not isinstance(name, builtin.StringAttr):
        raise Rejected("a function without a name")
    return Function(name.data, reader.region(functions[0], 0))


class _Reader:
    """Turns parsed operations into `ir`; finds their lines by counting operations of the same name."""

    def __init__(self, text: str) -> None:
        self._values: dict[int, Value] = {}
        self._kept: list[SSAValue] = []
        self._text = text.splitlines()
        self._lines: dict[str, list[int]] = {}
        for number, name in operations(text):
            self._lines.setdefault(name, []).append(number)
        for lines in self._lines.values():
            lines.reverse()

    def region(self, operation: ParsedOperation, number: int) -> Block:
        blocks = list(operation.regions[number].blocks)
        if len(blocks) != 1:
            raise Rejected(
                f"{len(blocks)} blocks in {_name(operation)}: expected one; write `if` and not an early return"
            )
        return self._block(blocks[0])

    def _block(self, block: ParsedBlock) -> Block:
        arguments = tuple(self._define(one) for one in block.args)
        return Block(arguments, tuple(self._operation(one) for one in block.ops))

    def _operation(self, operation: ParsedOperation) -> Operation:
        name = _name(operation)
        line = self._lines[name].pop() if self._lines.get(name) else 0
        operands = tuple(self._values[id(one)] for one in operation.operands)
        attributes = {key: _plain(one) for key, one in _attributes(operation).items()}
        if name == "arith.constant" and line and (bits := _HEX.search(self._text[line - 1])):
            attributes["value"] = _from_bits(bits[1], str(operation.results[0].type))
        regions = tuple(
            self.region(operation, number) if operation.regions[number].blocks else Block((), ())
            for number in range(len(operation.regions))
        )
        results = tuple(self._define(one) for one in operation.results)
        return Operation(name, operands, results, attributes, regions, line)

    def _define(self, value: SSAValue) -> Value:
        made = self._values[id(value)] = Value(len(self._values), read_type(value.type))
        self._kept.append(value)  # an id is good only while its object lives
        return made


def _from_bits(digits: str, type: str) -> tuple[str, float]:
    """The float that MLIR prints as its bits, as it does with infinities and NaN; xdsl takes them for a number."""
    form = next((form for element, form in _FORMS.items() if element in type), "")
    digits += "0" * 4 * ("bf16" in type)
    if len(digits) != 2 * struct.calcsize(form):
        raise Rejected(f"a constant of type {type} with the bits 0x{digits}")
    return "float", float(struct.unpack(form, bytes.fromhex(digits))[0])


def _name(operation: ParsedOperation) -> str:
    if isinstance(operation, builtin.UnregisteredOp):
        return operation.op_name.data
    return operation.name


def _attributes(operation: ParsedOperation) -> dict[str, Attribute]:
    return {**operation.attributes, **operation.properties}


def read_type(attribute: Attribute) -> Type:
    """Read a type; whatever is neither an integer nor a pointer, nor a block of those, is OTHER."""
    if isinstance(attribute, builtin.TensorType):
        element = read_type(attribute.get_element_type())
        shape = tuple(attribute.get_shape())
        return Type(shape, element.kind, element.width, element.element)
    if isinstance(attribute, builtin.IntegerType):
        return Type((), INTEGER, attribute.width.data, str(attribute))
    if found := _POINTER.match(str(attribute)):
        return Type((), POINTER, 0, found[1])
    return Type((), OTHER, 0, str(attribute))


def _plain(attribute: Attribute) -> Any:
    """An attribute as a Python value: ints, bools, strings, lists of ints; of constants ("splat", int) or ("float", float)."""
    if isinstance(attribute, builtin.IntegerAttr):
        return attribute.value.data
    if isinstance(attribute, builtin.StringAttr):
        return attribute.data
    if isinstance(attribute, builtin.DenseArrayBase):
        return list(attribute.get_values())
    if isinstance(attribute, builtin.DenseIntOrFPElementsAttr):
        if not isinstance(attribute.get_element_type(), builtin.IntegerType):
            numbers = {repr(one): one for one in attribute.get_values()}
            return ("float", next(iter(numbers.values()))) if len(numbers) == 1 else ("floats",)
        values = set(attribute.get_values())
        return ("splat", values.pop()) if len(values) == 1 else ("values",)
    if isinstance(attribute, builtin.FloatAttr):
        return ("float", attribute.value.data)
    return str(attribute)
