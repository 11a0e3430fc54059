"""Triton's interpreter, repaired: ``enable()`` comes before Triton is first imported."""

from kvsan.gpu_kernels.interpreter.repair import VARIABLE, enable, enabled, unchecked, unknown_internals

__all__ = ["VARIABLE", "enable", "enabled", "unchecked", "unknown_internals"]
