"""What is installed beside KVSan: torch as a CPU build, and nothing of CUDA."""

import re
from collections.abc import Iterable
from importlib.metadata import distributions

import pytest
import torch


def cuda_packages(names: Iterable[str]) -> list[str]:
    """Give the names that belong to a CUDA runtime; ``nvidia-ml-py`` is a binding without one."""
    found = {re.sub(r"[-_.]+", "-", name).lower() for name in names}
    return sorted(name for name in found if re.fullmatch(r"nvidia-(?!ml-py$).*|cuda-.*", name))


without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="a machine with a GPU may have CUDA")


@without_gpu
def test_nothing_of_cuda_is_installed() -> None:
    assert cuda_packages(distribution.metadata["Name"] for distribution in distributions()) == []


@without_gpu
def test_torch_is_a_cpu_build() -> None:
    assert torch.version.cuda is None


@pytest.mark.parametrize("name", ["nvidia-cublas-cu12", "nvidia_cudnn_cu13", "NVIDIA-nccl", "cuda-bindings"])
def test_cuda_package_is_noticed(name: str) -> None:
    assert len(cuda_packages(["torch", "nvidia-ml-py", "barracuda-x", name])) == 1
