"""Interprets Triton kernels where no device can run them; before any test imports Triton, since that decides it."""

from __future__ import annotations

import importlib.util

import torch

from kvsan.gpu_kernels import interpreter

if importlib.util.find_spec("triton") is not None and not torch.cuda.is_available():
    interpreter.enable()
    from kvsan.invariants.proofs.kernels import preconditions

    preconditions.install()

# Blocks of test kernels are small: threads of one operation would wait for each other, and for other test processes.
torch.set_num_threads(1)
