"""That a loop does with every entry what it does with the first few: read off the source of what a step runs.

A scenario runs a loop for one turn to three. What a step does with longer tables, or more rows, follows if its code cannot
tell one turn from another. So the methods that a step runs, with all that they call, must be written in a small language:
loops go over whole collections and keep nothing from turn to turn; no slice, no index that is a constant, no number but
-1, 0 and 1 and no sum of them, no text to compare names with, no method that calls itself, and no call of anything unknown.
What the reference manager needs besides is `LISTED`, each with its reason.

Methods are found by their names, in every class that is given: whatever a variant overrides is read too. It is a check of how
code is written, and no proof: code that sets out to deceive it, by numbers kept in objects, can.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import Any

from kvsan.invariants.proofs.protocol.bench import Parts

LISTED = {
    "_find: break": "hits end at the first block that is not cached: what is found is a prefix, and any prefix is right",
    "_find: self.keys.upto": "keys of blocks are any numbers: which ones is not part of the system that is proved",
    "publish: self.keys.upto": "keys of blocks are any numbers: which ones is not part of the system that is proved",
    "trim: while len(request.table) > blocks": "each turn takes the last entry off, to a length that one turn and two are run to",
    "_shared_table: parent.table[:kept]": "entries that hold retired tokens: any number of the two or three that are there",
    "launch: row.copied[1]": "the unit of a pair (block number, unit)",
    "_give_back: request.launches[-1]": "the latest launch: that they are in order holds between steps, and two are run",
    "_give_back: (self.consumer or self.tiers).park": "transfers by name are not part of the system that is proved",
    "_leaves_progress: self.tiering.leaves_progress": "tiers are not part of the system that is proved",
    "find: present[0]": "the first of a list of units, whose length is unknown",
    "withdraw: present[0]": "the only one that is left of a list of units, whose length is unknown",
}
"""What is not uniform, or not known, and is right all the same: method and source text, with the reason."""

_NUMBERS = (-1, 0, 1)
_BUILTINS = frozenset({"len", "max", "min", "sum", "reversed", "range", "isinstance", "list", "tuple", "dict", "super"})
_CONTAINERS = frozenset({"append", "extend", "pop", "remove", "clear", "values", "items", "get"})
_CHANGES = frozenset({"append", "extend", "pop", "remove", "clear"})
_WHOLE = frozenset({"values", "items", "keys"})
_KNOWN_MODULES = ("kvsan.gpu_kernels.addressing", "kvsan.harness.target")
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.USub, ast.Not)
_LEAVES = (ast.Break, ast.Continue, ast.Return)
_REFUSED = (
    *(ast.Try, ast.TryStar, ast.With, ast.Match, ast.Lambda, ast.FunctionDef, ast.ClassDef, ast.NamedExpr, ast.Global),
    *(ast.Nonlocal, ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith, ast.AsyncFunctionDef, ast.Import),
    *(ast.ImportFrom, ast.DictComp, ast.SetComp, ast.Set),
)
_LOOPS = (ast.For, ast.While, ast.comprehension)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something in the source of a method that is not of the language: ``line`` counts from the file's first."""

    method: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.method}, line {self.line}: {self.what}"


@dataclass(frozen=True, slots=True)
class Method:
    """A function that a step may run, with its source."""

    function: FunctionType
    tree: ast.FunctionDef
    first_line: int

    @property
    def name(self) -> str:
        """Its name, without that of its class."""
        return self.function.__name__

    def finding(self, node: ast.AST, what: str) -> Finding:
        """Say what is wrong with a node."""
        line = getattr(node, "lineno", 1) + self.first_line - 1
        return Finding(self.function.__qualname__.rpartition("<locals>.")[2], line, what)


class Unread(Exception):
    """A method whose source cannot be had, or that is no plain function."""


def findings(parts: Parts, methods: Iterable[str]) -> list[Finding]:
    """Whatever tells one turn of a loop from another, or might, in all that a step's methods run."""
    try:
        found = reached(parts, methods)
    except Unread as error:
        return [Finding(str(error), 0, "its source cannot be read")]
    return [one for method in found for one in _of_method(method, _owners(parts))]


def loops(parts: Parts, methods: Iterable[str]) -> list[tuple[str, str]]:
    """Loops in all that a step's methods run: the method, and what the loop goes over."""
    return [
        (method.name, ast.unparse(node.test if isinstance(node, ast.While) else node.iter))
        for method in reached(parts, methods)
        for node in ast.walk(method.tree)
        if isinstance(node, _LOOPS)
    ]


def reached(parts: Parts, methods: Iterable[str]) -> list[Method]:
    """Every definition, in every class of the parts, of a name that the methods or what they call call or read."""
    owners = _owners(parts)
    todo, seen, found = [method.rpartition(".")[2] for method in methods], set[str](), []
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        for function in _definitions(owners, name):
            method = _read(function)
            found.append(method)
            todo += [node.attr for node in ast.walk(method.tree) if isinstance(node, ast.Attribute)]
    return found


def _owners(parts: Parts) -> list[type[Any]]:
    return [parts.manager, parts.pool, parts.request, parts.row, parts.in_flight]


def _definitions(owners: Iterable[type[Any]], name: str) -> Iterator[FunctionType]:
    """Functions and properties of a name, in the classes and in those that they inherit from."""
    known: set[int] = set()
    for owner in owners:
        for kind in owner.__mro__:
            member = vars(kind).get(name)
            member = member.fget if isinstance(member, property) else member
            if member is None or id(member) in known or isinstance(member, type) or not _is_code(member):
                continue
            known.add(id(member))
            if not isinstance(member, FunctionType):
                raise Unread(f"{kind.__name__}.{name}")
            yield member


def _is_code(member: object) -> bool:
    """Whether it can be called; slots and constants of a class cannot."""
    return callable(member) or isinstance(member, staticmethod | classmethod)


@cache
def _read(function: FunctionType) -> Method:
    try:
        lines, first_line = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    except (OSError, TypeError, SyntaxError) as error:
        raise Unread(function.__qualname__) from error
    if not isinstance(tree, ast.FunctionDef) or tree.name != function.__name__:
        raise Unread(function.__qualname__)
    return Method(function, tree, first_line)


# -- the language


def _of_method(method: Method, owners: list[type[Any]]) -> Iterator[Finding]:
    tree = method.tree
    if [ast.unparse(one) for one in tree.decorator_list] not in ([], ["property"]):
        yield method.finding(tree, "a decorator may do anything")
    yield from _of_texts(method)
    defaults = [one for one in (*tree.args.defaults, *tree.args.kw_defaults) if one is not None]
    for node in (inner for part in (*defaults, *tree.body) for inner in ast.walk(part)):
        if isinstance(node, _REFUSED):
            yield method.finding(node, f"{type(node).__name__} is not of the language of a step")
        elif isinstance(node, _LOOPS):
            yield from _of_loop(method, node)
        elif isinstance(node, ast.Subscript):
            yield from _of_index(method, node)
        elif isinstance(node, ast.Call):
            yield from _of_call(method, node, owners)
        else:
            yield from _of_number(method, node, owners)


def _of_texts(method: Method) -> Iterator[Finding]:
    """Texts that are no docstrings and no messages: a scenario's requests and launches have names that code could ask for."""
    said = [node for node in ast.walk(method.tree) if isinstance(node, ast.Expr | ast.JoinedStr)]
    said = [node for node in said if isinstance(node, ast.JoinedStr) or isinstance(node.value, ast.Constant)]
    messages = [node.msg for node in ast.walk(method.tree) if isinstance(node, ast.Assert) and node.msg is not None]
    allowed = {id(inner) for node in (*said, *messages) for inner in ast.walk(node)}
    for node in (inner for statement in method.tree.body for inner in ast.walk(statement)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value and id(node) not in allowed:
            yield method.finding(node, f"the text {node.value!r}")


@cache
def _enclosing(function: FunctionType) -> Mapping[str, Any]:
    return inspect.getclosurevars(function).nonlocals


def _is_listed(method: Method, text: str) -> bool:
    return f"{method.name}: {text}" in LISTED


def _of_loop(method: Method, loop: ast.For | ast.While | ast.comprehension) -> Iterator[Finding]:
    if isinstance(loop, ast.While):
        text = f"while {ast.unparse(loop.test)}"
        if not _is_listed(method, text):
            yield method.finding(loop, f"`{text}` is no loop over a collection")
    elif not _is_whole(loop.iter):
        yield method.finding(loop.iter, f"`{ast.unparse(loop.iter)}` is not known to be a whole collection")
    if isinstance(loop, ast.comprehension):
        return
    if loop.orelse:
        yield method.finding(loop, "a loop with an else")
    for node in (inner for statement in loop.body for inner in ast.walk(statement)):
        if isinstance(node, _LEAVES) and not _is_listed(method, ast.unparse(node)):
            yield method.finding(node, f"`{ast.unparse(node)}` ends a loop, or a turn, early")
    stored = {*_stored(loop)}
    kept = sorted(stored & _stored_elsewhere(method, loop))
    if kept:
        yield method.finding(loop, f"{', '.join(kept)} is kept from one turn to the next")
    changed = {
        node.func.value.id
        for node in ast.walk(loop)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)
        if node.func.attr in _CHANGES and node.func.value.id not in stored
    }
    read = [node.id for node in ast.walk(loop) if isinstance(node, ast.Name) and node.id in changed]
    if isinstance(loop, ast.For) and len(read) > len(changed):
        yield method.finding(loop, f"{', '.join(sorted(changed))} is changed and read from one turn to the next")
    own = [ast.unparse(node) for node in _attributes_stored(loop) if ast.unparse(node.value) == "self"]
    if own:
        yield method.finding(loop, f"{', '.join(own)} is kept from one turn to the next")


def _stored(tree: ast.AST) -> Iterator[str]:
    """Local names that are set somewhere."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node.id


def _stored_elsewhere(method: Method, loop: ast.AST) -> set[str]:
    """Local names that are set outside of a loop, where another turn could find what one has left; and the arguments."""
    inside = {id(node) for node in ast.walk(loop)}
    names = {
        node.id
        for node in ast.walk(method.tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in inside
    }
    looped = {name for other in ast.walk(method.tree) if isinstance(other, ast.For) for name in _stored(other.target)}
    return names - looped | {argument.arg for argument in method.tree.args.args}


def _attributes_stored(tree: ast.AST) -> Iterator[ast.Attribute]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node


def _is_whole(iterated: ast.expr) -> bool:
    """A name, an attribute, ``x.values()``, ``reversed(x)``, ``range(a, b)``, or a listed call that stands for one."""
    if isinstance(iterated, ast.Name | ast.Attribute):
        return True
    if not isinstance(iterated, ast.Call) or iterated.keywords:
        return False
    if isinstance(iterated.func, ast.Attribute):
        whole = iterated.func.attr in _WHOLE and not iterated.args
        return whole or ast.unparse(iterated.func) == "self.keys.upto"
    if isinstance(iterated.func, ast.Name) and iterated.func.id in ("reversed", "list", "tuple"):
        return len(iterated.args) == 1 and _is_whole(iterated.args[0])
    bounds = isinstance(iterated.func, ast.Name) and iterated.func.id == "range" and len(iterated.args) <= 2
    return bounds and all(isinstance(one, ast.Name | ast.Attribute) for one in iterated.args)


def _of_index(method: Method, node: ast.Subscript) -> Iterator[Finding]:
    text = ast.unparse(node)
    if isinstance(node.slice, ast.Slice):
        whole = node.slice.lower is node.slice.upper is node.slice.step is None
        if not whole and not _is_listed(method, text):
            yield method.finding(node, f"`{text}` is a part of a collection")
    elif not isinstance(node.slice, ast.Name | ast.Attribute | ast.Subscript) and not _is_listed(method, text):
        yield method.finding(node, f"`{text}` has an index that is no name")


def _of_call(method: Method, node: ast.Call, owners: list[type[Any]]) -> Iterator[Finding]:
    text = ast.unparse(node.func)
    if _is_listed(method, text):
        return
    if text == f"self.{method.name}":
        yield method.finding(node, f"`{text}` calls itself: a loop that is not written as one")
    if isinstance(node.func, ast.Attribute):
        known = node.func.attr in _CONTAINERS or any(_definitions(owners, node.func.attr))
    else:
        known = isinstance(node.func, ast.Name) and _is_known_function(method.function, node.func.id, owners)
    if not known:
        yield method.finding(node, f"`{text}` is called, which is not known")


def _is_known_function(function: FunctionType, name: str, owners: list[type[Any]]) -> bool:
    """Whether a global name is an arithmetic formula, a type of the target's, one of the parts, or a known builtin."""
    if name not in function.__globals__:
        exceptions = inspect.isclass(value := getattr(builtins, name, None)) and issubclass(value, Exception)
        return name in _BUILTINS or exceptions
    value = function.__globals__[name]
    return value in owners or getattr(value, "__module__", "") in _KNOWN_MODULES


def _of_number(method: Method, node: ast.AST, owners: list[type[Any]]) -> Iterator[Finding]:
    """Numbers above 1: written down, put together of smaller ones, or named by a global or a class."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, int | float | complex) and node.value not in _NUMBERS:
            yield method.finding(node, f"the number {node.value}")
    elif isinstance(node, ast.BinOp | ast.UnaryOp):
        constants = sum(isinstance(one, ast.Constant) for one in ast.walk(node))
        if not isinstance(node.op, _OPERATORS) or constants > 1:
            yield method.finding(node, f"the arithmetic of `{ast.unparse(node)}`")
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        value = _enclosing(method.function).get(node.id, method.function.__globals__.get(node.id))
        if isinstance(value, int | float | complex) and value not in _NUMBERS:
            yield method.finding(node, f"the number {node.id}")
    elif isinstance(node, ast.Attribute):
        values = [vars(kind).get(node.attr) for owner in owners for kind in owner.__mro__]
        if any(isinstance(value, int | float | complex) and value not in _NUMBERS for value in values):
            yield method.finding(node, f"the number {node.attr}")
