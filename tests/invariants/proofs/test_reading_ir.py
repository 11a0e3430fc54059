"""IR text as proofs read it: types, lines, places in the source; and text that they refuse."""

from __future__ import annotations

import pytest
from small_kernels import A, C, Free, kernel, store

from kvsan.invariants.proofs.kernels.execution import execute
from kvsan.invariants.proofs.kernels.ir import INTEGER, OTHER, POINTER, Rejected, Type
from kvsan.invariants.proofs.kernels.parsing import parse
from kvsan.invariants.proofs.kernels.places import operations, places


def test_an_early_return_is_refused() -> None:
    text = kernel(store(A)).replace(
        '    "tt.return"() : () -> ()',
        f'    "cf.cond_br"({C})[^bb1, ^bb2] <{{operandSegmentSizes = array<i32: 1, 0, 0>}}> : (i1) -> ()\n'
        '  ^bb1:\n    "tt.return"() : () -> ()\n  ^bb2:\n    "tt.return"() : () -> ()',
    )
    with pytest.raises(Rejected, match="blocks in tt\\.func: expected one; write `if`"):
        parse(text)


def test_text_that_is_no_ir_is_refused() -> None:
    with pytest.raises(Rejected, match="cannot be parsed"):
        parse(kernel(store(A)).replace("}) : () -> ()", "", 1))
    with pytest.raises(Rejected, match="0 functions in the IR"):
        parse('"builtin.module"() ({\n}) : () -> ()')
    with pytest.raises(Rejected, match="without a name"):
        parse(kernel(store(A)).replace('sym_name = "small"', 'other = "small"'))


def test_a_kernel_with_other_arguments_is_refused() -> None:
    with pytest.raises(Rejected, match="6 arguments in the IR: expected 1"):
        execute(parse(kernel(store(A))), {"out": "*fp32"}, Free())


def test_types_lines_and_attributes() -> None:
    function = parse(kernel(store(A)))
    assert [one.type for one in function.body.arguments[:4]] == [
        Type((), POINTER, 0, "f32"), Type((), POINTER, 0, "i32"), Type((), POINTER, 0, "f32"), Type((), INTEGER, 32, "i32"),
    ]  # fmt: skip
    assert function.body.operations[0].results[0].type == Type((), OTHER, 0, "f32")
    assert [(one.name, one.line) for one in function.body.operations] == [
        ("arith.constant", 4), ("tt.addptr", 5), ("tt.store", 6), ("tt.return", 7),
    ]  # fmt: skip


LOCATED = """\
#loc1 = loc("/somewhere/decode.py":150:5)
#loc2 = loc("/lib/triton/language/standard.py":40:1)
"builtin.module"() ({
  "tt.func"() <{sym_name = "small"}> ({
    %0 = "arith.constant"() <{value = 1 : i32}> : () -> i32 loc(#loc1)
    %1 = "scf.if"(%0) ({
      %2 = "tt.load"() : () -> f32 loc(#loc4)
    }) : (i32) -> i32 loc(#loc3)
  }) : () -> () loc(#loc)
}) : () -> () loc(#loc)
#loc3 = loc(callsite(#loc2 at #loc1))
#loc4 = loc("blocks"(#loc5))
#loc5 = loc("/somewhere/tiles.py":7:3)
"""


def test_places_in_the_source_by_line_of_the_ir() -> None:
    """A region's location is at its end, an inlined function's is its caller's if it is Triton's own, a name's is below it."""
    text = "\n".join(line.partition(" loc(")[0] for line in LOCATED.splitlines() if not line.startswith("#"))
    assert list(operations(text)) == [
        (1, "builtin.module"), (2, "tt.func"), (3, "arith.constant"), (4, "scf.if"), (5, "tt.load"),
    ]  # fmt: skip
    assert places(text, LOCATED) == {3: "decode.py:150", 4: "decode.py:150", 5: "tiles.py:7"}


def test_places_of_another_module_are_none() -> None:
    assert places(kernel(store(A)), LOCATED) == {}
