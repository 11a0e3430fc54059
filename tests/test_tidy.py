"""The house rules that a machine can check; each check is a function over a root folder, and is shown to trip."""

from __future__ import annotations

import ast
import graphlib
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]

FOLDERS = ("gpu_kernels", "harness", "invariants", "models_under_test", "fuzz", "ci", "cli")

BELOW_FUZZ = ("kvsan.gpu_kernels", "kvsan.harness", "kvsan.invariants", "kvsan.models_under_test")
MAY_IMPORT = {
    "gpu_kernels": (),
    "harness": ("kvsan.gpu_kernels",),
    "invariants": ("kvsan.harness", "kvsan.gpu_kernels.addressing"),
    "invariants.proofs": ("kvsan.harness", "kvsan.gpu_kernels"),
    "models_under_test": ("kvsan.harness", "kvsan.gpu_kernels.addressing", "kvsan.gpu_kernels.sharding"),
    "fuzz": BELOW_FUZZ,
    "ci": (*BELOW_FUZZ, "kvsan.fuzz"),
    "cli": (*BELOW_FUZZ, "kvsan.fuzz", "kvsan.ci"),
}
"""What each layer, a folder or a part of one with rules of its own, may import besides itself; docs/design.md says why."""

MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 60
VAGUE_NAMES = {"utils", "helpers", "common", "misc"}
MACHINE_FOLDERS = ("work", "farm", "root", "home")
NOT_OURS = ("build", "dist", "findings", "__pycache__")


class Import(NamedTuple):
    """One imported module; ``lazy`` inside a function, ``typing_only`` under TYPE_CHECKING."""

    line: int
    target: str
    lazy: bool
    typing_only: bool


class Module(NamedTuple):
    name: str
    path: Path
    tree: ast.Module
    imports: list[Import]

    @property
    def folder(self) -> str:
        return self.name.split(".")[1]

    @property
    def package(self) -> str:
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]


def modules_of(root: Path) -> dict[str, Module]:
    paths = {}
    for path in (path for folder in FOLDERS for path in sorted((root / folder).rglob("*.py"))):
        parts = path.relative_to(root).with_suffix("").parts
        paths[".".join(("kvsan", *parts)).removesuffix(".__init__")] = path
    found = {}
    for name, path in paths.items():
        tree = ast.parse(path.read_text("utf-8"), str(path))
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        found[name] = Module(name, path, tree, list(imports_of(tree, package, set(paths))))
    return found


def imports_of(
    node: ast.AST, package: str, known: set[str], lazy: bool = False, typing_only: bool = False
) -> Iterator[Import]:
    """Walk a tree; ``from package import name`` counts as an import of ``package.name`` if that is a known module."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(node.lineno, alias.name, lazy, typing_only)
    elif isinstance(node, ast.ImportFrom):
        parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        base = ".".join([*parents, *([node.module] if node.module else [])])
        for alias in node.names:
            whole = f"{base}.{alias.name}"
            yield Import(node.lineno, whole if whole in known else base, lazy, typing_only)
    elif isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        for child in node.body:
            yield from imports_of(child, package, known, lazy, True)
        for child in node.orelse:
            yield from imports_of(child, package, known, lazy, typing_only)
    else:
        inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from imports_of(child, package, known, inside, typing_only)


def is_within(name: str, package: str) -> bool:
    return f"{name}.".startswith(f"{package}.")


def layer_of(name: str) -> str:
    """The innermost layer that a module is in, "" if it is in none."""
    return max((layer for layer in MAY_IMPORT if is_within(name, f"kvsan.{layer}")), key=len, default="")


def wrong_directions(root: Path) -> list[str]:
    """Imports that point upwards, or from the harness to what loads Triton."""
    modules = modules_of(root)
    found = []
    for module in modules.values():
        layer = layer_of(module.name)
        allowed = MAY_IMPORT[layer]
        for item in module.imports:
            place = f"{module.path.relative_to(root)}:{item.line}: imports {item.target}"
            inside = layer_of(item.target) == layer or any(is_within(item.target, name) for name in allowed)
            if is_within(item.target, "kvsan") and not inside:
                found.append(f"{place}; {layer} may import {', '.join(allowed) or 'nobody'}")
            elif module.folder == "harness" and item.target in modules and loads_triton(item.target, modules):
                found.append(f"{place}, which loads Triton")
            elif module.folder == "harness" and is_within(item.target, "triton"):
                found.append(place)
    return found


def loads_triton(name: str, modules: dict[str, Module]) -> bool:
    """Whether importing a module of ``gpu_kernels`` imports Triton at once, by itself or through others."""
    todo, seen = [name], set()
    while todo:
        current = todo.pop()
        if is_within(current, "triton"):
            return True
        if current in modules and current not in seen and is_within(current, "kvsan.gpu_kernels"):
            seen.add(current)
            todo += [item.target for item in modules[current].imports if not item.lazy and not item.typing_only]
    return False


def bare_imports(root: Path) -> list[str]:
    """Imports of a folder by its bare name, which work by accident of the current folder only."""
    found = []
    for path in (path for folder in (*FOLDERS, "tests") for path in sorted((root / folder).rglob("*.py"))):
        for item in imports_of(ast.parse(path.read_text("utf-8")), "bare", set()):
            if item.target.split(".")[0] in FOLDERS:
                found.append(f"{path.relative_to(root)}:{item.line}: imports {item.target} without kvsan")
    return found


def circles(root: Path) -> list[str]:
    """Circles between modules, and between packages; imports for type checkers alone do not count."""
    modules = modules_of(root)
    by_module: dict[str, set[str]] = {name: set() for name in modules}
    by_package: dict[str, set[str]] = {module.package: set() for module in modules.values()}
    for module in modules.values():
        targets = {item.target for item in module.imports if not item.typing_only} & modules.keys()
        by_module[module.name] |= targets
        by_package[module.package] |= {modules[target].package for target in targets} - {module.package}
    found = []
    for graph in (by_module, by_package):
        try:
            graphlib.TopologicalSorter(graph).prepare()
        except graphlib.CycleError as error:
            found.append(" <- ".join(error.args[1]))
    return found


def oversized(root: Path) -> list[str]:
    """Modules and functions that are two things."""
    found = []
    for module in modules_of(root).values():
        place = module.path.relative_to(root)
        lines = len(module.path.read_text("utf-8").splitlines())
        if lines > MAX_MODULE_LINES:
            found.append(f"{place}: {lines} lines, at most {MAX_MODULE_LINES}")
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                lines = node.end_lineno - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    found.append(f"{place}:{node.lineno}: {node.name} has {lines} lines, at most {MAX_FUNCTION_LINES}")
    return found


def vague_names(root: Path) -> list[str]:
    """Modules whose names say nothing."""
    found = (module.path.relative_to(root) for module in modules_of(root).values())
    return [str(path) for path in found if VAGUE_NAMES & {*path.with_suffix("").parts}]


def docstring_checks_off(root: Path) -> list[str]:
    """Places where ruff's check that public names have docstrings is switched off."""
    lint = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["ruff"]["lint"]
    found = [] if "D1" in lint["select"] else ["pyproject.toml: ruff does not select D1"]
    found += [f"pyproject.toml: ruff ignores {rule}" for rule in lint.get("ignore", ()) if rule in ALL_DOCSTRING_RULES]
    for pattern, rules in lint.get("per-file-ignores", {}).items():
        if pattern != "tests/**" and any(rule.startswith("D") for rule in rules):
            found.append(f"pyproject.toml: ruff ignores docstrings in {pattern}")
    for module in modules_of(root).values():
        for number, line in enumerate(module.path.read_text("utf-8").splitlines(), 1):
            if re.search(r"#\s*(ruff:|flake8:)?\s*noqa(?!:)|#.*noqa:[^#]*\bD\d*", line):
                found.append(f"{module.path.relative_to(root)}:{number}: {line.strip()}")
    return found


ALL_DOCSTRING_RULES = {"D", "D1", *(f"D10{n}" for n in (0, 1, 2, 3, 4, 6))}
"""Magic methods (D105) and constructors (D107) need none."""


def package_list_errors(root: Path) -> list[str]:
    """Differences between the packages in pyproject.toml and the folders that hold modules."""
    setuptools = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    listed = set(setuptools["packages"])
    folders = {path.parent for path in our_files(root) if path.suffix == ".py" and path.parent != root}
    packages = {path.relative_to(root).parts for path in folders}
    in_tree = {".".join(("kvsan", *parts)) for parts in packages if parts[0] not in ("tests", "docs")}
    found = [f"{name}: a folder with modules, not a package in pyproject.toml" for name in sorted(in_tree - listed)]
    found += [f"{name}: a package in pyproject.toml without modules" for name in sorted(listed - in_tree)]
    for name in sorted(in_tree & listed):
        if not root.joinpath(*name.split(".")[1:], "__init__.py").exists():
            found.append(f"{name}: no __init__.py")
    expected = {f"kvsan.{name.split('.')[1]}": name.split(".")[1] for name in listed}
    if setuptools["package-dir"] != expected:
        found.append(f"package-dir: expected {expected}")
    return found


def our_files(root: Path) -> Iterator[Path]:
    for path in sorted(root.iterdir()):
        hidden = path.name.startswith(".") and path.name not in (".ci", ".gitignore")
        if hidden or path.name in NOT_OURS or path.name.endswith(".egg-info") or path.is_symlink():
            continue
        if path.is_dir():
            yield from our_files(path)
        else:
            yield path


def machine_paths(root: Path) -> list[str]:
    """Paths that exist on one machine only."""
    pattern = re.compile(rf"(?<![\w.])/(?:{'|'.join(MACHINE_FOLDERS)})(?:/|$)".encode(), re.MULTILINE)
    return [str(path.relative_to(root)) for path in our_files(root) if pattern.search(path.read_bytes())]


Check = Callable[[Path], list[str]]

CHECKS: tuple[Check, ...] = (
    wrong_directions,
    bare_imports,
    circles,
    oversized,
    vague_names,
    docstring_checks_off,
    package_list_errors,
    machine_paths,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_tree_is_tidy(check: Check) -> None:
    assert check(ROOT) == []


TIDY = {
    "pyproject.toml": """
[tool.setuptools]
packages = ["kvsan.gpu_kernels", "kvsan.harness", "kvsan.fuzz"]
package-dir = { "kvsan.gpu_kernels" = "gpu_kernels", "kvsan.harness" = "harness", "kvsan.fuzz" = "fuzz" }
[tool.ruff.lint]
select = ["E", "D1"]
ignore = ["D105"]
""",
    "gpu_kernels/__init__.py": "",
    "gpu_kernels/interface.py": "def load():\n    from kvsan.gpu_kernels import write\n    return write",
    "gpu_kernels/write.py": "import triton.language as tl",
    "gpu_kernels/decode.py": "from .write import tl",
    "harness/__init__.py": "",
    "harness/target.py": "from kvsan.gpu_kernels import interface  # noqa: E501",
    "harness/session.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from . import trace",
    "harness/trace.py": "from . import session, target\nimport numpy",
    "fuzz/__init__.py": "from kvsan.harness.trace import numpy",
    "tests/test_fuzz.py": "import kvsan.fuzz",
}

UNTIDY: list[tuple[Check, dict[str, str], str]] = [
    (wrong_directions, {"harness/a.py": "import kvsan.fuzz"}, "harness/a.py:1: imports kvsan.fuzz; harness may"),
    (
        wrong_directions,
        {"harness/a.py": "def f():\n    from kvsan.fuzz import b"},
        "harness/a.py:2: imports kvsan.fuzz",
    ),
    (wrong_directions, {"harness/a.py": "from ..cli import b"}, "imports kvsan.cli"),
    (wrong_directions, {"gpu_kernels/a.py": "import kvsan.harness.trace"}, "gpu_kernels may import nobody"),
    (wrong_directions, {"harness/a.py": "from kvsan.gpu_kernels import write"}, "write, which loads Triton"),
    (wrong_directions, {"harness/a.py": "from kvsan.gpu_kernels.decode import tl"}, "decode, which loads Triton"),
    (wrong_directions, {"harness/a.py": "import triton"}, "imports triton"),
    (
        wrong_directions,
        {"invariants/a.py": "import kvsan.gpu_kernels.interface"},
        "imports kvsan.gpu_kernels.interface",
    ),
    (wrong_directions, {"models_under_test/a.py": "import kvsan.invariants"}, "imports kvsan.invariants"),
    (
        wrong_directions,
        {"invariants/proofs/a.py": "import kvsan.models_under_test"},
        "invariants.proofs may import kvsan.harness",
    ),
    (wrong_directions, {"invariants/proofs/a.py": "import kvsan.invariants.b"}, "imports kvsan.invariants.b"),
    (wrong_directions, {"invariants/a.py": "import kvsan.invariants.proofs.b"}, "invariants/a.py:1: imports"),
    (wrong_directions, {"ci/a.py": "from kvsan import cli"}, "ci/a.py:1"),
    (bare_imports, {"fuzz/a.py": "from harness.trace import Trace"}, "fuzz/a.py:1: imports harness.trace"),
    (bare_imports, {"tests/test_a.py": "import gpu_kernels"}, "tests/test_a.py:1"),
    (circles, {"harness/target.py": "import kvsan.harness.trace"}, "kvsan.harness.target"),
    (circles, {"harness/target.py": "def f():\n    from . import trace"}, "kvsan.harness.target"),
    (circles, {"harness/x/__init__.py": "from .. import a", "harness/b.py": "from . import x"}, "kvsan.harness.x"),
    (oversized, {"fuzz/a.py": "\n" * 401}, "fuzz/a.py: 401 lines"),
    (oversized, {"fuzz/a.py": "def f():\n" + "    pass\n" * 60}, "f has 61 lines"),
    (vague_names, {"fuzz/utils.py": ""}, "fuzz/utils.py"),
    (docstring_checks_off, {"fuzz/a.py": "def f(): ...  # noqa: E501, D103"}, "fuzz/a.py:1"),
    (docstring_checks_off, {"fuzz/a.py": "# ruff: noqa"}, "fuzz/a.py:1"),
    (docstring_checks_off, {"fuzz/a.py": "x = 1  # noqa"}, "fuzz/a.py:1"),
    (docstring_checks_off, {"pyproject.toml": '[tool.ruff.lint]\nselect = ["E"]'}, "does not select D1"),
    (docstring_checks_off, {"pyproject.toml": '[tool.ruff.lint]\nselect = ["D1"]\nignore = ["D103"]'}, "ignores D103"),
    (package_list_errors, {"harness/report/a.py": ""}, "kvsan.harness.report: a folder with modules"),
    (package_list_errors, {"stray/a.py": ""}, "kvsan.stray: a folder"),
    (machine_paths, {"docs/a.md": f"see /{MACHINE_FOLDERS[0]}/main"}, "docs/a.md"),
    (machine_paths, {".ci/run": f"cd /{MACHINE_FOLDERS[2]}"}, ".ci/run"),
]


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_tidy_tree_trips_no_check(check: Check, tmp_path: Path) -> None:
    assert check(plant(tmp_path, TIDY)) == []


@pytest.mark.parametrize(("check", "files", "message"), UNTIDY)
def test_an_untidy_tree_trips_the_check(check: Check, files: dict[str, str], message: str, tmp_path: Path) -> None:
    found = check(plant(tmp_path, TIDY | files))
    assert any(message in complaint for complaint in found), found


def test_a_package_without_modules_is_noticed(tmp_path: Path) -> None:
    files = {name: text for name, text in TIDY.items() if not name.startswith("fuzz/")}
    assert package_list_errors(plant(tmp_path, files)) == ["kvsan.fuzz: a package in pyproject.toml without modules"]


def test_every_check_is_shown_to_trip() -> None:
    assert {check for check, _, _ in UNTIDY} == set(CHECKS)
