"""What a user can hand in as a kernel, and what each mistake is told."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kvsan.fuzz.kernels import kernels_named
from kvsan.gpu_kernels.host import HostKernels
from kvsan.gpu_kernels.interface import CountsCalls, UnusableKernels
from kvsan.gpu_kernels.user_function import ATTENTION, COPY, WRITE, find_function

USER_KERNELS = Path(__file__).parents[1] / "user_targets"


@pytest.fixture(autouse=True)
def user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("torch_kernels.py", "triton_kernels.py"):
        shutil.copy(USER_KERNELS / name, tmp_path)
    (tmp_path / "raises_on_import.py").write_text("raise RuntimeError('no driver')\n")
    (tmp_path / "needs_another.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "role", "some"),
    [
        ("decode", ATTENTION, {"seq_lens", "scale"}),
        ("mixed", ATTENTION, {"query_start_loc", "window"}),
        ("checked", ATTENTION, {"sums", "row_sums"}),
        ("write", WRITE, {"slot_mapping", "key"}),
        ("copy", COPY, {"block_mapping"}),
    ],
)
def test_the_role_is_read_off_the_parameters(name: str, role: str, some: set[str]) -> None:
    function = find_function(f"torch_kernels:{name}")
    assert function.role == role
    assert some <= function.parameters
    assert "unused" not in function.parameters


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:decode", "no module no_such_module; expected one that Python can import"),
        (
            "needs_another:decode",
            "importing needs_another raises ModuleNotFoundError: No module named 'no_such_library'",
        ),
        ("raises_on_import:decode", "importing raises_on_import raises RuntimeError: no driver"),
        ("torch_kernels:decoed", "torch_kernels has no decoed; expected a function"),
        ("torch_kernels:number", "is a int; expected a function"),
        ("torch_kernels", "expected host, triton, or package.module:function for your own"),
        ("triton_kernels:paged_decode", "is a @triton.jit kernel; hand in the host function that launches it"),
        (
            "torch_kernels:asks_for_more",
            "asks for alibi_slopes, which nobody knows; a function for attention has output",
        ),
        ("torch_kernels:has_no_output", "lacks output; a function for attention has output, query, key_cache"),
        ("torch_kernels:has_no_role", "has no parameter that tells what it does; expected one of write(key, value"),
        ("torch_kernels:does_everything", "has parameters of write and attention; expected one of write("),
        ("torch_kernels:has_half_of_the_sums", "has one of sums and row_sums; expected both, or none of them"),
    ],
)
def test_a_mistake_is_told(name: str, message: str) -> None:
    with pytest.raises(UnusableKernels) as caught:
        kernels_named(name)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_names_of_kvsans_own() -> None:
    assert isinstance(kernels_named("host"), HostKernels)
    assert type(kernels_named("triton")).__name__ == "TritonKernels"
    assert not isinstance(kernels_named("host"), CountsCalls)
    assert isinstance(kernels_named("torch_kernels:decode"), CountsCalls)
