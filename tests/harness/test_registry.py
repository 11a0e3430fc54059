"""Names of targets: real modules on the path, real entry points in a distribution beside them."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvsan.harness.registry import GROUP, available, is_builtin_in_process, resolve
from kvsan.harness.verdict import UsageError

MODULES = {
    "user_target.py": '''
class Manager:
    """A manager of blocks.

    More about it.
    """

    class Inner:
        def __init__(self, configuration): ...

def make_target(configuration):
    return ("made", configuration)

NOT_CALLABLE = 3
''',
    "user_package/__init__.py": "",
    "user_package/raises.py": "raise RuntimeError('no\\nlibrary')",
    "user_package/exits.py": "raise SystemExit(3)",
    "user_package/needs.py": "import a_module_that_is_not_there",
    "user_package/lazy.py": "def __getattr__(name): raise LookupError(name)",
}

ENTRY_POINTS = f"""
[{GROUP}]
shelf = user_target:Manager
broken = user_package.raises:make_target
plain = user_target:make_target
paged = user_target:Manager
"""


@pytest.fixture
def user_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, text in MODULES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    distribution = tmp_path / "user-1.0.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: user\nVersion: 1.0\n")
    (distribution / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.usefixtures("user_code")
@pytest.mark.parametrize(
    ("name", "qualified"),
    [
        ("user_target:Manager", "Manager"),
        ("user_target:Manager.Inner", "Manager.Inner"),
        ("user_target:make_target", "make_target"),
        ("shelf", "Manager"),
        ("shelf@2.0", "Manager"),
    ],
)
def test_name_leads_to_the_factory(name: str, qualified: str) -> None:
    assert resolve(name).__qualname__ == qualified


@pytest.mark.usefixtures("user_code")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent_targets:Manager", "target 'absent_targets:Manager': no module absent_targets; expected one"),
        ("absent.module:Manager", "no module absent; expected one that Python can import"),
        ("user_package.absent:Manager", "no module user_package.absent; expected"),
        ("user_target.inner:Manager", "no module user_target.inner; expected"),
        ("user_target:Managre", "user_target has no Managre; expected a class or function"),
        ("user_target:Manager.Outer", "user_target has no Manager.Outer; expected"),
        ("user_target:NOT_CALLABLE", "NOT_CALLABLE in user_target is a int; expected a class or function"),
        ("user_package.raises:Manager", r"importing user_package.raises raises RuntimeError: no\\nlibrary$"),
        ("user_package.exits:Manager", "importing user_package.exits raises SystemExit: 3"),
        ("user_package.needs:Manager", "raises ModuleNotFoundError: No module named 'a_module_that_is_not_there'"),
        ("user_package.lazy:Manager", "importing user_package.lazy raises LookupError: Manager"),
        ("broken", "target 'broken': importing user_package.raises raises RuntimeError"),
        ("shelv", "unknown; did you mean shelf.*`kvsan targets` lists"),
        ("nothing-like-it", "unknown; expected a name that `kvsan targets` lists, or package.module:Class"),
        ("", "target '': unknown"),
        ("os; import x:y", "target 'os; import x:y': unknown"),
        ("a\nb", r"target 'a\\nb': unknown"),
        ("x" * 5000, "target 'x{77}...': unknown"),
    ],
)
def test_what_cannot_be_resolved_is_a_usage_error_of_one_line(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as refusal:
        resolve(name)
    assert str(refusal.value).isprintable()


@pytest.mark.usefixtures("user_code")
def test_available_describes_each_target_in_one_line() -> None:
    listed = dict(available())
    assert listed["shelf"] == "A manager of blocks."
    assert listed["plain"] == "no description"
    assert listed["broken"].startswith("cannot be loaded: target 'broken': importing")
    assert {"paged", "canary", "mutant", "vllm"} <= set(listed)


@pytest.mark.usefixtures("user_code")
def test_another_package_cannot_take_a_builtin_name() -> None:
    assert resolve("paged").__module__.startswith("kvsan.")


@pytest.mark.parametrize("name", ["paged", "canary", "mutant:no-copy", "mutant"])
def test_pure_python_targets_run_in_process(name: str) -> None:
    assert is_builtin_in_process(name)


@pytest.mark.parametrize("name", ["vllm@0.22.1", "user_target:Manager", "paged:Manager", "shelf", "kvsan.paged:x"])
def test_everything_else_gets_a_worker(name: str) -> None:
    assert not is_builtin_in_process(name)
